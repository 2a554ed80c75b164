"""Claims of production traffic, random audits of them, and the miss rate that they give.

`outcome_files` reads the files: imported claims, and audits that were filled in.
"""

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.types import BinaryTarget
from rag_eval.measures.overlap import effective_groups, wilson
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import write_text
from rag_eval.storage.sql import ColumnSpec, Kind, SqlStore, TableSpec, Transaction
from rag_eval.uncertainty.outcomes import AUDITS, OutcomeStore, fit_rows, look_up, utc_text


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
    """Ids of the claims that the last draw was made from, and of the claims that it drew."""

    population: frozenset[str]
    drawn: frozenset[str]


class TrafficStore:
    """Claims of production traffic and random draws of them; nothing is updated or deleted.

    A draw is of the claims of one fingerprint that were imported since the last draw, so that
    each claim belongs to one draw. Raises InputError where the store cannot be used, or a table
    has other columns.
    """

    def __init__(self, store: SqlStore) -> None:
        self.sql = store
        for table in (CLAIMS_TABLE, DRAWS):
            store.create(table)

    def add(self, claims: Iterable[Claim], *, now: dt.datetime) -> int:
        """Add the claims that are new in one transaction, and return their number."""
        with self.sql.transaction(LOCK) as transaction:
            batch = max(transaction.columns(CLAIMS_TABLE, None, ["batch"])["batch"], default=0) + 1
            ordered = sorted(claims, key=lambda claim: claim.claim_id)
            rows = (claim._replace(batch=batch, imported_at=utc_text(now)) for claim in ordered)
            return len(transaction.insert_new(CLAIMS_TABLE, rows, "claim_id"))

    def claims(self, **where: str) -> list[Claim]:
        """Return the claims with these values of columns, in the order of import."""
        with self.sql.reading() as transaction:
            claims = _select_claims(transaction, where)
        return sorted(claims, key=lambda claim: (claim.batch, claim.at or "", claim.claim_id))

    def by_id(self, claim_ids: Iterable[str]) -> dict[str, Claim]:
        """Return the stored claims of some ids, by id; unknown ids are left out."""
        with self.sql.reading() as transaction:
            columns = look_up(transaction, CLAIMS_TABLE, "claim_id", claim_ids, Claim._fields)
        return {row[0]: Claim(*row) for row in zip(*columns.values(), strict=True)}

    def draw(
        self,
        path: Path,
        *,
        n: int,
        seed: int,
        now: dt.datetime,
        target: BinaryTarget = "miss_any",
        strategy: str | None = None,
        fingerprint: str | None = None,
    ) -> Draw:
        """Draw a simple random sample of n claims, and write the file that the auditor fills in.

        Equal seeds draw equal samples from equal stores. If the store has claims of several
        fingerprints, give the strategy or the fingerprint.

        Raises InputError: `file_exists`, `no_claims`, `several_strategies`.
        """
        if path.exists():
            message = "the file is there already, and may hold an auditor's work"
            accepted = "a file that does not exist"
            raise InputError.of("file_exists", message, path, field="--out", accepted=accepted)
        asked = {"strategy": strategy, "strategy_fingerprint": fingerprint}
        where = {name: value for name, value in asked.items() if value is not None}
        with self.sql.transaction(LOCK) as transaction:
            stamp = utc_text(now)
            claims = _find_population(transaction, where, target, stamp)
            order = np.random.default_rng(seed).permutation(len(claims))
            chosen = [claims[at] for at in order[:n]]
            draw_id = digest(["draw", target, stamp, sorted(each.claim_id for each in chosen)], 16)
            share = len(chosen) / len(claims)
            rows = ([draw_id, claim.claim_id, target, claim.k, share, stamp] for claim in chosen)
            transaction.insert(DRAWS, rows)
            # The file is written inside the transaction, so that no draw is kept without a file.
            lines = (_audit_line(claim, draw_id, target) for claim in chosen)
            write_text(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
        return Draw(draw_id, claims[0].strategy, len(chosen), len(claims))

    def last_draw(self, fingerprint: str, target: str) -> LastDraw | None:
        """Return the last draw of a fingerprint and target, None without a draw."""
        with self.sql.reading() as transaction:
            claims = _select_claims(transaction, {"strategy_fingerprint": fingerprint})
            draws = _select_draws(transaction, claims, target)
        if not draws:
            return None
        before, last = ["", *sorted({at for _, at in draws})][-2:]
        return LastDraw(
            frozenset(claim.claim_id for claim in claims if before < claim.imported_at <= last),
            frozenset(name for name, at in draws if at == last),
        )

    def find_drawn(self, claim_ids: Iterable[str]) -> dict[tuple[str, str], Drawn]:
        """Return the draw of each drawn (claim, target) of some claims."""
        wanted = ("claim_id", "target", *Drawn._fields)
        with self.sql.reading() as transaction:
            columns = look_up(transaction, DRAWS, "claim_id", claim_ids, wanted)
        rows = zip(*columns.values(), strict=True)
        return {(claim, target): Drawn(*row) for claim, target, *row in rows}


def _select_claims(transaction: Transaction, where: Mapping[str, str]) -> list[Claim]:
    return [Claim(**row) for row in transaction.select(CLAIMS_TABLE, where)]


def _select_draws(
    transaction: Transaction, claims: Iterable[Claim], target: str
) -> list[tuple[str, str]]:
    """List claim id and time of draw of the drawn ones of some claims."""
    ids, wanted = (claim.claim_id for claim in claims), ("claim_id", "at")
    columns = look_up(transaction, DRAWS, "claim_id", ids, wanted, where={"target": target})
    return list(zip(*columns.values(), strict=True))


def _find_population(
    transaction: Transaction, where: Mapping[str, str], target: str, stamp: str
) -> list[Claim]:
    """List the claims of one fingerprint that were imported since its last draw."""
    claims = _select_claims(transaction, where)
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
    last = max((at for _, at in _select_draws(transaction, claims, target)), default="")
    new = [claim for claim in claims if last < claim.imported_at <= stamp]
    if not new:
        accepted = "claims of production traffic: rag-eval claim import"
        raise InputError.of("no_claims", "no claim came in since the last draw", accepted=accepted)
    return sorted(new, key=lambda claim: claim.claim_id)


def _audit_line(claim: Claim, draw_id: str, target: str) -> dict[str, object]:
    """Write the columns that the auditor reads, then the columns that the auditor fills in."""
    return {
        "draw_id": draw_id,
        "claim_id": claim.claim_id,
        "query": claim.query,
        "target": target,
        "k": claim.k,
        "retrieved": [name for name, _ in claim.retrieved],
        **dict.fromkeys(("missed", "missed_content", "gold_source")),
        "gold_strategies": [claim.strategy_fingerprint],
        "gold_documents": [],
        "note": "",
    }


# ---- The prediction-powered estimate: few audited claims, and predictions for the others.

FEW_GROUPS = 3
"""Least number of labelled groups for a fitted power and an interval."""


@dataclasses.dataclass(frozen=True)
class PoweredEstimate:
    """Miss rate of production traffic, estimated from labels and predictions.

    The `labels` figures come from the labels alone. `power` is the weight of the predictions, 0 to
    1, `extra_labels` the share of further labelled groups that would narrow the interval as much. A
    group with a label counts as labelled. Intervals are None if labelled groups are too few.
    """

    n_labelled: int
    n_unlabelled: int
    n_groups_labelled: int
    n_groups_unlabelled: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    labels_value: float | None = None
    labels_low: float | None = None
    labels_high: float | None = None
    power: float = 0.0
    extra_labels: float = 0.0


def _prediction_powered(
    missed: FloatArray, predicted: FloatArray, group: IntArray
) -> PoweredEstimate:
    """Estimate the miss rate of all queries (PPI++, Angelopoulos et al. 2023, by groups).

    `missed` [n] are outcomes, NaN = not labelled; labelled queries must be a random sample.
    `predicted` [n] come from models that did not see the query's group, NaN = left out. If no
    labelled query has a prediction, the labels count alone. Intervals are Wilson's on the effective
    number of groups.
    """
    has, labelled = ~np.isnan(predicted), ~np.isnan(missed)
    if labelled.any() and not (has & labelled).any():
        predicted, has = np.where(labelled, 0.0, np.nan), labelled
    used, unlabelled = has & labelled, has & ~labelled
    n, m = int(used.sum()), int(unlabelled.sum())
    codes, code = np.unique(group, return_inverse=True)

    def sum_groups(rows: BoolArray, values: FloatArray | None = None) -> FloatArray:
        return np.bincount(code[rows], values, minlength=len(codes)).astype(np.float64)

    size = sum_groups(used)
    with_label = size > 0
    n_groups = int(with_label.sum())
    n_others = int((sum_groups(unlabelled) > 0)[~with_label].sum())
    if n_groups < FEW_GROUPS:
        mean = float(missed[used].mean()) if n else None
        return PoweredEstimate(n, m, n_groups, n_others, value=mean, labels_value=mean)
    mean_y, mean_f = float(missed[used].mean()), float(predicted[used].mean())
    mean_u = float(predicted[unlabelled].mean()) if m else mean_f
    by_label = sum_groups(used, missed[used] - mean_y) / n
    by_prediction = -sum_groups(used, predicted[used] - mean_f) / n
    if m:
        by_prediction += sum_groups(unlabelled, predicted[unlabelled] - mean_u) / m
    spread, power = float((by_prediction**2).sum()), 0.0
    if m and spread > 0:
        power = float(np.clip(-(by_label * by_prediction).sum() / spread, 0, 1))
    value = mean_y + power * (mean_u - mean_f)
    factor = np.where(with_label, n_groups / (n_groups - 2), 1.0)
    variance, alone = (
        float((factor * (by_label + part * by_prediction) ** 2).sum()) for part in (power, 0.0)
    )
    # At a power of 0 both variances are equal, so rounding could push the ratio below 1.
    gain = max(alone / variance, 1.0) if variance > 0 else 1.0
    kish = float(size.sum() ** 2 / (size**2).sum())
    low, high = _interval(value, variance, kish * gain, n_groups)
    labels_low, labels_high = _interval(mean_y, alone, kish, n_groups)
    return PoweredEstimate(
        n,
        m,
        n_groups,
        n_others,
        float(np.clip(value, 0, 1)),
        low,
        high,
        mean_y,
        labels_low,
        labels_high,
        power,
        gain - 1,
    )


def _interval(value: float, variance: float, kish: float, n_groups: int) -> tuple[float, float]:
    from scipy.special import stdtrit

    z = float(stdtrit(n_groups - 1, 0.975))
    rate = np.clip(np.array([value]), 0, 1)
    low, high = wilson(rate, effective_groups(rate, np.array([variance]), kish), z)
    return float(np.clip(low[0], 0, 1)), float(np.clip(high[0], 0, 1))


def estimate_traffic(
    store: OutcomeStore, fingerprint: str, target: BinaryTarget, k: int, traffic: pd.DataFrame
) -> PoweredEstimate | str:
    """Estimate the miss rate of the production traffic that the last draw was made from.

    The labels are those of the drawn claims, by people. The predictions in `traffic` come from
    models that did not see the claim's group. Returns the reason where there is no estimate.
    """
    draw = TrafficStore(store.sql).last_draw(fingerprint, target)
    if draw is None:
        return "no claim of production traffic was drawn: rag-eval audit draw"
    traffic = traffic[traffic["claim_id"].isin(draw.population)]
    where = {"strategy_fingerprint": fingerprint, "target": target, "k": k}
    rows = fit_rows(store.current(**where, gold_source=sorted(AUDITS)))
    labels = rows[rows["claim_id"].isin(draw.drawn)].set_index("claim_id")["missed"]
    missed = labels.reindex(traffic["claim_id"]).to_numpy(dtype=np.float64)
    if np.isnan(missed).all():
        return f"no drawn claim that counts was judged by a person for {target}@{k}"
    group = pd.factorize(traffic["group_id"], sort=True)[0].astype(np.int64)
    return _prediction_powered(missed, traffic["predicted"].to_numpy(), group)
