"""From per-run values to the record that is shown: mean, interval, and every denominator.

Belongs here: averaging inside the query, and what failed and ineligible runs do to a mean.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray, as_codes, as_values
from rag_eval.measures.bounds import judged_label
from rag_eval.measures.intervals import RESAMPLES, clustered_interval


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureRecord:
    """One measure of one strategy, as the report shows it.

    Parameters
    ----------
    label
        `R@10`, `delta_s`, ...
    value, ci_low, ci_high
        Mean over the scored queries and its 95 % interval; NaN where nothing was scored.
    n_attempted
        Queries attempted: n_scored + n_ineligible.
    n_scored
        Queries in the mean, its denominator, those that failed included.
    n_failed
        Of the scored queries, those with at least one failed retrieval.
    n_ineligible
        Queries that could not be scored: empty gold, or no value.
    n_groups
        Independent groups of the scored queries; what the interval and the gates rest on.
    judged_at_k
        Mean judgement rate at the same cutoff, where it is among the labels; else NaN.
    """

    label: str
    value: float
    ci_low: float
    ci_high: float
    n_attempted: int
    n_scored: int
    n_failed: int
    n_ineligible: int
    n_groups: int
    judged_at_k: float


def aggregate(
    labels: Sequence[str],
    values: ArrayLike,
    groups: ArrayLike,
    seed: int,
    *,
    query_of: ArrayLike | None = None,
    failed: ArrayLike | None = None,
    ineligible: ArrayLike | None = None,
    failed_value: ArrayLike = 0.0,
    unit_range: ArrayLike = True,
    resamples: int = RESAMPLES,
) -> list[MeasureRecord]:
    """Aggregate values into one record a label.

    Parameters
    ----------
    labels
        m labels.
    values
        `[n_runs, m]`, one run (query x wording x seed) a row. NaN = no value.
    groups
        `[n_queries]` group code of each query; every query here was attempted.
    seed, resamples, unit_range
        Of the interval, see `clustered_interval`.
    query_of
        `[n_runs]` query of each run; default: one run a query, in order.
    failed
        `[n_runs]` whether the retrieval failed. Such a run scores `failed_value` whatever stands in `values`.
    ineligible
        `[n_queries]` or `[n_queries, m]` whether the query has nothing to be scored on (`Qrels.n_relevant == 0`). It wins over `failed`.
        A query all of whose runs have no value and did not fail is ineligible too.
    failed_value
        Score of a failed run, one or one a label: 0 where more is better, 1 for `delta_s`, the worst it can be.

    Returns
    -------
    list of MeasureRecord
        In the order of the labels.
    """
    group, column_count = as_codes(groups, "groups"), len(labels)
    runs = as_values(values)
    if runs.shape[1] != column_count:
        raise ValueError(f"values has {runs.shape[1]} columns for {column_count} labels")
    n = len(group)
    query = np.arange(n) if query_of is None else as_codes(query_of, "query_of")
    if len(query) != len(runs):
        raise ValueError(
            f"values has {len(runs)} rows for {len(query)} runs; accepted: one row a run, named by query_of, or one a query"
        )
    broken = np.zeros(len(runs), dtype=bool) if failed is None else np.asarray(failed, dtype=bool)
    barred = np.zeros((n, column_count), dtype=bool)
    if ineligible is not None:
        mask = np.asarray(ineligible, dtype=bool)
        barred |= mask[:, None] if mask.ndim == 1 else mask
    means = within_query(
        np.where(broken[:, None], np.asarray(failed_value, dtype=np.float64), runs), query, n
    )
    means[barred] = np.nan
    any_failed = np.bincount(query[broken], minlength=n) > 0
    interval = clustered_interval(means, group, seed, resamples, unit_range=unit_range)
    return [
        _record(at, labels, means, any_failed, group, (interval.value, interval.low, interval.high))
        for at in range(column_count)
    ]


def within_query(values: ArrayLike, query_of: ArrayLike, n_queries: int) -> FloatArray:
    """Mean of the runs of each query, `[n_queries, m]`, over the runs that have a value; NaN where none has."""
    runs, query = as_values(values), as_codes(query_of, "query_of")
    there = ~np.isnan(runs)
    totals, counts = np.zeros((n_queries, runs.shape[1])), np.zeros((n_queries, runs.shape[1]))
    np.add.at(totals, query, np.where(there, runs, 0.0))
    np.add.at(counts, query, there)
    counts[counts == 0] = np.nan
    means: FloatArray = totals / counts
    return means


def _record(  # noqa: PLR0917 - one private call
    at: int,
    labels: Sequence[str],
    means: FloatArray,
    any_failed: BoolArray,
    group: IntArray,
    interval: tuple[FloatArray, FloatArray, FloatArray],
) -> MeasureRecord:
    scored = ~np.isnan(means[:, at])
    beside = judged_label(labels[at])
    judged = (
        means[scored, labels.index(beside)]
        if beside in labels and beside is not None
        else np.empty(0)
    )
    judged = judged[~np.isnan(judged)]
    value, low, high = (float(part[at]) for part in interval)
    n_scored = _count(scored)
    return MeasureRecord(
        label=labels[at],
        value=value,
        ci_low=low,
        ci_high=high,
        n_attempted=len(means),
        n_scored=n_scored,
        n_failed=_count(scored & any_failed),
        n_ineligible=len(means) - n_scored,
        n_groups=len(np.unique(group[scored])),
        judged_at_k=float(judged.mean()) if len(judged) else float("nan"),
    )


def _count(mask: BoolArray | IntArray) -> int:
    return int(np.count_nonzero(mask))
