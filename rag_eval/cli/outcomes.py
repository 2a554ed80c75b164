"""Commands about outcomes (judged misses), audits of production traffic, and calibration."""

import datetime as dt
import json as json_form
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic_core import to_jsonable_python

from rag_eval.cli.app import (
    GoldSets,
    Home,
    OneGoldSet,
    app,
    command,
    console_for,
    open_evaluation,
    open_settings,
    report_errors,
)

if TYPE_CHECKING:
    from rag_eval.storage.sql import SqlStore
    from rag_eval.uncertainty.outcomes import OutcomeStore


outcome = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(
    outcome,
    name="outcome",
    help=(
        "Outcomes are judgements of what retrievals missed: add, import, list and export them. "
        "Nothing is changed or deleted; a correction is a new row."
    ),
)


Target = Literal["miss_any", "miss_some"]
Judge = Literal["qrels", "human", "llm_judge", "deep_audit"]
Source = Literal[Judge, "user_feedback"]
Strategy = Annotated[str | None, typer.Option(help="Name of the strategy.")]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        help="Fingerprint of the strategy: the identity of everything that decides its rankings."
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Number of newest rows to show.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines instead of a table, all rows.")]
TargetOption = Annotated[
    Target, typer.Option(help="miss_any: no gold in the top K; miss_some: some gold below K.")
]
Everything = Annotated[bool, typer.Option("--all", help="Also rows that a correction superseded.")]


def _open_sql(home: Path | None) -> "SqlStore":
    settings = open_settings(home)
    from rag_eval.storage.sql import open_store

    return open_store(settings)


def _open_outcomes(home: Path | None) -> "OutcomeStore":
    sql = _open_sql(home)
    from rag_eval.uncertainty.outcomes import OutcomeStore

    return OutcomeStore(sql)


def _now() -> dt.datetime:
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
            help=(
                "Correct this outcome (its id or the start of its id): the new judgement "
                "supersedes it. Without --missed and --hit the outcome is withdrawn."
            )
        ),
    ] = None,
    claim_id: Annotated[
        str | None,
        typer.Option("--claim", help="The claim that was judged (rag-eval claim list --json)."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="The question as it was asked.")] = None,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    target: TargetOption = "miss_any",
    k: Annotated[
        int | None, typer.Option(help="Cutoff of the target. Default: the claim's, else 10.")
    ] = None,
    gold_source: Annotated[Judge, typer.Option(help="Where the judgement comes from.")] = "human",
    audit_depth: Annotated[
        int | None, typer.Option(help="Depth to which the auditor looked.")
    ] = None,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent",
            help=(
                "The judgement comes from a search of the corpus by hand, not from a strategy's "
                "retrieval."
            ),
        ),
    ] = False,
    missed_content: Annotated[
        str | None, typer.Option(help="What was missed; masked, at most 200 characters are kept.")
    ] = None,
    success: Annotated[
        bool | None,
        typer.Option("--success/--no-success", help="Whether the agent that used it succeeded."),
    ] = None,
    note: Annotated[str, typer.Option(help="Why, for a person.")] = "",
    home: Home = None,
) -> None:
    """Record one judgement, or correct one."""
    with report_errors():
        store = _open_outcomes(home)
        from rag_eval.core.errors import InputError
        from rag_eval.uncertainty.outcome_files import correct_outcome, read_outcome

        judgement = {"missed": missed, "missed_content": missed_content, "agent_success": success}
        about: dict[str, object] = {
            "claim_id": claim_id,
            "query": query,
            "strategy": strategy,
            "strategy_fingerprint": fingerprint,
            "k": k,
            "gold_strategies": [] if independent else None,
            "audit_depth": audit_depth,
        }
        about = {name: value for name, value in about.items() if value is not None}
        if correct is None:
            about |= {name: value for name, value in judgement.items() if value is not None}
            about |= {"note": note, "target": target, "gold_source": gold_source}
            made = read_outcome(about, store.sql, now=_now())
        elif about:
            raise InputError.of(
                "bad_value",
                "a correction is of the same claim; what it was judged from stays",
                field="--correct",
                accepted="with --correct only --missed or --hit, --missed-content, "
                "--success or --no-success, --note",
            )
        else:
            made = correct_outcome(
                store.outcome(correct),
                missed=missed,
                missed_content=missed_content,
                agent_success=success,
                note=note,
                now=_now(),
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
            help=(
                "Reason of corrections: where a judgement of the file differs from the existing "
                "one, it supersedes the existing one with this note."
            )
        ),
    ] = None,
    restore: Annotated[
        bool,
        typer.Option(
            "--restore",
            help="The file is a JSON lines export of this tool; its rows are imported unchanged.",
        ),
    ] = False,
    home: Home = None,
) -> None:
    """Record a file of judgements or a filled-in audit, all of it or nothing.

    Judgements that are stored already are skipped.
    """
    with report_errors():
        store = _open_outcomes(home)
        from rag_eval.core.types import MAX_NOTE
        from rag_eval.corpus.masking import mask_snippet
        from rag_eval.uncertainty.outcome_files import read_outcomes

        read = read_outcomes(
            file,
            store.sql,
            now=_now(),
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
                f"warning: {len(recorded.differing):,} differ from existing judgements, which "
                "were kept; --correct WHY lets the file supersede them",
                err=True,
            )


