"""Score predicted miss probabilities, with intervals that resample whole groups.

Scores take weights `[..., n]`, so that all resamples are scored at once.
"""

import dataclasses
import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.report import CountedInterval, Interval
from rag_eval.measures.intervals import (
    bootstrap_stretch,
    effective_groups,
    resample_weights,
)
from rag_eval.measures.overlap import SharedGold, mean_interval, wilson
from rag_eval.uncertainty.stored import finite

LEVELS = (0.025, 0.975)
FIGURE_RESAMPLES = 2000
MAX_UNDEFINED = 0.05
"""Largest share of resamples without a value (no miss was drawn) for an interval."""
CLIP = 1e-6
"""Clip of predictions to [CLIP, 1 - CLIP]; a sure, wrong prediction costs at most 13.8 nats."""
_ROUNDING = 1e-12
_CELLS = 300_000
"""Number of weights in one block, which fits into a processor's cache."""
_NEWTON_STEPS, _CONVERGED = 30, 1e-8


@dataclasses.dataclass(frozen=True)
class Labelled:
    """n judged retrievals of one strategy, for one target and K.

    `signals` [n, p] are not z-scored, NaN where not defined. `missed` [n] is the outcome. Folds
    never split a `group` [n], and intervals resample groups. `weight` [n] is 1 / inclusion
    probability. `question` [n] is the code of the question that a wording belongs to; wordings of
    a question share a group.
    """

    names: tuple[str, ...]
    signals: FloatArray
    missed: BoolArray
    group: IntArray
    weight: FloatArray
    question: IntArray

    def __len__(self) -> int:
        return len(self.missed)

    def take(self, rows: BoolArray | IntArray) -> "Labelled":
        """Keep some rows, by mask or index."""
        names = ("signals", "missed", "group", "weight", "question")
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})


def grouped_folds(group: npt.ArrayLike, n_folds: int, rng: np.random.Generator) -> IntArray:
    """Deal whole groups into folds of nearly equal size; return fold codes from 0, [n].

    Groups are dealt from the largest to the smallest, equal sizes in random order. Each group goes
    into the smallest fold so far. With fewer groups than folds, each group is a fold.

    >>> grouped_folds([5, 5, 5, 8, 8, 9], 2, np.random.default_rng(0)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    _, code = np.unique(np.asarray(group, dtype=np.int64), return_inverse=True)
    sizes = np.bincount(code)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    heap = [(0, fold) for fold in range(n_folds)]
    fold_of = np.zeros(len(sizes), dtype=np.int64)
    for at, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        dealt, fold = heap[0]
        fold_of[at] = fold
        heapq.heapreplace(heap, (dealt + size, fold))
    return fold_of[code]


NO_FIGURE = CountedInterval(value=None, low=None, high=None, n=0, n_effective=0)


def mean_figure(values: FloatArray, group: IntArray) -> CountedInterval:
    """Compute the mean of values [n] in [0, 1] over queries; NaN is left out."""
    known = ~np.isnan(values)
    if not known.any():
        return NO_FIGURE
    gold = SharedGold.of_groups(group[known])
    bounds = mean_interval(np.clip(values[known], 0, 1), gold)
    value, low, high, n_effective = (float(bound[0]) for bound in bounds)
    # Rounding must not put the mean of equal values outside of its interval.
    return CountedInterval(
        value=value,
        low=finite(min(low, value)),
        high=finite(max(high, value)),
        n=int(known.sum()),
        n_effective=n_effective,
    )


def group_intervals(
    figures: Callable[[FloatArray], FloatArray],
    group: IntArray,
    weight: FloatArray,
    seed: int,
    resamples: int = FIGURE_RESAMPLES,
) -> FloatArray:
    """Give 95 % intervals [2, m] of figures by resampling whole groups with replacement.

    `figures` maps weights [r, n] to [r, m], NaN where undefined. Bounds are NaN with a single
    group, or if more than `MAX_UNDEFINED` of the resamples are undefined. Distances from the
    figure are stretched by ``t / z * sqrt(G / (G - 1))`` as in `measures.intervals`, because the
    bootstrap has the spread of a population of G groups.
    """
    _, code = np.unique(group, return_inverse=True)
    n_groups = int(code.max(initial=-1)) + 1
    value = figures(weight[None, :])[0]
    ends = np.full((2, len(value)), np.nan)
    if n_groups <= 1:
        return ends
    rows = max(1, _CELLS // len(code))
    drawn = np.concatenate(
        [
            figures(block[start : start + rows][:, code] * weight)
            for block in resample_weights(n_groups, seed, resamples)
            for start in range(0, len(block), rows)
        ]
    )
    defined = np.isnan(drawn).mean(axis=0) <= MAX_UNDEFINED
    if not defined.any():
        return ends
    # "weibull" quantiles have 95 % of the probability between the ends for any number of resamples
    ends[:, defined] = np.nanquantile(drawn[:, defined], LEVELS, axis=0, method="weibull")
    stretched: FloatArray = value + (ends - value) * bootstrap_stretch(n_groups)
    return stretched


def miss_rate(missed: BoolArray, group: IntArray, weight: FloatArray) -> Interval:
    """Compute the weighted share of misses, with Wilson's interval on the effective groups."""
    from scipy.special import ndtri

    _, code = np.unique(group, return_inverse=True)
    totals, misses = np.bincount(code, weight), np.bincount(code, weight * missed)
    total, n_groups = totals.sum(), len(totals)
    value = float(misses.sum() / total)
    if n_groups <= 1:
        return Interval(value=value, low=None, high=None)
    variance = ((misses - value * totals) ** 2).sum() * n_groups / (n_groups - 1) / total**2
    size = effective_groups(
        np.array([value]), np.array([variance]), float(total**2 / (totals**2).sum())
    )
    low, high = wilson(np.array([value]), size, float(ndtri(0.975)))
    return Interval(value=value, low=max(0.0, float(low[0])), high=min(1.0, float(high[0])))


