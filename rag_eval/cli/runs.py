"""Commands about kept runs: show, compare, export, validate, gate, rollout, view and clean."""

import contextlib
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rag_eval.cli.app import (
    GATE_FAILED,
    Home,
    OneGoldSet,
    Wait,
    app,
    command,
    console_for,
    open_evaluation,
    open_home,
    open_settings,
    report_errors,
)
from rag_eval.core.errors import format_count, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_HELP = "A run: its id, 'latest', 'previous', or a gold set for its newest run."
RunOption = Annotated[
    str,
    typer.Option(help="A kept run of the gold set: its id, 'latest' or 'previous'."),
]


@app.command()
def show(
    run: Annotated[str, typer.Argument(help=RUN_HELP)] = "latest",
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
        _, kept = open_home(home)
        from rag_eval.pipeline.history import open_run

        if question is not None:
            from rag_eval.pipeline.review import explanation
            from rag_eval.reporting.tables import print_parts

            explained = explanation(kept, question, run=run)
            print_parts(console_for(), explained.lines())
            return
        report = open_run(kept, run).report()
    if json:
        from rag_eval.reporting.report import dumps

        typer.echo(dumps(report.dump()), nl=False)
        return
    from rag_eval.reporting.terminal import show_report

    show_report(console_for(), report)


@app.command()
def compare(
    run_a: Annotated[str, typer.Argument(help=RUN_HELP)],
    run_b: Annotated[str, typer.Argument(help="Another one.")],
    home: Home = None,
) -> None:
    """Compare two runs question by question: paired differences with intervals.

    Different gold is refused, different indexes are named.
    """
    with report_errors():
        _, kept = open_home(home)
        from rag_eval.core.records import ComparedPair
        from rag_eval.pipeline.history import compare_runs, open_run
        from rag_eval.reporting.tables import print_parts
        from rag_eval.reporting.terminal import comparisons_table, name_family

        a, b = open_run(kept, run_a), open_run(kept, run_b)
        notes, pairs = compare_runs(a, b)
        rows = [ComparedPair.model_validate(row) for row in pairs]
    typer.echo(f"a: {quoted(a.run_id)}\nb: {quoted(b.run_id)}")
    if a.content_hash == b.content_hash:
        typer.echo("the runs found the same (equal content_hash)")
    for note in notes:
        typer.echo(quoted(note, 400))
    title = "Paired differences a - b, question by question"
    print_parts(console_for(), [comparisons_table(rows, title), name_family(rows)])


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
        _, kept = open_home(home)
        from rag_eval.pipeline.review import export_run

        names = export_run(kept, gold_set, folder, form)
    typer.echo(f"wrote {format_count(len(names), 'file')} to {folder}: {', '.join(names)}")


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
            help="A home that `rag-eval run` has written: citations are checked against the index "
            "of its newest run."
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
        from rag_eval.pipeline.review import live_index, validate_file

        live, run = (None, "") if index is None else live_index(open_home(index)[1], gold_set)
        result = validate_file(citations, live, allow_cross_section=allow_cross_section)
        if run and not json:
            typer.echo(f"checked against the index of {run}")
        for line in result.json_lines() if json else result.lines():
            typer.echo(line)
    if not result.passed:
        raise typer.Exit(GATE_FAILED)


@app.command()
def gate(
    gold_set: OneGoldSet = None,
    run: RunOption = "latest",
    *,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Keep the run as the baseline of the regression gate. Needs --who and --why, "
            "which the record holds.",
        ),
    ] = False,
    who: Annotated[str, typer.Option(help="With --accept: who accepts the run.")] = "",
    why: Annotated[str, typer.Option(help="With --accept: the reason.")] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --accept: although a required gate did not pass; the record says so.",
        ),
    ] = False,
    home: Home = None,
    wait: Wait = None,
) -> None:
    """Print the verdict of a run; exit 2 if a required gate did not pass.

    Each run writes its verdict as JUnit XML and Markdown beside its report.
    """
    with report_errors():
        settings, kept = open_home(home, wait)
        from rag_eval.pipeline.history import accept_baseline, open_run
        from rag_eval.reporting.tables import print_parts
        from rag_eval.reporting.verdicts import verdict_rows

        owner = gold_set or settings.primary_gold_set
        stored = open_run(kept, run, owner)
        verdict = verdict_rows(stored.report(), gold_set or stored.gold_set)
        print_parts(console_for(), verdict.parts)
        if accept:
            record = accept_baseline(settings, stored.run_id, who, why, gold_set=owner, force=force)
            typer.echo(f"accepted: {record.run_id}")
    if verdict.failed:
        typer.echo(f"required gates failed: {', '.join(verdict.failed)}", err=True)
        raise typer.Exit(GATE_FAILED)