@outcome.command("list")
def list_outcomes(
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    gold_source: Annotated[Source | None, typer.Option(help="From this source only.")] = None,
    everything: Everything = False,
    limit: Limit = 50,
    json: AsJson = False,
    home: Home = None,
) -> None:
    """List outcomes, the newest first, with how many can fit a calibrator."""
    with report_errors():
        store = _open_outcomes(home)
        read = store.history if everything else store.current
        sources = None if gold_source is None else [gold_source]
        frame = read(strategy=strategy, strategy_fingerprint=fingerprint, gold_sources=sources)
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
            help=(
                "File to write: .csv, .parquet or .jsonl, which import --restore reads. It holds "
                "the current outcomes and the rows that they supersede."
            )
        ),
    ],
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    everything: Everything = False,
    home: Home = None,
) -> None:
    """Write outcomes to a file, whole or not at all."""
    with report_errors():
        store = _open_outcomes(home)
        read = store.history if everything else store.current
        frame = read(strategy=strategy, strategy_fingerprint=fingerprint)
        from rag_eval.reporting.metrics_report import RESTORED, write_outcomes

        whole = store.as_recorded(frame) if file.suffix.lower() == RESTORED else frame
        write_outcomes(file, whole)
        n_more = len(whole) - len(frame)
        more = f", and {n_more:,} that they supersede" if n_more else ""
        typer.echo(f"{len(frame):,} outcomes written to {file}{more}")


claim = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
audit = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(
    claim,
    name="claim",
    help="Production traffic without gold: import and list questions with what was retrieved for "
    "them.",
)
app.add_typer(
    audit,
    name="audit",
    help="Random audits of production traffic: draw claims to be judged, with known "
    "probabilities, and list the draws.",
)


