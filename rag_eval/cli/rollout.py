"""The command that promotes, holds or rolls back a candidate strategy."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag_eval.cli.app import GATE_FAILED, Home, app, console_for, open_settings, report_errors

if TYPE_CHECKING:
    from rag_eval.pipeline.comparisons import Rollout

_WORDS = {"promote": "PROMOTE", "hold": "HOLD", "roll_back": "ROLL BACK"}


@app.command()
def rollout(
    candidate: Annotated[str, typer.Argument(help="The strategy that is rolled out.")],
    *,
    against: Annotated[
        str | None,
        typer.Option(
            help="The strategy that answers now. Default: the first other one of the gold set."
        ),
    ] = None,
    stage: Annotated[
        int,
        typer.Option(
            help="Per cent of the questions that the candidate answers now: 10, 50 or 100."
        ),
    ] = 10,
    gold_set: Annotated[
        str | None,
        typer.Option(help="The gold set of both strategies. Default: the primary gold set."),
    ] = None,
    run: Annotated[
        str, typer.Option(help="A kept run with both strategies: its id, 'latest' or 'previous'.")
    ] = "latest",
    measure: Annotated[
        str, typer.Option(help="A ranking measure such as recall_at_10 or mrr, or delta_s.")
    ] = "recall_at_10",
    out: Annotated[
        Path | None, typer.Option("--json", help="Write the decision to this file too.")
    ] = None,
    home: Home = None,
) -> None:
    """Promote, hold or roll back a candidate; exit 2 when it is rolled back."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.comparisons import decide_rollout
        from rag_eval.storage.artifacts import write_text

        name = gold_set or settings.primary_gold_set
        found = decide_rollout(
            settings.home, name, candidate, against=against, stage=stage, run=run, measure=measure
        )
        if out is not None:
            write_text(out, json.dumps(found.as_json(), indent=2, sort_keys=True) + "\n")
        _show(found)
    if found.decision.action == "roll_back":
        raise typer.Exit(GATE_FAILED)


def _show(found: "Rollout") -> None:
    from rag_eval.reporting.terminal import interval, make_table

    console, decision, figures = console_for(), found.decision, found.decision.figures
    to = (
        f" to {found.next_stage} %"
        if found.next_stage
        else ": the rollout is done"
        if decision.action == "promote"
        else ""
    )
    console.print(
        f"{_WORDS[decision.action]}{to} ({found.candidate} against {found.base} at {found.stage} "
        "%)",
        markup=False,
    )
    if figures.get("base") is not None:
        asked = f"{figures['n_questions']:,} ({figures['n_groups']:,} independent)"
        counts = (
            f"{figures['n_better']:,} better, {figures['n_worse']:,} worse, "
            f"{figures['n_tied']:,} equal"
        )
        rows = [
            [
                f"{found.measure} of {name}",
                interval(figures[key], figures[f"{key}_low"], figures[f"{key}_high"]),
                asked,
            ]
            for name, key in ((found.base, "base"), (found.candidate, "candidate"))
        ]
        for name, key, form, beside in (
            ("difference", "difference", "{:+.4f}", counts),
            ("degradation (negative is better)", "degradation", "{:.1%}", asked),
        ):
            value, low, high = (
                "-" if (bound := figures[f"{key}{end}"]) is None else form.format(bound)
                for end in ("", "_low", "_high")
            )
            rows.append([name, f"{value} [{low}, {high}]", beside])
        console.print(make_table("", ["", ">value", "questions"], rows))
    lines = [f"{code}: {sentence}." for code, sentence in decision.reasons]
    if decision.questions_needed is not None:
        lines.append(
            f"{decision.questions_needed:,} independent questions would decide with 80 % power if "
            f"the difference stays as it is; {figures['n_groups']:,} were scored."
        )
    lines.append(f"Evidence: {found.level} level, run {found.run_id}, gold {found.gold_hash[:12]}.")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
