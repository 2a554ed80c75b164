"""Commands about answers and citations: validate, explain."""

from pathlib import Path
from typing import Annotated

import typer

from rag_eval.cli.app import GATE_FAILED, Home, app, console_for, open_settings, report_errors


@app.command()
def validate(
    citations: Annotated[Path, typer.Argument(help="Citations as JSON lines, one payload a line.")],
    index: Annotated[
        Path | None,
        typer.Option(
            help="A home that `rag-eval run` has written: citations are held against the index of "
            "its newest run."
        ),
    ] = None,
    gold_set: Annotated[
        str | None, typer.Option(help="With --index: the newest run of this gold set.")
    ] = None,
) -> None:
    """Check a file of citations against every rule of the payload; exit 2 if any is not ok."""
    with report_errors():
        open_settings()
        from rag_eval.pipeline.run import live_index, validate_file, verdict_lines

        live, run = (None, "") if index is None else live_index(index, gold_set)
        result = validate_file(citations, live)
        if run:
            typer.echo(f"held against the index of {run}")
        for line in verdict_lines(result):
            typer.echo(line)
    if not result.passed:
        raise typer.Exit(GATE_FAILED)


@app.command()
def explain(
    query_id: Annotated[str, typer.Argument(help="A question of the gold set.")],
    run: Annotated[str, typer.Option(help="A run: its id or 'latest'.")] = "latest",
    gold_set: Annotated[str | None, typer.Option(help="The newest run of this gold set.")] = None,
    home: Home = None,
) -> None:
    """Show one question of a run: evidence, answer, citations with verdicts, and gold."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.review import explanation
        from rag_eval.reporting.listings import explain_question
        from rag_eval.reporting.terminal import print_parts

        found = explanation(settings.home, query_id, run=run, gold_set=gold_set)
        print_parts(console_for(), explain_question(found))
