"""Score predicted miss probabilities, and say how uncertain scores of dependent questions are."""

import dataclasses
import heapq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.records import CountedInterval, Interval
from rag_eval.measures.overlap import MeanFit, SharedGold, mean_interval, wilson
from rag_eval.uncertainty.stored import finite

LEVELS = (0.025, 0.975)
CLIP = 1e-6
"""Clip of predictions to [CLIP, 1 - CLIP]; a sure, wrong prediction costs at most 13.8 nats."""
_ROUNDING = 1e-12


@dataclasses.dataclass(frozen=True)
class Labelled:
    """n judged retrievals of one strategy, for one target and K.

    `signals` [n, p] are not z-scored, NaN where not defined. `missed` [n] is the outcome. Folds
    never split a `group` [n]. `weight` [n] is 1 / inclusion probability. `question` [n] is the code
    of the question that a wording belongs to; wordings of a question share a group. `shared` holds
    the gold of all questions, by code; without it, the questions of a group share all their gold.
    """

    names: tuple[str, ...]
    signals: FloatArray
    missed: BoolArray
    group: IntArray
    weight: FloatArray
    question: IntArray
    shared: SharedGold | None = None

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


def mean_figure(
    values: FloatArray, gold: SharedGold, *, unit_range: bool = True
) -> CountedInterval:
    """Compute the mean of values [n] over queries; NaN is left out.

    `unit_range` tells whether the values lie in [0, 1] by definition.
    """
    bounds = mean_interval(values, gold, unit_range=unit_range)
    value, low, high, n_effective = (float(bound[0]) for bound in bounds)
    return CountedInterval(
        value=finite(value),
        low=finite(low),
        high=finite(high),
        n=int((~np.isnan(values)).sum()),
        n_effective=n_effective,
    )


def dependent_mean(influence: FloatArray, labelled: Labelled) -> MeanFit:
    """Fit how uncertain figures are, from the influence [n, m] of each outcome on each figure.

    The influence of an outcome is the derivative of the figure by its weight, times its weight. Its
    sum over outcomes is 0, and the sum over the outcomes of a question counts as one observation.
    Questions depend on one another by the gold that they share, or by group where the gold is not
    known. See Hampel (1974), JASA 69:383-393.
    """
    codes, first, question = np.unique(labelled.question, return_index=True, return_inverse=True)
    totals = np.zeros((len(codes), influence.shape[1]))
    np.add.at(totals, question, influence * len(codes))
    if labelled.shared is None:
        return SharedGold.of_groups(labelled.group[first]).fit(totals)
    return labelled.shared.take(codes).fit(totals)


def miss_rate(labelled: Labelled) -> Interval:
    """Compute the weighted share of misses, with Wilson's interval on the effective questions."""
    from scipy.special import ndtri

    share = labelled.weight / labelled.weight.sum()
    value = float(share @ labelled.missed)
    fit = dependent_mean((share * (labelled.missed - value))[:, None], labelled)
    if np.isnan(fit.standard_error[0]):
        return Interval(value=value, low=None, high=None)
    variance, count = fit.mean_variance, fit.n_effective
    # Half a question in which everything misses keeps the size finite without any variance.
    size = (value * (1 - value) + 0.5 / count) / (variance + 0.5 / count**2)
    quantile = float(ndtri(0.975))
    if variance[0] > _ROUNDING:
        quantile = float(fit.half_width()[0] / np.sqrt(variance[0]))
    low, high = wilson(np.array([value]), size, quantile)
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


def base_rate_losses(missed: BoolArray, group: IntArray, weight: FloatArray) -> FloatArray:
    """Compute the squared error of the miss rate of all other groups, [n]; NaN for one group."""
    _, code = np.unique(group, return_inverse=True)
    total, misses = np.bincount(code, weight), np.bincount(code, weight * missed)
    others = total.sum() - total
    # A rest this small is rounding, not the weight of another group.
    rate = _ratio(misses.sum() - misses, np.where(others > 1e-9 * total.sum(), others, 0))
    return np.asarray((rate[code] - missed) ** 2)


def brier_skill(
    predicted: FloatArray, missed: BoolArray, group: IntArray, weight: FloatArray
) -> FloatArray:
    """Compute 1 - Brier / Brier of the other groups' miss rate, `[...]`.

    NaN if all outcomes are equal, or with a single group.
    """
    reference = weighted_mean(base_rate_losses(missed, group, weight), weight)
    return 1 - _ratio(brier(predicted, missed, weight), reference)


def observed_expected(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> float:
    """Divide observed misses by predicted ones."""
    return float(_ratio(missed @ weight, np.clip(predicted, CLIP, 1) @ weight))


def placements(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Compute the weighted share of the other kind that is ranked right against each outcome, [n].

    A miss should be above hits, and a hit below misses. Ties count half. NaN where the other kind
    is absent.
    """
    order = np.argsort(predicted, kind="stable")
    value, inverse = np.unique(predicted[order], return_inverse=True)
    result = np.empty(len(predicted))
    for kind in (True, False):
        other = np.bincount(inverse, (weight * (missed != kind))[order], minlength=len(value))
        below = np.cumsum(other) - other / 2
        share = _ratio(below, other.sum())[inverse]
        is_kind = missed[order] == kind
        result[order[is_kind]] = share[is_kind] if kind else 1 - share[is_kind]
    return result


def auroc(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> float:
    """Compute the weighted probability that a miss is predicted higher than a hit.

    Ties count half. NaN where misses or hits are absent.
    """
    return float(weighted_mean(placements(predicted, missed, weight), weight * missed))


def _logit(predicted: FloatArray) -> FloatArray:
    """Compute ln(p / (1 - p)) of clipped predictions."""
    clipped = np.clip(predicted, CLIP, 1 - CLIP)
    odds: FloatArray = np.log(clipped) - np.log1p(-clipped)
    return odds


class Recalibration(NamedTuple):
    """Fit of logit P(missed) = intercept + slope * logit(predicted); NaN without a fit.

    `influence` [n, 2] is that of each outcome on both.
    """

    intercept: float
    slope: float
    influence: FloatArray


def recalibration(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> Recalibration:
    """Fit Cox's logistic recalibration (1958, Biometrika 45:562-565).

    Calibrated predictions have intercept 0 and slope 1.

    NaN where misses and hits are separated, one of them is absent, or all predictions are equal.
    """
    odds = _logit(predicted)
    nothing = Recalibration(np.nan, np.nan, np.full((len(odds), 2), np.nan))
    if missed.all() or not missed.any() or odds.std() < _ROUNDING:
        return nothing
    hits, misses = odds[~missed], odds[missed]
    if hits.max() <= misses.min() or misses.max() <= hits.min():
        return nothing
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8)
    model.fit(odds[:, None], missed, sample_weight=weight)
    intercept, slope = float(model.intercept_[0]), float(model.coef_[0, 0])
    mean = 1 / (1 + np.exp(-(intercept + slope * odds)))
    design = np.column_stack([np.ones(len(odds)), odds])
    information = (design.T * (weight * mean * (1 - mean))) @ design
    scores = design * (weight * (missed - mean))[:, None]
    return Recalibration(intercept, slope, np.asarray(np.linalg.solve(information, scores.T).T))
