"""Records of measures: means over queries with interval and every denominator."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import FloatArray
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.measures.ranking import as_codes, as_values

SEED = 20_240_229
"""Seed of every random draw of a calibration, so that equal outcomes have equal figures."""

# ---- The shown record of a measure: mean, interval and all denominators


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureRecord:
    """One measure of one strategy, as the report shows it."""

    label: str
    """Name of the measure, such as `R@10` or `delta_s`."""
    value: float
    """Mean over the scored queries; NaN without a scored query."""
    ci_low: float
    ci_high: float
    n_attempted: int
    """Number of attempted queries: n_scored + n_ineligible."""
    n_scored: int
    """Number of queries in the mean, including failed queries."""
    n_failed: int
    """Number of scored queries with at least one failed retrieval."""
    n_ineligible: int
    """Number of queries without a score, because the gold is empty or no value exists."""
    n_effective: float
    """Number of independent questions that the scored queries are worth; 0 without a query."""
    judged_at_k: float
    """Mean `Judged@k` at the cutoff of the measure; NaN unless the labels include `Judged@k`."""


def aggregate(
    labels: Sequence[str],
    values: ArrayLike,
    gold: SharedGold,
    *,
    query_of: ArrayLike | None = None,
    failed: ArrayLike | None = None,
    ineligible: ArrayLike | None = None,
    failed_value: ArrayLike = 0.0,
) -> list[MeasureRecord]:
    """Aggregate values in [0, 1] into one record for each label.

    `values`, [n_runs, m], has a row for each run (query x wording x seed), NaN = no value. Run i is
    of query `query_of[i]`; without `query_of`, a query has one run. `gold` is
    that of all attempted queries. A run that `failed`, [n_runs], scores `failed_value`, the
    worst score of all measures or of each. `ineligible`, [n_queries] or [n_queries, m], marks
    queries that cannot be scored, even if a run failed. A query without values and failed runs is
    ineligible too.
    """
    n, runs = len(gold), as_values(values)
    if runs.shape[1] != len(labels):
        raise ValueError(f"values has {runs.shape[1]} columns for {len(labels)} labels")
    query = np.arange(n) if query_of is None else as_codes(query_of, "query_of")
    if len(query) != len(runs):
        raise ValueError(
            f"values has {len(runs)} rows for {len(query)} runs; "
            "accepted: one row a run, named by query_of, or one a query"
        )
    broken = np.zeros(len(runs), dtype=bool) if failed is None else np.asarray(failed, dtype=bool)
    means = within_query(
        np.where(broken[:, None], np.asarray(failed_value, dtype=np.float64), runs), query, n
    )
    if ineligible is not None:
        mask = np.asarray(ineligible, dtype=bool)
        means[np.broadcast_to(mask[:, None] if mask.ndim == 1 else mask, means.shape)] = np.nan
    any_failed = np.bincount(query[broken], minlength=n) > 0
    bounds = np.stack(mean_interval(means, gold), axis=1).tolist()
    records = []
    for at, (label, (value, low, high, n_effective)) in enumerate(zip(labels, bounds, strict=True)):
        scored = ~np.isnan(means[:, at])
        n_scored = int(np.count_nonzero(scored))
        beside = label.replace(label.partition("@")[0], "Judged", 1)
        has_judged = beside in labels and beside != label
        judged = means[scored, labels.index(beside)] if has_judged else np.empty(0)
        judged = judged[~np.isnan(judged)]
        record = MeasureRecord(
            label=label,
            value=value,
            ci_low=low,
            ci_high=high,
            n_attempted=len(means),
            n_scored=n_scored,
            n_failed=int(np.count_nonzero(scored & any_failed)),
            n_ineligible=len(means) - n_scored,
            n_effective=n_effective,
            judged_at_k=float(judged.mean()) if len(judged) else float("nan"),
        )
        records.append(record)
    return records


def within_query(values: ArrayLike, query_of: ArrayLike, n_queries: int) -> FloatArray:
    """Average the runs with a value of each query, [n_queries, m]; NaN without such a run."""
    runs, query = as_values(values), as_codes(query_of, "query_of")
    has_value = ~np.isnan(runs)
    totals, counts = np.zeros((2, n_queries, runs.shape[1]))
    np.add.at(totals, query, np.where(has_value, runs, 0.0))
    np.add.at(counts, query, has_value)
    counts[counts == 0] = np.nan
    means: FloatArray = totals / counts
    return means
