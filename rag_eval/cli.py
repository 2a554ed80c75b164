"""`rag-eval`: the command line. Parses, calls one function of a stage, shows the result. Heavy libraries are imported by the command that needs them.

Exit status: 0 fine, 1 error (the input or the machine), 2 a required gate failed.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rag_eval.evaluation.inputs import Evaluation
    from rag_eval.evaluation.progress import Progress
    from rag_eval.evaluation.run import Outcome
    from rag_eval.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="How often does this retriever miss what the answer needed, and how sure are we?")

OK, ERROR, GATE_FAILED = 0, 1, 2

Home = Annotated[Path | None, typer.Option(help="Folder of stores (artifacts, vectors, MLflow, Dagster). Default: .rag_eval")]
Reports = Annotated[Path | None, typer.Option(help="Folder of reports. Default: reports")]
GoldSets = Annotated[Path | None, typer.Option(help="Folder of gold sets. Default: gold_sets")]


def _settings(home: Path | None = None, reports: Path | None = None, gold_sets: Path | None = None) -> "Settings":
    from pydantic import ValidationError

    from rag_eval.records.problems import InputError, Problem
    from rag_eval.settings import Settings, telemetry_off

    telemetry_off()
    given = {name: value for name, value in (("home", home), ("reports", reports), ("gold_sets", gold_sets)) if value is not None}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise InputError(
            [Problem("bad_setting", item["msg"], file="settings.toml or environment RAG_EVAL_*", field=".".join(map(str, item["loc"])), found=repr(item.get("input"))) for item in error.errors()]
        ) from error


def _command() -> str:
    """How this person starts the command line: a path below this folder as it is typed, else the bare name."""
    script = Path(sys.argv[0])
    with contextlib.suppress(ValueError, OSError):
        return str(script.absolute().relative_to(Path.cwd())) if script.name == "rag-eval" else "rag-eval"
    return "rag-eval"


@contextlib.contextmanager
def _told(*, writes_report: bool = False) -> Iterator[None]:
    """Turn errors about input, and files that cannot be read or written, into lines on standard error and exit status 1; the rest keeps its traceback."""
    from rag_eval.records.problems import InputError, Problem

    try:
        yield
    except InputError as error:
        errors = [problem for problem in error.problems if problem.severity == "error"]
        for problem in errors:
            typer.echo(str(problem), err=True)
        warnings = len(error.problems) - len(errors)
        also = f" and {warnings} warning{'s' if warnings != 1 else ''} (rag-eval lint lists them)" if warnings else ""
        end = "; no report was written" if writes_report else ""
        typer.echo(f"{len(errors)} error{'s' if len(errors) != 1 else ''}{also}{end}", err=True)
        raise typer.Exit(ERROR) from None
    except OSError as error:  # no room, no permission, a file where a folder should be: nothing that a traceback would explain
        place = None if error.filename is None else os.fsdecode(error.filename)
        typer.echo(str(Problem("file_system", error.strerror or type(error).__name__, file=place)), err=True)
        typer.echo("the command did not end; run it again when this is mended, finished stages are kept", err=True)
        raise typer.Exit(ERROR) from None


def _console(*, err: bool = False) -> "Console":
    from rich.console import Console

    console = Console(stderr=err, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        console = Console(stderr=err, highlight=False, width=int(columns) if columns.isdecimal() and int(columns) > 0 else 120, no_color=True)
    return console


def _progress() -> "Progress":
    from rag_eval.evaluation.progress import Bars, Lines

    console = _console(err=True)
    return Bars(console) if console.is_terminal else Lines(lambda line: typer.echo(line, err=True))


def _record_lineage(evaluations: "list[Evaluation]", outcomes: "list[Outcome]", settings: "Settings") -> None:
    """Show these runs in Dagster's lineage too; what fails here is told and changes nothing."""
    from rag_eval.defs.lineage import report_materializations
    from rag_eval.records.problems import quoted

    by_name = {outcome.gold_set: outcome for outcome in outcomes}
    for evaluation in evaluations:
        if evaluation.split is not None:  # a plain BEIR folder is no partition of the asset graph
            continue
        outcome = by_name[evaluation.config.name]
        try:
            report_materializations(settings.home / "dagster", evaluation, outcome.report, outcome.mlflow_run)
        except Exception as failure:  # noqa: BLE001 - the report on disk stands whatever Dagster's store does
            typer.echo(f"warning: Dagster did not record this run ({type(failure).__name__}: {quoted(str(failure), 400)}); the report is complete", err=True)


