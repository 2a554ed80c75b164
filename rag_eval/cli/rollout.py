"""Commands about rollouts: plan one in stages, and decide at each stage whether the candidate goes on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag_eval.cli.app import (
    GATE_FAILED,
    GoldSets,
    Home,
    app,
    command,
    console_for,
    open_settings,
    told,
)

if TYPE_CHECKING:
    from rag_eval.gates.rollout_record import Decided, Planned

rollout = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(
    rollout,
    name="rollout",
    help="Roll a candidate strategy out at 10, 50 and 100 %: plan the stages, then promote, hold or roll back from paired evidence.",
)

GoldSetName = Annotated[str, typer.Argument(help="The gold set that both strategies stand in.")]
Candidate = Annotated[str, typer.Option(help="The strategy that is rolled out.")]


@rollout.command()
def plan(
    gold_set: GoldSetName,
    *,
    current: Annotated[str, typer.Option(help="The strategy that answers now.")],
    candidate: Candidate,
    measure: Annotated[
        str,
        typer.Option(
            help="What is compared: a ranking measure such as recall_at_10 or mrr, or delta_s."
        ),
    ] = "recall_at_10",
    detect: Annotated[
        float,
        typer.Option(
            help="Relative degradation that each stage must be able to tell from zero: 0.05 is 5 % of the current mean."
        ),
    ] = 0.05,
    power: Annotated[float, typer.Option(help="Probability with which it must be told.")] = 0.8,
    restart: Annotated[
        bool, typer.Option("--restart", help="Give up a rollout of this candidate that is running.")
    ] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Plan the stages of a rollout: how many questions each needs, what this gold set has for it, and how much traffic brings them."""
    with told():
        settings = open_settings(home, None, gold_sets)
        from rag_eval.evaluation.rollout_records import record_path
        from rag_eval.evaluation.rollouts import plan_rollout

        planned = plan_rollout(
            settings,
            gold_set,
            current,
            candidate,
            measure=measure,
            detect=detect,
            power=power,
            restart=restart,
        )
        _show_plan(planned, gold_set)
        typer.echo(f"written to {record_path(settings.home, gold_set, candidate)}")
    typer.echo(f"next: {command()} rollout decide {gold_set} --candidate {candidate}")


@rollout.command()
def decide(
    gold_set: GoldSetName,
    *,
    candidate: Candidate,
    run: Annotated[
        str | None,
        typer.Option(
            help="Kept run that has both strategies: its id, 'latest' or 'previous'. Default: latest."
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            help="Outcomes of production instead (JSON lines: query, current, candidate, optionally group)."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be decided and write nothing.")
    ] = False,
    home: Home = None,
) -> None:
    """Promote, hold or roll back, with the reasons; exit 2 when the candidate is rolled back."""
    with told():
        settings = open_settings(home)
        from rag_eval.evaluation.rollouts import decide_rollout

        planned, decided = decide_rollout(
            settings, gold_set, candidate, run=run, evidence=evidence, dry_run=dry_run
        )
        _show_decision(planned, decided, dry_run=dry_run)
    if decided.action == "roll_back":
        raise typer.Exit(GATE_FAILED)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _show_plan(planned: "Planned", gold_set: str) -> None:
    from rag_eval.reporting.terminal import new_table

    console = console_for()
    names = ("new questions needed", "of traffic", "here: new", "here: all", "told from zero here")
    title = f"{gold_set}: {planned.candidate} against {planned.current} under {planned.measure}, {planned.level} level"
    table = new_table(title, [("stage", "right"), *((name, "right") for name in names)])
    for stage in planned.stages:
        here = f"{stage.gold_groups:,} ({stage.gold_questions:,} in all)"
        table.add_row(
            f"{stage.share * 100:g} %",
            f"{stage.needed:,}",
            f"{stage.traffic:,}",
            f"{stage.gold_new_groups:,}",
            here,
            _percent(stage.detects),
        )
    console.print(table)
    lines = (
        f"Counted are independent questions. Needed to tell a degradation of {_percent(planned.detect)} from zero with {planned.power * 100:g} % power (two-sided 5 %).",
        f"Rolled back with {planned.power * 100:g} % power at that number: a true degradation of {_percent(planned.rolled_back)} or more.",
        f"What this rests on: {planned.basis.sentence}.",
        f"Plan {planned.plan_id} is the salt that assigns questions.",
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _show_decision(planned: "Planned", decided: "Decided", *, dry_run: bool) -> None:
    from rag_eval.records.problems import quoted
    from rag_eval.reporting.terminal import interval, new_table

    console, found = console_for(), decided.figures
    to = (
        ""
        if decided.action != "promote"
        else f" to {decided.next_share * 100:g} %"
        if decided.next_share is not None
        else ": the rollout is done"
    )
    word = {"promote": "PROMOTE", "hold": "HOLD", "roll_back": "ROLL BACK"}[decided.action]
    console.print(
        f"{word}{to} (candidate {planned.candidate} at {decided.share * 100:g} %){', nothing written' if dry_run else ''}",
        markup=False,
    )
    if found.get("current") is not None:
        table = new_table("", [("", "left"), ("value", "right"), ("questions", "left")])
        of = f"{found['n_questions']:,} ({found['n_groups']:,} independent)"
        for name, key in ((planned.current, "current"), (planned.candidate, "candidate")):
            table.add_row(
                f"{planned.measure} of {name}",
                interval(found[key], found[f"{key}_low"], found[f"{key}_high"]),
                of,
            )
        difference = [
            "-" if found[key] is None else f"{found[key]:+.4f}"
            for key in ("difference", "ci_low", "ci_high")
        ]
        table.add_row(
            "difference",
            f"{difference[0]} [{difference[1]}, {difference[2]}]",
            f"{found['n_better']:,} better, {found['n_worse']:,} worse, {found['n_tied']:,} equal",
        )
        worse = f"{_percent(found['degradation'])} [{_percent(found['degradation_low'])}, {_percent(found['degradation_high'])}]"
        table.add_row(
            "degradation (negative is better)",
            worse if found["degradation"] is not None else "-",
            of,
        )
        console.print(table)
    source = f"{decided.evidence.kind} {decided.evidence.name}: {found['n_assigned']:,} of {found['n_given']:,} questions are the candidate's at this stage"
    for line in (
        *(f"{code}: {sentence}" for code, sentence in decided.reasons),
        source,
        *decided.notes,
    ):
        console.print(quoted(line, 1000), markup=False, soft_wrap=True)
