"""Split conformal K: the list depth at which a stated share of questions has gold in the list.

The unit of exchangeability is the group of questions that share gold. Take G calibration groups
and one new group in random order, and draw a question at random from the G + 1 groups. With
probability `level` or more, the rank of this question is at most the level's quantile of all
ranks. The ranks of the new group are unknown. They count as infinite, which only raises the
quantile. The size of the new group is unknown too. Coverage falls linearly with this size to first
order. So the mean size of the group of a random question replaces the size, which is exact for
equally large groups. The method uses every question and draws none, so the same data give the
same K.

References: Papadopoulos et al. (2002), ECML: 345-356. Dunn, Wasserman, Ramdas (2023), JASA
118:2491-2502 (groups).
"""

import dataclasses
from typing import Final

import numpy as np

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.measures.overlap import SharedGold
from rag_eval.uncertainty.miss_rate_report import ConformalK
from rag_eval.uncertainty.scores import mean_figure
from rag_eval.uncertainty.stored import finite

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

    def __len__(self) -> int:
        return len(self.rank)


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


def conformal_k(
    questions: Questions, levels: tuple[float, ...] = LEVELS, *, splits: int = SPLITS, seed: int = 0
) -> list[ConformalK]:
    """Calibrate K at every level in (0, 1), and judge each K on held-out groups.

    The seed draws the splits that estimate the coverage.
    """
    rank, group = questions.rank, questions.group
    covered, unattainable = _hold_out(questions, levels, splits, seed)
    gold, within = SharedGold.of_groups(group), np.isfinite(rank)
    n_groups, rules = len(np.unique(group)), []
    ks = find_thresholds(rank, group, levels).tolist()
    for level, k, shares, beyond in zip(levels, ks, covered, unattainable, strict=True):
        rule = ConformalK(
            method="fixed",
            level=level,
            attainable=bool(np.isfinite(k)),
            k=int(k) if np.isfinite(k) else None,
            depth=questions.depth,
            n=len(questions),
            n_groups=n_groups,
            splits=splits,
            coverage=mean_figure(shares, gold),
            share_unattainable=finite(beyond),
            within_depth=float(within.mean()) if len(within) else None,
            text="",
        )
        rules.append(rule.model_copy(update={"text": _state_promise(rule)}))
    return rules


def _hold_out(
    questions: Questions, levels: tuple[float, ...], splits: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Calibrate on random groups and judge on the others.

    Returns the share of splits that covered a question among those that held it out
    [levels, n], and the share of held-out questions whose K lay beyond the depth [levels];
    NaN where undefined. A K beyond the depth covers nothing.
    """
    rank, group, rng = questions.rank, questions.group, np.random.default_rng(seed)
    codes, code = np.unique(group, return_inverse=True)
    n_test = round(TEST_SHARE * len(codes))
    covered, n_held_out = np.zeros((len(levels), len(rank))), np.zeros(len(rank))
    n_beyond = np.zeros(len(levels))
    for _ in range(splits):
        test = rng.permutation(len(codes))[code] < n_test
        ks = find_thresholds(rank[~test], group[~test], levels)
        n_held_out += test
        covered += test & (rank <= np.where(np.isfinite(ks), ks, 0.0)[:, None])
        n_beyond += test.sum() * np.isinf(ks)
    with np.errstate(invalid="ignore", divide="ignore"):
        return covered / n_held_out, n_beyond / n_held_out.sum()


def _state_promise(rule: ConformalK) -> str:
    """Write what K promises and the population that the promise averages over."""
    basis = (
        f"an average over questions like these {rule.n:,} ({rule.n_groups:,} independent groups),"
        " for this strategy fingerprint and this gold; it promises nothing for a single question"
    )
    if rule.k is None:
        within = ""
        if rule.within_depth is not None:
            within = f" ({rule.within_depth:.1%} of the questions have gold anywhere in them)"
        return (
            f"A level of {rule.level:.0%} is not attainable within lists of"
            f" {rule.depth:,}{within}: {basis}."
        )
    return (
        f"With K = {rule.k:,} at least {rule.level:.0%} of new questions are expected to have"
        f" gold in the top K: {basis}."
    )
