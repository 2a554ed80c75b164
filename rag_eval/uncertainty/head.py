"""One fitted estimator: z-scores, coefficients, calibrator; everything that is learned from outcomes is learned here, from what is given.

Belongs here: a single fit. Which rows it may see (folds, held-out groups) is decided in `estimator`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rag_eval.uncertainty.calibrator_kinds import Calibrator, Uncalibrated
from rag_eval.uncertainty.calibrators import choose, read, written
from rag_eval.uncertainty.folds import grouped_folds
from rag_eval.uncertainty.labelled import FloatArray, IntArray, Labelled
from rag_eval.uncertainty.prior import Prior
from rag_eval.uncertainty.ridge import covariance, log_loss, solve
from rag_eval.uncertainty.scaling import Scaling, scaling

PENALTIES: Final = np.array([1e4, 1e3, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0])
"""Candidate precisions of a coefficient (around 0, or around the prior), strongest first."""
INNER_FOLDS: Final = 5
FLOOR: Final = {True: 250.0, False: 100.0}
"""With a prior, and without: penalties under FLOOR / (the fewer of misses and hits) are not considered, few outcomes cannot choose well."""
INTERCEPT_SD, SLOPE_SD = 1.5, 0.25
"""Least spread of the intercept, and spread of the one factor on all of the prior's coefficients around 1."""


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """A fitted estimator.

    Parameters
    ----------
    names
        p names of the signals.
    scaling
        Of the signals.
    intercept, coefficients
        Log-odds of a miss: intercept + z-scored signals @ coefficients, [p].
    penalty
        Precision of the coefficients around 0 or the prior that was chosen; NaN where nothing was fitted.
    calibrator
        From log-odds to probability.
    """

    names: tuple[str, ...]
    scaling: Scaling
    intercept: float
    coefficients: FloatArray
    penalty: float
    calibrator: Calibrator

    def ordered(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Z-scored signals in the head's order, float64 [n, p].

        Raises
        ------
        ValueError
            A signal that the head knows is not there; more signals than it knows may be.
        """
        places = {name: at for at, name in enumerate(names)}
        missing = [name for name in self.names if name not in places]
        if missing:
            raise ValueError(f"signals are missing: {', '.join(missing)}")
        return self.scaling.z(signals[:, [places[name] for name in self.names]])

    def log_odds(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Log-odds before the calibrator, float64 [n]."""
        return self.intercept + self.ordered(signals, names) @ self.coefficients

    def predict(self, signals: FloatArray, names: Sequence[str]) -> FloatArray:
        """Probability of a miss, float64 [n] in (0, 1)."""
        return self.calibrator.apply(self.log_odds(signals, names))

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON, exactly."""
        return {
            "names": list(self.names),
            "mean": self.scaling.mean.tolist(),
            "scale": self.scaling.scale.tolist(),
            "intercept": self.intercept,
            "coefficients": self.coefficients.tolist(),
            "penalty": None if np.isnan(self.penalty) else self.penalty,
            "calibrator": written(self.calibrator),
        }


def from_json(document: Mapping[str, Any]) -> Head:
    """Read what `Head.to_json` wrote."""
    return Head(
        tuple(document["names"]),
        Scaling(
            np.array(document["mean"], dtype=np.float64),
            np.array(document["scale"], dtype=np.float64),
        ),
        document["intercept"],
        np.array(document["coefficients"], dtype=np.float64),
        np.nan if document["penalty"] is None else document["penalty"],
        read(document["calibrator"]),
    )


class _Problem(NamedTuple):
    """A design with its penalties [penalties, q], their centre, and how its solution becomes intercept and coefficients ([1 + p, q])."""

    design: FloatArray
    penalty: FloatArray
    centre: FloatArray
    back: FloatArray


def _problem(z: FloatArray, names: Sequence[str], prior: Prior | None) -> _Problem:
    n, p = z.shape
    strength = np.repeat(PENALTIES[:, None], p, axis=1)
    ones, fixed = np.ones((n, 1)), np.ones((len(PENALTIES), 1))
    if prior is None:
        return _Problem(
            np.hstack([ones, z]),
            np.hstack([fixed / INTERCEPT_SD**2, strength]),
            np.zeros(1 + p),
            np.eye(1 + p),
        )
    # the prior's sum is a column of its own: its factor is learned first, from few outcomes, the differences from it later
    known = prior.over(names)
    back = np.zeros((1 + p, 2 + p))
    back[0, 0] = 1
    back[1:, 1], back[1:, 2:] = known, np.eye(p)
    penalty = np.hstack(
        [fixed / max(prior.spread[0], INTERCEPT_SD) ** 2, fixed / SLOPE_SD**2, strength]
    )
    return _Problem(
        np.hstack([ones, (z @ known)[:, None], z]),
        penalty,
        np.array([prior.intercept, 1.0, *np.zeros(p)]),
        back,
    )


class Fitted(NamedTuple):
    """A head and the covariance of its intercept and coefficients, float64 [1 + p, 1 + p]."""

    head: Head
    covariance: FloatArray


def fit_head(
    labelled: Labelled,
    *,
    prior: Prior | None,
    rng: np.random.Generator,
    unlabelled: FloatArray | None = None,
    calibrate: bool = True,
) -> Fitted:
    """Fit one estimator: penalty and calibrator are chosen on inner grouped folds, by log loss.

    Parameters
    ----------
    labelled
        Judged retrievals, 1 or more. Weights are scaled to add up to Kish's effective sample size, so that they weigh what they tell.
    prior
        What coefficients are drawn towards; None: towards 0.
    rng
        Deals the inner folds.
    unlabelled
        float64 [m, p] signals of further retrievals of the strategy, without outcomes, for the z-scores.
    calibrate
        Whether a calibrator is considered.
    """
    outcome = labelled.missed.astype(np.float64)
    weight = labelled.weight * (labelled.weight.sum() / (labelled.weight**2).sum())
    scaled = scaling(
        labelled.signals if unlabelled is None else np.vstack([labelled.signals, unlabelled])
    )
    problem = _problem(scaled.z(labelled.signals), labelled.names, prior)
    fold = grouped_folds(labelled.group, INNER_FOLDS, rng)
    events = max(min(weight @ outcome, weight @ (1 - outcome)), 1.0)
    chosen, log_odds = _choose_penalty(
        problem, outcome, weight, fold, FLOOR[prior is not None] / events
    )
    penalty = problem.penalty[chosen]
    found = solve(problem.design, outcome, weight[None], penalty[None], problem.centre)[0]
    # which penalty is right is uncertain itself: the interval is that of the next weaker one, or it would cover less than it says
    weaker = problem.penalty[min(chosen + 1, len(PENALTIES) - 1)]
    spread = (
        problem.back
        @ covariance(
            problem.design,
            outcome,
            weight=weight,
            penalty=weaker,
            coefficients=found,
            group=labelled.group,
        )
        @ problem.back.T
    )
    calibrator = (
        choose(log_odds, outcome, weight, labelled.group, fold) if calibrate else Uncalibrated()
    )
    solution = problem.back @ found
    return Fitted(
        Head(
            labelled.names,
            scaled,
            float(solution[0]),
            solution[1:],
            float(PENALTIES[chosen]),
            calibrator,
        ),
        spread,
    )


def _choose_penalty(
    problem: _Problem, outcome: FloatArray, weight: FloatArray, fold: IntArray, least: float
) -> tuple[int, FloatArray]:
    """Index of the penalty, at least `least`, with the lowest out-of-fold log loss (the strongest of equals), and its out-of-fold log-odds [n]."""
    n_folds, n_penalties = int(fold.max()) + 1, len(problem.penalty)
    if n_folds == 1:  # a single group: nothing can be held out, so the strongest penalty stands
        return 0, problem.design @ problem.centre
    train = np.repeat(fold[None, :] != np.arange(n_folds)[:, None], n_penalties, axis=0) * weight
    found = solve(
        problem.design, outcome, train, np.tile(problem.penalty, (n_folds, 1)), problem.centre
    )
    by_penalty = found.reshape(n_folds, n_penalties, -1)[fold]
    log_odds = np.einsum("nlq,nq->ln", by_penalty, problem.design)
    loss = (weight * log_loss(log_odds, outcome)).sum(axis=1)
    chosen = int(np.argmin(np.where(least <= PENALTIES, loss, np.inf)))
    return chosen, log_odds[chosen]


def prior_head(prior: Prior, names: Sequence[str], unlabelled: FloatArray) -> Fitted:
    """Build the head of a strategy without outcomes: the prior's coefficients over z-scores of the strategy's own queries.

    Its log-odds are drawn towards 0 by ``1 / sqrt(1 + pi v / 8)``, v their mean variance between collections: that is near the mean
    probability over collections, where the bare coefficients would give the probability of an average collection (MacKay 1992, Neural
    Computation 4:720-736).

    Parameters
    ----------
    prior
        The shipped one.
    names, unlabelled
        Names [p] and signals [m, p] of the strategy's queries.
    """
    scaled = scaling(unlabelled)
    spread = np.concatenate([prior.spread[:1], prior.spread_over(names)]) ** 2
    variance = (
        spread[0] + float((scaled.z(unlabelled) ** 2).mean(axis=0) @ spread[1:])
        if len(unlabelled)
        else float(spread.sum())
    )
    kept = 1 / float(np.sqrt(1 + np.pi * variance / 8))
    return Fitted(
        Head(
            tuple(names),
            scaled,
            kept * prior.intercept,
            kept * prior.over(names),
            np.nan,
            Uncalibrated(),
        ),
        np.diag(spread),
    )
