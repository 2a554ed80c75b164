"""Claims of production traffic, and random audits of them with known inclusion probabilities.

`outcome_files` reads the files: imported claims, and audits that were filled in.
"""

import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import Collection, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.types import AUDITS, BinaryTarget
from rag_eval.storage.artifacts import write_text
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import ColumnSpec, Kind, SqlStore, TableSpec, Transaction
from rag_eval.uncertainty.outcomes import look_up, utc_text


def _required(kind: Kind, names: str) -> list[ColumnSpec]:
    return [ColumnSpec(name, kind, required=True) for name in names.split()]


CLAIMS_TABLE: Final = TableSpec(
    "production_claims",
    (
        *_required("text", "claim_id query_id group_id strategy strategy_fingerprint query"),
        *_required("json", "retrieved"),
        *_required("integer", "k"),
        ColumnSpec("miss_rate", "float"),
        ColumnSpec("at", "text"),
        *_required("integer", "batch"),
        *_required("text", "imported_at"),
    ),
    indexes=(("strategy_fingerprint",),),
    unique=(("claim_id",),),
)
DRAWS: Final = TableSpec(
    "audit_draws",
    (
        *_required("text", "draw_id claim_id target"),
        *_required("integer", "k"),
        *_required("float", "inclusion_probability"),
        *_required("text", "at"),
    ),
    indexes=(("draw_id",),),
    unique=(("claim_id", "target"),),
)
FRAMES: Final = TableSpec(
    "audit_frames",
    (
        *_required("text", "draw_id strategy strategy_fingerprint target"),
        *_required("integer", "depth n population seed"),
        *_required("integer", "batch number"),
        *_required("text", "at"),
    ),
    unique=(("draw_id",), ("strategy_fingerprint", "target", "number")),
)
"""Population of each draw: the claims of a fingerprint up to import `batch`."""
LOCK: Final = "production_claims"


class Claim(NamedTuple):
    """One retrieval of production traffic without gold: the masked question and its results.

    `retrieved` holds the ids of the results, best first, with their scores. Times are UTC texts.
    The store numbers its imports from 1 in `batch`, and a draw covers imports up to its own batch.
    """

    claim_id: str
    query_id: str
    group_id: str
    strategy: str
    strategy_fingerprint: str
    query: str
    retrieved: list[tuple[str, float | None]]
    k: int
    miss_rate: float | None
    at: str | None
    batch: int = 0
    imported_at: str = ""


_CLAIM_ID: Final = attrgetter("claim_id")


class ClaimStore:
    """Claims of production traffic; nothing is updated or deleted.

    Raises InputError where the store cannot be used, or its table has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        store.create(CLAIMS_TABLE)

    def add(self, claims: Iterable[Claim], *, now: dt.datetime) -> int:
        """Add the claims that are new in one transaction, and return their number."""
        with self.sql.transaction(LOCK) as transaction:
            batch = max(transaction.columns(CLAIMS_TABLE, None, ["batch"])["batch"], default=0) + 1
            ordered = sorted(claims, key=_CLAIM_ID)
            rows = (claim._replace(batch=batch, imported_at=utc_text(now)) for claim in ordered)
            return len(transaction.insert_new(CLAIMS_TABLE, rows, "claim_id"))

    def claims(self, fingerprint: str | None = None) -> list[Claim]:
        """Return the claims of one fingerprint, or all claims, in the order of import."""
        with self.sql.reading() as transaction:
            found = _select_claims(transaction, strategy_fingerprint=fingerprint)
        return sorted(found, key=lambda claim: (claim.batch, claim.at or "", claim.claim_id))

    def by_id(self, claim_ids: Iterable[str]) -> dict[str, Claim]:
        """Return the known claims of some ids, by id; unknown ids are left out."""
        with self.sql.reading() as transaction:
            columns = look_up(transaction, CLAIMS_TABLE, "claim_id", claim_ids, Claim._fields)
        return {row[0]: Claim(*row) for row in zip(*columns.values(), strict=True)}


def _select_claims(transaction: Transaction, **given: str | None) -> list[Claim]:
    where = {name: value for name, value in given.items() if value is not None}
    return [Claim(**row) for row in transaction.select(CLAIMS_TABLE, where)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Settings of a draw of `n` claims, or of all claims if there are fewer.

    The auditor judges the top `depth` of each claim. Equal seeds draw equal samples from equal
    stores. If the store has claims of several fingerprints, give the strategy or the fingerprint.
    """

    n: int
    seed: int
    depth: int
    target: BinaryTarget = "miss_any"
    strategy: str | None = None
    fingerprint: str | None = None


class Draw(NamedTuple):
    """A finished draw: `n` of `population` claims, each with probability n / population."""

    draw_id: str
    strategy: str
    n: int
    population: int


class Drawn(NamedTuple):
    """Draw, K and inclusion probability of a drawn claim."""

    draw_id: str
    k: int
    inclusion_probability: float


