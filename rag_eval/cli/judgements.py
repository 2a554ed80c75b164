"""Commands about judgements: outcomes, audits of production traffic, calibration, and trust."""

import datetime as dt
import json as json_form
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic_core import to_jsonable_python

from rag_eval.cli.app import (
    GATE_FAILED,
    GoldSets,
    Home,
    OneGoldSet,
    Wait,
    app,
    command,
    console_for,
    open_evaluation,
    open_settings,
    report_errors,
)
from rag_eval.core.errors import InputError, ProblemList, format_count, quoted

if TYPE_CHECKING:
    from rag_eval.storage.sql import SqlStore
    from rag_eval.uncertainty.outcomes import OutcomeStore, Recorded, RetrievalOutcome

Strategy = Annotated[str | None, typer.Option(help="Name of the strategy.")]
Fingerprint = Annotated[
    str | None, typer.Option(help="Identity of everything that decides the strategy's rankings.")
]
TargetOption = Annotated[
    Literal["miss_any", "miss_some"],
    typer.Option(help="miss_any: no gold in the top K; miss_some: some gold below K."),
]
Correct = Annotated[
    str | None,
    typer.Option(
        help="Why judgements that differ from the existing ones supersede them; kept as a note."
    ),
]


def _group(name: str, text: str) -> typer.Typer:
    group = typer.Typer(name=name, help=text, no_args_is_help=True, pretty_exceptions_enable=False)
    app.add_typer(group)
    return group


outcome = _group(
    "outcome",
    "Outcomes are judgements of what retrievals missed. Nothing is changed or deleted; a "
    "correction is a new row.",
)
claim = _group("claim", "Production traffic without gold: import questions and what was retrieved.")
audit = _group(
    "audit",
    "Random audits of production traffic: draw claims to be judged, with known probability.",
)


trust = _group(
    "trust",
    "Source trust and the poisoning guard: allow documents, sign and verify the corpus.",
)


def _open_sql(home: str | None) -> "SqlStore":
    settings = open_settings(home)
    from rag_eval.storage.sql import open_store

    return open_store(settings)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _record(
    store: "OutcomeStore", outcomes: "list[RetrievalOutcome]", correct: str | None
) -> "Recorded":
    from rag_eval.corpus.masking import mask_snippet
    from rag_eval.uncertainty.outcomes import MAX_NOTE

    because = None if correct is None else mask_snippet(correct, MAX_NOTE)
    return store.record(outcomes, because=because)


@outcome.command("add")
def add_outcome(
    *,
    missed: Annotated[
        bool | None, typer.Option("--missed/--hit", help="Whether the retrieval missed.")
    ] = None,
    claim_id: Annotated[
        str | None,
        typer.Option("--claim", help="The claim_id of the claim that was judged."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="The question as it was asked.")] = None,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    target: TargetOption = "miss_any",
    k: Annotated[
        int | None, typer.Option(help="Cutoff of the target. Default: the claim's, else 10.")
    ] = None,
    gold_source: Annotated[
        Literal["qrels", "human", "llm_judge", "deep_audit"],
        typer.Option(help="Where the judgement comes from."),
    ] = "human",
    independent: Annotated[
        bool, typer.Option("--independent", help="Judged by a search of the corpus by hand.")
    ] = False,
    missed_content: Annotated[
        str | None, typer.Option(help="What was missed; masked, at most 200 characters are kept.")
    ] = None,
    correct: Correct = None,
    home: Home = None,
) -> None:
    """Record one judgement."""
    with report_errors():
        from rag_eval.uncertainty.outcome_files import read_outcome
        from rag_eval.uncertainty.outcomes import OutcomeStore

        store = OutcomeStore(_open_sql(home))
        typed: dict[str, object] = {
            "claim_id": claim_id,
            "query": query,
            "strategy": strategy,
            "strategy_fingerprint": fingerprint,
            "k": k,
            "gold_strategies": [] if independent else None,
            "missed": missed,
            "missed_content": missed_content,
            "target": target,
            "gold_source": gold_source,
        }
        typed = {name: value for name, value in typed.items() if value is not None}
        recorded = _record(store, [read_outcome(typed, store.sql, now=_now())], correct)
        for standing in recorded.differing.values():
            raise InputError.of(
                "differs",
                "another judgement of this claim, target, K and gold source exists",
                field="outcome_id",
                found=standing,
                accepted="--correct WHY with a new reason, to supersede it",
            )
        typer.echo(f"recorded: {recorded.added[0]}" if recorded.added else "already there")


@outcome.command("import")
def import_outcomes(
    file: Annotated[Path, typer.Argument(help="JSON lines.")],
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    correct: Correct = None,
    home: Home = None,
) -> None:
    """Record a file of judgements or a filled-in audit, all of it or nothing.

    Judgements that are stored already are skipped.
    """
    with report_errors():
        from rag_eval.uncertainty.outcome_files import read_outcomes
        from rag_eval.uncertainty.outcomes import OutcomeStore

        store = OutcomeStore(_open_sql(home))
        outcomes, n_left = read_outcomes(
            file, store.sql, now=_now(), strategy=strategy, fingerprint=fingerprint
        )
        recorded = _record(store, outcomes, correct)
        added = format_count(len(recorded.added), "outcome")
        unjudged = f", {format_count(n_left, 'line')} not judged yet" if n_left else ""
        there = f"{len(recorded.already_there):,} were there already"
        typer.echo(f"{added} recorded, {there}{unjudged}")
        if recorded.differing:
            typer.echo(
                f"warning: {len(recorded.differing):,} differ from existing judgements, which "
                "were kept; --correct WHY lets the file supersede them",
                err=True,
            )


