"""`rag-eval`: the command line. Parses, calls one function of a stage, shows the result.

Belongs here: the entry point. Commands appear in the help in the order of the imports below.
"""

import io
import sys
from typing import Any

import typer

from rag_eval.cli import (
    evaluate,
    gates,
    rollout,
    calibrate,
    outcomes,
    audits,
    answers,
    trust,
    gold_sets,
    view,
    installation,
)  # isort: skip - commands stand in the help in this order
from rag_eval.cli.app import ERROR, app

__all__ = [
    "answers",
    "app",
    "audits",
    "calibrate",
    "evaluate",
    "gates",
    "gold_sets",
    "installation",
    "main",
    "outcomes",
    "rollout",
    "trust",
    "view",
]


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a screen that lacks a character shows its number, not a traceback
    usage_error: Any = typer.BadParameter.__mro__[1]
    usage_error.exit_code = (
        ERROR  # a mistyped command must not look like a failed gate to the night's script
    )
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again, finished stages are kept", err=True)
        sys.exit(130)
