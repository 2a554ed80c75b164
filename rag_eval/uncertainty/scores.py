"""How good predicted miss probabilities are: proper scores, ranking, recalibration.

Belongs here: figures of one set of predictions. Every function takes weights and leading axes, so that repeats and resamples `[r, n]` are
scored at once. Not here: intervals (`resampling`), calibration errors (`ece`, `smece`, `corp`), what is reported (`validation`).
"""

from typing import NamedTuple

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray

CLIP = 1e-6
"""Probabilities are held in [CLIP, 1 - CLIP] for the log loss and the logit, so one sure and wrong prediction costs at most 13.8 nats."""
_NEWTON_STEPS = 30
_CONVERGED = 1e-8


class Recalibration(NamedTuple):
    """logit P(missed) = intercept + slope * logit(predicted), `[...]` each; NaN where it is not identified."""

    intercept: FloatArray
    slope: FloatArray


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    above, below = np.broadcast_arrays(
        np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    )
    ratio: FloatArray = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return ratio


def weighted_mean(values: FloatArray, weight: FloatArray) -> FloatArray:
    """Mean over the last axis, `[...]`; NaN where the weights add up to nothing."""
    return _ratio(np.vecdot(values, weight), weight.sum(axis=-1))


def squared_errors(predicted: FloatArray, missed: BoolArray) -> FloatArray:
    """Squared difference of prediction and outcome, `[..., n]`; its weighted mean is the Brier score."""
    errors: FloatArray = (predicted - missed) ** 2
    return errors


def log_losses(predicted: FloatArray, missed: BoolArray) -> FloatArray:
    """-ln of the probability given to what happened, `[..., n]`, predictions held in [CLIP, 1 - CLIP]."""
    held = np.clip(predicted, CLIP, 1 - CLIP)
    losses: FloatArray = -np.log(np.where(missed, held, 1 - held))
    return losses


