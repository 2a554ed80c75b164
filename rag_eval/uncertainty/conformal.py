"""Split conformal K: the list depth at which a stated share of questions has gold in the list.

The unit of exchangeability is the group of questions that share gold. Take G calibration groups
and one new group in random order, and draw a question at random from the G + 1 groups. With
probability `level` or more, its rank is at most the level's quantile of all ranks. The unknown
ranks of the new group count as infinite, which only raises the quantile. Its unknown size is
replaced by the mean size of the group of a random question, which is exact for equally large
groups. Papadopoulos et al. (2002), ECML: 345-356; Dunn, Wasserman, Ramdas (2023), JASA
118:2491-2502 (groups).
"""

import dataclasses
from typing import Final

import numpy as np

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.measures.overlap import SharedGold
from rag_eval.uncertainty.miss_rate_report import ConformalK
from rag_eval.uncertainty.validation import mean_figure

LEVELS: Final = (0.8, 0.9, 0.95)
SPLITS: Final = 200
TEST_SHARE: Final = 1 / 3
"""Share of the groups that a split holds out."""
_ROUNDING = 1e-9
"""Tolerance as a share of the total weight, so that 9 of 10 equal weights reach 90 %."""


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """n judged questions of one strategy.

    `rank` [n] is the rank of the first gold from 1, inf where the list of `depth` has none.
    `group` [n] is the unit of inference, codes from 0.
    """

    rank: FloatArray
    group: IntArray
    depth: int

    def conformal_k(self, *, seed: int = 0) -> list[ConformalK]:
        """Calibrate K at every level, and judge each K on held-out groups.

        The seed draws the splits that estimate the coverage.
        """
        rank, group = self.rank, self.group
        gold, n_groups = SharedGold.of_groups(group), len(np.unique(group))
        ks = find_thresholds(rank, group, LEVELS).tolist()
        return [
            ConformalK(
                level=level,
                k=int(k) if np.isfinite(k) else None,
                depth=self.depth,
                n_groups=n_groups,
                coverage=mean_figure(shares, gold),
                within_depth=float(np.isfinite(rank).mean()),
            )
            for level, k, shares in zip(LEVELS, ks, _hold_out(self, seed), strict=True)
        ]


def find_thresholds(rank: FloatArray, group: IntArray, levels: tuple[float, ...]) -> FloatArray:
    """Return the smallest rank up to which the share of the questions reaches each level, [levels].

    `rank` and `group` are [n]. The ranks of one new group count as infinite. The threshold is inf
    if too many ranks are infinite.

    >>> find_thresholds(np.arange(1.0, 20.0), np.arange(19), (0.8, 0.95, 0.99)).tolist()
    [16.0, 19.0, inf]
    """
    n, sizes = len(rank), np.bincount(group)
    # The new group has the mean size of the group of a random question.
    total = n + (float((sizes**2).sum() / n) if n else 1.0)
    needed = np.ceil(np.asarray(levels) * total - _ROUNDING * total).astype(np.int64)
    return np.asarray(np.append(np.sort(rank), np.inf)[np.minimum(needed - 1, n)])


def _hold_out(questions: Questions, seed: int) -> FloatArray:
    """Return the share of splits that covered a question when they held it out, [levels, n]."""
    rank, group, rng = questions.rank, questions.group, np.random.default_rng(seed)
    codes, code = np.unique(group, return_inverse=True)
    n_test = round(TEST_SHARE * len(codes))
    covered, n_held_out = np.zeros((len(LEVELS), len(rank))), np.zeros(len(rank))
    for _ in range(SPLITS):
        test = rng.permutation(len(codes))[code] < n_test
        ks = find_thresholds(rank[~test], group[~test], LEVELS)
        n_held_out += test
        covered += test & (rank <= np.where(np.isfinite(ks), ks, 0.0)[:, None])
    with np.errstate(invalid="ignore", divide="ignore"):
        return covered / n_held_out