def _ratio(above: npt.ArrayLike, below: npt.ArrayLike) -> FloatArray:
    """Divide; NaN where the divisor is not positive."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    ratio: FloatArray = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return ratio


def weighted_mean(values: FloatArray, weight: FloatArray) -> FloatArray:
    """Compute the mean over the last axis; NaN where the weights add up to nothing."""
    return _ratio(np.vecdot(values, weight), weight.sum(axis=-1))


def log_losses(predicted: FloatArray, missed: BoolArray) -> FloatArray:
    """Compute -ln of the clipped probability of the observed outcome, `[..., n]`."""
    clipped = np.clip(predicted, CLIP, 1 - CLIP)
    losses: FloatArray = -np.log(np.where(missed, clipped, 1 - clipped))
    return losses


def brier(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Compute the Brier score `[...]`: the weighted mean squared error."""
    return weighted_mean((predicted - missed) ** 2, weight)


def base_rate_brier(missed: BoolArray, group: IntArray, weight: FloatArray) -> FloatArray:
    """Compute the Brier score `[...]` of the miss rate of all other groups, out of fold.

    In a resample that drew a group twice, both copies are left out together. NaN where a single
    group has weight.
    """
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=group.min(initial=0) - 1))
    total = np.add.reduceat(weight[..., order], starts, axis=-1)
    misses = np.add.reduceat((weight * missed)[..., order], starts, axis=-1)
    others = total.sum(axis=-1, keepdims=True) - total
    # A rest this small is rounding, not the weight of another group.
    rate = _ratio(
        misses.sum(axis=-1, keepdims=True) - misses, np.where(others > 1e-9 * total, others, 0)
    )
    # This is the sum of w (rate - y)^2, because y^2 = y.
    lost = np.where(total > 0, rate**2 * total - 2 * rate * misses + misses, 0)
    return _ratio(lost.sum(axis=-1), total.sum(axis=-1))


