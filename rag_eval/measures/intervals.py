"""Records of measures: means over queries with interval, and paired comparisons of strategies."""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import FloatArray, IntArray, number
from rag_eval.measures.overlap import SharedGold, mean_interval, scored_together
from rag_eval.measures.ranking import as_codes, as_values

SEED = 20_240_229
"""Seed of every random draw of a calibration, so that equal outcomes have equal figures."""

# ---- The shown record of a measure: mean, interval and all denominators


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureRecord:
    """One measure of one strategy: the mean over the scored queries, NaN without one.

    Of the `n_attempted` queries, `n_scored` are in the mean, of which `n_failed` have a failed
    retrieval; `n_ineligible` have no score. `n_effective` is the number of independent questions
    that the scored ones are worth. `judged_at_k` is the mean `Judged@k` at the cutoff of the
    measure, NaN unless the labels include it.
    """

    label: str
    value: float
    ci_low: float
    ci_high: float
    n_attempted: int
    n_scored: int
    n_failed: int
    n_ineligible: int
    n_effective: float
    judged_at_k: float


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
    query = np.arange(n) if query_of is None else as_codes(query_of, "query_of")
    if runs.shape != (len(query), len(labels)):
        shape = f"{len(query)} runs and {len(labels)} labels"
        raise ValueError(f"values has shape {runs.shape} for {shape}")
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


COMPARED: Final = ("R@10", "RR", "nDCG@10")
"""Measures of paired comparisons in a report."""

POWER = 0.8
"""Power of a test at the smallest detectable difference."""
FEW_DIFFERING = 10
"""Number of differing questions below which two pseudo-questions widen the interval."""
_TIE = 1e-12
"""Largest difference that counts as a tie, because rounding can cause it."""


@dataclasses.dataclass(frozen=True, slots=True)
class PairedComparison:
    """Strategy a against strategy b under m measures, [m] each.

    `delta` is the mean of a - b over the queries with both values, `p` the two-sided p of no
    difference before an adjustment by `holm`. The counts are of queries on which a is better or
    worse by the direction of the measure. `minimum_detectable` is the smallest true difference
    found with 80 % power at two-sided 5 %; NaN with a single question, or for rates over 1.
    """

    delta: FloatArray
    ci_low: FloatArray
    ci_high: FloatArray
    p: FloatArray
    n_better: IntArray
    n_worse: IntArray
    n_tied: IntArray
    n_effective: FloatArray
    minimum_detectable: FloatArray


def paired_comparison(
    a: ArrayLike,
    b: ArrayLike,
    gold: SharedGold,
    *,
    higher_is_better: ArrayLike = True,
    unit_range: ArrayLike = True,
) -> PairedComparison:
    """Compare two strategies on their per-query means.

    Interval and p: the mixture of t distributions of the mean difference, with the dependence of
    `measures.overlap`. Where fewer than 10 differences of rates are not 0, their spread is little
    known, and equal strategies would get no width at all. Then two pseudo-questions join: strategy
    a wins one and loses the other, each by the mean size of a difference.

    Minimum detectable difference: half the interval plus ``z[0.8] * standard error``.

    `a` and `b`, [n_queries, m] or [n_queries], are the means of each query, NaN = ineligible. A
    query counts if both strategies have a value. `higher_is_better` and `unit_range` hold for all
    measures or for each measure.

    Bonett & Price (2012), Journal of Educational and Behavioral Statistics 37:479-488, add one pair
    to each of the two discordant cells in the same way.
    """
    from scipy.special import ndtri

    left, right = as_values(a), as_values(b)
    if left.shape != right.shape or len(left) != len(gold):
        raise ValueError(
            f"a has shape {left.shape}, b {right.shape}, the gold {len(gold)} questions; "
            "accepted: the same queries and measures in all"
        )
    m = left.shape[1]
    direction = np.where(np.broadcast_to(np.asarray(higher_is_better, dtype=bool), (m,)), 1.0, -1.0)
    rate = np.broadcast_to(np.asarray(unit_range, dtype=bool), (m,))
    difference = left - right
    difference[np.abs(difference) <= _TIE] = 0.0
    out = np.full((6, m), np.nan)
    value, low, high, p, detectable, n_effective = out
    n_effective[:] = 0.0
    for rows, columns in scored_together(difference):
        chosen = difference[np.ix_(rows, columns)]
        fit, is_rate = gold.take(rows).fit(chosen), rate[columns]
        n_differing = np.count_nonzero(chosen, axis=0)
        step = np.minimum((np.abs(chosen).sum(axis=0) + 1) / (n_differing + 1), 1)
        pseudo = np.where(
            is_rate & (n_differing < FEW_DIFFERING), 2 * (step / fit.n_effective) ** 2, 0.0
        )
        fit = dataclasses.replace(fit, variance=fit.variance + pseudo)
        half = fit.half_width()
        least = half + float(ndtri(POWER)) * fit.standard_error
        ends = np.where(is_rate, 1.0, np.inf)
        value[columns], n_effective[columns], p[columns] = fit.value, fit.n_effective, fit.p()
        low[columns] = np.maximum(fit.value - half, -ends)
        high[columns] = np.minimum(fit.value + half, ends)
        detectable[columns] = np.where(is_rate & (least > 1), np.nan, least)
    gain = difference * direction
    better, worse, tied = (
        np.count_nonzero(mask, axis=0) for mask in (gain > 0, gain < 0, gain == 0)
    )
    return PairedComparison(value, low, high, p, better, worse, tied, n_effective, detectable)


def holm(p: ArrayLike) -> FloatArray:
    """Adjust p values [n] for all comparisons shown, by Holm's step-down procedure.

    NaN stays NaN and does not count as a comparison. Holm (1979), Scandinavian Journal of
    Statistics 6:65-70.
    """
    adjusted = np.array(p, dtype=np.float64)
    present = np.flatnonzero(~np.isnan(adjusted))
    order = present[np.argsort(adjusted[present], kind="stable")]
    scaled = adjusted[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def delta_of(comparison: PairedComparison, at: int) -> dict[str, float | None]:
    """Write the fields of `PairedDelta` for one column of a comparison."""
    figures = ("delta", "ci_low", "ci_high", "n_effective")
    counts = ("n_better", "n_worse", "n_tied")
    return {name: number(getattr(comparison, name)[at]) for name in figures} | {
        name: int(getattr(comparison, name)[at]) for name in counts
    }
