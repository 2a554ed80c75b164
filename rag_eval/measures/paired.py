"""Compare two strategies on the same queries."""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.measures.intervals import (
    RESAMPLES,
    clustered_interval,
    group_totals,
    scored_together,
)
from rag_eval.measures.ranking import as_codes, as_values

FLIPS = 10_000
FEW_DIFFERING = 10
"""Least number of differing groups for a bootstrap."""
_TIE = 1e-12
"""Largest difference that counts as a tie, because rounding can cause it."""
_CELLS = 4_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class PairedComparison:
    """Strategy a against strategy b under m measures, [m] each."""

    delta: FloatArray
    """Mean of a - b over the queries with both values."""
    ci_low: FloatArray
    ci_high: FloatArray
    p: FloatArray
    """Two-sided p of the sign-flip permutation test, before an adjustment by `holm`."""
    n_better: IntArray
    """Number of queries on which a is better, by the direction of the measure."""
    n_worse: IntArray
    n_tied: IntArray
    n_groups: IntArray
    """Number of groups in the test."""
    minimum_detectable: FloatArray
    """Smallest true difference found with 80 % power at two-sided 5 %.

    NaN if no query differs, with a single group, or for rates if it exceeds 1.
    """


def paired_comparison(
    a: ArrayLike,
    b: ArrayLike,
    groups: ArrayLike,
    seed: int,
    *,
    flips: int = FLIPS,
    resamples: int = RESAMPLES,
    higher_is_better: ArrayLike = True,
    unit_range: ArrayLike = True,
) -> PairedComparison:
    """Compare two strategies on their per-query means.

    Test: under the null hypothesis the strategies are exchangeable within a group, so the sign of
    the group's summed difference is flipped at random. ``p = (1 + flips at least as extreme) / (1 +
    flips)`` is never 0, and the test keeps its level.

    Interval: clustered bootstrap of the differences. Where fewer than 10 groups differ, the
    bootstrap has too little to resample (on simulated strategies that differ on 1-10 % of 50-300
    queries it covered 86-94 %, and equal strategies got no width at all). Then the interval is a t
    interval with two pseudo-groups, which covers 94 % or more. Strategy a wins one pseudo-group and
    loses the other, each by the mean size of a difference.

    Minimum detectable difference: ``(t[0.975] + t[0.8]) * standard error`` with the standard error
    from the group-level differences.

    `a` and `b`, [n_queries, m] or [n_queries], are the means of each query, NaN = ineligible. A
    query counts if both strategies have a value. `higher_is_better` and `unit_range` hold for all
    measures or for each measure.
    """
    left, right, group = as_values(a), as_values(b), as_codes(groups, "groups")
    if left.shape != right.shape or len(left) != len(group):
        raise ValueError(
            f"a has shape {left.shape}, b {right.shape}, groups {group.shape}; "
            "accepted: the same queries and measures in all"
        )
    m = left.shape[1]
    direction = np.where(np.broadcast_to(np.asarray(higher_is_better, dtype=bool), (m,)), 1.0, -1.0)
    rate = np.broadcast_to(np.asarray(unit_range, dtype=bool), (m,))
    difference = left - right
    difference[np.abs(difference) <= _TIE] = 0.0
    value, low, high = clustered_interval(difference, group, seed, resamples, unit_range=False)
    p, detectable, n_groups = np.full(m, np.nan), np.full(m, np.nan), np.zeros(m, dtype=np.int64)
    for rows, columns in scored_together(difference):
        totals = group_totals(difference[np.ix_(rows, columns)], group[rows])
        n_groups[columns] = len(totals.counts)
        p[columns] = _sign_flip_p(totals.sums, seed, flips)
        error = np.sqrt(totals.variance)
        least = np.where(error > _TIE, power_factor(len(totals.counts)) * error, np.nan)
        detectable[columns] = np.where(rate[columns] & (least > 1), np.nan, least)
        few = rate[columns] & (
            (np.count_nonzero(totals.sums, axis=0) < FEW_DIFFERING) | (error <= _TIE)
        )
        low[columns[few]], high[columns[few]] = _sparse_interval(
            totals.sums[:, few], totals.counts, totals.value[few]
        )
    gain = difference * direction
    better, worse, tied = (
        np.count_nonzero(mask, axis=0) for mask in (gain > 0, gain < 0, gain == 0)
    )
    return PairedComparison(value, low, high, p, better, worse, tied, n_groups, detectable)


def _sign_flip_p(sums: FloatArray, seed: int, flips: int) -> FloatArray:
    """Return the two-sided p of group sums [n_groups, m]; all measures have the same flips."""
    rng = np.random.default_rng(seed)
    observed = np.abs(sums.sum(axis=0))
    # The order of addition changes the last bits, so an equal sum needs a margin to count.
    bar = observed - 1e-9 * np.abs(sums).sum(axis=0)
    extreme = np.zeros(sums.shape[1], dtype=np.int64)
    block = max(1, _CELLS // max(sums.shape))
    for start in range(0, flips, block):
        size = min(block, flips - start), len(sums)
        signs = rng.integers(2, size=size, dtype=np.int8).astype(np.float64) * 2 - 1
        extreme += np.count_nonzero(np.abs(signs @ sums) >= bar, axis=0)
    p: FloatArray = (1 + extreme) / (1 + flips)
    return p


def _sparse_interval(
    sums: FloatArray, counts: FloatArray, value: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the 95 % interval of differences in [-1, 1], most of them 0, by two pseudo-groups.

    Strategy a wins one pseudo-group and loses the other, both by the same difference. The size is
    the mean absolute difference of the differing groups and of a group that differs by 1.

    Bonett & Price (2012), Journal of Educational and Behavioral Statistics 37:479-488, add one pair
    to each of the two discordant cells in the same way.
    """
    from scipy.special import stdtrit

    n_groups, size = len(counts), counts.mean()
    if n_groups < 2:  # noqa: PLR2004 - one group has no spread
        return np.full(len(value), np.nan), np.full(len(value), np.nan)
    typical = (np.abs(sums).sum(axis=0) / size + 1) / (np.count_nonzero(sums, axis=0) + 1)
    step = np.minimum(typical, 1.0) * size
    all_sums = np.concatenate([sums, step[None], -step[None]])
    all_counts = np.append(counts, [size, size])[:, None]
    middle = all_sums.sum(axis=0) / all_counts.sum()
    spread = ((all_sums - middle * all_counts) ** 2).sum(axis=0)
    half = float(stdtrit(n_groups - 1, 0.975)) * np.sqrt(spread) / all_counts.sum()
    low, high = np.minimum(middle - half, value), np.maximum(middle + half, value)
    return np.clip(low, -1, 1), np.clip(high, -1, 1)


def power_factor(n_groups: int) -> float:
    """Return the least difference found with 80 % power at two-sided 5 %, in standard errors."""
    from scipy.special import stdtrit

    if n_groups <= 1:
        return float("nan")
    return float(stdtrit(n_groups - 1, 0.975) + stdtrit(n_groups - 1, 0.8))


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
