"""Command line `rag-eval`: a command parses options, calls a stage and shows the result."""

import gc
import io
import sys
from typing import Any

import typer

from rag_eval.cli import evaluate, judgements, runs
from rag_eval.cli.app import ERROR, app

__all__ = ["app", "main"]

MODULES = (evaluate, judgements, runs)
"""Modules that add their commands to the application when they are imported."""


def main() -> None:
    """Run the command line."""
    # A run makes millions of objects that last. The default of 700 would walk them again and again.
    gc.set_threshold(50_000, 20, 100)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # show the number of a character that the screen lacks, instead of a traceback
            stream.reconfigure(errors="backslashreplace")
    usage_error: Any = typer.BadParameter.__mro__[1]
    # click's status 2 would make a mistyped command look like a failed gate
    usage_error.exit_code = ERROR
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again, finished stages are kept", err=True)
        sys.exit(130)
