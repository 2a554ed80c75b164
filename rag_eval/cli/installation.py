"""Commands about the installation: view, clean."""

import contextlib
import webbrowser
from typing import Annotated

import typer

from rag_eval.cli.app import (
    Home,
    Wait,
    app,
    command,
    open_evaluation,
    open_settings,
    report_errors,
)


@app.command()
def clean(
    keep: Annotated[
        int | None, typer.Option(min=1, help="Runs of each gold set that stay; default: all.")
    ] = None,
    home: Home = None,
    wait: Wait = None,
) -> None:
    """Free space: remove old runs, results that nothing needs, and what killed runs left."""
    with report_errors():
        settings = open_settings(home, wait=wait)
        from rag_eval.pipeline.cleaning import clean as clean_home

        for freed in clean_home(settings, keep):
            typer.echo(f"{freed.what}: {freed.count:,} removed, {freed.size:,} bytes freed")


@app.command()
def view(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help="Port to listen on; 0 takes any that is free. Default: 7777."
        ),
    ] = None,
    drafts: Annotated[
        str | None,
        typer.Option(
            help="Show the draft questions of this gold set instead, to accept, edit or drop each."
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the address in a browser.")
    ] = False,
    home: Home = None,
) -> None:
    """Show kept runs, their questions and reports in a browser, on this machine only."""
    if drafts is not None:
        _review(drafts, port, home, browser=browser)
        return
    with report_errors():
        settings = open_settings(home)
        from rag_eval.core.settings import VIEW_PORT
        from rag_eval.viewer.app import create_app, listen, serve

        with listen(VIEW_PORT if port is None else port) as bound:
            serve(
                bound,
                create_app(settings),
                lambda address: _announce(f"evidence viewer of {settings.home}", address, browser),
            )


def _announce(what: str, address: str, browser: bool) -> None:
    """Print the address of a page that is served now, and open it in a browser if asked to."""
    typer.echo(f"{what}: {address}\nCtrl-C ends it.")
    if browser:
        webbrowser.open(address)


def _review(drafts: str, port: int | None, home: str | None, *, browser: bool) -> None:
    """Let a person accept, edit or drop the drafts of a gold set."""
    with report_errors():
        evaluation = open_evaluation(drafts, home, None)
        from rag_eval.core.settings import VIEW_PORT
        from rag_eval.viewer.app import listen, serve
        from rag_eval.viewer.review import ReviewDesk, create_review

        with (
            listen(VIEW_PORT if port is None else port) as bound,
            contextlib.suppress(KeyboardInterrupt),
        ):
            desk, name = ReviewDesk(evaluation), evaluation.config.name
            what = f"{len(desk.drafts())} drafts of {name}"
            serve(bound, create_review(desk), lambda address: _announce(what, address, browser))
        left = len(desk.drafts())
    typer.echo(f"{left} drafts are left" if left else f"next: {command()} lint {name}")