@claim.command("import")
def import_claims(
    traffic: Annotated[
        Path,
        typer.Argument(
            help="JSON lines: query, retrieved [{id, score}], optionally query_id, group_id, k, "
            "at, strategy, strategy_fingerprint, miss_rate."
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
    """Import production traffic, all of the file or nothing.

    Personal data in the questions is masked, and claims that are stored already are skipped.
    """
    with report_errors():
        from rag_eval.uncertainty.audits import ClaimStore
        from rag_eval.uncertainty.outcome_files import read_claims

        found, masked = read_claims(
            traffic, strategy=strategy, fingerprint=fingerprint, k=k, now=_now()
        )
        done = ClaimStore(_open_sql(home)).add(found, now=_now())
        covered = ", ".join(f"{count} {name}" for name, count in sorted(masked.items()))
        typer.echo(
            f"{done.added:,} claims imported, {done.already_there:,} were there already; masked: "
            f"{covered or 'nothing'}"
        )
    typer.echo(f"next: {command()} audit draw --n 50 --seed 1 --depth 50")


@claim.command("list")
def list_claims(
    *,
    strategy: Strategy = None,
    fingerprint: Fingerprint = None,
    limit: Limit = 50,
    json: AsJson = False,
    home: Home = None,
) -> None:
    """List claims of production traffic, the newest first, and how many each strategy has."""
    with report_errors():
        from rag_eval.uncertainty.audits import ClaimStore

        rows = ClaimStore(_open_sql(home)).claims(strategy=strategy, fingerprint=fingerprint)
        if json:
            from rag_eval.corpus.masking import mask_snippet

            for row in rows:
                typer.echo(
                    json_form.dumps({**row, "query": mask_snippet(row["query"])}, sort_keys=True)
                )
        else:
            from rag_eval.reporting.listings import show_claims

            show_claims(console_for(), rows, limit)


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
    depth: Annotated[
        int, typer.Option(min=1, max=1000, help="Depth to which the auditor looks; at least K.")
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
        from rag_eval.uncertainty.audits import AuditStore, Sample

        given = {"strategy": strategy, "fingerprint": fingerprint}
        sample = Sample(n=n, seed=seed, depth=depth, target=target, **given)
        made = AuditStore(_open_sql(home)).draw(sample, out, now=_now())
        from rag_eval.core.errors import quoted

        typer.echo(
            f"draw {made.draw_id}: {made.n:,} of {made.population:,} claims of "
            f"{quoted(made.strategy)}, each drawn with probability {made.probability:.4g}, "
            f"written to {made.path}"
        )
    typer.echo(
        f"fill in missed, missed_content, gold_source and audit_depth, then: {command()} outcome "
        f"import {out}"
    )


@audit.command("list")
def list_audits(home: Home = None) -> None:
    """List the draws with their numbers of judged claims."""
    with report_errors():
        store = _open_outcomes(home)
        from rag_eval.reporting.listings import show_draws
        from rag_eval.uncertainty.audits import AuditStore

        audits = AuditStore(store.sql)
        show_draws(console_for(), audits.frames(), audits.count_judged(store.current()))


calibrate = typer.Typer(invoke_without_command=True, pretty_exceptions_enable=False)
app.add_typer(
    calibrate,
    name="calibrate",
    help="Calibrate miss rates on the outcomes so far and show each status; compare strategies.",
)


@calibrate.callback(
    invoke_without_command=True,
    help="Fit each strategy's estimator to its outcomes, validate it on held-out groups, "
    "and keep what it has earned for the next run.",
)
def calibrate_now(
    context: typer.Context,
    *,
    gold_set: OneGoldSet = None,
    json: Annotated[
        bool, typer.Option("--json", help="Everything as one JSON object instead of tables.")
    ] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Fit and validate each strategy's estimator, and keep its status for the next run."""
    if context.invoked_subcommand is not None:
        return
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.miss_rates import calibrate_gold_set
        from rag_eval.reporting.terminal import show_calibration

        found = calibrate_gold_set(evaluation)
        if json:
            plain = to_jsonable_python(found)
            typer.echo(json_form.dumps(plain, sort_keys=True, allow_nan=False))
        else:
            show_calibration(console_for(), found)


@calibrate.command()
def compare(
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
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.miss_rates import compare_strategies
        from rag_eval.reporting.listings import (
            differences_table,
            strategies_table,
            write_comparison_csv,
        )
        from rag_eval.reporting.terminal import print_parts

        found = compare_strategies(evaluation, strategies)
        print_parts(console_for(), [strategies_table(found), differences_table(found)])
        if csv is not None:
            write_comparison_csv(csv, found)
            typer.echo(f"written to {csv}")
