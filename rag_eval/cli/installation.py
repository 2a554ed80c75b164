"""Commands about the installation: view, clean."""

import contextlib
import webbrowser
from pathlib import Path
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

TLS = "nothing is encrypted, so put a proxy with TLS or an SSH tunnel in front"


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
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Any but this machine's own (127.0.0.1, ::1) needs an "
            "access token."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help="Port to listen on; 0 takes any that is free. Default: 7777."
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Take no feedback; the database is not opened.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File that holds the access token. Default: RAG_EVAL_VIEW_TOKEN, else a new one "
            "where one is needed."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name under which it is reached too (behind a proxy), without a port; again "
            "for more."
        ),
    ] = None,
    drafts: Annotated[
        str | None,
        typer.Option(
            help="Show the draft questions of this gold set instead, to accept, edit or drop each; "
            "on this machine only."
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the address in a browser.")
    ] = False,
    home: Home = None,
) -> None:
    """Show kept runs, questions and evidence in a browser until Ctrl-C.

    Feedback that is given there is recorded as outcomes.
    """
    if drafts is not None:
        _review(drafts, port, home, browser=browser)
        return
    with report_errors():
        settings = open_settings(home)
        from rag_eval.core.settings import VIEW_PORT
        from rag_eval.storage.sql import open_store
        from rag_eval.viewer.app import (
            address_of,
            choose_token,
            create_app,
            is_loopback,
            listen,
            serve,
        )

        bound = listen(host, VIEW_PORT if port is None else port)
        with bound:
            loopback, address = is_loopback(bound), address_of(bound)
            token = None if settings.view_token is None else settings.view_token.get_secret_value()
            token, is_new = choose_token(token, token_file, needed=not loopback)
            application = create_app(
                settings,
                read_only=read_only,
                token=token,
                port=bound.getsockname()[1],
                allow_hosts=allow_host or [],
                beyond_loopback=not loopback,
            )

            def ready() -> None:
                link = f"{address}?token={token}" if is_new else address
                typer.echo(f"evidence viewer of {settings.home}: {link}")
                if is_new:
                    typer.echo("the link holds the access token and is shown only here")
                elif token is not None:
                    typer.echo(f"sign in once at {address}?token=... with your access token")
                stored = "not taken" if read_only else f"recorded in {open_store(settings).address}"
                typer.echo(f"feedback: {stored}")
                if not loopback:
                    typer.echo("other machines can reach it, with the access token only: " + TLS)
                typer.echo("Ctrl-C ends it.")
                if browser:
                    webbrowser.open(link)

            serve(bound, application, ready)


def _review(drafts: str, port: int | None, home: str | None, *, browser: bool) -> None:
    """Let a person accept, edit or drop the drafts of a gold set, on this machine only."""
    with report_errors():
        evaluation = open_evaluation(drafts, home, None)
        from rag_eval.core.settings import VIEW_PORT
        from rag_eval.viewer.app import address_of, listen, serve
        from rag_eval.viewer.review import ReviewDesk, create_review

        token = evaluation.settings.view_token
        with listen("127.0.0.1", VIEW_PORT if port is None else port) as bound:
            desk, address = ReviewDesk(evaluation), address_of(bound)

            def ready() -> None:
                typer.echo(f"{len(desk.drafts())} drafts of {evaluation.config.name}: {address}")
                if token is not None:
                    typer.echo(f"sign in once at {address}?token=... with your access token")
                typer.echo("Ctrl-C ends it.")
                if browser:
                    webbrowser.open(address)

            secret = None if token is None else token.get_secret_value()
            with contextlib.suppress(KeyboardInterrupt):
                serve(bound, create_review(desk, secret, bound.getsockname()[1]), ready)
        left, name = len(desk.drafts()), evaluation.config.name
    typer.echo(f"{left} drafts are left" if left else f"next: {command()} lint {name}")
