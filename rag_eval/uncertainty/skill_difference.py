"""The difference of two Brier skills on the same queries: interval, test, and what can be detected.

Belongs here: a paired comparison of a figure that is no mean over queries; means are compared by `measures.paired`.
"""

import dataclasses

import numpy as np

from rag_eval.measures.paired import FEW_DIFFERING, FLIPS
from rag_eval.uncertainty.figures import (
    Figure,
    bootstrap_bounds,
    finite,
    group_sums,
    resampled,
    skill_of,
)
from rag_eval.uncertainty.labelled import FloatArray, IntArray

_ROUNDING = 1e-12
_BLOCK = 4_000_000


@dataclasses.dataclass(frozen=True)
class SkillDifference:
    """Skill of a - skill of b, two-sided p and smallest detectable difference; None where fewer than 10 groups differ or a skill has no value."""

    delta: Figure
    p: float | None = None
    detectable: float | None = None


def skill_difference(
    predicted: tuple[FloatArray, FloatArray],
    missed: tuple[FloatArray, FloatArray],
    group: IntArray,
    seed: int,
) -> SkillDifference:
    """Compare two forecasters of the misses of two strategies.

    Parameters
    ----------
    predicted, missed
        float64 [n] of a and of b; NaN = none. A query counts where all four are there.
    group
        int64 [n] unit of inference.
    seed
        Of resampling and of swaps.

    Notes
    -----
    Interval: bootstrap over groups. Test: under the null hypothesis a and b are exchangeable within a group, so they are swapped in random
    groups and the skills computed anew; ``p = (1 + swaps at least as extreme) / (1 + swaps)``.
    """
    parts = np.column_stack(
        [(predicted[0] - missed[0]) ** 2, missed[0], (predicted[1] - missed[1]) ** 2, missed[1]]
    )
    there = ~np.isnan(parts).any(axis=1)
    if not there.any():
        return SkillDifference(Figure(None, None, None, 0, 0))
    sums = group_sums(np.column_stack([parts[there], np.ones(int(there.sum()))]), group[there])
    n, n_groups = int(there.sum()), len(sums)
    value = float(_difference(sums.sum(axis=0)))
    differing = int((np.abs(sums[:, :2] - sums[:, 2:4]) > _ROUNDING).any(axis=1).sum())
    if (
        not np.isfinite(value) or differing < FEW_DIFFERING
    ):  # too few to resample; an interval of no width would be a lie
        return SkillDifference(Figure(finite(value), None, None, n, n_groups))
    drawn = _difference(resampled(sums, seed))
    low, high = bootstrap_bounds(value, drawn, n_groups)
    detectable = (
        None
        if low is None
        else finite(
            _power_factor(n_groups) * float(np.nanstd(drawn)) * (n_groups / (n_groups - 1)) ** 0.5
        )
    )
    return SkillDifference(Figure(value, low, high, n, n_groups), _swap_p(sums, seed), detectable)


def _difference(sums: FloatArray) -> FloatArray:
    """Skill of a - skill of b from sums [..., 5]: squared errors and misses of a, of b, queries."""
    return np.asarray(
        skill_of(sums[..., 0], sums[..., 1], sums[..., 4])
        - skill_of(sums[..., 2], sums[..., 3], sums[..., 4])
    )


def _swap_p(sums: FloatArray, seed: int) -> float:
    """Two-sided p of swapping a and b in random groups: the sign-flip test for a figure that is no mean over queries."""
    rng = np.random.default_rng(seed)
    total, change = sums.sum(axis=0), sums[:, 2:4] - sums[:, :2]
    bar = abs(float(_difference(total))) - _ROUNDING
    extreme, block = 0, max(1, _BLOCK // len(sums))
    for start in range(0, FLIPS, block):
        moved = (
            rng.integers(2, size=(min(block, FLIPS - start), len(sums)), dtype=np.int8).astype(
                np.float64
            )
            @ change
        )
        swapped = np.column_stack(
            [total[:2] + moved, total[2:4] - moved, np.full(len(moved), total[4])]
        )
        extreme += int((np.abs(_difference(swapped)) >= bar).sum())
    return (1 + extreme) / (1 + FLIPS)


def _power_factor(n_groups: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, n_groups - 1) + t.ppf(0.8, n_groups - 1))
