"""Validation of predicted miss probabilities: every figure that is reported of a strategy and target, with its interval or its null.

Belongs here: what is computed of out-of-fold predictions and how it is written down. Making the predictions (folds, fitting): `estimator`;
what a figure earns: `ladder`; skill by number of outcomes: `learning`.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray
from rag_eval.uncertainty.calibrated_null import calibrated_outcomes, group_dependence
from rag_eval.uncertainty.corp import Corp, corp, isotonic
from rag_eval.uncertainty.ece import LEVEL, adjusted_level, ece, limit, simulations_for
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.resampling import RESAMPLES, Figure, group_intervals, miss_rate
from rag_eval.uncertainty.scores import (
    auroc,
    base_rate_brier,
    log_losses,
    observed_expected,
    recalibration,
    squared_errors,
    weighted_mean,
)
from rag_eval.uncertainty.smece import smooth_ece

HISTOGRAM_BINS = 20
_BOUNDS = {
    "brier": (0.0, 1.0),
    "log_loss": (0.0, np.inf),
    "skill": (-np.inf, 1.0),
    "auroc": (0.0, 1.0),
    "observed_expected": (0.0, np.inf),
}
_RESAMPLED = ("brier", "log_loss", "skill", "auroc", "intercept", "slope", "observed_expected")


@dataclasses.dataclass(frozen=True)
class CalibrationError:
    """A calibration error beside what chance gives calibrated predictions of this number, spread and grouping.

    Parameters
    ----------
    value
        The error.
    null_median, null_95
        Median and 95th percentile of the errors of simulated calibrated outcomes.
    null_limit
        What the value is held against: the percentile raised for the number of figures that are checked together (Sidak).
    p
        (1 + simulated errors at least as large) / (1 + simulations).
    """

    value: float
    null_median: float
    null_95: float
    null_limit: float
    p: float

    @property
    def inside(self) -> bool:
        """Whether calibrated predictions could have this error."""
        return self.value <= self.null_limit

    @classmethod
    def against(
        cls, value: float, simulated: FloatArray, checked_together: int
    ) -> "CalibrationError":
        """Hold a value against the simulated ones `[s]`."""
        p = (1 + int((simulated >= value).sum())) / (1 + len(simulated))
        return cls(
            value,
            float(np.median(simulated)),
            limit(simulated, LEVEL),
            limit(simulated, adjusted_level(checked_together)),
            p,
        )


@dataclasses.dataclass(frozen=True)
class Validation:
    """How good the out-of-fold predictions of one strategy and target are.

    Parameters
    ----------
    n, groups, misses, groups_with_misses, groups_with_hits, repeats
        Denominators; a group with a miss and a hit counts in both.
    miss_rate
        Weighted by inverse inclusion probability, as all figures are.
    brier, log_loss, skill
        Of one fit: losses are averaged over the repeats, predictions are not. Skill is against the miss rate of the other groups.
    auroc, slope, intercept, observed_expected, corp, smece, ece
        Of the prediction averaged over the repeats, as a curve needs one prediction for each outcome.
    repeat_variance
        Mean variance of a prediction over the repeats: exactly ``brier - (mcb - dsc + unc)``.
    dependence
        Within groups, as the simulated outcomes have it (`calibrated_null`).
    histogram
        `[20]` predictions in bins of 0.05.
    """

    n: int
    groups: int
    misses: int
    groups_with_misses: int
    groups_with_hits: int
    repeats: int
    miss_rate: Figure
    brier: Figure
    log_loss: Figure
    skill: Figure
    auroc: Figure
    intercept: Figure
    slope: Figure
    observed_expected: Figure
    corp: Corp
    smece: CalibrationError
    ece: CalibrationError
    repeat_variance: float
    dependence: float
    checked_together: int
    simulations: int
    histogram: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Write as a JSON object; figures as {value, low, high}, NaN as null."""
        return {
            field.name: _written(getattr(self, field.name)) for field in dataclasses.fields(self)
        }


def _written(value: Any) -> Any:
    if isinstance(value, Figure | Corp):
        return value.to_json()
    if isinstance(value, CalibrationError):
        return {**dataclasses.asdict(value), "inside": value.inside}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, tuple) else value


