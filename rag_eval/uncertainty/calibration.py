"""Fit the miss rate of a strategy to judged retrievals, and validate the fit."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from rag_eval.core.arrays import FloatArray
from rag_eval.uncertainty.conformal import Questions, conformal_k
from rag_eval.uncertainty.estimator import (
    ANY_AT_10,
    Miss,
    MissRateModel,
    Prior,
    cross_validate,
    fit_model,
)
from rag_eval.uncertainty.miss_rate_report import ConformalK, OutcomeCounts, Validation
from rag_eval.uncertainty.scores import Labelled
from rag_eval.uncertainty.status import count_outcomes, suffice_to_fit
from rag_eval.uncertainty.stored import Floats, Stored
from rag_eval.uncertainty.validation import validate

REPEATS: Final = 3
"""Number of repeats with new folds, beside the folds of the stored model."""
PREDICTIONS: Final = 5_000
"""Number of further out-of-fold predictions above which repeats are skipped to save time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
    """Facts about the n judged retrievals of a strategy and about its questions.

    `heuristic` [n] is heuristic_v0 of the same retrievals, NaN where unknown. `unlabelled` [m, p]
    are signals of further queries, for the z-scores. `questions` are those that set conformal K.
    """

    labelled: Labelled
    group_ids: Sequence[str]
    heuristic: FloatArray
    questions: Questions | None = None
    unlabelled: FloatArray | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Settings of a calibration.

    `checked_together` counts the strategies and targets whose calibration is checked together.
    """

    prior: Prior | None
    checked_together: int
    seed: int
    miss: Miss = ANY_AT_10


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration(Stored):
    """The calibration of a strategy's miss rate by its outcomes.

    Too few outcomes leave only counts and conformal K. `predictions` [repeats, n] are out of fold;
    the JSON values leave them out. `heuristic` is the validation of heuristic_v0 on the same
    outcomes.
    """

    counts: OutcomeCounts
    conformal: list[ConformalK]
    model: MissRateModel | None = None
    predictions: Annotated[Floats | None, Field(exclude=True)] = None
    validation: Validation | None = None
    heuristic: Validation | None = None


def calibrate(judged: Judged, task: Task) -> Calibration:
    """Fit the miss rate to a strategy's outcomes, cross-validate the fit and judge it."""
    from sklearn import config_context
    from threadpoolctl import threadpool_limits

    # In hundreds of fits to small matrices, threads would only wait for one another, and checks
    # of the same signals would take a third of the time.
    with threadpool_limits(limits=1), config_context(assume_finite=True):
        return _calibrate(judged, task)


def _calibrate(judged: Judged, task: Task) -> Calibration:
    labelled, prior, seed = judged.labelled, task.prior, task.seed
    counts, together = count_outcomes(labelled), task.checked_together
    if not suffice_to_fit(counts):
        return Calibration(counts, _find_k(judged.questions, seed))
    model = fit_model(
        labelled,
        judged.group_ids,
        prior=prior,
        seed=seed,
        miss=task.miss,
        unlabelled=judged.unlabelled,
    )
    repeats = min(REPEATS, PREDICTIONS // len(labelled))
    own = model.predict(labelled.signals, labelled.names, judged.group_ids)
    further = cross_validate(labelled, prior=prior, repeats=repeats, seed=seed)
    predictions = np.vstack([own[None], further])
    validation = validate(labelled, predictions, checked_together=together, seed=seed)
    has_guess = np.isfinite(judged.heuristic)
    guessed, baseline = labelled.take(has_guess), None
    if suffice_to_fit(count_outcomes(guessed)):
        guess = np.clip(judged.heuristic[has_guess], 0, 1)[None, :]
        baseline = validate(guessed, guess, checked_together=together, seed=seed)
    return Calibration(
        counts,
        _find_k(judged.questions, seed),
        model=model,
        predictions=predictions,
        validation=validation,
        heuristic=baseline,
    )


def _find_k(questions: Questions | None, seed: int) -> list[ConformalK]:
    return conformal_k(questions, seed=seed) if questions is not None and len(questions) else []
