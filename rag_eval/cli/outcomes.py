"""Commands about outcomes (judged misses), audits of production traffic, and calibration."""

import datetime as dt
import json as json_form
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic_core import to_jsonable_python

from rag_eval.cli.app import (
    CommandLine,
    GoldSets,
    Home,
    NamedGoldSetGroup,
    OneGoldSet,
    Wait,
    app,
    command,
    console_for,
    open_evaluation,
    open_settings,
    report_errors,
)
from rag_eval.core.errors import format_count

if TYPE_CHECKING:
    from rag_eval.storage.sql import SqlStore

Target = Literal["miss_any", "miss_some"]
Judge = Literal["qrels", "human", "llm_judge", "deep_audit"]
Source = Literal[Judge, "user_feedback"]
Strategy = Annotated[str | None, typer.Option(help="Name of the strategy.")]
Fingerprint = Annotated[
    str | None, typer.Option(help="Identity of everything that decides the strategy's rankings.")
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Number of newest rows to show.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines instead of a table, all rows.")]
TargetOption = Annotated[
    Target, typer.Option(help="miss_any: no gold in the top K; miss_some: some gold below K.")
]
Everything = Annotated[bool, typer.Option("--all", help="Also rows that a correction superseded.")]


def _open_sql(home: str | None) -> "SqlStore":
    settings = open_settings(home)
    from rag_eval.storage.sql import open_store

    return open_store(settings)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


outcome = CommandLine(
    name="outcome",
    help="Outcomes are judgements of what retrievals missed: add, import, list and export them. "
    "Nothing is changed or deleted; a correction is a new row.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@outcome.command("add")
def add_outcome(
    *,
    missed: Annotated[
        bool | None, typer.Option("--missed/--hit", help="Whether the retrieval missed.")
    ] = None,
    correct: Annotated[
        str | None,
        typer.Option(
            help="Correct this outcome (its id or the start of its id): the new judgement "
            "supersedes it. Without --missed and --hit the outcome is withdrawn."
        ),
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
    gold_source: Annotated[Judge, typer.Option(help="Where the judgement comes from.")] = "human",
    independent: Annotated[
        bool, typer.Option("--independent", help="Judged by a search of the corpus by hand.")
    ] = False,
    missed_content: Annotated[
        str | None, typer.Option(help="What was missed; masked, at most 200 characters are kept.")
    ] = None,
    note: Annotated[str, typer.Option(help="Why, for a person.")] = "",
    home: Home = None,
) -> None:
    """Record one judgement, or correct one."""
    with report_errors():
        from rag_eval.core.errors import InputError
        from rag_eval.uncertainty.outcome_files import correct_outcome, read_outcome
        from rag_eval.uncertainty.outcomes import OutcomeStore

        store = OutcomeStore(_open_sql(home))
        about: dict[str, object] = {
            "claim_id": claim_id,
            "query": query,
            "strategy": strategy,
            "strategy_fingerprint": fingerprint,
            "k": k,
            "gold_strategies": [] if independent else None,
        }
        about = {name: value for name, value in about.items() if value is not None}
        if correct is None:
            about |= {"missed": missed, "missed_content": missed_content, "note": note}
            about |= {"target": target, "gold_source": gold_source}
            made = read_outcome(about, store.sql, now=_now())
        elif about:
            raise InputError.of(
                "bad_value",
                "a correction is of the same claim; what it was judged from stays",
                field="--correct",
                accepted="only --missed or --hit, --missed-content and --note",
            )
        else:
            old = store.outcome(correct)
            made = correct_outcome(
                old, missed=missed, missed_content=missed_content, note=note, now=_now()
            )
        recorded = store.record([made])
        for standing in recorded.differing.values():
            raise InputError.of(
                "differs",
                "another judgement of this claim, target, K and gold source exists",
                field="outcome_id",
                found=standing,
                accepted="rag-eval outcome add --correct with the outcome_id of that judgement",
            )
        typer.echo(f"{'recorded' if recorded.added else 'already there'}: {made.outcome_id}")


@outcome.command("import")
def import_outcomes(
    file: Annotated[Path, typer.Argument(help="JSON lines.")],
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    correct: Annotated[
        str | None,
        typer.Option(
            help="Reason of corrections: where a judgement of the file differs from the existing "
            "one, it supersedes the existing one with this note."
        ),
    ] = None,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="The file is an export to .jsonl; keep its rows unchanged."),
    ] = False,
    home: Home = None,
) -> None:
    """Record a file of judgements or a filled-in audit, all of it or nothing.

    Judgements that are stored already are skipped.
    """
    with report_errors():
        from rag_eval.core.types import MAX_NOTE
        from rag_eval.corpus.masking import mask_snippet
        from rag_eval.uncertainty.outcome_files import read_outcomes
        from rag_eval.uncertainty.outcomes import OutcomeStore

        store, given = OutcomeStore(_open_sql(home)), (strategy, fingerprint)
        outcomes, left = read_outcomes(file, store.sql, now=_now(), given=given, restore=restore)
        because = None if correct is None else mask_snippet(correct, MAX_NOTE)
        recorded = store.record(outcomes, because=because)
        unjudged = f", {format_count(left, 'line')} not judged yet" if left else ""
        typer.echo(
            f"{format_count(len(recorded.added), 'outcome')} recorded, "
            f"{len(recorded.already_there):,} were there already{unjudged}"
        )
        if recorded.differing:
            typer.echo(
                f"warning: {len(recorded.differing):,} differ from existing judgements, which "
                "were kept; --correct WHY lets the file supersede them",
                err=True,
            )


@outcome.command("list")
def list_outcomes(
    *,
    strategy: Strategy = None,
    gold_source: Annotated[Source | None, typer.Option(help="From this source only.")] = None,
    everything: Everything = False,
    limit: Limit = 50,
    json: AsJson = False,
    home: Home = None,
) -> None:
    """List outcomes, the newest first, with how many can fit a calibrator."""
    with report_errors():
        from rag_eval.uncertainty.outcomes import OutcomeStore, of_frame

        store = OutcomeStore(_open_sql(home))
        read = store.history if everything else store.current
        frame = read(strategy=strategy, gold_source=gold_source)
        if json:
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
            help="File to write: .csv or .parquet; or .jsonl, which import --restore reads and "
            "which always holds all rows."
        ),
    ],
    *,
    everything: Everything = False,
    home: Home = None,
) -> None:
    """Write outcomes to a file, whole or not at all."""
    with report_errors():
        from rag_eval.reporting.metrics_report import RESTORED, write_outcomes
        from rag_eval.uncertainty.outcomes import OutcomeStore

        store = OutcomeStore(_open_sql(home))
        is_whole = everything or file.suffix.lower() == RESTORED
        frame = store.history() if is_whole else store.current()
        write_outcomes(file, frame)
        typer.echo(f"{format_count(len(frame), 'outcome')} written to {file}")


