"""Validate predicted miss probabilities: every reported figure, with interval or null.

`estimator` makes the out-of-fold predictions. This file judges them on the judged retrievals
(`Labelled`). `status` decides the status.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Final, get_args

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.records import CountedInterval, Interval
from rag_eval.measures.overlap import MeanFit, SharedGold, mean_interval, wilson
from rag_eval.uncertainty.miss_rate_report import CalibrationError, CurveKey, Validation

CLIP: Final = 1e-6
"""Clip of predictions to [CLIP, 1 - CLIP]; a sure, wrong prediction costs at most 13.8 nats."""
MAX_BINS, MIN_PER_BIN = 15, 20
"""Most bins of a diagram, and least number of judged retrievals in a bin."""
LEVEL, BAND = 0.95, (0.025, 0.975)
MIN_SIMULATIONS, MAX_SIMULATIONS, BEYOND = 2000, 10_000, 20
"""Numbers of simulations, and of simulated figures wanted beyond the limit, to make it stable."""
HISTOGRAM_BINS = 20
_CELLS = 2_000_000
_ROUNDING: Final = 1e-12
_MOST = 100.0
"""Largest half width of an interval of logarithms, because exp overflows beyond."""
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


def finite(value: float) -> float | None:
    """Turn NaN and infinity into None."""
    return float(value) if np.isfinite(value) else None


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


# ---- Means over dependent questions.


def mean_figure(
    values: FloatArray, gold: SharedGold, *, unit_range: bool = True
) -> CountedInterval:
    """Compute the mean of values [n] over queries; NaN is left out.

    `unit_range` tells whether the values lie in [0, 1] by definition.
    """
    bounds = mean_interval(values, gold, unit_range=unit_range)
    value, low, high, n_effective = (float(bound[0]) for bound in bounds)
    n = int((~np.isnan(values)).sum())
    ends = {"value": finite(value), "low": finite(low), "high": finite(high)}
    return CountedInterval(**ends, n=n, n_effective=n_effective)


def dependent_mean(influence: FloatArray, labelled: Labelled) -> MeanFit:
    """Fit how uncertain figures are, from the influence [n, m] of each outcome on each figure.

    The influence is the derivative of the figure by the outcome's weight, times the weight (Hampel
    1974, JASA 69:383-393). The sum over the outcomes of a question is one observation. Questions
    depend on one another by the gold that they share, or by group where the gold is not known.
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


# ---- Scores of predictions, as parts of each outcome.


def _ratio(above: npt.ArrayLike, below: npt.ArrayLike) -> FloatArray:
    """Divide; NaN where the divisor is not positive."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    ratio: FloatArray = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return ratio


def _log_losses(predicted: FloatArray, missed: BoolArray) -> FloatArray:
    """Compute -ln of the clipped probability of the observed outcome, `[..., n]`."""
    clipped = np.clip(predicted, CLIP, 1 - CLIP)
    return np.asarray(-np.log(np.where(missed, clipped, 1 - clipped)))


def base_rate_losses(missed: BoolArray, group: IntArray, weight: FloatArray) -> FloatArray:
    """Compute the squared error of the miss rate of all other groups, [n]; NaN for one group."""
    _, code = np.unique(group, return_inverse=True)
    total, misses = np.bincount(code, weight), np.bincount(code, weight * missed)
    others = total.sum() - total
    # A rest this small is rounding, not the weight of another group.
    rate = _ratio(misses.sum() - misses, np.where(others > 1e-9 * total.sum(), others, 0))
    return np.asarray((rate[code] - missed) ** 2)


def _placements(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Compute the share of the other kind that is ranked right against each outcome, [n]."""
    order = np.argsort(predicted, kind="stable")
    value, inverse = np.unique(predicted[order], return_inverse=True)
    result = np.empty(len(predicted))
    for kind in (True, False):
        other = np.bincount(inverse, (weight * (missed != kind))[order], minlength=len(value))
        share = _ratio(np.cumsum(other) - other / 2, other.sum())[inverse]
        is_kind = missed[order] == kind
        result[order[is_kind]] = share[is_kind] if kind else 1 - share[is_kind]
    return result


def _logit(predicted: FloatArray) -> FloatArray:
    """Compute ln(p / (1 - p)) of clipped predictions."""
    clipped = np.clip(predicted, CLIP, 1 - CLIP)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