def brier(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Brier score `[...]`: weighted mean squared error."""
    return weighted_mean(squared_errors(predicted, missed), weight)


def log_loss(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Log loss `[...]` in nats, predictions held in [CLIP, 1 - CLIP]."""
    return weighted_mean(log_losses(predicted, missed), weight)


def base_rate_brier(missed: BoolArray, group: IntArray, weight: FloatArray) -> FloatArray:
    """Brier score of the base rate, out of fold: every group is predicted by the weighted miss rate of all other groups.

    Parameters
    ----------
    missed, group
        `[n]`.
    weight
        `[..., n]`. In a resample that drew a group twice, both copies are left out together.

    Returns
    -------
    array
        `[...]`; NaN where a single group has weight.
    """
    order = np.argsort(group, kind="stable")
    starts = (
        np.flatnonzero(np.diff(group[order], prepend=group[order][0] - 1))
        if len(group)
        else np.zeros(0, dtype=np.int64)
    )
    total = np.add.reduceat(weight[..., order], starts, axis=-1)
    misses = np.add.reduceat((weight * missed)[..., order], starts, axis=-1)
    others = total.sum(axis=-1, keepdims=True) - total
    rate = _ratio(
        misses.sum(axis=-1, keepdims=True) - misses, np.where(others > 1e-9 * total, others, 0)
    )  # rounding is no group
    lost = np.where(
        total > 0, rate**2 * total - 2 * rate * misses + misses, 0
    )  # sum of w (rate - y)^2, as y^2 = y
    return _ratio(lost.sum(axis=-1), total.sum(axis=-1))


def brier_skill(
    predicted: FloatArray, missed: BoolArray, group: IntArray, weight: FloatArray
) -> FloatArray:
    """Brier skill `[...]` = 1 - Brier / Brier of the base rate of the other groups (`base_rate_brier`); NaN where nothing or everything missed."""
    return 1 - _ratio(brier(predicted, missed, weight), base_rate_brier(missed, group, weight))


def observed_expected(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Observed misses over predicted ones, `[...]`."""
    return _ratio(
        np.vecdot(missed.astype(np.float64), weight), np.vecdot(np.clip(predicted, CLIP, 1), weight)
    )


def auroc(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Weighted probability `[...]` that a miss is predicted higher than a hit, ties half; NaN where one of both is absent.

    Parameters
    ----------
    predicted, missed, weight
        `[..., n]`; missing leading axes are repeated.
    """
    shape = np.broadcast_shapes(predicted.shape, missed.shape, weight.shape)
    order = np.broadcast_to(np.argsort(predicted, axis=-1), shape)
    ranked = np.take_along_axis(np.broadcast_to(predicted, shape), order, axis=-1)
    missed = np.take_along_axis(np.broadcast_to(missed, shape), order, axis=-1)
    weight = np.take_along_axis(np.broadcast_to(weight, shape), order, axis=-1)
    hits = weight * ~missed
    through = np.cumsum(hits, axis=-1)
    rises = ranked[..., 1:] > ranked[..., :-1]
    place = np.arange(shape[-1])
    edge = np.ones((*shape[:-1], 1), dtype=bool)
    first = np.maximum.accumulate(
        np.where(np.concatenate([edge, rises], axis=-1), place, 0), axis=-1
    )
    last = np.minimum.accumulate(
        np.where(np.concatenate([rises, edge], axis=-1), place, shape[-1])[..., ::-1], axis=-1
    )[..., ::-1]
    below = np.take_along_axis(through - hits, first, axis=-1)
    within = np.take_along_axis(through, last, axis=-1) - below
    misses = weight * missed
    return _ratio(np.vecdot(misses, below + within / 2), misses.sum(axis=-1) * hits.sum(axis=-1))


def logit(predicted: FloatArray) -> FloatArray:
    """ln(p / (1 - p)) of predictions held in [CLIP, 1 - CLIP]."""
    held = np.clip(predicted, CLIP, 1 - CLIP)
    odds: FloatArray = np.log(held) - np.log1p(-held)
    return odds


def recalibration(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> Recalibration:
    """Intercept and slope of the logistic recalibration (Cox 1958, Biometrika 45:562-565), by Newton's method; 0 and 1 when calibrated.

    Parameters
    ----------
    predicted, missed
        `[n]`.
    weight
        `[..., n]`.

    Returns
    -------
    Recalibration
        `[...]` each; NaN where misses and hits are separated, one of them is absent, or all predictions are equal.
    """
    from scipy.special import expit

    odds = logit(predicted)
    centre, scale = odds.mean(), odds.std()
    leading = weight.shape[:-1]
    if scale < 1e-12:  # noqa: PLR2004 - equal but for rounding
        return Recalibration(np.full(leading, np.nan), np.full(leading, np.nan))
    x = (odds - centre) / scale
    total = weight.sum(axis=-1)
    rate = _ratio(np.vecdot(missed.astype(np.float64), weight), total)
    both = (rate > 0) & (rate < 1)
    level, slope = logit(np.where(both, rate, 0.5)), np.zeros(leading)
    converged = np.zeros(leading, dtype=bool)
    for _ in range(_NEWTON_STEPS):
        mean = expit(level[..., None] + slope[..., None] * x)
        residual, information = weight * (missed - mean), weight * mean * (1 - mean)
        of_level, of_slope = residual.sum(axis=-1), residual @ x
        converged = np.maximum(np.abs(of_level), np.abs(of_slope)) <= _CONVERGED * total
        if (converged | ~both).all():
            break
        own, cross, other = information.sum(axis=-1), information @ x, information @ (x * x)
        determinant = own * other - cross**2
        solvable = ~converged & (determinant > 1e-12 * total**2)
        safe = np.where(solvable, determinant, 1)
        # a step is held at 5: a separated sample runs away and stays unconverged instead of overflowing
        level = level + np.where(
            solvable, np.clip((other * of_level - cross * of_slope) / safe, -5, 5), 0
        )
        slope = slope + np.where(
            solvable, np.clip((own * of_slope - cross * of_level) / safe, -5, 5), 0
        )
    known = (
        converged
        & both
        & (np.abs(slope / scale) < 1 / CLIP)
        & (mean * (1 - mean) * weight > 0).any(axis=-1)
    )
    slope = np.where(known, slope / scale, np.nan)
    return Recalibration(np.where(known, level - slope * centre, np.nan), slope)
