"""A figure with what must stand beside it: its interval and its denominators.

Belongs here: means and Brier skill over queries with 95 % intervals over groups, in the form in which they are stored and shown.
"""

from typing import NamedTuple

import numpy as np

from rag_eval.measures.bootstrap import resample_weights
from rag_eval.measures.intervals import RESAMPLES, clustered_interval
from rag_eval.uncertainty.labelled import FloatArray, IntArray

_LEVELS = (0.025, 0.975)
_FEW_GROUPS = 2
_ROUNDING = 1e-12


class Figure(NamedTuple):
    """A figure over n queries in n_groups groups, with its 95 % interval; None where there is nothing to count, or too few groups."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    n_groups: int


def finite(value: float) -> float | None:
    """Turn NaN and infinity into None."""
    return float(value) if np.isfinite(value) else None


def mean_figure(values: FloatArray, group: IntArray, seed: int = 0) -> Figure:
    """Mean of values in [0, 1] over queries, NaN = not looked at.

    Parameters
    ----------
    values
        float64 [n].
    group
        int64 [n] unit of inference.
    seed
        Of the bootstrap.
    """
    there = ~np.isnan(values)
    n, n_groups = int(there.sum()), len(np.unique(group[there]))
    if not n:
        return Figure(None, None, None, 0, 0)
    value, low, high = (
        float(bound[0])
        for bound in clustered_interval(np.clip(values[there], 0, 1), group[there], seed)
    )
    return Figure(
        value, finite(min(low, value)), finite(max(high, value)), n, n_groups
    )  # equal values: the mean of sums must not leave its interval by rounding


def skill_of(brier: FloatArray, missed: FloatArray, n: FloatArray) -> FloatArray:
    """Brier skill, 1 - Brier / (m (1 - m)), from sums of squared errors, of misses, and of queries; NaN where all or none missed.

    The base rate m is that of the same queries: a forecaster who knew it beforehand, which is the harder one to beat.
    """
    rate = missed / n
    base = rate * (1 - rate)
    skill: FloatArray = 1 - np.divide(
        brier / n, base, out=np.full(np.shape(base), np.nan), where=base > _ROUNDING
    )
    return skill


def group_sums(columns: FloatArray, group: IntArray) -> FloatArray:
    """Add up columns [n, m] by group, [n_groups, m]."""
    codes, at = np.unique(group, return_inverse=True)
    sums = np.zeros((len(codes), columns.shape[1]))
    np.add.at(sums, at, columns)
    return sums


def resampled(sums: FloatArray, seed: int, resamples: int = RESAMPLES) -> FloatArray:
    """Sums of resampled groups, [resamples, m]."""
    return np.concatenate(
        [weights @ sums for weights in resample_weights(len(sums), seed, resamples)]
    )


def bootstrap_bounds(
    value: float, drawn: FloatArray, n_groups: int
) -> tuple[float | None, float | None]:
    """Percentile bounds, stretched as those of `clustered_interval`; None with a single group, or where most resamples have no value."""
    from scipy.stats import norm, t

    known = drawn[np.isfinite(drawn)]
    if n_groups < _FEW_GROUPS or len(known) < len(drawn) / 2 or not np.isfinite(value):
        return None, None
    stretch = (
        float(t.ppf(0.975, n_groups - 1) / norm.ppf(0.975)) * (n_groups / (n_groups - 1)) ** 0.5
    )
    low, high = np.quantile(known, _LEVELS)
    return value - max(value - float(low), 0.0) * stretch, value + max(
        float(high) - value, 0.0
    ) * stretch


def skill_figure(
    predicted: FloatArray,
    missed: FloatArray,
    group: IntArray,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Figure:
    """Brier skill of predictions over the queries that have both, with a bootstrap interval over groups.

    Parameters
    ----------
    predicted, missed
        float64 [n]; NaN = none.
    group
        int64 [n] unit of inference.
    seed, resamples
        Of the bootstrap.
    """
    both = ~(np.isnan(predicted) | np.isnan(missed))
    if not both.any():
        return Figure(None, None, None, 0, 0)
    y, p = missed[both], predicted[both]
    sums = group_sums(np.column_stack([(p - y) ** 2, y, np.ones(len(y))]), group[both])
    value = float(skill_of(*sums.sum(axis=0)))
    drawn = resampled(sums, seed, resamples)
    low, high = bootstrap_bounds(value, skill_of(drawn[:, 0], drawn[:, 1], drawn[:, 2]), len(sums))
    return Figure(finite(value), low, high, len(y), len(sums))
