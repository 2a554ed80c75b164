"""Commands that start, check, evaluate and ask gold sets: init, lint, run and ask."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from rag_eval.core.errors import InputError, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rag_eval.core.settings import Settings
    from rag_eval.core.types import Message, Reply
    from rag_eval.corpus.loading import LoadedCorpus
    from rag_eval.gold.scaffold import Question
    from rag_eval.pipeline.evaluation import Evaluation

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
        from rag_eval.pipeline.opening import lint_gold_set, open_gold_set, select_gold_sets

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


def _draft_by_endpoint(settings: "Settings", corpus: "LoadedCorpus") -> "list[Question]":
    """Let the first chat endpoint of the settings draft the questions."""
    from rag_eval.answers.chat import ChatCache, ChatClient
    from rag_eval.core.types import ChatError
    from rag_eval.gold.scaffold import MAX_DRAFTS, ask_for_drafts
    from rag_eval.storage.sql import open_store

    if not settings.endpoints:
        message, accepted = "no chat endpoint is configured", "an entry of endpoints, see docs"
        raise InputError.of(
            "no_endpoint", message, "settings.toml", field="endpoints", accepted=accepted
        )
    name, endpoint = next(iter(settings.endpoints.items()))
    client = ChatClient(endpoint, ChatCache(open_store(settings)))
    title = f"Drafts by endpoint {name}, model {endpoint.model}"
    with progress_for().step(title, MAX_DRAFTS, "passages") as advance:

        def ask(messages: "Sequence[Message]") -> "Reply":
            reply = client.ask(messages)
            advance(1)
            return reply

        try:
            drafts, dropped = ask_for_drafts(corpus, ask, endpoint.concurrency)
        except ChatError as error:
            code, field = f"endpoint_{error.code}", f"endpoints.{name}"
            raise InputError.of(code, str(error), field=field) from None
    for reason, count in dropped.items():
        typer.echo(f"{count} replies were dropped: {reason}", err=True)
    return drafts


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
        if gold is not None and llm:
            message = "give --gold or --llm, not both"
            raise InputError.of("bad_arguments", message, field="--llm")
        make: Callable[[LoadedCorpus], list[Question]] = draw_drafts
        if gold is not None:
            make = functools.partial(read_questions, gold)
        elif llm:
            make = functools.partial(_draft_by_endpoint, settings)
        count, broken = init_gold_set(folder, docs, make)
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
        queries, readme = folder / "queries.jsonl", folder / "README.md"
        write = f"write questions into {queries} (see {readme})"
        typer.echo(f"no sentence can be quoted; {write}, then: {check}")


def _record_lineage(evaluations: "list[Evaluation]") -> None:
    """Record the runs in Dagster's lineage; a failure only prints a warning."""
    from rag_eval.defs.instance import record_lineage

    for evaluation in evaluations:
        if not evaluation.known:  # the graph has no partition for a BEIR folder
            continue
        try:
            record_lineage(evaluation.home.folder / "dagster", evaluation)
        except Exception as failure:  # noqa: BLE001 - the report on disk stands whatever Dagster's store does
            why = f"{type(failure).__name__}: {quoted(str(failure), 400)}"
            message = f"warning: Dagster did not record this run ({why}); the report is complete"
            typer.echo(message, err=True)


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
        from rag_eval.pipeline.opening import (
            open_beir,
            open_gold_set,
            open_recorded,
            select_gold_sets,
        )
        from rag_eval.pipeline.stages import evaluate_all

        progress = progress_for()
        options: Any = {"strategies": tuple(strategy or ()), "vectors": vectors}
        sources = {"gold sets": gold_set, "--beir": beir, "--recorded": recorded}
        chosen = [name for name, value in sources.items() if value]
        if len(chosen) > 1:
            message, both = f"give {' or '.join(chosen)}, not both", " and ".join(chosen)
            raise InputError.of("bad_arguments", message, field=chosen[-1], found=both)
        if recorded is not None:
            evaluations = [open_recorded(recorded, settings, progress=progress)]
        elif beir is not None:
            evaluations = [open_beir(beir, split, settings, progress=progress, **options)]
        else:
            evaluations = [
                open_gold_set(folder, settings, progress=progress, **options)
                for folder in select_gold_sets(settings.gold_sets, gold_set or [])
            ]
        outcomes = evaluate_all(evaluations, settings)
        from rag_eval.reporting.terminal import Places, show_outcome, summarize

        for outcome in outcomes:
            page, pages = settings.html_report, outcome.recorded.runs_page
            places = Places(outcome.folder, outcome.seconds, command(), page=page, runs=pages)
            show_outcome(console_for(), outcome.report, places, verbose=verbose)
            if outcome.recorded.error:
                typer.echo(f"warning: {outcome.recorded.error}", err=True)
            if outcome.trace_error:
                why = quoted(outcome.trace_error, 400)
                message = f"warning: the traces were not written ({why}); the report is complete"
                typer.echo(message, err=True)
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
