"""Commands about verdicts: gate, and the baseline for comparisons with later runs."""

from pathlib import Path
from typing import Annotated

import typer

from rag_eval.cli.app import (
    GATE_FAILED,
    Home,
    Reports,
    app,
    console_for,
    open_settings,
    report_errors,
)

baseline = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(
    baseline,
    name="baseline",
    help="Accept a run as the baseline that later runs are held against, or show what was "
    "accepted.",
)

GoldSetOption = Annotated[
    str | None, typer.Option(help="Whose baseline. Default: the primary gold set.")
]


@app.command()
def gate(
    gold_set: Annotated[
        str | None,
        typer.Argument(help="Whose newest report is judged. Default: the primary gold set."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            help="A kept run instead: its id, 'latest', 'previous', or the path of its "
            "retrieval-metrics.json."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the files of the verdict. Default: beside the report; a kept run has "
            "no such place and is only shown."
        ),
    ] = None,
    home: Home = None,
    reports: Reports = None,
) -> None:
    """Print the verdict of a report, write JUnit XML and Markdown; exit 2 if a gate failed."""
    with report_errors():
        settings = open_settings(home, reports)
        from rag_eval.core.errors import quoted
        from rag_eval.core.report import Report
        from rag_eval.pipeline.history import open_judged_run
        from rag_eval.reporting.verdicts import show_verdict, verdict_rows, write_verdict

        judged = open_judged_run(settings, gold_set, run)
        verdict = verdict_rows(Report.model_validate(judged.report()), gold_set or judged.gold_set)
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
    who: Annotated[str, typer.Option(help="Who accepts it; stands in the record.")],
    why: Annotated[str, typer.Option(help="For what reason; stands in the record.")],
    gold_set: GoldSetOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Accept it although a required gate did not pass; the record says so."
        ),
    ] = False,
    home: Home = None,
) -> None:
    """Keep a run as the baseline of the regression gate and the drift watch."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.baselines import accept_baseline

        folder = accept_baseline(settings, run, who, why, gold_set=gold_set, force=force)
    typer.echo(f"accepted: {folder}")


@baseline.command()
def show(gold_set: GoldSetOption = None, home: Home = None) -> None:
    """Show the accepted baseline with its figures, and every acceptance before it."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.core.report import Report
        from rag_eval.pipeline.baselines import acceptances, load_baseline
        from rag_eval.reporting.verdicts import baseline_lines, whole_report

        name = gold_set or settings.primary_gold_set
        accepted = load_baseline(settings.home, name)
        records = [record.model_dump() for record in acceptances(settings.home, name)]
        report = None
        if accepted is not None:
            whole_report(accepted.report, accepted.file)
            report = Report.model_validate(accepted.report)
        lines = baseline_lines(name, report, records)
    for line in lines:
        typer.echo(line)