@app.command()
def rollout(
    candidate: Annotated[str, typer.Argument(help="The strategy that is rolled out.")],
    gold_set: OneGoldSet = None,
    *,
    against: Annotated[
        str | None,
        typer.Option(
            help="The strategy that answers now. Default: the first other one of the gold set."
        ),
    ] = None,
    run: RunOption = "latest",
    measure: Annotated[
        str, typer.Option(help="A ranking measure such as recall_at_10 or mrr, or delta_s.")
    ] = "recall_at_10",
    home: Home = None,
) -> None:
    """Promote, hold or roll back a candidate; exit 2 when it is rolled back."""
    with report_errors():
        settings, kept = open_home(home)
        from rag_eval.pipeline.history import decide_rollout
        from rag_eval.reporting.tables import Table, interval, print_parts

        compared = decide_rollout(
            kept,
            gold_set or settings.primary_gold_set,
            candidate,
            against=against,
            run=run,
            measure=measure,
        )
    decision, stored = compared.decision, compared.run
    rows = [
        [f"{compared.measure} of {compared.base}", interval(decision.base, None, None)],
        [f"{compared.measure} of {candidate}", interval(decision.candidate, None, None)],
        ["difference", interval(*decision.difference, sign="+")],
        [
            "degradation (share of the base, negative is better)",
            interval(*decision.degradation, sign="+"),
        ],
    ]
    print_parts(
        console_for(),
        [
            f"{decision.action.replace('_', ' ').upper()} ({candidate} against {compared.base})",
            *([Table.plain("", ["", "value"], rows)] if decision.n_questions else []),
            f"{decision.code}: {decision.reason}.",
            f"Evidence: {stored.level} level, run {stored.run_id}, gold {stored.gold_hash[:12]}.",
        ],
    )
    if decision.action == "roll_back":
        raise typer.Exit(GATE_FAILED)


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
    with report_errors():
        from rag_eval.core.settings import VIEW_PORT
        from rag_eval.viewer.app import ReviewDesk, Viewer, listen, serve

        def announce(what: str) -> "Callable[[str], None]":
            def print_address(address: str) -> None:
                typer.echo(f"{what}: {address}\nCtrl-C ends it.")
                if browser:
                    webbrowser.open(address)

            return print_address

        number = VIEW_PORT if port is None else port
        if drafts is None:
            settings = open_settings(home)
            with listen(number) as bound:
                what = f"evidence viewer of {settings.home}"
                serve(bound, Viewer(settings).app(), announce(what))
            return
        evaluation = open_evaluation(drafts, home, None)
        with listen(number) as bound, contextlib.suppress(KeyboardInterrupt):
            desk, name = ReviewDesk(evaluation), evaluation.config.name
            what = f"{len(desk.drafts())} drafts of {name}"
            serve(bound, desk.app(), announce(what))
        left = len(desk.drafts())
    typer.echo(f"{left} drafts are left" if left else f"next: {command()} lint {name}")


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
        from rag_eval.pipeline.stages import clean as clean_home

        for freed in clean_home(settings, keep):
            typer.echo(f"{freed.what}: {freed.count:,} removed, {freed.size:,} bytes freed")
