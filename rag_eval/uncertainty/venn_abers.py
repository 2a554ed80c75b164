"""Isotonic regression and Venn-ABERS over log-odds, as step functions that are computed once.

Belongs here: the two monotone step functions. Which calibrator is used is decided in `calibrators`.
"""

from typing import NamedTuple

import numpy as np

from rag_eval.uncertainty.labelled import FloatArray, IntArray


class Steps(NamedTuple):
    """A step function on unique sorted knots: `at` [m] on the knots, `between` [m + 1] below, between and above them."""

    knots: FloatArray
    at: FloatArray
    between: FloatArray

    def __call__(self, x: FloatArray) -> FloatArray:
        """Value at each x."""
        place = np.searchsorted(self.knots, x, side="left")
        inside = np.minimum(place, len(self.knots) - 1)
        return np.where(self.knots[inside] == x, self.at[inside], self.between[place])


class _Blocks(NamedTuple):
    """Outcomes added up by unique score: cumulative weights and misses [m + 1], and where isotonic blocks begin and end."""

    knots: FloatArray
    weight: FloatArray
    missed: FloatArray
    start: IntArray
    """[m + 1] where the last isotonic block of the first j scores begins."""
    end: IntArray
    """[m + 1] where the first isotonic block of the scores from j on ends."""


def _blocks(score: FloatArray, missed: FloatArray, weight: FloatArray) -> _Blocks:
    knots, code = np.unique(score, return_inverse=True)
    each_w, each_y = np.bincount(code, weights=weight), np.bincount(code, weights=weight * missed)
    w, y = np.concatenate([[0.0], np.cumsum(each_w)]), np.concatenate([[0.0], np.cumsum(each_y)])
    start = _last_blocks(w.tolist(), y.tolist())
    turned = _last_blocks(
        [0.0, *np.cumsum(each_w[::-1])], [0.0, *np.cumsum((each_w - each_y)[::-1])]
    )
    end = len(knots) - np.array(turned, dtype=np.int64)[::-1]
    return _Blocks(knots, w, y, np.array(start, dtype=np.int64), end)


def _last_blocks(w: list[float], y: list[float]) -> list[int]:
    """Where the last block of each prefix begins: pool adjacent violators, kept for every prefix."""
    start = [0] * len(w)
    for j in range(1, len(w)):
        a = j - 1
        while a and (y[a] - y[start[a]]) * (w[j] - w[a]) >= (y[j] - y[a]) * (w[a] - w[start[a]]):
            a = start[a]
        start[j] = a
    return start


def isotonic(score: FloatArray, missed: FloatArray, weight: FloatArray) -> Steps:
    """Weighted isotonic regression of 0/1 outcomes on scores; between two knots the mean of both, outside the nearest.

    Parameters
    ----------
    score, missed, weight
        float64 [n] each, n at least 1; missed 0 or 1; weight over 0.
    """
    blocks = _blocks(score, missed, weight)
    at, j = np.empty(len(blocks.knots)), len(blocks.knots)
    while j:
        a = int(blocks.start[j])
        at[a:j] = (blocks.missed[j] - blocks.missed[a]) / (blocks.weight[j] - blocks.weight[a])
        j = a
    padded = np.concatenate([at[:1], at, at[-1:]])
    return Steps(blocks.knots, at, (padded[1:] + padded[:-1]) / 2)


def venn_abers(score: FloatArray, missed: FloatArray, weight: FloatArray) -> tuple[Steps, Steps]:
    """Inductive Venn-ABERS: the isotonic value of a new score, were its outcome 0 (p0), and were it 1 (p1).

    The new outcome has weight 1. p0 <= p1 everywhere; for equal weights and exchangeable outcomes one of the two is calibrated exactly.

    Parameters
    ----------
    score, missed, weight
        As in `isotonic`.

    Returns
    -------
    tuple
        p0 and p1 as step functions of the score.

    References
    ----------
    Vovk, Petej & Fedorova (2015), Large-scale probabilistic predictors with and without guarantees of validity, NeurIPS.
    """
    blocks = _blocks(score, missed, weight)
    low, high = (_with_one_more(blocks, outcome) for outcome in (0.0, 1.0))
    return low, high


def _with_one_more(blocks: _Blocks, outcome: float) -> Steps:
    """Isotonic value of one more outcome, for every place where it can fall: all places grow their block at once."""
    m = len(blocks.knots)
    begin = np.concatenate(
        [np.arange(m), np.arange(m + 1)]
    )  # on a knot: that knot's outcomes are with it; between two: none are
    finish = np.concatenate([np.arange(1, m + 1), np.arange(m + 1)])
    while True:
        value = (blocks.missed[finish] - blocks.missed[begin] + outcome) / (
            blocks.weight[finish] - blocks.weight[begin] + 1
        )
        left, right = blocks.start[begin], blocks.end[finish]
        grows_left = (begin > 0) & (_mean(blocks, left, begin) >= value)
        grows_right = (finish < m) & (_mean(blocks, finish, right) <= value)
        if not (grows_left | grows_right).any():
            return Steps(blocks.knots, value[:m], value[m:])
        begin, finish = np.where(grows_left, left, begin), np.where(grows_right, right, finish)


def _mean(blocks: _Blocks, begin: IntArray, finish: IntArray) -> FloatArray:
    """Rate of misses from one place to another; NaN over no outcome."""
    weight = blocks.weight[finish] - blocks.weight[begin]
    rate: FloatArray = np.divide(
        blocks.missed[finish] - blocks.missed[begin],
        weight,
        out=np.full(len(begin), np.nan),
        where=weight > 0,
    )
    return rate