def brier_skill(
    predicted: FloatArray, missed: BoolArray, group: IntArray, weight: FloatArray
) -> FloatArray:
    """Compute 1 - Brier / Brier of the other groups' miss rate, `[...]`.

    NaN if all outcomes are equal, or with a single group.
    """
    return 1 - _ratio(brier(predicted, missed, weight), base_rate_brier(missed, group, weight))


def observed_expected(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Divide observed misses by predicted ones, `[...]`."""
    observed = np.vecdot(missed.astype(np.float64), weight)
    return _ratio(observed, np.vecdot(np.clip(predicted, CLIP, 1), weight))


def auroc(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Compute the weighted probability `[...]` that a miss is predicted higher than a hit.

    Ties count half. NaN where misses or hits are absent.
    """
    order = np.argsort(predicted, kind="stable")
    missed, weight = missed[order], weight[..., order]
    starts = np.flatnonzero(np.diff(predicted[order], prepend=-np.inf))
    hits = np.add.reduceat(weight * ~missed, starts, axis=-1)
    misses = np.add.reduceat(weight * missed, starts, axis=-1)
    below = np.cumsum(hits, axis=-1) - hits / 2
    return _ratio(np.vecdot(misses, below), misses.sum(axis=-1) * hits.sum(axis=-1))


def logit(predicted: FloatArray) -> FloatArray:
    """Compute ln(p / (1 - p)) of clipped predictions."""
    clipped = np.clip(predicted, CLIP, 1 - CLIP)
    odds: FloatArray = np.log(clipped) - np.log1p(-clipped)
    return odds


class Recalibration(NamedTuple):
    """Fit of logit P(missed) = intercept + slope * logit(predicted), `[...]`; NaN without a fit."""

    intercept: FloatArray
    slope: FloatArray


def recalibration(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> Recalibration:
    """Fit Cox's logistic recalibration (1958, Biometrika 45:562-565).

    Calibrated predictions have intercept 0 and slope 1.

    NaN where misses and hits are separated, one of them is absent, or all predictions are equal.
    """
    odds = logit(predicted)
    centre, scale = odds.mean(), odds.std()
    leading = weight.shape[:-1]
    if scale < _ROUNDING:
        return Recalibration(np.full(leading, np.nan), np.full(leading, np.nan))
    x = (odds - centre) / scale
    powers = np.stack([np.ones(len(x)), x, x * x])
    total = weight.sum(axis=-1)
    # The misses and the misses times x are the observed parts of the gradient.
    observed = (weight * missed) @ powers[:2].T
    rate = _ratio(observed[..., 0], total)
    both = (rate > 0) & (rate < 1)
    level, slope = logit(np.where(both, rate, 0.5)), np.zeros(leading)
    for _ in range(_NEWTON_STEPS):
        with np.errstate(over="ignore"):
            mean = 1 / (1 + np.exp(-(level[..., None] + slope[..., None] * x)))
        expected = weight * mean
        of_level, of_slope = np.moveaxis(observed - expected @ powers[:2].T, -1, 0)
        converged = np.maximum(np.abs(of_level), np.abs(of_slope)) <= _CONVERGED * total
        if (converged | ~both).all():
            break
        expected *= 1 - mean
        own, cross, other = np.moveaxis(expected @ powers.T, -1, 0)
        determinant = own * other - cross**2
        solvable = ~converged & (determinant > _ROUNDING * total**2)
        safe = np.where(solvable, determinant, 1)
        # Bounded steps keep a separated sample unconverged, because it would overflow otherwise.
        up = np.clip((other * of_level - cross * of_slope) / safe, -5, 5)
        steeper = np.clip((own * of_slope - cross * of_level) / safe, -5, 5)
        level, slope = level + np.where(solvable, up, 0), slope + np.where(solvable, steeper, 0)
    varies = (mean * (1 - mean) * weight > 0).any(axis=-1)
    known = converged & both & (np.abs(slope / scale) < 1 / CLIP) & varies
    slope = np.where(known, slope / scale, np.nan)
    return Recalibration(np.where(known, level - slope * centre, np.nan), slope)