@app.command()
def run(
    gold_set: Annotated[list[str] | None, typer.Argument(help="Gold sets to run. Default: all that belong to the nightly job.")] = None,
    beir: Annotated[Path | None, typer.Option(help="Evaluate any BEIR folder instead (corpus.jsonl, queries.jsonl, qrels/).")] = None,
    split: Annotated[str, typer.Option(help="With --beir: which qrels/<split>.tsv judges.")] = "test",
    strategy: Annotated[list[str] | None, typer.Option(help="Only this strategy; may be repeated.")] = None,
    vectors: Annotated[Path | None, typer.Option(help="An .npz of vectors (sha256, vectors) for the vector and hybrid strategies.")] = None,
    home: Home = None,
    reports: Reports = None,
    gold_sets: GoldSets = None,
) -> None:
    """Evaluate gold sets and write reports; a second run computes only what changed."""
    with _told(writes_report=True):
        settings = _settings(home, reports, gold_sets)
        from rag_eval.evaluation.inputs import open_beir, open_gold_set, select_gold_sets
        from rag_eval.evaluation.run import evaluate_all
        from rag_eval.records.problems import InputError, Problem, quoted

        chosen, progress = tuple(strategy or ()), _progress()
        if beir is not None:
            if gold_set:
                raise InputError(Problem("bad_arguments", "give gold sets or --beir, not both", field="--beir", found=", ".join(gold_set)))
            evaluations = [open_beir(beir, split, settings, strategies=chosen, vectors=vectors, progress=progress)]
        else:
            evaluations = [
                open_gold_set(folder, settings, strategies=chosen, vectors=vectors, progress=progress) for folder in select_gold_sets(settings.gold_sets, gold_set or [])
            ]
        outcomes = evaluate_all(evaluations, settings)
        from rag_eval.reporting.terminal import show_outcome

        console = _console()
        for outcome in outcomes:
            show_outcome(console, outcome.report, outcome.folder, outcome.seconds, _command())
            if outcome.mlflow_error:
                typer.echo(f"warning: MLflow did not record this run ({quoted(outcome.mlflow_error, 400)}); the report is complete", err=True)
        _record_lineage(evaluations, outcomes, settings)
        failed = [name for outcome in outcomes for name in outcome.failed]
    if failed:
        typer.echo(f"required gates failed: {', '.join(failed)}", err=True)
        raise typer.Exit(GATE_FAILED)


@app.command()
def lint(
    gold_set: Annotated[list[str] | None, typer.Argument(help="Gold sets to check. Default: all.")] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """List every problem of a gold set with its file and line; exit 1 if one would block a run."""
    with _told():
        settings = _settings(home, None, gold_sets)
        from rag_eval.evaluation.inputs import open_gold_set, select_gold_sets
        from rag_eval.evaluation.linting import lint_gold_set

        errors = 0
        for folder in select_gold_sets(settings.gold_sets, gold_set or [], every=True):
            problems = lint_gold_set(open_gold_set(folder, settings, progress=_progress()))
            for problem in problems:
                typer.echo(str(problem))
            found = sum(problem.severity == "error" for problem in problems)
            typer.echo(f"{folder.name}: {found} errors, {len(problems) - found} warnings")
            errors += found
    if errors:
        raise typer.Exit(ERROR)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the new gold set: letters, digits, - and _.")],
    docs: Annotated[Path, typer.Option(help="Folder of Markdown or text documents.")],
    gold_sets: GoldSets = None,
) -> None:
    """Start a gold set over your own documents: a configuration and draft questions to be edited."""
    with _told():
        settings = _settings(None, None, gold_sets)
        from rag_eval.gold.scaffold import init_gold_set
        from rag_eval.records.gold_set import NAME
        from rag_eval.records.problems import InputError, Problem

        if not re.fullmatch(NAME, name):  # a name is one folder of the gold sets, never a path out of them
            raise InputError(Problem("bad_name", "this cannot be the name of a gold set", field="NAME", found=name, accepted="a letter or digit, then up to 63 letters, digits, - and _"))
        folder = settings.gold_sets / name
        init_gold_set(folder, docs)
    typer.echo(f"wrote {folder}")
    typer.echo(f"next: edit {folder / 'queries.jsonl'} (rewrite each draft as a user would ask it, remove its tag 'draft'), then: {_command()} lint {name} && {_command()} run {name}")


@app.command()
def compare(
    run_a: Annotated[str, typer.Argument(help="A run: its id, 'latest', 'previous', or the path of its retrieval-metrics.json.")],
    run_b: Annotated[str, typer.Argument(help="Another one.")],
    home: Home = None,
) -> None:
    """Compare two runs question by question: paired differences with intervals. Different gold is refused, different indexes are named."""
    with _told():
        settings = _settings(home)
        from rag_eval.evaluation.comparing import compare as paired
        from rag_eval.evaluation.comparing import differences, find_run
        from rag_eval.records.problems import quoted
        from rag_eval.reporting.terminal import comparisons_table

        a, b = find_run(run_a, settings.home), find_run(run_b, settings.home)
        notes = differences(a, b)
        rows = paired(a, b)
    console = _console()
    typer.echo(f"a: {quoted(a.report['run_id'])}\nb: {quoted(b.report['run_id'])}")
    if a.report["content_hash"] == b.report["content_hash"]:
        typer.echo("the runs found the same (equal content_hash)")
    for note in notes:
        typer.echo(quoted(note, 400))
    console.print(comparisons_table(rows, "Paired differences a - b, question by question"))


@app.command()
def show(
    run_id: Annotated[str, typer.Argument(help="A run: its id, 'latest', 'previous', or the path of its retrieval-metrics.json.")] = "latest",
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    home: Home = None,
) -> None:
    """Show a run again."""
    with _told():
        settings = _settings(home)
        from rag_eval.evaluation.comparing import find_run

        report = find_run(run_id, settings.home).report
    if json:
        from rag_eval.reporting.metrics_report import dumps

        typer.echo(dumps(report), nl=False)
        return
    from rag_eval.reporting.terminal import show_report

    show_report(_console(), report)


@app.command()
def ui(home: Home = None, reports: Reports = None, gold_sets: GoldSets = None) -> None:
    """Start the Dagster web server and daemon and the MLflow UI on this machine; prints their addresses. Ends with Ctrl-C."""
    with _told():
        settings = _settings(home, reports, gold_sets)
        from rag_eval.defs.serving import serve

        status = serve(settings)
    raise typer.Exit(status)


@app.command()
def version() -> None:
    """Print the version."""
    from rag_eval import __version__

    typer.echo(__version__)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a screen that lacks a character shows its number, not a traceback
    usage_error: Any = typer.BadParameter.__mro__[1]
    usage_error.exit_code = ERROR  # a mistyped command must not look like a failed gate to the night's script
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again, finished stages are kept", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
