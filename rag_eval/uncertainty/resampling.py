"""95 % intervals of figures of predictions, by resampling whole groups.

Belongs here: the bootstrap over groups for figures that are no plain means, and the interval of a weighted miss rate. Plain means over
queries: `measures.intervals`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray
from rag_eval.measures.bootstrap import resample_weights
from rag_eval.measures.intervals import effective_groups, wilson

RESAMPLES = 2000
MAX_UNDEFINED = 0.05
"""Share of resamples in which a figure may be undefined (no miss was drawn) before its interval is not stated."""
_CELLS = 300_000
"""Weights that are worked on at a time: what a processor's cache holds, whatever the number of resamples."""


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its 95 % interval; NaN where it is undefined or no interval can be stated."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """Write as a JSON object; NaN is null."""
        return {
            name: value if math.isfinite(value) else None
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Figure":
        """Read back what `to_json` wrote."""
        return cls(
            **{
                name: math.nan if value[name] is None else float(value[name])
                for name in ("value", "low", "high")
            }
        )


def group_intervals(
    figures: Callable[[FloatArray], FloatArray],
    group: IntArray,
    weight: FloatArray,
    seed: int,
    resamples: int = RESAMPLES,
) -> FloatArray:
    """95 % intervals of figures by resampling whole groups with replacement.

    Parameters
    ----------
    figures
        Weights `[r, n]` -> figures `[r, m]`; NaN where a figure is undefined in a resample.
    group, weight
        `[n]`.
    seed, resamples
        Of the draws.

    Returns
    -------
    array
        `[2, m]` low and high; NaN with a single group or where more than `MAX_UNDEFINED` of the resamples are undefined.

    Notes
    -----
    Percentile interval, its distances from the figure stretched by ``t / z * sqrt(G / (G - 1))`` as in `measures.intervals`, because the
    bootstrap's spread is that of a population of G groups.
    """
    from scipy.stats import norm, t

    _, code = np.unique(group, return_inverse=True)
    n_groups = int(code.max(initial=-1)) + 1
    value = figures(weight[None, :])[0]
    if n_groups <= 1:
        return np.full((2, len(value)), np.nan)
    rows = max(1, _CELLS // len(code))
    drawn = [
        figures(block[at : at + rows][:, code] * weight)
        for block in resample_weights(n_groups, seed, resamples)
        for at in range(0, len(block), rows)
    ]
    resampled = np.concatenate(drawn)
    stated = np.isnan(resampled).mean(axis=0) <= MAX_UNDEFINED
    ends = np.full((2, len(value)), np.nan)
    if stated.any():
        stretch = float(t.ppf(0.975, n_groups - 1) / norm.ppf(0.975)) * np.sqrt(
            n_groups / (n_groups - 1)
        )
        ends[:, stated] = np.nanquantile(
            resampled[:, stated], [0.025, 0.975], axis=0, method="weibull"
        )  # 95 % expected between the ends, not 95 % of B - 1 steps
        ends = value + (ends - value) * stretch
    return ends


def miss_rate(missed: BoolArray, group: IntArray, weight: FloatArray) -> Figure:
    """Weighted share of misses with the Wilson interval on the effective number of groups (`measures.intervals.effective_groups`)."""
    from scipy.stats import norm

    _, code = np.unique(group, return_inverse=True)
    totals, misses = np.bincount(code, weight), np.bincount(code, weight * missed)
    total, n_groups = totals.sum(), len(totals)
    value = misses.sum() / total
    if n_groups <= 1:
        return Figure(float(value), math.nan, math.nan)
    variance = ((misses - value * totals) ** 2).sum() * n_groups / (n_groups - 1) / total**2
    size = effective_groups(
        np.array([value]), np.array([variance]), float(total**2 / (totals**2).sum())
    )
    low, high = wilson(np.array([value]), size, float(norm.ppf(0.975)))
    return Figure(float(value), max(0.0, float(low[0])), min(1.0, float(high[0])))
