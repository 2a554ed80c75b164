"""Claims of production traffic, and random audits of them with known inclusion probabilities.

`outcome_files` reads the files: imported claims, and audits that were filled in.
"""

import dataclasses
import datetime as dt
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict, cast

import numpy as np
import pandas as pd

from rag_eval.core.config import BinaryTarget
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.types import AUDITS, Claim
from rag_eval.storage.artifacts import write_text
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import ColumnSpec, SqlStore, TableSpec, Transaction
from rag_eval.uncertainty.outcomes import Lookup, utc_text

CLAIMS_TABLE: Final = TableSpec(
    "production_claims",
    (
        ColumnSpec("claim_id", "text", required=True),
        ColumnSpec("query_id", "text", required=True),
        ColumnSpec("group_id", "text", required=True),
        ColumnSpec("strategy", "text", required=True),
        ColumnSpec("strategy_fingerprint", "text", required=True),
        ColumnSpec("query", "text", required=True),
        ColumnSpec("retrieved", "json", required=True),
        ColumnSpec("k", "integer", required=True),
        ColumnSpec("miss_rate", "float"),
        ColumnSpec("at", "text"),
        ColumnSpec("batch", "integer", required=True),
        ColumnSpec("imported_at", "text", required=True),
    ),
    indexes=(("strategy_fingerprint",),),
    unique=(("claim_id",),),
)
"""Imported claims. `batch` counts imports, and a draw covers imports up to its own batch."""
DRAWS: Final = TableSpec(
    "audit_draws",
    (
        ColumnSpec("draw_id", "text", required=True),
        ColumnSpec("claim_id", "text", required=True),
        ColumnSpec("target", "text", required=True),
        ColumnSpec("k", "integer", required=True),
        ColumnSpec("stratum", "integer", required=True),
        ColumnSpec("inclusion_probability", "float", required=True),
        ColumnSpec("at", "text", required=True),
    ),
    indexes=(("draw_id",),),
    unique=(("claim_id", "target"),),
)
FRAMES: Final = TableSpec(
    "audit_frames",
    (
        ColumnSpec("draw_id", "text", required=True),
        ColumnSpec("strategy", "text", required=True),
        ColumnSpec("strategy_fingerprint", "text", required=True),
        ColumnSpec("target", "text", required=True),
        ColumnSpec("depth", "integer", required=True),
        ColumnSpec("n", "integer", required=True),
        ColumnSpec("population", "integer", required=True),
        ColumnSpec("seed", "integer", required=True),
        ColumnSpec("strata", "json", required=True),
        ColumnSpec("batch", "integer", required=True),
        ColumnSpec("number", "integer", required=True),
        ColumnSpec("at", "text", required=True),
    ),
    unique=(("draw_id",), ("strategy_fingerprint", "target", "number")),
)
"""Population of each draw: the claims of a fingerprint up to import `batch`.

The columns `strata` and `stratum` remain from earlier versions that drew strata.
"""
LOCK: Final = "production_claims"


@dataclasses.dataclass(frozen=True)
class Imported:
    """Numbers of added claims, and of claims that were stored before or repeated in the file."""

    added: int
    already_there: int


class KnownClaim(NamedTuple):
    """Fields that identify a claim of production traffic."""

    query_id: str
    group_id: str
    strategy: str
    strategy_fingerprint: str
    k: int
    query: str


class ClaimRow(TypedDict):
    """A row of CLAIMS_TABLE; times are UTC texts."""

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
    batch: int
    imported_at: str


