"""Compute every reported figure of predicted miss probabilities, with interval or null.

`estimator` makes the out-of-fold predictions. This file judges the predictions. `status` decides
the status.
"""

import math
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.records import Interval
from rag_eval.uncertainty.miss_rate_report import CalibrationError, CurveKey, Validation
from rag_eval.uncertainty.scores import (
    CLIP,
    LEVELS,
    Labelled,
    auroc,
    base_rate_losses,
    dependent_mean,
    log_losses,
    miss_rate,
    observed_expected,
    placements,
    recalibration,
)
from rag_eval.uncertainty.stored import finite

MAX_BINS = 15
MIN_PER_BIN = 20
"""Least number of judged retrievals in a bin; with few retrievals a single bin remains."""
LEVEL = 0.95
MIN_SIMULATIONS, MAX_SIMULATIONS = 2000, 10_000
HISTOGRAM_BINS = 20
_CELLS = 2_000_000
_DIGITS = 6
_MOST = 100.0
"""Largest half width of an interval of logarithms, because exp overflows beyond."""
_BEYOND = 20
"""Wanted number of simulated figures beyond the limit, so that the limit is stable."""
_BOUNDS = {
    "brier": (0.0, 1.0),
    "log_loss": (0.0, np.inf),
    "skill": (-np.inf, 1.0),
    "auroc": (0.0, 1.0),
    "intercept": (-np.inf, np.inf),
    "slope": (-np.inf, np.inf),
    "observed_expected": (0.0, np.inf),
}
"""Possible range of each figure, to which its interval is clipped."""


