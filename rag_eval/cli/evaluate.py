"""Commands that start, check and evaluate gold sets and show their runs.

The commands are init, lint, run, compare, show, ask, export and validate.
"""

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rag_eval.cli.app import (
    ERROR,
    GATE_FAILED,
    GoldSets,
    Home,
    Reports,
    Wait,
    app,
    command,
    console_for,
    open_evaluation,
    open_settings,
    progress_for,
    report_errors,
)
from rag_eval.core.errors import format_count, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rag_eval.core.settings import Settings
    from rag_eval.corpus.loading import LoadedCorpus
    from rag_eval.gold.scaffold import Question
    from rag_eval.pipeline.evaluation import Evaluation
    from rag_eval.pipeline.stages import Outcome

ROOTS_VARIABLE = "RAG_EVAL_CORPUS_ROOTS"
MOST_LISTED = 20
"""Most problems of a gold set that have a line each."""


@app.command()
def lint(
    gold_set: Annotated[
        list[str] | None, typer.Argument(help="Gold sets to check. Default: all.")
    ] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """List the problems of a gold set with file and line; exit 1 if one would block a run.

    Of many problems, those of one kind stand in one line, with their number and the first places.
    """
    with report_errors():
        settings = open_settings(home, None, gold_sets)
        from rag_eval.core.errors import grouped
        from rag_eval.corpus.masking import masked_text
        from rag_eval.pipeline.needs import lint_gold_set
        from rag_eval.pipeline.opening import open_gold_set, select_gold_sets

        errors = 0
        for folder in select_gold_sets(settings.gold_sets, gold_set or [], every=True):
            problems = lint_gold_set(open_gold_set(folder, settings, progress=progress_for()))
            lines = [*map(str, problems)] if len(problems) <= MOST_LISTED else grouped(problems)
            for line in lines:
                typer.echo(masked_text(line))
            n_errors = sum(problem.severity == "error" for problem in problems)
            typer.echo(f"{folder.name}: {n_errors} errors, {len(problems) - n_errors} warnings")
            errors += n_errors
    if errors:
        raise typer.Exit(ERROR)


def _draft_by_endpoint(settings: "Settings") -> "Callable[[LoadedCorpus], list[Question]]":
    """Let the first chat endpoint of the settings draft the questions."""
    from rag_eval.answers.chat import ChatCache, ChatClient
    from rag_eval.core.errors import InputError
    from rag_eval.core.types import ChatError, Message, Reply
    from rag_eval.gold.scaffold import MAX_DRAFTS, ask_for_drafts
    from rag_eval.storage.sql import open_store

    if not settings.endpoints:
        message, accepted = "no chat endpoint is configured", "an entry of endpoints, see docs"
        raise InputError.of(
            "no_endpoint", message, "settings.toml", field="endpoints", accepted=accepted
        )
    name, endpoint = next(iter(settings.endpoints.items()))
    client = ChatClient(endpoint, ChatCache(open_store(settings)))

    def draft(corpus: "LoadedCorpus") -> "list[Question]":
        title = f"Drafts by endpoint {name}, model {endpoint.model}"
        with progress_for().step(title, MAX_DRAFTS, "passages") as advance:

            def ask(messages: "Sequence[Message]") -> "Reply":
                reply = client.ask(messages)
                advance(1)
                return reply

            try:
                drafts, dropped = ask_for_drafts(corpus, ask, endpoint.concurrency)
            except ChatError as error:
                raise InputError.of(
                    f"endpoint_{error.code}", str(error), field=f"endpoints.{name}"
                ) from None
        for reason, count in dropped.items():
            typer.echo(f"{count} replies were dropped: {reason}", err=True)
        return drafts

    return draft


@app.command()
def init(
    name: Annotated[
        str, typer.Argument(help="Name of the new gold set: letters, digits, - and _.")
    ],
    docs: Annotated[
        Path, typer.Option(help="Folder of documents: Markdown, text, rst, HTML, notebooks, PDF.")
    ],
    *,
    gold: Annotated[
        Path | None,
        typer.Option(
            help="CSV file of your questions with the header question,document,quote, instead of "
            "passages drawn at random."
        ),
    ] = None,
    llm: Annotated[
        bool,
        typer.Option("--llm", help="Let the first chat endpoint of the settings draft questions."),
    ] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Start a gold set over your own documents: a configuration and passages to ask about."""
    with report_errors():
        settings = open_settings(home, None, gold_sets)
        from rag_eval.core.errors import InputError
        from rag_eval.core.settings import SETTINGS_FILE
        from rag_eval.gold.configuration import gold_set_name, is_below
        from rag_eval.gold.scaffold import (
            draw_drafts,
            init_gold_set,
            list_corpus_root,
            read_questions,
        )

        # a path as name could write outside the folder of gold sets
        folder = settings.gold_sets / gold_set_name(name, "NAME")
        is_listed = is_below(docs, settings.corpus_roots)
        if not is_listed and any(key.upper() == ROOTS_VARIABLE for key in os.environ):
            raise InputError.of(
                "root_not_listed",
                "this variable hides settings.toml and does not list the folder of documents",
                field=ROOTS_VARIABLE,
                found=str(docs.resolve()),
                accepted="the folder in the variable, or no such variable",
            )
        if gold is not None and llm:
            message = "give --gold or --llm, not both"
            raise InputError.of("bad_arguments", message, field="--llm")
        ask = _draft_by_endpoint(settings) if llm else draw_drafts
        if gold is not None:
            ask = functools.partial(read_questions, gold)
        count, broken = init_gold_set(folder, docs, ask)
        if not is_listed:
            list_corpus_root(Path(SETTINGS_FILE), docs)
    what = "drafts" if gold is None else f"questions of {gold}"
    typer.echo(f"wrote {folder} with {count} {what}")
    for path, reason in sorted(broken.items()):
        typer.echo(f"skipped {quoted(path)}: {reason}")
    if not is_listed:
        typer.echo(
            f"added {docs.resolve()} to corpus_roots in {SETTINGS_FILE}: gold sets may read files "
            "below it"
        )
    check = f"{command()} lint {name} && {command()} run {name}"
    if gold is not None:
        typer.echo(f"next: {check}")
    elif count:
        typer.echo(f"next: {command()} view --drafts {name}, then: {check}")
    else:
        typer.echo(
            f"no sentence can be quoted; write questions into {folder / 'queries.jsonl'} "
            f"(see {folder / 'README.md'}), then: {check}"
        )


def _record_lineage(evaluations: "list[Evaluation]") -> None:
    """Record the runs in Dagster's lineage; a failure only prints a warning."""
    from rag_eval.core.errors import quoted
    from rag_eval.defs.instance import record_lineage

    for evaluation in evaluations:
        if not evaluation.known:  # the graph has no partition for a BEIR folder
            continue
        try:
            record_lineage(evaluation.home.folder / "dagster", evaluation)
        except Exception as failure:  # noqa: BLE001 - the report on disk stands whatever Dagster's store does
            typer.echo(
                f"warning: Dagster did not record this run ({type(failure).__name__}: "
                f"{quoted(str(failure), 400)}); the report is complete",
                err=True,
            )


def _warn(outcome: "Outcome") -> None:
    """Print what failed beside the report."""
    from rag_eval.core.errors import quoted

    if outcome.mlflow_error:
        typer.echo(f"warning: {outcome.mlflow_error}", err=True)
    if outcome.trace_error:
        typer.echo(
            f"warning: the traces were not written ({quoted(outcome.trace_error, 400)}); "
            "the report is complete",
            err=True,
        )


@app.command()
def run(
    gold_set: Annotated[
        list[str] | None,
        typer.Argument(help="Gold sets to run. Default: all that belong to the nightly job."),
    ] = None,
    beir: Annotated[
        Path | None,
        typer.Option(
            help="Evaluate any BEIR folder instead (corpus.jsonl, queries.jsonl, qrels/)."
        ),
    ] = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            help="Evaluate recorded outputs of your own system instead (JSONL, a folder with "
            "outputs.jsonl, or an export of another tool); no corpus is needed."
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="With --beir: which qrels/<split>.tsv judges.")
    ] = "test",
    strategy: Annotated[
        list[str] | None, typer.Option(help="Only this strategy; may be repeated.")
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            help="An .npz of vectors (sha256, vectors) for the vector and hybrid strategies."
        ),
    ] = None,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print also every table of the page.")
    ] = False,
    home: Home = None,
    reports: Reports = None,
    gold_sets: GoldSets = None,
    wait: Wait = None,
) -> None:
    """Evaluate gold sets and write reports; a second run computes only what changed."""
    with report_errors(writes_report=True):
        settings = open_settings(home, reports, gold_sets, wait)
        from rag_eval.core.errors import InputError
        from rag_eval.pipeline.opening import open_beir, open_gold_set, select_gold_sets
        from rag_eval.pipeline.stages import evaluate_all

        progress = progress_for()
        options: Any = {"strategies": tuple(strategy or ()), "vectors": vectors}
        options["progress"] = progress
        sources = [
            name
            for name, value in (("gold sets", gold_set), ("--beir", beir), ("--recorded", recorded))
            if value
        ]
        if len(sources) > 1:
            message, both = f"give {' or '.join(sources)}, not both", " and ".join(sources)
            raise InputError.of("bad_arguments", message, field=sources[-1], found=both)
        if recorded is not None:
            from rag_eval.pipeline.opening import open_recorded

            evaluations = [open_recorded(recorded, settings, progress=progress)]
        elif beir is not None:
            evaluations = [open_beir(beir, split, settings, **options)]
        else:
            folders = select_gold_sets(settings.gold_sets, gold_set or [])
            evaluations = [open_gold_set(folder, settings, **options) for folder in folders]
        outcomes = evaluate_all(evaluations, settings)
        from rag_eval.reporting.terminal import Places, show_outcome, summarize

        for outcome in outcomes:
            places = Places(
                outcome.folder,
                outcome.seconds,
                command(),
                page=settings.html_report,
                runs=outcome.runs_page or "",
            )
            show_outcome(console_for(), outcome.report, places, verbose=verbose)
            _warn(outcome)
        if len(outcomes) > 1:
            typer.echo()
            for outcome in outcomes:
                typer.echo(summarize(outcome.report, outcome.folder))
        _record_lineage(evaluations)
        failed = [name for outcome in outcomes for name in outcome.failed]
    if failed:
        typer.echo(f"required gates failed: {', '.join(failed)}", err=True)
        raise typer.Exit(GATE_FAILED)


