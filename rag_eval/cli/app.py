"""The application, its shared options, and how a command meets a person: settings, consoles, progress, errors.

Belongs here: what every command uses. The commands stand in the other files of this folder; each imports what it needs when it is called.

Exit status: 0 fine, 1 error (the input or the machine), 2 a required gate failed, or what was to be checked is not in order.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rag_eval.evaluation.progress import Progress
    from rag_eval.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="How often does this retriever miss what the answer needed, and how sure are we?",
)

OK, ERROR, GATE_FAILED = 0, 1, 2

Home = Annotated[
    Path | None,
    typer.Option(help="Folder of stores (artifacts, vectors, MLflow, Dagster). Default: .rag_eval"),
]
Reports = Annotated[Path | None, typer.Option(help="Folder of reports. Default: reports")]
GoldSets = Annotated[Path | None, typer.Option(help="Folder of gold sets. Default: gold_sets")]


def open_settings(
    home: Path | None = None, reports: Path | None = None, gold_sets: Path | None = None
) -> "Settings":
    """Read the settings, with the folders that this command was given; telemetry is off from here on."""
    from pydantic import ValidationError

    from rag_eval.records.problems import InputError, Problem
    from rag_eval.settings import Settings, telemetry_off

    telemetry_off()
    given = {
        name: value
        for name, value in (("home", home), ("reports", reports), ("gold_sets", gold_sets))
        if value is not None
    }
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise InputError(
            [
                Problem(
                    "bad_setting",
                    item["msg"],
                    file="settings.toml or environment RAG_EVAL_*",
                    field=".".join(map(str, item["loc"])),
                    found=_found(item["loc"], item.get("input")),
                )
                for item in error.errors()
            ]
        ) from error


def _found(place: "tuple[int | str, ...]", value: object) -> str | None:
    """What a setting was, where it cannot hold a key or a password."""
    from rag_eval.storage.credentials import shown_service

    if (
        place[:1] in (("database_url",), ("view_token",))
        or place[-1:] == ("api_key",)
        or isinstance(value, dict | list)
    ):
        return None
    return repr(shown_service(value) if isinstance(value, str) else value)


def command() -> str:
    """How this person starts the command line: a path below this folder as it is typed, else the bare name."""
    script = Path(sys.argv[0])
    with contextlib.suppress(ValueError, OSError):
        return (
            str(script.absolute().relative_to(Path.cwd()))
            if script.name == "rag-eval"
            else "rag-eval"
        )
    return "rag-eval"


@contextlib.contextmanager
def told(*, writes_report: bool = False) -> Iterator[None]:
    """Turn errors about input, and files that cannot be read or written, into lines on standard error and exit status 1; the rest keeps its traceback."""
    from rag_eval.corpus.outgoing import masked_text
    from rag_eval.records.problems import InputError, Problem

    try:
        yield
    except InputError as error:
        errors = [problem for problem in error.problems if problem.severity == "error"]
        for problem in errors:
            typer.echo(masked_text(str(problem)), err=True)
        warnings = len(error.problems) - len(errors)
        also = (
            f" and {warnings} warning{'s' if warnings != 1 else ''} (rag-eval lint lists them)"
            if warnings
            else ""
        )
        end = "; no report was written" if writes_report else ""
        typer.echo(f"{len(errors)} error{'s' if len(errors) != 1 else ''}{also}{end}", err=True)
        raise typer.Exit(ERROR) from None
    except OSError as error:  # no room, no permission, a file where a folder should be: nothing that a traceback would explain
        place = None if error.filename is None else os.fsdecode(error.filename)
        typer.echo(
            str(Problem("file_system", error.strerror or type(error).__name__, file=place)),
            err=True,
        )
        typer.echo(
            "the command did not end; run it again when this is mended, finished stages are kept",
            err=True,
        )
        raise typer.Exit(ERROR) from None


def console_for(*, err: bool = False) -> "Console":
    """Open a console: as wide as the screen, or 120 columns (or COLUMNS) without colours where the output is no screen."""
    from rich.console import Console

    console = Console(stderr=err, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        console = Console(
            stderr=err,
            highlight=False,
            width=int(columns) if columns.isdecimal() and int(columns) > 0 else 120,
            no_color=True,
        )
    return console


def progress_for() -> "Progress":
    """Show progress on standard error: bars on a screen, else lines."""
    from rag_eval.evaluation.progress import Bars, Lines

    console = console_for(err=True)
    return Bars(console) if console.is_terminal else Lines(lambda line: typer.echo(line, err=True))
