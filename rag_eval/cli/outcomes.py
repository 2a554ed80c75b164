"""Commands about outcomes, the judged misses."""

import datetime as dt
import json as json_form
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rag_eval.cli.app import Home, app, console_for, open_settings, report_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from rag_eval.storage.sql import SqlStore
    from rag_eval.uncertainty.outcomes import OutcomeStore

outcome = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(
    outcome,
    name="outcome",
    help="What retrievals missed, as it was judged: add, import, list and export outcomes. "
    "Nothing is changed or deleted; a correction is a new row.",
)


Target = Literal["miss_any", "miss_some"]
Source = Literal["qrels", "human", "llm_judge", "deep_audit", "user_feedback"]
Strategy = Annotated[str | None, typer.Option(help="Name of the strategy.")]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        help="Fingerprint of the strategy: the identity of everything that decides its rankings."
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Rows to show, the newest.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines instead of a table, all rows.")]
File = Annotated[Path, typer.Argument(help="JSON lines.")]
TargetOption = Annotated[
    Target, typer.Option(help="miss_any: no gold in the top K; miss_some: some gold below K.")
]
OneTarget = Annotated[Target | None, typer.Option(help="Of this target only.")]
OneSource = Annotated[Source | None, typer.Option(help="Judged from this source only.")]
OneK = Annotated[int | None, typer.Option(help="Of this K only.")]
Everything = Annotated[bool, typer.Option("--all", help="Also rows that a correction superseded.")]


def open_sql(home: Path | None) -> "SqlStore":
    """Open the SQL store of the settings, or the SQLite file of the home."""
    settings = open_settings(home)
    from rag_eval.storage.sql import FILE_NAME, SqlStore

    return SqlStore(
        settings.home / FILE_NAME
        if settings.database_url is None
        else settings.database_url.get_secret_value()
    )


def open_outcomes(home: Path | None) -> "OutcomeStore":
    """Open the store of outcomes."""
    sql = open_sql(home)
    from rag_eval.uncertainty.outcomes import OutcomeStore

    return OutcomeStore(sql)


def now() -> dt.datetime:
    """Return the current time in UTC."""
    return dt.datetime.now(dt.UTC)


@outcome.command("add")
def add_outcome(
    *,
    missed: Annotated[
        bool | None, typer.Option("--missed/--hit", help="Whether the retrieval missed.")
    ] = None,
    correct: Annotated[
        str | None,
        typer.Option(
            help="Correct this outcome (its id or the start of it): the judgement given here "
            "supersedes it; neither --missed nor --hit takes it back."
        ),
    ] = None,
    claim_id: Annotated[
        str | None,
        typer.Option("--claim", help="The claim that was judged (rag-eval claim list --json)."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="The question as it was asked.")] = None,
    query_id: Annotated[
        str | None, typer.Option(help="Id of the question. Default: named by its words.")
    ] = None,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    target: TargetOption = "miss_any",
    k: Annotated[
        int | None, typer.Option(help="Cutoff of the target. Default: the claim's, else 10.")
    ] = None,
    gold_source: Annotated[Source, typer.Option(help="Where the judgement comes from.")] = "human",
    gold_strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="Strategy whose retrieval it was judged from, again for more. Default: none for "
            "qrels, else the one that was judged."
        ),
    ] = None,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent",
            help="It was judged from no strategy's retrieval (a search of the corpus by hand).",
        ),
    ] = False,
    gold_document: Annotated[
        list[str] | None,
        typer.Option(
            help="Document known to be gold, again for more; questions that share one are one "
            "group."
        ),
    ] = None,
    missed_content: Annotated[
        str | None, typer.Option(help="What was missed; masked, at most 200 characters are kept.")
    ] = None,
    feedback: Annotated[
        str | None,
        typer.Option(
            help="With --gold-source user_feedback: something_missing, evidence_not_relevant or "
            "nothing_missing."
        ),
    ] = None,
    success: Annotated[
        bool | None,
        typer.Option("--success/--no-success", help="Whether the agent that used it succeeded."),
    ] = None,
    audit_depth: Annotated[
        int | None, typer.Option(help="How far down the auditor looked.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="What ties questions together. Default: the question.")
    ] = None,
    note: Annotated[str, typer.Option(help="Why, for a person.")] = "",
    home: Home = None,
) -> None:
    """Record one judgement, or correct one."""
    with report_errors():
        store = open_outcomes(home)
        from rag_eval.core.errors import InputError, Problem
        from rag_eval.uncertainty.outcome_files import correct_outcome, read_outcome

        judgement = {"missed": missed, "missed_content": missed_content, "agent_success": success}
        about: dict[str, object] = {
            "claim_id": claim_id,
            "query": query,
            "query_id": query_id,
            "strategy": strategy,
            "strategy_fingerprint": fingerprint,
            "k": k,
            "gold_strategies": [] if independent else gold_strategy,
            "gold_documents": gold_document,
            "feedback": feedback,
            "audit_depth": audit_depth,
            "group_id": group,
        }
        about = {name: value for name, value in about.items() if value is not None}
        if correct is None:
            about |= {name: value for name, value in judgement.items() if value is not None}
            about |= {"note": note, "target": target, "gold_source": gold_source}
            made = read_outcome(about, store.sql, now=now())
        elif about:
            raise InputError(
                Problem(
                    "bad_value",
                    "a correction is of the same claim; what it was judged from stays",
                    field="--correct",
                    accepted="with --correct only --missed or --hit, --missed-content, "
                    "--success or --no-success, --note",
                )
            )
        else:
            made = correct_outcome(
                store.outcome(correct),
                missed=missed,
                missed_content=missed_content,
                agent_success=success,
                note=note,
                now=now(),
            )
        recorded = store.record([made])
        for standing in recorded.differing.values():
            raise InputError(
                Problem(
                    "differs",
                    "another judgement of this claim, target, K and gold source stands",
                    field="outcome_id",
                    found=standing,
                    accepted="rag-eval outcome add --correct with the outcome_id of what stands",
                )
            )
        typer.echo(f"{'recorded' if recorded.added else 'already there'}: {made.outcome_id}")