def _recalibrate(
    predicted: FloatArray, missed: BoolArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Fit Cox's logistic recalibration (1958, Biometrika 45:562-565).

    Returns intercept and slope [2] of logit P(missed) = intercept + slope * logit(predicted), and
    the influence of each outcome on both [n, 2]. Calibrated predictions have intercept 0 and slope
    1. NaN where misses and hits are separated, one is absent, or all predictions are equal.
    """
    odds = _logit(predicted)
    nothing = np.full(2, np.nan), np.full((len(odds), 2), np.nan)
    if missed.all() or not missed.any() or odds.std() < _ROUNDING:
        return nothing
    hits, misses = odds[~missed], odds[missed]
    if hits.max() <= misses.min() or misses.max() <= hits.min():
        return nothing
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8)
    model.fit(odds[:, None], missed, sample_weight=weight)
    line = np.array([model.intercept_[0], model.coef_[0, 0]])
    design = np.column_stack([np.ones(len(odds)), odds])
    mean = 1 / (1 + np.exp(-(line[0] + line[1] * odds)))
    information = (design.T * (weight * mean * (1 - mean))) @ design
    scores = design * (weight * (missed - mean))[:, None]
    return line, np.asarray(np.linalg.solve(information, scores.T).T)


# ---- Outcomes for which the predictions are calibrated.


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
    return float(np.clip(sum_of_pairs(residual) / largest, 0, 1)) if largest > _ROUNDING else 0.0


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


# ---- The calibration error and the reliability diagram.


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
    return np.asarray(number[inverse], dtype=np.int64)


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
    """Compute the reliability diagram in bins of equal mass, in rising order, with its band."""
    bins = equal_mass_bins(predicted, weight)
    mass = _sum_by_bin(weight, bins)
    drawn = np.concatenate([_sum_by_bin(block * weight, bins) for block in calibrated]) / mass
    means = (_sum_by_bin(values * weight, bins) / mass for values in (predicted, missed))
    curves = zip(get_args(CurveKey), (*means, *np.quantile(drawn, BAND, axis=0)), strict=True)
    return {name: np.clip(values, 0, 1).round(6).tolist() for name, values in curves}


def adjusted_level(checked_together: int) -> float:
    """Return the level 0.95 ** (1 / m), at which m calibrated figures are all inside with 95 %.

    Sidak (1967), JASA 62:626-633.
    """
    return float(LEVEL ** (1 / checked_together))


def _simulations_for(checked_together: int) -> int:
    """Return the number of simulations for the adjusted level, between 2,000 and 10,000."""
    needed = math.ceil(BEYOND / (1 - adjusted_level(checked_together)))
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


# ---- All figures.


def validate(
    labelled: Labelled, predictions: FloatArray, *, checked_together: int, seed: int
) -> Validation:
    """Judge out-of-fold predictions `[repeats, n]` of fits that did not see the groups.

    `checked_together` counts the strategies and targets whose calibration is checked together. All
    figures weigh outcomes by inverse inclusion probability; those that need misses and hits are
    null if all outcomes are equal. `brier`, `log_loss` and `skill` average losses over the repeats,
    as they describe a single fit. The other figures use the prediction averaged over the repeats.
    """
    missed, weight, group = labelled.missed, labelled.weight, labelled.group
    averaged = np.clip(predictions.mean(axis=0), 0, 1)
    simulations = _simulations_for(checked_together)
    recalibrated = _isotonic_rates(averaged, missed, weight)
    dependence = _group_dependence(recalibrated, missed, group)
    simulated = list(_calibrated_outcomes(averaged, group, dependence, seed, simulations))
    null = np.concatenate([ece(averaged, block, weight) for block in simulated])
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
        ece=_judge_error(float(ece(averaged, missed, weight)), null, checked_together),
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
    logarithmic = _log_losses(predictions, missed).mean(axis=0)
    base = base_rate_losses(missed, labelled.group, weight)
    score, reference = float(share @ squared), float(share @ base)
    ratio = score / reference if reference > 0 else np.nan
    placed = _placements(averaged, missed, weight)
    ranked = float(_ratio((weight * missed) @ placed, weight @ missed))
    kind = np.where(missed, share @ missed, share @ ~missed)
    (intercept, slope), of_line = _recalibrate(averaged, missed, weight)
    expected = np.clip(averaged, CLIP, 1)
    observed = float((share @ missed) / (share @ expected))
    by_name = {
        "brier": (score, share * (squared - score)),
        "log_loss": (float(share @ logarithmic), share * (logarithmic - share @ logarithmic)),
        "skill": (1 - ratio, -share * (squared - ratio * base) / reference),
        "auroc": (ranked, share * (placed - ranked) / kind),
        "intercept": (intercept, of_line[:, 0]),
        "slope": (slope, of_line[:, 1]),
        "observed_expected": (
            observed,
            share * (missed - observed * expected) / (share @ expected),
        ),
    }
    names = [name for name, (value, _) in by_name.items() if np.isfinite(value)]
    influence = np.column_stack([by_name[name][1] for name in names])
    widths = dependent_mean(influence, labelled).half_width().tolist()
    half = dict.fromkeys(by_name, np.nan) | dict(zip(names, widths, strict=True))
    intervals = {}
    for name, (value, _) in by_name.items():
        low, high = np.clip(_spread_out(name, value, half[name]), *_BOUNDS[name])
        intervals[name] = Interval(value=finite(value), low=finite(low), high=finite(high))
    return intervals