class ClaimStore:
    """Claims of production traffic; nothing is updated or deleted.

    Raises InputError where the store cannot be used, or its table has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        store.create(CLAIMS_TABLE)

    def add(self, claims: Collection[Claim], *, now: dt.datetime) -> Imported:
        """Add the claims that are new, in one transaction."""
        with self.sql.transaction(LOCK) as transaction:
            batch = max(transaction.columns(CLAIMS_TABLE, None, ["batch"])["batch"], default=0) + 1
            rows = []
            for claim in sorted(claims, key=lambda claim: claim.claim_id):
                values = {**dict(claim), "batch": batch, "imported_at": utc_text(now)}
                values["at"] = None if claim.at is None else utc_text(claim.at)
                rows.append([values[name] for name in CLAIMS_TABLE.column_names])
            added = len(transaction.insert_new(CLAIMS_TABLE, rows, "claim_id"))
        return Imported(added, len(claims) - added)

    def claims(
        self, *, strategy: str | None = None, fingerprint: str | None = None
    ) -> list[ClaimRow]:
        """Return the rows of claims in the order of import; a filter of None keeps all claims."""
        with self.sql.reading() as transaction:
            rows = _select_claims(transaction, strategy, fingerprint)
        return sorted(rows, key=lambda row: (row["batch"], row["at"] or "", row["claim_id"]))

    def by_id(self, claim_ids: Iterable[str]) -> dict[str, KnownClaim]:
        """Return the known claims of some ids, by id; unknown ids are left out."""
        lookup = Lookup(CLAIMS_TABLE, "claim_id", ("claim_id", *KnownClaim._fields))
        with self.sql.reading() as transaction:
            columns = lookup.find(transaction, claim_ids)
        return {name: KnownClaim(*row) for name, *row in zip(*columns.values(), strict=True)}


def _select_claims(
    transaction: Transaction, strategy: str | None, fingerprint: str | None
) -> list[ClaimRow]:
    given = {"strategy": strategy, "strategy_fingerprint": fingerprint}
    where = {name: value for name, value in given.items() if value is not None}
    return cast("list[ClaimRow]", transaction.select(CLAIMS_TABLE, where))


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


@dataclasses.dataclass(frozen=True)
class Draw:
    """A finished draw of `n` claims out of `population`, written to `path`."""

    draw_id: str
    strategy: str
    strategy_fingerprint: str
    n: int
    population: int
    path: Path

    @property
    def probability(self) -> float:
        """Inclusion probability of each claim: n / population."""
        return self.n / self.population


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
            raise InputError(
                Problem("file_exists", message, file=str(path), field="--out", accepted=accepted)
            )
        with self.sql.transaction(LOCK) as transaction:
            rows, frames = _find_population(transaction, sample)
            order = np.random.default_rng(sample.seed).permutation(len(rows))
            taken = [rows[at] for at in order[: sample.n]]
            first, number, stamp = rows[0], len(frames) + 1, utc_text(now)
            fingerprint, target = first["strategy_fingerprint"], sample.target
            ids = sorted(row["claim_id"] for row in taken)
            draw_id = digest(["draw", fingerprint, target, number, ids], 16)
            done = Draw(draw_id, first["strategy"], fingerprint, len(taken), len(rows), path)
            frame = {
                "draw_id": draw_id,
                "strategy": done.strategy,
                "strategy_fingerprint": fingerprint,
                "target": target,
                "depth": sample.depth,
                "n": done.n,
                "population": done.population,
                "seed": sample.seed,
                "strata": {"edges": [], "sizes": [done.population], "drawn": [done.n]},
                "batch": max(row["batch"] for row in rows),
                "number": number,
                "at": stamp,
            }
            transaction.insert(FRAMES, [[frame[name] for name in FRAMES.column_names]])
            transaction.insert(
                DRAWS,
                (
                    [draw_id, row["claim_id"], target, row["k"], 0, done.probability, stamp]
                    for row in taken
                ),
            )
            # The file is written inside the transaction, so that no draw is kept without a file.
            lines = (_audit_line(row, draw_id, sample) for row in taken)
            write_text(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        return done

    def count_unaudited(
        self, fingerprint: str, target: str, judged: Collection[str], claim_ids: Collection[str]
    ) -> int:
        """Count the claims whose draw has no judged claim; claims without a draw count too.

        A claim belongs to the first draw after its import. `judged` are the ids of claims that an
        audit has judged. `claim_ids` are the claims to count.
        """
        with self.sql.reading() as transaction:
            frames = sorted(
                transaction.select(FRAMES, {"strategy_fingerprint": fingerprint, "target": target}),
                key=lambda row: row["batch"],
            )
            names = [row["draw_id"] for row in frames]
            drawn = transaction.columns(DRAWS, {"draw_id": names}, ["claim_id", "draw_id"])
            claimed = transaction.columns(
                CLAIMS_TABLE, {"strategy_fingerprint": fingerprint}, ["claim_id", "batch"]
            )
        done = {
            draw
            for claim, draw in zip(drawn["claim_id"], drawn["draw_id"], strict=True)
            if claim in judged
        }
        batches = dict(zip(claimed["claim_id"], claimed["batch"], strict=True))
        draws = (
            next((row["draw_id"] for row in frames if row["batch"] >= batches[claim]), "")
            for claim in claim_ids
        )
        return sum(draw not in done for draw in draws)

    def find_drawn(self, claim_ids: Iterable[str]) -> dict[tuple[str, str], Drawn]:
        """Return the draw of each drawn (claim, target) of some claims."""
        lookup = Lookup(DRAWS, "claim_id", ("claim_id", "target", *Drawn._fields))
        with self.sql.reading() as transaction:
            columns = lookup.find(transaction, claim_ids)
        rows = zip(*columns.values(), strict=True)
        return {(claim, target): Drawn(*row) for claim, target, *row in rows}

    def frames(self) -> list[dict[str, Any]]:
        """Return every draw, oldest first."""
        with self.sql.reading() as transaction:
            return sorted(transaction.select(FRAMES), key=lambda row: (row["at"], row["number"]))

    def count_judged(self, outcomes: pd.DataFrame) -> dict[str, int]:
        """Count the judged claims of each draw by its id; `outcomes` are the current outcomes."""
        audited = outcomes[outcomes["gold_source"].isin(AUDITS) & outcomes["missed"].notna()]
        judged = set(zip(audited["claim_id"], audited["target"], strict=True))
        with self.sql.reading() as transaction:
            drawn = transaction.select(DRAWS)
        counts = dict.fromkeys((row["draw_id"] for row in drawn), 0)
        for row in drawn:
            counts[row["draw_id"]] += (row["claim_id"], row["target"]) in judged
        return counts


def _find_population(transaction: Transaction, sample: Sample) -> tuple[list[ClaimRow], list[int]]:
    """List the claims of one fingerprint since its last draw, and the batches of its draws."""
    rows = _select_claims(transaction, sample.strategy, sample.fingerprint)
    found = sorted({(row["strategy"], row["strategy_fingerprint"]) for row in rows})
    fingerprints = sorted({fingerprint for _, fingerprint in found})
    if len(fingerprints) > 1:
        names = (f"{quoted(name, 60)} {quoted(identity, 60)}" for name, identity in found[:10])
        message = "claims of several fingerprints are there, and a draw is of one"
        raise InputError(
            Problem(
                "several_strategies",
                message,
                field="--fingerprint",
                found="; ".join(names),
                accepted="one of them",
            )
        )
    where = {"strategy_fingerprint": fingerprints, "target": sample.target}
    batches = transaction.columns(FRAMES, where, ["batch"])["batch"]
    last = max(batches, default=-1)
    left = [row for row in rows if row["batch"] > last]
    left.sort(key=lambda row: row["claim_id"])
    if not left:
        accepted = "claims of production traffic: rag-eval claim import"
        message = "no claim came in since the last draw"
        raise InputError(Problem("no_claims", message, accepted=accepted))
    deepest = max(row["k"] for row in left)
    if sample.depth < deepest:
        message = f"the top {deepest} cannot be judged by looking at {sample.depth}"
        found_depth, accepted = str(sample.depth), f"{deepest} or more"
        raise InputError(
            Problem(
                "depth_too_small", message, field="--depth", found=found_depth, accepted=accepted
            )
        )
    return left, batches


def _audit_line(claim: ClaimRow, draw_id: str, sample: Sample) -> Mapping[str, object]:
    """Write the columns that the auditor reads, then the columns that the auditor fills in."""
    return {
        "draw_id": draw_id,
        "claim_id": claim["claim_id"],
        "query": claim["query"],
        "target": sample.target,
        "k": claim["k"],
        "depth": sample.depth,
        "retrieved": [name for name, _ in claim["retrieved"][: sample.depth]],
        "missed": None,
        "missed_content": None,
        "gold_source": None,
        "audit_depth": None,
        "gold_strategies": [claim["strategy_fingerprint"]],
        "gold_documents": [],
        "note": "",
    }