@outcome.command("import")
def import_outcomes(
    file: File,
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    correct: Annotated[
        str | None,
        typer.Option(
            help="Why what stands may be wrong: judgements of the file that differ from it "
            "supersede it, with this note."
        ),
    ] = None,
    restore: Annotated[
        bool,
        typer.Option(
            "--restore",
            help="The file is a JSON lines export of this tool's own and is taken as it stands.",
        ),
    ] = False,
    home: Home = None,
) -> None:
    """Record a file of judgements or a filled-in audit, all of it or nothing.

    Judgements that are stored already are skipped.
    """
    with report_errors():
        store = open_outcomes(home)
        from rag_eval.core.types import MAX_NOTE
        from rag_eval.corpus.masking import mask_snippet
        from rag_eval.uncertainty.outcome_files import read_outcomes

        read = read_outcomes(
            file,
            store.sql,
            now=now(),
            strategy=strategy,
            fingerprint=fingerprint,
            restore=restore,
        )
        recorded = store.record(
            read.outcomes, because=None if correct is None else mask_snippet(correct, MAX_NOTE)
        )
        left = f", {read.not_judged:,} lines not judged yet" if read.not_judged else ""
        typer.echo(
            f"{len(recorded.added):,} outcomes recorded, {len(recorded.already_there):,} were "
            f"there already{left}"
        )
        if recorded.differing:
            typer.echo(
                f"warning: {len(recorded.differing):,} differ from what stands, which was left "
                "standing; --correct WHY lets the file supersede it",
                err=True,
            )


@outcome.command("list")
def list_outcomes(
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    target: OneTarget = None,
    k: OneK = None,
    gold_source: OneSource = None,
    everything: Everything = False,
    limit: Limit = 50,
    json: AsJson = False,
    home: Home = None,
) -> None:
    """List outcomes, the newest first, with how many can fit a calibrator."""
    with report_errors():
        read = _reader(open_outcomes(home), everything, gold_source)
        frame = read(strategy=strategy, strategy_fingerprint=fingerprint, target=target, k=k)
        if json:
            from rag_eval.uncertainty.outcomes import of_frame

            for found in of_frame(frame):
                typer.echo(json_form.dumps(found.model_dump(mode="json"), sort_keys=True))
        else:
            from rag_eval.reporting.listings import show_outcomes

            show_outcomes(console_for(), frame, limit)


@outcome.command("export")
def export_outcomes(
    file: Annotated[
        Path,
        typer.Argument(
            help="File to write: .csv, .parquet, or .jsonl, which import --restore takes back: "
            "what stands, and the rows that it supersedes."
        ),
    ],
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    target: OneTarget = None,
    k: OneK = None,
    gold_source: OneSource = None,
    everything: Everything = False,
    home: Home = None,
) -> None:
    """Write outcomes to a file, whole or not at all."""
    with report_errors():
        store = open_outcomes(home)
        read = _reader(store, everything, gold_source)
        frame = read(strategy=strategy, strategy_fingerprint=fingerprint, target=target, k=k)
        from rag_eval.reporting.exports import RESTORED, write_outcomes

        whole = store.as_recorded(frame) if file.suffix.lower() == RESTORED else frame
        write_outcomes(file, whole)
        n_more = len(whole) - len(frame)
        more = f", and {n_more:,} that they supersede" if n_more else ""
        typer.echo(f"{len(frame):,} outcomes written to {file}{more}")


def _reader(
    store: "OutcomeStore", everything: bool, gold_source: Source | None
) -> "Callable[..., pd.DataFrame]":
    sources = None if gold_source is None else [gold_source]
    return partial(store.history if everything else store.current, gold_sources=sources)
