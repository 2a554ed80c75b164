"""Calibrators: monotone maps from an estimator's log-odds to the probability of a miss.

A calibrator is used only if it clearly lowers the out-of-fold log loss. The default is `none`.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import CalibratorName
from rag_eval.uncertainty.regression import Regression, log_loss, sigmoid
from rag_eval.uncertainty.stored import Floats, Stored

SLOPE_SD, INTERCEPT_SD = 0.25, 1.0
"""SD of the priors of slope (mean 1) and intercept (0), as few outcomes fit a free slope badly."""
FEWEST: Final[Mapping[CalibratorName, int]] = {"platt": 25, "isotonic": 400}
"""Least number of outcomes of each calibrator; with under 400, isotonic regression costs skill."""
NOISE = 2.0
"""Number of standard errors over groups by which a calibrator must lower the log loss."""


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """A step function: `at` [m] holds values at sorted `knots`, `between` [m + 1] all others."""

    knots: Floats
    at: Floats
    between: Floats

    def __call__(self, x: FloatArray) -> FloatArray:
        """Compute the value at each x."""
        place = np.searchsorted(self.knots, x, side="left")
        inside = np.minimum(place, len(self.knots) - 1)
        return np.where(self.knots[inside] == x, self.at[inside], self.between[place])


def fit_steps(score: FloatArray, missed: FloatArray | BoolArray, weight: FloatArray) -> Steps:
    """Fit miss rates that rise with the score, by weighted least squares; [n] each, weights > 0.

    Between two knots the value is the mean of both values. Outside the knots the nearest value
    holds.
    """
    from scipy.optimize import isotonic_regression

    knots, code = np.unique(score, return_inverse=True)
    mass = np.bincount(code, weights=weight)
    misses = np.bincount(code, weights=weight * missed)
    at = np.clip(isotonic_regression(misses / mass, weights=mass).x, 0.0, 1.0)
    padded = np.concatenate([at[:1], at, at[-1:]])
    return Steps(knots, at, (padded[1:] + padded[:-1]) / 2)


class Calibrator(Stored, abc.ABC):
    """A fitted monotone map from log-odds to the probability of a miss."""

    name: ClassVar[CalibratorName]

    @classmethod
    @abc.abstractmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> list[Self]:
        """Fit one calibrator for each row of weights [m, n]; outcomes of weight 0 do not count."""

    @abc.abstractmethod
    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Compute probabilities in (0, 1) that never decrease with the log-odds."""


@dataclasses.dataclass(frozen=True)
class Uncalibrated(Calibrator):
    """The calibrator `none`, which keeps the estimator's own probabilities."""

    name: ClassVar[CalibratorName] = "none"

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> list[Self]:  # noqa: ARG003 - fits nothing
        """Return one calibrator for each row of weights, without a fit."""
        return [cls()] * len(weight)

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Compute the probabilities of the log-odds."""
        return sigmoid(log_odds)


@dataclasses.dataclass(frozen=True)
class Platt(Calibrator):
    """``sigmoid(intercept + slope * log_odds)``, slope 0 or more, drawn towards 1 (Platt 1999)."""

    name: ClassVar[CalibratorName] = "platt"
    intercept: float
    slope: float

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> list[Self]:
        """Fit by maximum a posteriori.

        The problem is convex. So a negative slope is replaced by the best solution with slope 0.
        """
        penalty = np.array([[INTERCEPT_SD**-2, SLOPE_SD**-2]])
        design = np.column_stack([np.ones(len(log_odds)), log_odds])
        best = Regression(design, missed, np.array([0.0, 1.0])).solve(weight, penalty)[:, 0]
        falling = best[:, 1] < 0
        if falling.any():
            flat = Regression(design[:, :1], missed, np.zeros(1))
            best[falling, 0] = flat.solve(weight[falling], penalty[:, :1])[:, 0, 0]
            best[falling, 1] = 0.0
        return [cls(*row) for row in best.tolist()]

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Compute probabilities."""
        return sigmoid(self.intercept + self.slope * log_odds)


@dataclasses.dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression, kept `edge` = 1 / (total weight + 2) away from 0 and 1.

    The edge exists because few outcomes without a miss do not prove a miss rate of 0.
    """

    name: ClassVar[CalibratorName] = "isotonic"
    steps: Steps
    edge: float

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> list[Self]:
        """Fit by pool adjacent violators."""
        return [
            cls(fit_steps(log_odds[w > 0], missed[w > 0], w[w > 0]), 1 / (float(w.sum()) + 2))
            for w in weight
        ]

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Compute probabilities."""
        return np.clip(self.steps(log_odds), self.edge, 1 - self.edge)


KINDS: Final[Mapping[CalibratorName, type[Calibrator]]] = {
    kind.name: kind for kind in (Uncalibrated, Platt, Isotonic)
}


def _read_calibrator(document: Mapping[str, Any]) -> Calibrator:
    name = document["name"]
    if name not in KINDS:
        raise ValueError(f"found calibrator {name!r}, accepted {', '.join(KINDS)}")
    return KINDS[name].from_json(document["parameters"])


StoredCalibrator = Annotated[
    Calibrator,
    PlainValidator(_read_calibrator),
    PlainSerializer(lambda fitted: {"name": fitted.name, "parameters": fitted.to_json()}),
]
"""A calibrator of any kind, stored as its name and its parameters."""


def unknown_kinds(document: Any) -> list[str]:
    """List the calibrator names in a stored document that KINDS does not have, sorted."""
    if isinstance(document, list):
        return sorted({name for part in document for name in unknown_kinds(part)})
    if not isinstance(document, dict):
        return []
    own = document.get("calibrator")
    name = own.get("name") if isinstance(own, dict) else None
    unknown = {str(name)} if name is not None and name not in KINDS else set()
    return sorted(unknown.union(*map(unknown_kinds, document.values())))


def choose_calibrator(
    log_odds: FloatArray, missed: FloatArray, weight: FloatArray, group: IntArray, fold: IntArray
) -> Calibrator:
    """Choose a calibrator by its out-of-fold log loss, and fit it to everything.

    Takes out-of-fold log-odds, outcomes 0/1, weights, and codes of groups and folds, [n] each. No
    fold may split a group. Each kind is judged on each fold after a fit to the other folds. Gains
    in log loss are summed by group. The kind with the largest gain wins if the gain exceeds
    `NOISE` standard errors. Otherwise the choice is `none`.
    """
    best: type[Calibrator] = Uncalibrated
    held = fold == np.unique(fold)[:, None]
    if len(held) > 1:
        base, most = log_loss(log_odds, missed), 0.0
        _, code = np.unique(group, return_inverse=True)
        for name, fewest in FEWEST.items():
            if len(missed) < fewest:
                continue
            gain = np.empty(len(missed))
            fits = KINDS[name].fit(log_odds, missed, ~held * weight)
            for rows, fitted in zip(held, fits, strict=True):
                value = fitted.apply(log_odds[rows])
                gain[rows] = base[rows] + np.log(np.where(missed[rows] > 0, value, 1 - value))
            by_group = np.bincount(code, weights=weight * gain)
            if by_group.sum() > max(most, NOISE * float(np.sqrt((by_group**2).sum()))):
                best, most = KINDS[name], float(by_group.sum())
    return best.fit(log_odds, missed, weight[None])[0]
