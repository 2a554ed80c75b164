"""Claims of production traffic, and random draws of them to be judged, with known probability.

`outcome_files` reads the files: imported claims, and audits that were filled in.
"""

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.types import BinaryTarget
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
LOCK: Final = "production_claims"


class Claim(NamedTuple):
    """One retrieval of production traffic without gold: the masked question and its results.

    `retrieved` holds the ids of the results, best first, with their scores. Times are UTC texts.
    The store numbers its imports from 1 in `batch`.
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

    Equal seeds draw equal samples from equal stores. If the store has claims of several
    fingerprints, give the strategy or the fingerprint.
    """

    n: int
    seed: int
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


class LastDraw(NamedTuple):
    """Ids of the claims that the last draw was made from, and of the claims that it drew.

    Every claim of the population was drawn with the inclusion probability.
    """

    population: frozenset[str]
    drawn: frozenset[str]
    inclusion_probability: float


class AuditStore:
    """Draws of claims; nothing is updated or deleted.

    A draw is of the claims of one fingerprint that were imported since the last draw, so that
    each claim belongs to one draw. Raises InputError where the store cannot be used, or a table
    has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        for table in (CLAIMS_TABLE, DRAWS):
            store.create(table)

    def draw(self, sample: Sample, path: Path, *, now: dt.datetime) -> Draw:
        """Draw a simple random sample of claims, and write the file that the auditor fills in.

        Raises InputError: `file_exists`, `no_claims`, `several_strategies`.
        """
        if path.exists():
            message = "the file is there already, and may hold an auditor's work"
            accepted = "a file that does not exist"
            raise InputError.of("file_exists", message, path, field="--out", accepted=accepted)
        with self.sql.transaction(LOCK) as transaction:
            stamp, target = utc_text(now), sample.target
            claims = _find_population(transaction, sample, stamp)
            order = np.random.default_rng(sample.seed).permutation(len(claims))
            taken = [claims[at] for at in order[: sample.n]]
            ids = sorted(claim.claim_id for claim in taken)
            draw_id = digest(["draw", target, stamp, ids], 16)
            share = len(taken) / len(claims)
            rows = ([draw_id, claim.claim_id, target, claim.k, share, stamp] for claim in taken)
            transaction.insert(DRAWS, rows)
            # The file is written inside the transaction, so that no draw is kept without a file.
            lines = (_audit_line(claim, draw_id, target) for claim in taken)
            write_text(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        return Draw(draw_id, claims[0].strategy, len(taken), len(claims))

    def last_draw(self, fingerprint: str, target: str) -> LastDraw | None:
        """Return the last draw of a fingerprint and target, None without a draw."""
        with self.sql.reading() as transaction:
            claims = _select_claims(transaction, strategy_fingerprint=fingerprint)
            draws = _select_draws(transaction, claims, target)
        if not draws:
            return None
        before, last = ["", *sorted({at for _, _, at in draws})][-2:]
        return LastDraw(
            frozenset(claim.claim_id for claim in claims if before < claim.imported_at <= last),
            frozenset(name for name, _, at in draws if at == last),
            next(probability for _, probability, at in draws if at == last),
        )

    def find_drawn(self, claim_ids: Iterable[str]) -> dict[tuple[str, str], Drawn]:
        """Return the draw of each drawn (claim, target) of some claims."""
        wanted = ("claim_id", "target", *Drawn._fields)
        with self.sql.reading() as transaction:
            columns = look_up(transaction, DRAWS, "claim_id", claim_ids, wanted)
        rows = zip(*columns.values(), strict=True)
        return {(claim, target): Drawn(*row) for claim, target, *row in rows}


def _select_draws(
    transaction: Transaction, claims: Iterable[Claim], target: str
) -> list[tuple[str, float, str]]:
    """List claim id, inclusion probability and time of draw of the drawn ones of some claims."""
    wanted, ids = ("claim_id", "inclusion_probability", "at"), map(_CLAIM_ID, claims)
    where = {"target": target}
    columns = look_up(transaction, DRAWS, "claim_id", ids, wanted, where=where)
    return list(zip(*columns.values(), strict=True))


def _find_population(transaction: Transaction, sample: Sample, stamp: str) -> list[Claim]:
    """List the claims of one fingerprint that were imported since its last draw."""
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
    last = max((at for *_, at in _select_draws(transaction, claims, sample.target)), default="")
    new = sorted((claim for claim in claims if last < claim.imported_at <= stamp), key=_CLAIM_ID)
    if not new:
        accepted = "claims of production traffic: rag-eval claim import"
        raise InputError.of("no_claims", "no claim came in since the last draw", accepted=accepted)
    return new


def _audit_line(claim: Claim, draw_id: str, target: str) -> dict[str, object]:
    """Write the columns that the auditor reads, then the columns that the auditor fills in."""
    return {
        "draw_id": draw_id,
        "claim_id": claim.claim_id,
        "query": claim.query,
        "target": target,
        "k": claim.k,
        "retrieved": [name for name, _ in claim.retrieved],
        "missed": None,
        "missed_content": None,
        "gold_source": None,
        "gold_strategies": [claim.strategy_fingerprint],
        "gold_documents": [],
        "note": "",
    }