class AuditStore:
    """Draws of claims; nothing is updated or deleted.

    Raises InputError where the store cannot be used, or a table has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        for table in (CLAIMS_TABLE, DRAWS, FRAMES):
            store.create(table)

    def draw(self, sample: Sample, path: Path, *, now: dt.datetime) -> Draw:
        """Draw a simple random sample of claims, and write the file that the auditor fills in.

        The population is the claims that were imported since the last draw of this fingerprint
        and target. So each claim belongs to one draw.

        Raises InputError: `file_exists`, `no_claims`, `several_strategies`, `depth_too_small`.
        """
        if path.exists():
            message = "the file is there already, and may hold an auditor's work"
            accepted = "a file that does not exist"
            raise InputError.of("file_exists", message, path, field="--out", accepted=accepted)
        with self.sql.transaction(LOCK) as transaction:
            claims, number = _find_population(transaction, sample)
            order = np.random.default_rng(sample.seed).permutation(len(claims))
            taken = [claims[at] for at in order[: sample.n]]
            first, stamp, target = claims[0], utc_text(now), sample.target
            ids = sorted(claim.claim_id for claim in taken)
            draw_id = digest(["draw", first.strategy_fingerprint, target, number, ids], 16)
            made = Draw(draw_id, first.strategy, len(taken), len(claims))
            frame = {
                **made._asdict(),
                "strategy_fingerprint": first.strategy_fingerprint,
                "target": target,
                "depth": sample.depth,
                "seed": sample.seed,
                "batch": max(claim.batch for claim in claims),
                "number": number,
                "at": stamp,
            }
            transaction.insert(FRAMES, [[frame[name] for name in FRAMES.column_names]])
            share = made.n / made.population
            rows = ([draw_id, one.claim_id, target, one.k, share, stamp] for one in taken)
            transaction.insert(DRAWS, rows)
            # The file is written inside the transaction, so that no draw is kept without a file.
            lines = (_audit_line(claim, draw_id, sample) for claim in taken)
            write_text(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        return made

    def count_unaudited(
        self, fingerprint: str, target: str, judged: Collection[str], claim_ids: Iterable[str]
    ) -> int:
        """Count the claims whose draw has no judged claim; claims without a draw count too.

        A claim belongs to the first draw after its import. `judged` are the ids of claims that an
        audit has judged. `claim_ids` are the claims to count.
        """
        where = {"strategy_fingerprint": fingerprint, "target": target}
        drawn, claims = self.find_drawn(judged), ClaimStore(self.sql).by_id(claim_ids).values()
        done = {one.draw_id for (_, of), one in drawn.items() if of == target}
        with self.sql.reading() as transaction:
            frames = sorted(transaction.select(FRAMES, where), key=lambda frame: frame["batch"])
        draws = (
            next((frame["draw_id"] for frame in frames if frame["batch"] >= claim.batch), "")
            for claim in claims
        )
        return sum(draw not in done for draw in draws)

    def find_drawn(self, claim_ids: Iterable[str]) -> dict[tuple[str, str], Drawn]:
        """Return the draw of each drawn (claim, target) of some claims."""
        wanted = ("claim_id", "target", *Drawn._fields)
        with self.sql.reading() as transaction:
            columns = look_up(transaction, DRAWS, "claim_id", claim_ids, wanted)
        rows = zip(*columns.values(), strict=True)
        return {(claim, target): Drawn(*row) for claim, target, *row in rows}

    def draws(self, outcomes: pd.DataFrame) -> list[dict[str, Any]]:
        """Return every draw, oldest first, with its number of claims that were `judged`.

        `outcomes` are the current outcomes.
        """
        audited = outcomes[outcomes["gold_source"].isin(AUDITS) & outcomes["missed"].notna()]
        judged = set(zip(audited["claim_id"], audited["target"], strict=True))
        with self.sql.reading() as transaction:
            drawn, frames = transaction.select(DRAWS), transaction.select(FRAMES)
        counts = Counter(
            row["draw_id"] for row in drawn if (row["claim_id"], row["target"]) in judged
        )
        rows = [{**frame, "judged": counts[frame["draw_id"]]} for frame in frames]
        return sorted(rows, key=lambda row: (row["at"], row["number"]))


def _find_population(transaction: Transaction, sample: Sample) -> tuple[list[Claim], int]:
    """List the claims of one fingerprint since its last draw, and number the next draw from 1."""
    claims = _select_claims(
        transaction, strategy=sample.strategy, strategy_fingerprint=sample.fingerprint
    )
    fingerprints = {claim.strategy_fingerprint: claim.strategy for claim in claims}
    if len(fingerprints) > 1:
        names = (f"{quoted(name)} {quoted(identity)}" for identity, name in fingerprints.items())
        raise InputError.of(
            "several_strategies",
            "claims of several fingerprints are there, and a draw is of one",
            field="--fingerprint",
            found="; ".join(sorted(names)[:10]),
            accepted="one of them",
        )
    where = {"strategy_fingerprint": list(fingerprints), "target": sample.target}
    batches = transaction.columns(FRAMES, where, ["batch"])["batch"]
    last = max(batches, default=-1)
    left = sorted((claim for claim in claims if claim.batch > last), key=_CLAIM_ID)
    if not left:
        accepted = "claims of production traffic: rag-eval claim import"
        raise InputError.of("no_claims", "no claim came in since the last draw", accepted=accepted)
    deepest = max(claim.k for claim in left)
    if sample.depth < deepest:
        raise InputError.of(
            "depth_too_small",
            f"the top {deepest} cannot be judged by looking at {sample.depth}",
            field="--depth",
            found=str(sample.depth),
            accepted=f"{deepest} or more",
        )
    return left, len(batches) + 1


def _audit_line(claim: Claim, draw_id: str, sample: Sample) -> dict[str, object]:
    """Write the columns that the auditor reads, then the columns that the auditor fills in."""
    return {
        "draw_id": draw_id,
        "claim_id": claim.claim_id,
        "query": claim.query,
        "target": sample.target,
        "k": claim.k,
        "depth": sample.depth,
        "retrieved": [name for name, _ in claim.retrieved[: sample.depth]],
        "missed": None,
        "missed_content": None,
        "gold_source": None,
        "audit_depth": None,
        "gold_strategies": [claim.strategy_fingerprint],
        "gold_documents": [],
        "note": "",
    }
