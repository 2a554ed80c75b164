"""Commands about the installation: ui, version."""

import typer

from rag_eval.cli.app import GoldSets, Home, Reports, app, open_settings, told


@app.command()
def ui(home: Home = None, reports: Reports = None, gold_sets: GoldSets = None) -> None:
    """Start the Dagster web server and daemon and the MLflow UI on this machine; prints their addresses. Ends with Ctrl-C."""
    with told():
        settings = open_settings(home, reports, gold_sets)
        from rag_eval.defs.serving import serve

        status = serve(settings)
    raise typer.Exit(status)


@app.command()
def version() -> None:
    """Print the version."""
    from rag_eval import __version__

    typer.echo(__version__)