@app.command()
def compare(
    run_a: Annotated[
        str,
        typer.Argument(
            help="A run: its id, 'latest', 'previous', a gold set for its newest run, or the path "
            "of a retrieval-metrics.json."
        ),
    ],
    run_b: Annotated[str, typer.Argument(help="Another one.")],
    home: Home = None,
) -> None:
    """Compare two runs question by question: paired differences with intervals.

    Different gold is refused, different indexes are named.
    """
    with report_errors():
        settings = open_settings(home)
        from rag_eval.core.errors import quoted
        from rag_eval.core.records import ComparedPair
        from rag_eval.pipeline.comparisons import compare_runs
        from rag_eval.pipeline.history import open_run
        from rag_eval.reporting.tables import print_parts
        from rag_eval.reporting.terminal import comparisons_table, name_family
        from rag_eval.storage.home import open_home

        a, b = open_run(open_home(settings), run_a), open_run(open_home(settings), run_b)
        notes, pairs = compare_runs(a, b)
        rows = [ComparedPair.model_validate(row) for row in pairs]
    console = console_for()
    typer.echo(f"a: {quoted(a.run_id)}\nb: {quoted(b.run_id)}")
    if a.content_hash == b.content_hash:
        typer.echo("the runs found the same (equal content_hash)")
    for note in notes:
        typer.echo(quoted(note, 400))
    title = "Paired differences a - b, question by question"
    print_parts(console, [comparisons_table(rows, title), name_family(rows)])