claim = CommandLine(
    name="claim",
    help="Production traffic without gold: import questions and what was retrieved.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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
    Feedback that spans hold is recorded as outcomes.
    """
    with report_errors():
        from rag_eval.core.errors import ProblemList
        from rag_eval.corpus.masking import masked_text
        from rag_eval.uncertainty.audits import ClaimStore
        from rag_eval.uncertainty.outcome_files import read_claims, read_feedback
        from rag_eval.uncertainty.outcomes import OutcomeStore

        warnings = ProblemList()
        found, masked, feedback = read_claims(
            traffic, warnings, strategy=strategy, fingerprint=fingerprint, k=k
        )
        for warning in warnings.listed():
            typer.echo(masked_text(str(warning)), err=True)
        sql = _open_sql(home)
        added = ClaimStore(sql).add(found, now=_now())
        covered = ", ".join(f"{count} {name}" for name, count in sorted(masked.items()))
        typer.echo(
            f"{format_count(added, 'claim')} imported, {len(found) - added:,} were there already; "
            f"masked: {covered or 'nothing'}"
        )
        if feedback:
            said = OutcomeStore(sql).record(read_feedback(feedback, sql, now=_now()))
            typer.echo(
                f"feedback: {format_count(len(said.added), 'outcome')} recorded, "
                f"{len(said.already_there):,} "
                f"were there already, {len(said.differing):,} of them with another judgement"
            )
    typer.echo(f"next: {command()} audit draw --n 50 --seed 1")


audit = CommandLine(
    name="audit",
    help="Random audits of production traffic: draw claims to be judged, with known probability.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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
        from rag_eval.core.errors import quoted
        from rag_eval.uncertainty.audits import AuditStore, Sample

        given = {"strategy": strategy, "fingerprint": fingerprint}
        sample = Sample(n=n, seed=seed, target=target, **given)
        made = AuditStore(_open_sql(home)).draw(sample, out, now=_now())
        typer.echo(
            f"draw {made.draw_id}: {made.n:,} of {format_count(made.population, 'claim')} of "
            f"{quoted(made.strategy)}, each drawn with probability "
            f"{made.n / made.population:.4g}, written to {out}"
        )
    typer.echo(
        f"fill in missed, missed_content and gold_source, then: {command()} outcome import {out}"
    )


calibrate = CommandLine(
    cls=NamedGoldSetGroup,
    name="calibrate",
    invoke_without_command=True,
    subcommand_metavar="[NAME] [COMMAND] [ARGS]...",
    pretty_exceptions_enable=False,
)


@calibrate.callback()
def calibrate_now(
    context: typer.Context,
    *,
    gold_set: OneGoldSet = None,
    json: Annotated[
        bool, typer.Option("--json", help="Everything as one JSON object instead of tables.")
    ] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
    wait: Wait = None,
) -> None:
    """Calibrate miss rates on the outcomes so far, and show each status; compare strategies.

    Validates on held-out groups, and keeps each earned status for the next run.
    """
    if context.invoked_subcommand is not None:
        context.obj = gold_set
        return
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets, wait)
        from rag_eval.pipeline.miss_rates import calibrate_gold_set
        from rag_eval.pipeline.stages import open_runner
        from rag_eval.reporting.listings import show_calibration

        found = calibrate_gold_set(open_runner(evaluation))
        if json:
            plain = to_jsonable_python(found)
            typer.echo(json_form.dumps(plain, sort_keys=True, allow_nan=False))
        else:
            show_calibration(console_for(), found)


@calibrate.command()
def compare(
    context: typer.Context,
    strategies: Annotated[
        list[str], typer.Argument(help="Two or more strategies of the gold set.")
    ],
    *,
    gold_set: OneGoldSet = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Compare strategies on the same questions, with intervals and Holm-adjusted p.

    Shows miss rates, Brier scores and skill, and prediction-powered estimates.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set or context.obj, home, gold_sets)
        from rag_eval.pipeline.miss_rates import compare_strategies
        from rag_eval.pipeline.stages import open_runner
        from rag_eval.reporting.listings import show_comparison, write_comparison_csv

        found = compare_strategies(open_runner(evaluation), strategies)
        show_comparison(console_for(), found)
        if csv is not None:
            write_comparison_csv(csv, found)
            typer.echo(f"written to {csv}")


for group in (outcome, claim, audit, calibrate):
    app.add_typer(group)