def _isotonic_rates(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Recalibrate predictions [n] by isotonic regression on their own outcomes."""
    from sklearn.isotonic import IsotonicRegression

    rates: FloatArray = IsotonicRegression().fit_transform(predicted, missed, sample_weight=weight)
    return rates


def _group_dependence(probability: FloatArray, missed: BoolArray, group: IntArray) -> float:
    """Estimate in [0, 1] how strongly outcomes of one group depend, given probabilities [n].

    This is the moment estimate of d in `_calibrated_outcomes`: the sum of products of two residuals
    of one group over its largest possible value ``sum(min(p_i, p_j) - p_i p_j)``. Pass isotonic
    recalibrated predictions, because a bias must not look like dependence. Without a group of two
    outcomes or more the result is 0.
    """
    _, code = np.unique(group, return_inverse=True)
    order = np.lexsort((probability, code))
    code, p, residual = code[order], probability[order], (missed - probability)[order]
    size = np.bincount(code)
    place = np.arange(len(code)) - np.repeat(np.cumsum(size) - size, size)
    # Probabilities rise inside a group, so p is the smaller one in each pair with a later row.
    smaller = float((p * (size[code] - 1 - place)).sum())

    def sum_of_pairs(values: FloatArray) -> float:
        return float((np.bincount(code, values) ** 2).sum() - (values**2).sum()) / 2

    largest = smaller - sum_of_pairs(p)
    return float(np.clip(sum_of_pairs(residual) / largest, 0, 1)) if largest > 1e-12 else 0.0  # noqa: PLR2004 - rounding


def _calibrated_outcomes(
    predicted: FloatArray, group: IntArray, dependence: float, seed: int, simulations: int
) -> Iterator[BoolArray]:
    """Draw outcomes for which the predictions [n] are calibrated, in blocks `[block, n]`.

    With probability sqrt(d) a member uses the uniform number of its group, else a number of its
    own. The member misses if the number is under its prediction. So each miss has the predicted
    probability, and two members of a group have the covariance ``d (min(p_i, p_j) - p_i p_j)``.
    """
    rng = np.random.default_rng(seed)
    _, code = np.unique(group, return_inverse=True)
    n_groups, rows = int(code.max(initial=-1)) + 1, max(1, _CELLS // max(1, len(predicted)))
    for start in range(0, simulations, rows):
        shape = (min(rows, simulations - start), len(predicted))
        number = rng.random(shape)
        if dependence > 0:
            shared = rng.random((shape[0], n_groups))[:, code]
            number = np.where(rng.random(shape) < np.sqrt(dependence), shared, number)
        yield number < predicted


def equal_mass_bins(predicted: FloatArray, weight: FloatArray) -> IntArray:
    """Give the bin of each prediction [n]: min(15, n // 20) bins of about equal weight.

    Equal predictions share a bin, which is the bin at the middle of their weight. Bins are numbered
    without gaps.
    """
    value, inverse = np.unique(predicted, return_inverse=True)
    mass = np.bincount(inverse, weight, minlength=len(value))
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    bins = max(1, min(MAX_BINS, len(predicted) // MIN_PER_BIN))
    _, number = np.unique(np.floor(middle * bins).astype(np.int64), return_inverse=True)
    codes: IntArray = number[inverse].astype(np.int64)
    return codes


def _sum_by_bin(values: FloatArray, bins: IntArray) -> FloatArray:
    """Sum `[..., n]` over each bin, `[..., bins]`."""
    order = np.argsort(bins, kind="stable")
    starts = np.searchsorted(bins[order], np.arange(int(bins.max()) + 1))
    return np.add.reduceat(values[..., order], starts, axis=-1)


def ece(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Compute the equal-mass expected calibration error of outcomes `[..., n]`, `[...]`.

    That is the weighted mean over bins of |miss rate - mean prediction|. Compare the error with
    its null distribution and not with 0, because calibrated predictions have errors above 0 too.
    """
    gaps = _sum_by_bin((missed - predicted) * weight, equal_mass_bins(predicted, weight))
    return np.asarray(np.abs(gaps).sum(axis=-1) / weight.sum())


def _reliability(
    predicted: FloatArray, missed: BoolArray, weight: FloatArray, calibrated: Sequence[BoolArray]
) -> dict[CurveKey, list[float]]:
    """Compute the reliability diagram in bins of equal mass, in rising order, with its band.

    For calibrated predictions, the consistency band of a bin holds 95 % of the observed rates.
    `calibrated` are blocks of `_calibrated_outcomes`. They have the correlation inside groups, so
    the width of the band includes the correlation.
    """
    bins = equal_mass_bins(predicted, weight)
    mass = _sum_by_bin(weight, bins)
    drawn = np.concatenate([_sum_by_bin(block * weight, bins) for block in calibrated]) / mass
    means = (_sum_by_bin(values * weight, bins) / mass for values in (predicted, missed))
    names: tuple[CurveKey, ...] = get_args(CurveKey)
    curves = zip(names, (*means, *np.quantile(drawn, LEVELS, axis=0)), strict=True)
    return {name: np.clip(values, 0, 1).round(_DIGITS).tolist() for name, values in curves}


def adjusted_level(checked_together: int) -> float:
    """Return the level 0.95 ** (1 / m), at which m calibrated figures are all inside with 95 %.

    Sidak (1967), JASA 62:626-633.
    """
    return float(LEVEL ** (1 / checked_together))


def _simulations_for(checked_together: int) -> int:
    """Return the number of simulations for the adjusted level, between 2,000 and 10,000."""
    needed = math.ceil(_BEYOND / (1 - adjusted_level(checked_together)))
    return int(np.clip(needed, MIN_SIMULATIONS, MAX_SIMULATIONS))


def limit(simulated: FloatArray, level: float) -> float:
    """Give the figure that a calibrated prediction exceeds with probability 1 - level.

    That is the order statistic ceil(level (S + 1)) of S simulated figures.
    """
    place = min(math.ceil(level * (len(simulated) + 1)), len(simulated))
    return float(np.sort(simulated)[place - 1])


def _judge_error(value: float, simulated: FloatArray, checked_together: int) -> CalibrationError:
    """Compare a calibration error with the simulated errors of calibrated predictions.

    The limit rises with the number of figures that are checked together. `p` is
    (1 + simulated errors at least as large) / (1 + simulations).
    """
    most = limit(simulated, adjusted_level(checked_together))
    return CalibrationError(
        value=value,
        null_median=float(np.median(simulated)),
        null_95=limit(simulated, LEVEL),
        null_limit=most,
        p=(1 + int((simulated >= value).sum())) / (1 + len(simulated)),
        inside=value <= most,
    )


def validate(
    labelled: Labelled,
    predictions: FloatArray,
    *,
    checked_together: int,
    seed: int,
) -> Validation:
    """Judge out-of-fold predictions `[repeats, n]` of fits that did not see the groups.

    `checked_together` counts the strategies and targets whose calibration is checked together.
    All figures weigh outcomes by inverse inclusion probability. Figures that need misses and hits
    are null if all outcomes are equal. `brier`, `log_loss` and `skill` describe a single fit, so
    they average losses over the repeats. The other figures use the prediction averaged over the
    repeats, because a curve needs one prediction for each outcome. Intervals are those of
    `dependent_mean` for the given predictions, without new fits. A group with a miss and a hit
    counts in `groups_with_misses` and in `groups_with_hits`.
    """
    missed, weight, group = labelled.missed, labelled.weight, labelled.group
    averaged = np.clip(predictions.mean(axis=0), 0, 1)
    simulations = _simulations_for(checked_together)
    recalibrated = _isotonic_rates(averaged, missed, weight)
    dependence = _group_dependence(recalibrated, missed, group)
    simulated = list(_calibrated_outcomes(averaged, group, dependence, seed, simulations))
    null = np.concatenate([ece(averaged, block, weight) for block in simulated])
    error = float(ece(averaged, missed, weight))
    return Validation(
        n=len(missed),
        groups=len(np.unique(group)),
        misses=int(missed.sum()),
        groups_with_misses=len(np.unique(group[missed])),
        groups_with_hits=len(np.unique(group[~missed])),
        repeats=len(predictions),
        miss_rate=miss_rate(labelled),
        **_figure_intervals(labelled, predictions, averaged),
        reliability=_reliability(averaged, missed, weight, simulated),
        ece=_judge_error(error, null, checked_together),
        dependence=dependence,
        checked_together=checked_together,
        simulations=simulations,
        histogram=np.histogram(averaged, bins=HISTOGRAM_BINS, range=(0, 1))[0].tolist(),
    )


def _spread_out(name: str, value: float, half: float) -> tuple[float, float]:
    """Return the ends of an interval of this half width, on the scale where it is symmetric.

    Skill is symmetric in the logarithm of 1 - skill, AUROC in its log-odds. On their own scale, the
    low end would be too high for few misses.
    """
    if name == "skill" and value < 1:
        factor = float(np.exp(min(half / (1 - value), _MOST)))
        return 1 - (1 - value) * factor, 1 - (1 - value) / factor
    if name == "auroc" and 0 < value < 1:
        odds = value / (1 - value)
        factor = float(np.exp(min(half / (value * (1 - value)), _MOST)))
        return odds / (odds + factor), odds * factor / (odds * factor + 1)
    return value - half, value + half


def _figure_intervals(
    labelled: Labelled, predictions: FloatArray, averaged: FloatArray
) -> dict[str, Interval]:
    """Compute the figures of `_BOUNDS` with their intervals, from the influence of each outcome."""
    missed, weight = labelled.missed, labelled.weight
    share = weight / weight.sum()
    squared = ((predictions - missed) ** 2).mean(axis=0)
    logarithmic = log_losses(predictions, missed).mean(axis=0)
    base = base_rate_losses(missed, labelled.group, weight)
    score, reference = float(share @ squared), float(share @ base)
    ratio = score / reference if reference > 0 else np.nan
    placed, ranked = placements(averaged, missed, weight), auroc(averaged, missed, weight)
    kind = np.where(missed, share @ missed, share @ ~missed)
    line = recalibration(averaged, missed, weight)
    expected = np.clip(averaged, CLIP, 1)
    observed = observed_expected(averaged, missed, weight)
    by_name = {
        "brier": (score, share * (squared - score)),
        "log_loss": (float(share @ logarithmic), share * (logarithmic - share @ logarithmic)),
        "skill": (1 - ratio, -share * (squared - ratio * base) / reference),
        "auroc": (ranked, share * (placed - ranked) / kind),
        "intercept": (line.intercept, line.influence[:, 0]),
        "slope": (line.slope, line.influence[:, 1]),
        "observed_expected": (
            observed,
            share * (missed - observed * expected) / (share @ expected),
        ),
    }
    finite_names = [name for name, (value, _) in by_name.items() if np.isfinite(value)]
    half = dict.fromkeys(by_name, np.nan)
    influence = np.column_stack([by_name[name][1] for name in finite_names])
    half |= dict(
        zip(finite_names, dependent_mean(influence, labelled).half_width().tolist(), strict=True)
    )
    intervals = {}
    for name, (value, _) in by_name.items():
        low, high = np.clip(_spread_out(name, value, half[name]), *_BOUNDS[name])
        intervals[name] = Interval(value=finite(value), low=finite(low), high=finite(high))
    return intervals
