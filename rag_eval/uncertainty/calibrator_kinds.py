"""The kinds of calibrators: monotone maps from an estimator's log-odds to the probability of a miss, each a small frozen value.

Belongs here: what each is, how it is fitted and applied. Which is used is decided in `calibrators`.
"""

import dataclasses
from typing import Any, Protocol, Self

import numpy as np

from rag_eval.records.uncertainty import CalibratorName
from rag_eval.uncertainty.labelled import FloatArray
from rag_eval.uncertainty.ridge import log_loss, sigmoid, solve
from rag_eval.uncertainty.venn_abers import Steps, isotonic, venn_abers

SLOPE_SD, INTERCEPT_SD = 0.25, 1.0
"""Gaussian priors around slope 1 and intercept 0: a slope fitted freely on 50 outcomes can be worse than no calibration."""


class Calibrator(Protocol):
    """What every calibrator can do; inputs are log-odds [n], results probabilities [n] in (0, 1)."""

    @property
    def name(self) -> CalibratorName:
        """Its name."""

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> Self:
        """Fit to outcomes 0/1 with weights over 0, [n] each, n at least 1."""

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Calibrated probabilities, never falling where the log-odds rise."""

    def bounds(self, log_odds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lowest and highest probability that the calibrator itself allows; equal where it states no interval."""

    def parameters(self) -> dict[str, Any]:
        """Parameters as JSON; `read` gives the calibrator back exactly."""


class _Pointwise:
    def apply(self, log_odds: FloatArray) -> FloatArray:
        raise NotImplementedError

    def bounds(self, log_odds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both ends are the value."""
        value = self.apply(log_odds)
        return value, value


@dataclasses.dataclass(frozen=True)
class Uncalibrated(_Pointwise):
    """The estimator's own probabilities."""

    name: CalibratorName = dataclasses.field(default="none", init=False)

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> Self:  # noqa: ARG003 -- there is nothing to fit
        """Fit nothing."""
        return cls()

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Probabilities of the log-odds."""
        return sigmoid(log_odds)

    def parameters(self) -> dict[str, Any]:
        """Nothing."""
        return {}


@dataclasses.dataclass(frozen=True)
class Platt(_Pointwise):
    """``sigmoid(intercept + slope * log_odds)``, slope 0 or more, drawn towards 1 (Platt 1999, with a Gaussian prior)."""

    intercept: float
    slope: float
    name: CalibratorName = dataclasses.field(default="platt", init=False)

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> Self:
        """Maximum a posteriori."""
        found = _non_negative(np.stack([np.ones_like(log_odds), log_odds], axis=1), missed, weight)
        return cls(float(found[0]), float(found[1]))

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Probabilities."""
        return sigmoid(self.intercept + self.slope * log_odds)

    def parameters(self) -> dict[str, Any]:
        """Intercept and slope."""
        return {"intercept": self.intercept, "slope": self.slope}


@dataclasses.dataclass(frozen=True)
class Beta(_Pointwise):
    """``sigmoid(c + a ln p - b ln(1 - p))`` with a, b 0 or more, drawn towards 1 (Kull, Silva Filho & Flach 2017)."""

    intercept: float
    a: float
    b: float
    name: CalibratorName = dataclasses.field(default="beta", init=False)

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> Self:
        """Maximum a posteriori."""
        found = _non_negative(
            np.stack(
                [
                    np.ones_like(log_odds),
                    -log_loss(log_odds, np.ones(1)),
                    log_loss(log_odds, np.zeros(1)),
                ],
                axis=1,
            ),
            missed,
            weight,
        )
        return cls(float(found[0]), float(found[1]), float(found[2]))

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Probabilities."""
        return sigmoid(
            self.intercept
            - self.a * log_loss(log_odds, np.ones(1))
            + self.b * log_loss(log_odds, np.zeros(1))
        )

    def parameters(self) -> dict[str, Any]:
        """Intercept, a and b."""
        return {"a": self.a, "b": self.b, "intercept": self.intercept}


def _non_negative(design: FloatArray, missed: FloatArray, weight: FloatArray) -> FloatArray:
    """Fit an intercept and slopes that are 0 or more: the best solution over all choices of slopes fixed at 0 (one or two slopes: at most four)."""
    q = design.shape[1]
    centre = np.ones(q)
    centre[0] = 0.0
    penalty = np.full(q, SLOPE_SD**-2)
    penalty[0] = INTERCEPT_SD**-2
    best, lowest = np.zeros(q), np.inf
    for fixed in range(2 ** (q - 1)):
        free = np.array([True, *(not fixed >> j & 1 for j in range(q - 1))])
        found = np.zeros(q)
        found[free] = solve(
            design[:, free], missed, weight[None], penalty[None, free], centre[free]
        )[0]
        value = float(
            weight @ log_loss(design @ found, missed) + 0.5 * penalty @ (found - centre) ** 2
        )
        if (found[1:] >= 0).all() and value < lowest:
            best, lowest = found, value
    return best


@dataclasses.dataclass(frozen=True)
class Isotonic(_Pointwise):
    """Isotonic regression, kept `edge` = 1 / (total weight + 2) away from 0 and 1: a rate of no misses is not certainty."""

    steps: Steps
    edge: float
    name: CalibratorName = dataclasses.field(default="isotonic", init=False)

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> Self:
        """Pool adjacent violators."""
        return cls(isotonic(log_odds, missed, weight), 1 / (float(weight.sum()) + 2))

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Probabilities."""
        return np.clip(self.steps(log_odds), self.edge, 1 - self.edge)

    def parameters(self) -> dict[str, Any]:
        """Knots and values."""
        return {"edge": self.edge, "steps": _listed(self.steps)}


@dataclasses.dataclass(frozen=True)
class VennAbers:
    """Venn-ABERS: p1 / (1 - p0 + p1), whose p0 and p1 are its interval; kept away from 0 and 1 as `Isotonic`."""

    low: Steps
    high: Steps
    edge: float
    name: CalibratorName = dataclasses.field(default="venn_abers", init=False)

    @classmethod
    def fit(cls, log_odds: FloatArray, missed: FloatArray, weight: FloatArray) -> Self:
        """Compute p0 and p1 for every place."""
        return cls(*venn_abers(log_odds, missed, weight), 1 / (float(weight.sum()) + 2))

    def apply(self, log_odds: FloatArray) -> FloatArray:
        """Probabilities that lie between p0 and p1."""
        low, high = self.low(log_odds), self.high(log_odds)
        return np.clip(high / (1 - low + high), self.edge, 1 - self.edge)

    def bounds(self, log_odds: FloatArray) -> tuple[FloatArray, FloatArray]:
        """p0 and p1."""
        return np.clip(self.low(log_odds), self.edge, 1 - self.edge), np.clip(
            self.high(log_odds), self.edge, 1 - self.edge
        )

    def parameters(self) -> dict[str, Any]:
        """Knots, p0 and p1."""
        return {"edge": self.edge, "high": _listed(self.high), "low": _listed(self.low)}


def _listed(steps: Steps) -> dict[str, list[float]]:
    return {
        "at": steps.at.tolist(),
        "between": steps.between.tolist(),
        "knots": steps.knots.tolist(),
    }
