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

from rag_eval.core.errors import InputError, Problem

if TYPE_CHECKING:
    from rich.console import Console

    from rag_eval.core.settings import Settings
    from rag_eval.pipeline.evaluation import Evaluation, Progress
    from rag_eval.storage.home import Home as StoredHome

ORDER: Final = (
    "run show compare ask export gate rollout init lint validate view "
    "outcome claim audit calibrate trust clean"
).split()
"""Commands in the order of the help."""
REMOVED_COMMANDS: Final = {
    "baseline": "use `rag-eval gate --accept`",
    "calibrate compare": "the page of each report compares strategies",
    "explain": "use `rag-eval show RUN --question ID`",
    "miss-rates": "use rag_eval.compare_miss_rates in Python, or the page of each report",
    "outcome export": "read the table retrieval_outcomes of rag_eval.db with any SQL client",
    "outcome list": "read the table retrieval_outcomes of rag_eval.db with any SQL client",
    "review": "use `rag-eval view --drafts NAME`",
    "trust accept-manifest": "record the documents anew with `rag-eval trust sign`",
    "trust keygen": "run `openssl genpkey -algorithm ed25519 -out private.pem`",
    "trust list": "read evidence-trust.jsonl beside the report",
    "trust manifest": "use `rag-eval trust sign`",
    "trust show": "read evidence-trust.jsonl beside the report",
    "ui": "run `make ui`, or `dagster dev -m rag_eval.definitions` and `mlflow ui`",
}
"""Commands of earlier versions, each with what to use instead."""
ERROR, GATE_FAILED = 1, 2


class OrderedCommands(TyperGroup):
    """Command group that lists its commands in the order of ORDER, not of the imports."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a command that was removed is refused by its name."""
        for end in (1, 2):
            if advice := REMOVED_COMMANDS.get(name := " ".join(args[:end])):
                typer.echo(f"rag-eval {name} was removed; {advice}", err=True)
                raise typer.Exit(ERROR)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of the commands."""
        del ctx
        return sorted(self.commands, key=ORDER.index)


app = typer.Typer(
    cls=OrderedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="How often does this retriever miss what the answer needed, and how sure are we?",
)

Home = Annotated[
    str | None,
    typer.Option(
        help="Folder of stores (artifacts, vectors, MLflow, Dagster), or the address of an object "
        "store. Default: .rag_eval"
    ),
]
Reports = Annotated[Path | None, typer.Option(help="Folder of reports. Default: reports")]
OneGoldSet = Annotated[
    str | None, typer.Argument(help="The gold set. Default: the primary gold set.")
]
Wait = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Longest wait for another run that writes to the home, in seconds; 0: none. "
        "Default: wait_s of the settings, 600.",
    ),
]
GoldSets = Annotated[Path | None, typer.Option(help="Folder of gold sets. Default: gold_sets")]


def _print_version(asked: bool) -> None:
    if asked:
        from rag_eval import __version__

        typer.echo(__version__)
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


@app.callback()
def _options(*, version: _Version = False) -> None:
    del version


def open_settings(
    home: str | None = None,
    reports: Path | None = None,
    gold_sets: Path | None = None,
    wait: float | None = None,
) -> "Settings":
    """Read the settings with the options of this command, and turn telemetry off."""
    from pydantic import ValidationError

    from rag_eval.core.settings import Settings, telemetry_off

    telemetry_off()
    options = {"home": home, "reports": reports, "gold_sets": gold_sets, "wait_s": wait}
    try:
        return Settings.model_validate({k: v for k, v in options.items() if v is not None})
    except ValidationError as error:
        file = "settings.toml or environment RAG_EVAL_*"
        raise InputError(
            [
                Problem(
                    "bad_setting",
                    item["msg"],
                    file=file,
                    field=".".join(map(str, item["loc"])),
                    found=_shown_value(item["loc"], item.get("input")),
                )
                for item in error.errors()
            ]
        ) from error


def open_home(home: str | None, wait: float | None = None) -> "tuple[Settings, StoredHome]":
    """Open the home of the settings for the commands that read kept runs."""
    settings = open_settings(home, wait=wait)
    from rag_eval.storage.home import open_home as open_stores

    return settings, open_stores(settings)


def _shown_value(place: "tuple[int | str, ...]", value: object) -> str | None:
    """Return the text of a setting; None if it may hold a key or a password."""
    from rag_eval.storage.secrets import shown_service

    is_secret = place[:1] == ("database_url",) or place[-1:] == ("api_key",)
    if is_secret or isinstance(value, dict | list):
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
    """Turn errors of the input and of files into lines on standard error and exit status 1.

    Code inside that asks to exit, with any status, is such an error: a command ends with success or
    a failed gate only after this context.
    """
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
    except (SystemExit, typer.Exit, typer.Abort) as error:
        status = getattr(error, "exit_code", getattr(error, "code", None))
        typer.echo(f"error stopped: a library asked to exit with status {status}", err=True)
        raise typer.Exit(ERROR) from error
    except OSError as error:  # a full disk or a missing permission needs no traceback
        place = None if error.filename is None else os.fsdecode(error.filename)
        problem = Problem("file_system", error.strerror or type(error).__name__, file=place)
        again = "the command did not finish; fix this and run it again: finished stages are kept"
        typer.echo(f"{problem}\n{again}", err=True)
        raise typer.Exit(ERROR) from None


def open_evaluation(
    gold_set: str | None, home: str | None, gold_sets: Path | None, wait: float | None = None
) -> "Evaluation":
    """Open one gold set, by default the primary one, for the commands that read its strategies."""
    settings = open_settings(home, None, gold_sets, wait)
    from rag_eval.pipeline.opening import open_gold_set, select_gold_sets

    folder = select_gold_sets(settings.gold_sets, [gold_set or settings.primary_gold_set])[0]
    return open_gold_set(folder, settings, progress=progress_for())


def console_for() -> "Console":
    """Open a console; output to a file has no colours, and 120 columns or COLUMNS."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if console.is_terminal:
        return console
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else 120
    return Console(highlight=False, width=width, no_color=True)


def progress_for() -> "Progress":
    """Show progress as lines on standard error."""
    from rag_eval.pipeline.evaluation import Lines

    return Lines(lambda line: typer.echo(line, err=True))