def validate(
    labelled: Labelled,
    predictions: FloatArray,
    *,
    checked_together: int,
    seed: int,
    resamples: int = RESAMPLES,
) -> Validation:
    """Judge out-of-fold predictions.

    Parameters
    ----------
    labelled
        The outcomes; its signals are not looked at.
    predictions
        `[repeats, n]` probabilities of a miss, each by a model that did not see the group.
    checked_together
        Number of strategies and targets whose calibration is checked together, at least 1.
    seed, resamples
        Of the bootstrap over groups and of the simulated outcomes.

    Raises
    ------
    ValueError
        No outcomes, predictions of another shape or outside [0, 1], or fewer than one figure checked together.

    Notes
    -----
    Figures that need misses and hits are NaN where one of them is absent. Intervals are of the predictions at hand: they resample groups of
    outcomes and do not refit.
    """
    if predictions.ndim != 2 or predictions.shape[1] != len(labelled) or not predictions.size:  # noqa: PLR2004 - repeats x outcomes
        raise ValueError(
            f"predictions {predictions.shape} for {len(labelled)} outcomes; accepted: [repeats, n], 1 or more of each"
        )
    if not ((predictions >= 0) & (predictions <= 1)).all():
        raise ValueError("predictions must be probabilities: finite, from 0 to 1")
    missed, weight = labelled.missed, labelled.weight
    averaged = np.clip(predictions.mean(axis=0), 0, 1)
    simulations = simulations_for(checked_together)
    dependence = group_dependence(isotonic(averaged, missed, weight), missed, labelled.group)
    simulated = list(calibrated_outcomes(averaged, labelled.group, dependence, seed, simulations))
    smooth = np.concatenate([smooth_ece(averaged, block, weight) for block in simulated])
    binned = np.concatenate([ece(averaged, block, weight) for block in simulated])
    return Validation(
        **_counted(missed, labelled.group),
        **_resampled(labelled, predictions, averaged, seed, resamples),
        repeats=len(predictions),
        miss_rate=miss_rate(missed, labelled.group, weight),
        corp=corp(averaged, missed, weight, simulated),
        smece=CalibrationError.against(
            float(smooth_ece(averaged, missed, weight)), smooth, checked_together
        ),
        ece=CalibrationError.against(
            float(ece(averaged, missed, weight)), binned, checked_together
        ),
        repeat_variance=float(weighted_mean(predictions.var(axis=0), weight)),
        dependence=dependence,
        checked_together=checked_together,
        simulations=simulations,
        histogram=tuple(np.histogram(averaged, bins=HISTOGRAM_BINS, range=(0, 1))[0].tolist()),
    )


def _counted(missed: BoolArray, group: IntArray) -> dict[str, Any]:
    return {
        "n": len(missed),
        "groups": len(np.unique(group)),
        "misses": int(missed.sum()),
        "groups_with_misses": len(np.unique(group[missed])),
        "groups_with_hits": len(np.unique(group[~missed])),
    }


def _resampled(
    labelled: Labelled, predictions: FloatArray, averaged: FloatArray, seed: int, resamples: int
) -> dict[str, Any]:
    missed, group = labelled.missed, labelled.group
    squared, logarithmic = (
        squared_errors(predictions, missed).mean(axis=0),
        log_losses(predictions, missed).mean(axis=0),
    )

    def figures(weight: FloatArray) -> FloatArray:
        score, reference = weighted_mean(squared, weight), base_rate_brier(missed, group, weight)
        skill = 1 - np.divide(
            score, reference, out=np.full(score.shape, np.nan), where=reference > 0
        )
        line = recalibration(averaged, missed, weight)
        ranks = auroc(averaged, missed, weight)
        return np.stack(
            [
                score,
                weighted_mean(logarithmic, weight),
                skill,
                ranks,
                line.intercept,
                line.slope,
                observed_expected(averaged, missed, weight),
            ],
            axis=-1,
        )

    values = figures(labelled.weight[None, :])[0]
    low, high = group_intervals(figures, group, labelled.weight, seed, resamples)
    least, most = np.array([_BOUNDS.get(name, (-np.inf, np.inf)) for name in _RESAMPLED]).T
    low, high = (
        np.clip(low, least, most),
        np.clip(high, least, most),
    )  # an interval that is stretched must not leave what the figure can be
    return {
        name: Figure(float(values[at]), float(low[at]), float(high[at]))
        for at, name in enumerate(_RESAMPLED)
    }
