"""Commands about production traffic: importing claims, and random audits of them."""

import json as json_form
from pathlib import Path
from typing import Annotated

import typer

from rag_eval.cli.app import Home, app, command, console_for, report_errors
from rag_eval.cli.outcomes import (
    AsJson,
    Fingerprint,
    Limit,
    Strategy,
    TargetOption,
    now,
    open_outcomes,
    open_sql,
)

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
        int, typer.Option(min=1, max=1000, help="Cutoff of the target, for lines that do not say.")
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
            traffic, strategy=strategy, fingerprint=fingerprint, k=k, now=now()
        )
        done = ClaimStore(open_sql(home)).add(found, now=now())
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

        rows = ClaimStore(open_sql(home)).claims(strategy=strategy, fingerprint=fingerprint)
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
        int, typer.Option(min=1, max=1000, help="How far down the auditor is to look; at least K.")
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
        made = AuditStore(open_sql(home)).draw(sample, out, now=now())
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
def list_audits(
    *,
    feedback: Annotated[
        bool,
        typer.Option(
            "--feedback",
            help="Claims with feedback of users that nobody has audited, instead of the draws.",
        ),
    ] = False,
    limit: Limit = 50,
    home: Home = None,
) -> None:
    """List the draws with their numbers of judged claims, or feedback that needs an audit."""
    with report_errors():
        store = open_outcomes(home)
        if feedback:
            from rag_eval.reporting.listings import show_feedback
            from rag_eval.uncertainty.outcomes import feedback_without_audit

            show_feedback(console_for(), feedback_without_audit(store.current()), limit)
        else:
            from rag_eval.reporting.listings import show_draws
            from rag_eval.uncertainty.audits import AuditStore

            audits = AuditStore(store.sql)
            show_draws(console_for(), audits.frames(), audits.count_judged(store.current()))
