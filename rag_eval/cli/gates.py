"""Commands about verdicts: gate and rollout."""

from typing import Annotated

import typer

from rag_eval.cli.app import (
    GATE_FAILED,
    Home,
    OneGoldSet,
    Wait,
    app,
    console_for,
    open_settings,
    report_errors,
)


@app.command()
def gate(
    gold_set: OneGoldSet = None,
    run: Annotated[
        str,
        typer.Option(
            help="A kept run of the gold set: its id, 'latest', 'previous', or the path of any "
            "retrieval-metrics.json."
        ),
    ] = "latest",
    *,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Keep the run as the baseline of the regression gate. Needs --who and --why, "
            "which the record holds.",
        ),
    ] = False,
    who: Annotated[str, typer.Option(help="With --accept: who accepts the run.")] = "",
    why: Annotated[str, typer.Option(help="With --accept: the reason.")] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --accept: although a required gate did not pass; the record says so.",
        ),
    ] = False,
    home: Home = None,
    wait: Wait = None,
) -> None:
    """Print the verdict of a run; exit 2 if a required gate did not pass.

    Each run writes its verdict as JUnit XML and Markdown beside its report.
    """
    with report_errors():
        settings = open_settings(home, wait=wait)
        from rag_eval.pipeline.comparisons import accept_baseline
        from rag_eval.pipeline.history import open_run
        from rag_eval.reporting.verdicts import show_verdict, verdict_rows
        from rag_eval.storage.home import open_home

        owner = gold_set or settings.primary_gold_set
        stored = open_run(open_home(settings), run, owner)
        verdict = verdict_rows(stored.report(), gold_set or stored.gold_set)
        show_verdict(console_for(), verdict)
        if accept:
            record = accept_baseline(settings, stored.run_id, who, why, gold_set=owner, force=force)
            typer.echo(f"accepted: {record.run_id}")
    if verdict.failed:
        typer.echo(f"required gates failed: {', '.join(verdict.failed)}", err=True)
        raise typer.Exit(GATE_FAILED)


@app.command()
def rollout(
    candidate: Annotated[str, typer.Argument(help="The strategy that is rolled out.")],
    gold_set: OneGoldSet = None,
    *,
    against: Annotated[
        str | None,
        typer.Option(
            help="The strategy that answers now. Default: the first other one of the gold set."
        ),
    ] = None,
    run: Annotated[
        str, typer.Option(help="A kept run with both strategies: its id, 'latest' or 'previous'.")
    ] = "latest",
    measure: Annotated[
        str, typer.Option(help="A ranking measure such as recall_at_10 or mrr, or delta_s.")
    ] = "recall_at_10",
    home: Home = None,
) -> None:
    """Promote, hold or roll back a candidate; exit 2 when it is rolled back."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.comparisons import decide_rollout
        from rag_eval.storage.home import open_home

        compared = decide_rollout(
            open_home(settings),
            gold_set or settings.primary_gold_set,
            candidate,
            against=against,
            run=run,
            measure=measure,
        )
    from rag_eval.reporting.tables import Table, interval, print_parts

    decision, stored = compared.decision, compared.run
    rows = [
        [f"{compared.measure} of {compared.base}", interval(decision.base, None, None)],
        [f"{compared.measure} of {candidate}", interval(decision.candidate, None, None)],
        ["difference", interval(*decision.difference, sign="+")],
        [
            "degradation (share of the base, negative is better)",
            interval(*decision.degradation, sign="+"),
        ],
    ]
    print_parts(
        console_for(),
        [
            f"{decision.action.replace('_', ' ').upper()} ({candidate} against {compared.base})",
            *([Table.plain("", ["", "value"], rows)] if decision.n_questions else []),
            f"{decision.code}: {decision.reason}.",
            f"Evidence: {stored.level} level, run {stored.run_id}, gold {stored.gold_hash[:12]}.",
        ],
    )
    if decision.action == "roll_back":
        raise typer.Exit(GATE_FAILED)