@claim.command("import")
def import_claims(
    traffic: Annotated[
        list[Path],
        typer.Argument(
            help="JSON lines: query, retrieved [{id, score}], optionally query_id, group_id, k, "
            "at, strategy, strategy_fingerprint, miss_rate. Or exports of another tool; give the "
            "files over which traces are cut together."
        ),
    ],
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    k: Annotated[
        int, typer.Option(min=1, max=1000, help="Cutoff of the target, for lines without one.")
    ] = 10,
    home: Home = None,
) -> None:
    """Import production traffic, all of the files or nothing.

    Personal data in the questions is masked, and claims that are stored already are skipped.
    """
    with report_errors():
        from rag_eval.corpus.masking import masked_text
        from rag_eval.uncertainty.outcome_files import read_claims
        from rag_eval.uncertainty.traffic import TrafficStore

        warnings = ProblemList()
        claims, masked = read_claims(
            traffic, warnings, strategy=strategy, fingerprint=fingerprint, k=k
        )
        for warning in warnings.listed():
            typer.echo(masked_text(str(warning)), err=True)
        added = TrafficStore(_open_sql(home)).add(claims, now=_now())
        covered = ", ".join(f"{count} {name}" for name, count in sorted(masked.items()))
        there = f"{len(claims) - added:,} were there already; masked: {covered or 'nothing'}"
        typer.echo(f"{format_count(added, 'claim')} imported, {there}")
    typer.echo(f"next: {command()} audit draw --n 50 --seed 1")


@audit.command()
def draw(
    *,
    n: Annotated[int, typer.Option("--n", min=1, max=10_000, help="How many claims to draw.")],
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63 - 1, help="Equal seeds draw equal samples from equal stores."
        ),
    ],
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    target: TargetOption = "miss_any",
    out: Annotated[
        Path, typer.Option(help="File for the auditor to fill in; it must not exist.")
    ] = Path("audit.jsonl"),
    home: Home = None,
) -> None:
    """Draw a random sample of the claims imported since the last draw.

    Writes the file that the auditor fills in.
    """
    with report_errors():
        from rag_eval.uncertainty.traffic import TrafficStore

        drawn = TrafficStore(_open_sql(home)).draw(
            out,
            n=n,
            seed=seed,
            now=_now(),
            target=target,
            strategy=strategy,
            fingerprint=fingerprint,
        )
        population = f"{format_count(drawn.population, 'claim')} of {quoted(drawn.strategy)}"
        chance = f"each drawn with probability {drawn.n / drawn.population:.4g}"
        typer.echo(f"draw {drawn.draw_id}: {drawn.n:,} of {population}, {chance}, written to {out}")
    typer.echo(
        f"fill in missed, missed_content and gold_source, then: {command()} outcome import {out}"
    )


@app.command()
def calibrate(
    gold_set: OneGoldSet = None,
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Everything as one JSON object instead of tables.")
    ] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
    wait: Wait = None,
) -> None:
    """Calibrate miss rates on the outcomes so far, and show each status.

    Validates on held-out groups, and keeps each earned status for the next run. Where production
    traffic was audited, also estimates its miss rate.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets, wait)
        from rag_eval.pipeline.miss_rate_stages import calibrate_gold_set
        from rag_eval.pipeline.stages import open_runner
        from rag_eval.reporting.terminal import show_calibration

        calibrated = calibrate_gold_set(open_runner(evaluation))
        if json:
            plain = to_jsonable_python(calibrated)
            typer.echo(json_form.dumps(plain, sort_keys=True, allow_nan=False))
        else:
            show_calibration(console_for(), calibrated)


# ---- Trust


@trust.command()
def allow(
    who: Annotated[str, typer.Option(help="Who decides.")],
    why: Annotated[str, typer.Option(help="Why it is harmless.")],
    gold_set: OneGoldSet = None,
    *,
    document: Annotated[str | None, typer.Option(help="Id of a document.")] = None,
    page: Annotated[
        str | None,
        typer.Option(help="All documents with this link, or with the link of this document."),
    ] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Let the chunks of a document or page that the last run held back into the index again.

    The person and the reason are kept beside the gold set. A changed document is judged anew.
    """
    with report_errors():
        filters = {"--document": document, "--page": page}
        choices = [(option, value) for option, value in filters.items() if value is not None]
        if len(choices) != 1:
            message, number = "one of two options names the documents", f"{len(choices)} of them"
            accepted = "--document or --page"
            raise InputError.of("bad_choice", message, found=number, accepted=accepted)
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.trust_commands import allow_documents

        decisions, path = allow_documents(evaluation, *choices[0], who=who, why=why)
        typer.echo(f"allowed: {format_count(len(decisions), 'document')}; recorded in {path}")
        typer.echo("the next run applies this; to withdraw it, delete the lines")


@trust.command()
def sign(
    gold_set: OneGoldSet = None,
    key: Annotated[
        Path | None, typer.Option(help="Ed25519 private key (PEM) of one of trust.keys.")
    ] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Record every document as it is now, and sign the record; later runs block changed documents.

    Writes the file that trust.manifest of the gold set names, and its signature beside it.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.stages import open_runner
        from rag_eval.pipeline.trust_commands import sign_corpus

        typer.echo(sign_corpus(open_runner(evaluation), key))


@trust.command()
def verify(gold_set: OneGoldSet = None, home: Home = None, gold_sets: GoldSets = None) -> None:
    """Check the documents as they are now against the manifest; status 2 if one differs."""
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.stages import open_runner
        from rag_eval.pipeline.trust_commands import verify_corpus

        lines, holds = verify_corpus(open_runner(evaluation))
        for line in lines:
            typer.echo(line)
    if not holds:
        raise typer.Exit(GATE_FAILED)
