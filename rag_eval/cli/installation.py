"""Commands about the installation: ui, version, clean."""

from typing import Annotated

import typer

from rag_eval.cli.app import GoldSets, Home, Reports, app, open_settings, report_errors


@app.command()
def ui(home: Home = None, reports: Reports = None, gold_sets: GoldSets = None) -> None:
    """Start Dagster, the MLflow UI and the viewer on this machine until Ctrl-C."""
    with report_errors():
        settings = open_settings(home, reports, gold_sets)
        from rag_eval.defs.serving import serve

        status = serve(settings)
    raise typer.Exit(status)


@app.command()
def version() -> None:
    """Print the version."""
    from rag_eval import __version__

    typer.echo(__version__)


@app.command()
def clean(
    keep: Annotated[
        int | None, typer.Option(min=1, help="Runs of each gold set that stay; default: all.")
    ] = None,
    older_than: Annotated[
        int | None, typer.Option(min=0, help="Remove runs older than this many days.")
    ] = None,
    home: Home = None,
) -> None:
    """Free space: remove old runs, results that nothing needs, and what killed runs left."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.cleaning import clean as clean_home

        for freed in clean_home(settings.home, keep, older_than):
            typer.echo(f"{freed.what}: {freed.count:,} removed, {freed.size:,} bytes freed")