@app.command()
def show(
    run: Annotated[
        str,
        typer.Argument(
            help="A run: its id, 'latest', 'previous', a gold set for its newest run, or the path "
            "of a retrieval-metrics.json."
        ),
    ] = "latest",
    *,
    question: Annotated[
        str | None,
        typer.Option(
            help="Show one question instead, by its id: evidence, answer, citations with verdicts, "
            "and gold."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    home: Home = None,
) -> None:
    """Show a run again, or one of its questions."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.history import open_run
        from rag_eval.storage.home import open_home

        if question is not None:
            from rag_eval.pipeline.review import explanation
            from rag_eval.reporting.outgoing import explain_question
            from rag_eval.reporting.tables import print_parts

            explained = explanation(open_home(settings), question, run=run)
            print_parts(console_for(), explain_question(explained))
            return
        report = open_run(open_home(settings), run).report()
    if json:
        from rag_eval.reporting.report import dumps

        typer.echo(dumps(report.dump()), nl=False)
        return
    from rag_eval.reporting.terminal import show_report

    show_report(console_for(), report)


@app.command()
def validate(
    citations: Annotated[Path, typer.Argument(help="Citations as JSON lines, one payload a line.")],
    gold_set: Annotated[
        str | None,
        typer.Argument(help="With --index: the newest run of this gold set. Default: of all."),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help=(
                "A home that `rag-eval run` has written: citations are checked against the index "
                "of its newest run."
            )
        ),
    ] = None,
    *,
    allow_cross_section: Annotated[
        bool, typer.Option("--allow-cross-section", help="Let a segment cite several sections.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print {error, field, tip} of each failing record, or OK."),
    ] = False,
) -> None:
    """Check a file of citations against every rule of the payload; exit 2 if any is not ok."""
    with report_errors():
        settings = open_settings(index)
        from rag_eval.pipeline.review import (
            live_index,
            validate_file,
            verdict_json,
            verdict_lines,
        )
        from rag_eval.storage.home import open_home

        live, run = (None, "") if index is None else live_index(open_home(settings), gold_set)
        result = validate_file(citations, live, allow_cross_section=allow_cross_section)
        if run and not json:
            typer.echo(f"checked against the index of {run}")
        for line in verdict_json(result) if json else verdict_lines(result):
            typer.echo(line)
    if not result.passed:
        raise typer.Exit(GATE_FAILED)


@app.command()
def ask(
    gold_set: Annotated[str, typer.Argument(help="A gold set.")],
    question: Annotated[str, typer.Argument(help="Any question, in quotes.")],
    strategy: Annotated[
        str, typer.Option(help="A strategy of the gold set. Default: the primary strategy.")
    ] = "",
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Retrieve for any question: documents, miss rate with its status, gaps, coverage, expansions.

    The miss rate is calibrated where the last run of the gold set left a calibrator.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.live_questions import open_live

        retrieval = open_live(evaluation, strategy).retrieve(question)
    if json:
        from json import dumps

        typer.echo(dumps(retrieval.as_json(), indent=1, ensure_ascii=True, allow_nan=False))
        return
    from rag_eval.reporting.outgoing import describe_retrieval
    from rag_eval.reporting.tables import print_parts

    print_parts(console_for(), describe_retrieval(retrieval))


@app.command()
def export(
    gold_set: Annotated[str, typer.Argument(help="A gold set that was run.")],
    folder: Annotated[Path, typer.Argument(help="Folder for the files; it may exist.")],
    form: Annotated[
        Literal["files", "csv", "tables", "ragas"],
        typer.Option(
            "--format",
            help="files: Parquet and TREC, as the run left them; csv: the tables for "
            "spreadsheets; tables: those of the page as CSV and LaTeX; ragas: the answers with "
            "their contexts.",
        ),
    ] = "files",
    home: Home = None,
) -> None:
    """Write the newest run of a gold set for other tools."""
    with report_errors():
        settings = open_settings(home)
        from rag_eval.pipeline.review import export_run
        from rag_eval.storage.home import open_home

        names = export_run(open_home(settings), gold_set, folder, form)
    typer.echo(f"wrote {format_count(len(names), 'file')} to {folder}: {', '.join(names)}")
