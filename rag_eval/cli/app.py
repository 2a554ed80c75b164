"""The application, with the settings, consoles, progress and errors of every command.

A command imports its libraries when it is called, so that the command line starts quickly.

The exit status is 0 for success and 1 for an error of the input or the machine. It is 2 if a
required gate or a check failed.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

    from rag_eval.core.settings import Settings
    from rag_eval.pipeline.evaluation import Evaluation, Progress

ORDER: Final = (
    "run show compare explain gate rollout lint init validate view ui "
    "outcome claim audit calibrate baseline trust clean version"
).split()
"""Commands in the order of the help."""


class OrderedCommands(TyperGroup):
    """Command group that lists its commands in the order of ORDER, not of the imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of the commands."""
        del ctx
        return sorted(self.commands, key=ORDER.index)


app = typer.Typer(
    cls=OrderedCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="How often does this retriever miss what the answer needed, and how sure are we?",
)

ERROR, GATE_FAILED = 1, 2

Home = Annotated[
    Path | None,
    typer.Option(help="Folder of stores (artifacts, vectors, MLflow, Dagster). Default: .rag_eval"),
]
Reports = Annotated[Path | None, typer.Option(help="Folder of reports. Default: reports")]
OneGoldSet = Annotated[
    str | None, typer.Option("--gold-set", help="The gold set. Default: the primary gold set.")
]
GoldSets = Annotated[Path | None, typer.Option(help="Folder of gold sets. Default: gold_sets")]


def open_settings(
    home: Path | None = None, reports: Path | None = None, gold_sets: Path | None = None
) -> "Settings":
    """Read the settings with the folders of this command, and turn telemetry off."""
    from pydantic import ValidationError

    from rag_eval.core.errors import InputError, Problem
    from rag_eval.core.settings import Settings, telemetry_off

    telemetry_off()
    given = {"home": home, "reports": reports, "gold_sets": gold_sets}
    try:
        return Settings.model_validate({k: v for k, v in given.items() if v is not None})
    except ValidationError as error:
        raise InputError(
            [
                Problem(
                    "bad_setting",
                    item["msg"],
                    file="settings.toml or environment RAG_EVAL_*",
                    field=".".join(map(str, item["loc"])),
                    found=_shown_value(item["loc"], item.get("input")),
                )
                for item in error.errors()
            ]
        ) from error


def _shown_value(place: "tuple[int | str, ...]", value: object) -> str | None:
    """Return the text of a setting; None if it may hold a key or a password."""
    from rag_eval.storage.secrets import shown_service

    if (
        place[:1] in (("database_url",), ("view_token",))
        or place[-1:] == ("api_key",)
        or isinstance(value, dict | list)
    ):
        return None
    return repr(shown_service(value) if isinstance(value, str) else value)


def command() -> str:
    """Return the command that started this process, for messages."""
    script = Path(sys.argv[0]).absolute()
    if script.name == "rag-eval" and script.is_relative_to(Path.cwd()):
        return str(script.relative_to(Path.cwd()))
    return "rag-eval"


@contextlib.contextmanager
def report_errors(*, writes_report: bool = False) -> Iterator[None]:
    """Turn errors of the input and of files into lines on standard error and exit status 1."""
    from rag_eval.core.errors import InputError, Problem
    from rag_eval.corpus.masking import masked_text

    try:
        yield
    except InputError as error:
        errors = [problem for problem in error.problems if problem.severity == "error"]
        for problem in errors:
            typer.echo(masked_text(str(problem)), err=True)
        warnings = len(error.problems) - len(errors)
        also = f", {warnings} warnings (rag-eval lint lists them)" if warnings else ""
        end = "; no report was written" if writes_report else ""
        typer.echo(f"{len(errors)} error{'s' if len(errors) != 1 else ''}{also}{end}", err=True)
        raise typer.Exit(ERROR) from None
    except OSError as error:  # a full disk or a missing permission needs no traceback
        place = None if error.filename is None else os.fsdecode(error.filename)
        typer.echo(
            str(Problem("file_system", error.strerror or type(error).__name__, file=place)),
            err=True,
        )
        typer.echo(
            "the command did not finish; fix this and run it again: finished stages are kept",
            err=True,
        )
        raise typer.Exit(ERROR) from None


def open_evaluation(
    gold_set: str | None, home: Path | None, gold_sets: Path | None
) -> "Evaluation":
    """Open one gold set, by default the primary one, for the commands that read its strategies."""
    settings = open_settings(home, None, gold_sets)
    from rag_eval.pipeline.evaluation import open_gold_set, select_gold_sets

    folder = select_gold_sets(settings.gold_sets, [gold_set or settings.primary_gold_set])[0]
    return open_gold_set(folder, settings, progress=progress_for())


def console_for(*, err: bool = False) -> "Console":
    """Open a console; output to a file has no colours, and 120 columns or COLUMNS."""
    from rich.console import Console

    console = Console(stderr=err, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) > 0 else 120
        return Console(stderr=err, highlight=False, width=width, no_color=True)
    return console


def progress_for() -> "Progress":
    """Show progress on standard error, as bars on a screen and as lines elsewhere."""
    from rag_eval.pipeline.evaluation import Bars, Lines

    console = console_for(err=True)
    return Bars(console) if console.is_terminal else Lines(lambda line: typer.echo(line, err=True))
