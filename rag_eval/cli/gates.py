"""Commands about verdicts: gate, rollout, and the baseline for comparisons with later runs."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag_eval.cli.app import (
    GATE_FAILED,
    CommandLine,
    Home,
    OneGoldSet,
    Reports,
    Wait,
    app,
    console_for,
    open_settings,
    report_errors,
)

if TYPE_CHECKING:
    from rag_eval.pipeline.comparisons import Rollout


baseline = CommandLine(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(
    baseline,
    name="baseline",
    help="Accept a run as the baseline of later runs, or show the accepted baseline.",
)


@app.command()
def gate(
    gold_set: Annotated[
        str | None,
        typer.Argument(
            help="The gold set whose newest report is judged. Default: the primary gold set."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="A kept run of the gold set instead: its id, 'latest', 'previous', or the path "
            "of any retrieval-metrics.json."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder for the files of the verdict. Default: beside the report; the verdict of "
                "a kept run is only shown."
            )
        ),
    ] = None,
    home: Home = None,
    reports: Reports = None,
) -> None:
    """Print a verdict, write JUnit XML and Markdown; exit 2 if a required gate did not pass."""
    with report_errors():
        settings = open_settings(home, reports)
        from rag_eval.core.errors import quoted
        from rag_eval.gold.configuration import gold_set_name
        from rag_eval.pipeline.evaluation import REPORTS
        from rag_eval.pipeline.history import open_run
        from rag_eval.reporting.verdicts import show_verdict, verdict_rows, write_verdict
        from rag_eval.storage.home import open_home

        owner = gold_set or settings.primary_gold_set
        newest = settings.reports / gold_set_name(owner) / "retrieval-metrics.json"
        store = open_home(settings)
        store.take(f"{REPORTS}/{gold_set_name(owner)}", newest.parent)
        judged = open_run(store, run or str(newest), owner)
        verdict = verdict_rows(judged.report(), gold_set or judged.gold_set)
        show_verdict(console_for(), verdict)
        folder = out or judged.folder
        written = () if folder is None else write_verdict(verdict, folder)
    for path in written:
        typer.echo(f"wrote {quoted(str(path), 400)}")
    if verdict.failed:
        typer.echo(f"required gates failed: {', '.join(verdict.failed)}", err=True)
        raise typer.Exit(GATE_FAILED)


@baseline.command()
def accept(
    run: Annotated[
        str, typer.Argument(help="A kept run: its id, 'latest' or 'previous' of the gold set.")
    ] = "latest",
    *,
    who: Annotated[str, typer.Option(help="Who accepts the run; the record holds the name.")],
    why: Annotated[str, typer.Option(help="Reason of the acceptance; the record holds it.")],
    gold_set: OneGoldSet = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Accept the run although a required gate did not pass; the record says so.",
        ),
    ] = False,
    home: Home = None,
    wait: Wait = None,
) -> None:
    """Keep a run as the baseline of the regression gate."""
    with report_errors():
        settings = open_settings(home, wait=wait)
        from rag_eval.pipeline.comparisons import accept_baseline

        name = gold_set or settings.primary_gold_set
        record = accept_baseline(settings, run, who, why, gold_set=name, force=force)
    typer.echo(f"accepted: {record.run_id}")


@baseline.command()
def show(gold_set: OneGoldSet = None, home: Home = None) -> None:
    """Show the accepted baseline with its figures, and every acceptance before it."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.comparisons import acceptances, load_baseline
        from rag_eval.reporting.verdicts import describe_baseline
        from rag_eval.storage.home import open_home

        name = gold_set or settings.primary_gold_set
        accepted = load_baseline(open_home(settings), name)
        records = [record.model_dump() for record in acceptances(open_home(settings), name)]
        run = None if accepted is None else accepted.run
        for line in describe_baseline(name, run, records):
            typer.echo(line)


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
        typer.Option(
            help="The gold set of both strategies, also as last argument NAME. Default: the "
            "primary gold set."
        ),
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
        from rag_eval.storage.home import open_home

        name = gold_set or settings.primary_gold_set
        found = decide_rollout(
            open_home(settings),
            name,
            candidate,
            against=against,
            stage=stage,
            run=run,
            measure=measure,
        )
        if out is not None:
            text = json.dumps(dataclasses.asdict(found), indent=2, sort_keys=True)
            write_text(out, f"{text}\n")
        _show(found)
    if found.decision.action == "roll_back":
        raise typer.Exit(GATE_FAILED)


def _show(found: "Rollout") -> None:
    from rag_eval.reporting.terminal import Sheet, interval, print_parts

    console, decision, figures = console_for(), found.decision, found.decision.figures
    to = f" to {found.next_stage} %" if found.next_stage else ""
    if decision.action == "promote" and not to:
        to = ": the rollout is done"
    action = decision.action.replace("_", " ").upper()
    lines = [f"{action}{to} ({found.candidate} against {found.base} at {found.stage} %)"]
    if figures.get("base") is not None:
        asked = f"{figures['n_questions']:,} (worth {figures['n_effective']:,.0f})"
        counts = "{n_better:,} better, {n_worse:,} worse, {n_tied:,} equal".format(**figures)
        rows = []
        for name, key, sign, beside in (
            (f"{found.measure} of {found.base}", "base", "", asked),
            (f"{found.measure} of {found.candidate}", "candidate", "", asked),
            ("difference", "difference", "+", counts),
            ("degradation (share of the base, negative is better)", "degradation", "+", asked),
        ):
            value, low, high = (figures[f"{key}{end}"] for end in ("", "_low", "_high"))
            rows.append([name, interval(value, low, high, sign), beside])
        print_parts(console, [*lines, Sheet("", ["", ">value", "questions"], rows)])
        lines = []
    lines += [f"{code}: {sentence}." for code, sentence in decision.reasons.items()]
    if decision.questions_needed is not None:
        lines.append(
            f"{decision.questions_needed:,} independent questions would decide with 80 % power if "
            f"the difference stays as it is; those scored are worth {figures['n_effective']:,.0f}."
        )
    lines.append(f"Evidence: {found.level} level, run {found.run_id}, gold {found.gold_hash[:12]}.")
    print_parts(console, lines)
