"""The estimator's branch for questions with other judged wordings.

The history of a wording is the outcomes of the other wordings of its question. The branch adds the
history to the signals. The branch is used only for wordings with a history, and only if it was
better than the estimator alone.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.report import OtherWordings
from rag_eval.uncertainty.estimator import N_FOLDS, Head, MissRateModel, Prior, fit_head
from rag_eval.uncertainty.scores import Labelled, brier, grouped_folds
from rag_eval.uncertainty.stored import Stored
from rag_eval.uncertainty.validation import validate

HISTORY: Final = "other_wordings"
"""Name of the added signal: log-odds of the shrunk miss rate of the other wordings."""
STRENGTHS: Final = np.geomspace(0.1, 100.0, 61)
"""Candidate strengths of the overall rate, in numbers of judged wordings."""
Z: Final = 1.645
"""Number of standard errors by which the branch must be better."""
REPEATS: Final = 2
"""Number of repeats with new folds that decide whether the branch is used."""
MIN_WORDINGS: Final = 50
"""Least number of judged wordings with a history for a branch."""


def sum_others(
    question: IntArray, missed: BoolArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Sum weighted misses and weights over the other wordings of each question, [n] each."""
    _, code, counts = np.unique(question, return_inverse=True, return_counts=True)
    own = weight * missed
    misses, judged = np.bincount(code, own)[code], np.bincount(code, weight)[code]
    alone = counts[code] == 1  # set exact zeros, because differences of sums are inexact
    return (
        np.where(alone, 0.0, np.maximum(misses - own, 0.0)),
        np.where(alone, 0.0, judged - weight),
    )


class Shrinkage(NamedTuple):
    """Formula that draws miss rates of few wordings towards the overall rate.

    ``(misses + strength * rate) / (judged + strength)``
    """

    rate: float
    strength: float

    def log_odds(self, misses: FloatArray, judged: FloatArray) -> FloatArray:
        """Compute the log-odds of the shrunk rate, [n]; NaN without a judged wording."""
        rate = (misses + self.strength * self.rate) / (judged + self.strength)
        result: FloatArray = np.where(judged > 0, np.log(rate) - np.log1p(-rate), np.nan)
        return result


def _fit_shrinkage(question: IntArray, missed: BoolArray, weight: FloatArray) -> Shrinkage:
    """Fit the overall rate, and the strength that predicts left-out wordings best by log loss.

    Without a question of several wordings the strength is 1. The idea is empirical Bayes (Efron &
    Morris 1975, JASA 70:311-319), with the strength fitted to predicting the next wording.
    """
    rate = float((weight @ missed + 0.5) / (weight.sum() + 1))
    misses, judged = sum_others(question, missed, weight)
    known = judged > 0
    if not known.any():
        return Shrinkage(rate, 1.0)
    shrunk = (misses[known, None] + STRENGTHS * rate) / (judged[known, None] + STRENGTHS)
    loss = -weight[known] @ np.log(np.where(missed[known, None], shrunk, 1 - shrunk))
    return Shrinkage(rate, float(STRENGTHS[int(np.argmin(loss))]))


@dataclasses.dataclass(frozen=True, eq=False)
class WordingsModel(Stored):
    """A fit to the `n` judged wordings with a history, of `questions` distinct questions."""

    head: Head
    rate: float
    strength: float
    n: int
    questions: int

    def predict(
        self, signals: FloatArray, names: Sequence[str], misses: FloatArray, judged: FloatArray
    ) -> FloatArray:
        """Predict the probability of a miss, [n]; NaN without a history.

        `misses` and `judged` [n] are weighted sums over the other judged wordings.
        """
        history = Shrinkage(self.rate, self.strength).log_odds(misses, judged)
        value = self.head.predict(np.column_stack([signals, history]), (*names, HISTORY))
        return np.where(judged > 0, value, np.nan)


def fit_wordings(labelled: Labelled, *, prior: Prior | None) -> WordingsModel | None:
    """Fit the estimator to the wordings with a history; None if no wording has a history.

    Wordings of one question share a group. The prior has no coefficient for the history, so this
    coefficient is drawn towards 0.
    """
    shrinkage = _fit_shrinkage(labelled.question, labelled.missed, labelled.weight)
    misses, judged = sum_others(labelled.question, labelled.missed, labelled.weight)
    known = judged > 0
    if not known.any():
        return None
    signals = np.column_stack([labelled.signals, shrinkage.log_odds(misses, judged)])
    wider = dataclasses.replace(labelled, names=(*labelled.names, HISTORY), signals=signals)
    used = wider.take(known)
    head = fit_head(used, prior=prior)
    return WordingsModel(head, *shrinkage, len(used), len(np.unique(used.question)))


def cross_validate_wordings(
    labelled: Labelled, *, prior: Prior | None, repeats: int = 20, seed: int = 0
) -> FloatArray:
    """Predict out of fold, [repeats, n]; NaN for a wording without a history.

    The fits see no wording of the held-out questions. The other wordings of a held-out question
    are the history, as in a nightly run.
    """
    misses, judged = sum_others(labelled.question, labelled.missed, labelled.weight)
    result = np.full((repeats, len(labelled)), np.nan)
    for row, rng in zip(result, np.random.default_rng(seed).spawn(repeats), strict=True):
        fold = grouped_folds(labelled.group, N_FOLDS, rng)
        for number in np.unique(fold):
            held = fold == number
            model = None if held.all() else fit_wordings(labelled.take(~held), prior=prior)
            if model is not None:
                row[held] = model.predict(
                    labelled.signals[held], labelled.names, misses[held], judged[held]
                )
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Branch(Stored):
    """Fits of the branch: to all outcomes, and without each of the estimator's folds.

    `fold_of_group` names the fold that did not see a group.
    """

    whole: WordingsModel
    folds: tuple[WordingsModel | None, ...]
    fold_of_group: Mapping[str, int]

    def predict(
        self,
        signals: FloatArray,
        names: Sequence[str],
        misses: FloatArray,
        judged: FloatArray,
        group_ids: Sequence[str],
    ) -> FloatArray:
        """Predict like `WordingsModel.predict`, with the fit that did not see the group."""
        fold = np.array([self.fold_of_group.get(group, -1) for group in group_ids], dtype=int)
        result = np.full(len(signals), np.nan)
        for number in np.unique(fold):
            rows, model = fold == number, self.whole if number < 0 else self.folds[number]
            if model is not None:
                result[rows] = model.predict(signals[rows], names, misses[rows], judged[rows])
        return result


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedBranch(Stored):
    """A branch with its benefit on the wordings with a history.

    It is fitted only where it was better than the estimator alone by more than chance. `gain` has
    the status `absent`, because validations do not decide a status.
    """

    model: Branch | None
    gain: OtherWordings


def fit_branch(
    labelled: Labelled,
    group_ids: Sequence[str],
    model: MissRateModel,
    predictions: FloatArray,
    *,
    prior: Prior | None,
    checked_together: int,
    seed: int,
) -> JudgedBranch | None:
    """Fit and judge the branch; None for too few wordings with a history, or equal outcomes.

    `predictions` [repeats, n] are the out-of-fold predictions of the estimator alone.
    """
    predictions = predictions[:REPEATS]
    own = cross_validate_wordings(labelled, prior=prior, repeats=len(predictions), seed=seed)
    known = np.asarray(np.isfinite(own).all(axis=0))
    judged = labelled.take(known)
    missed = judged.missed
    if known.sum() < MIN_WORDINGS or missed.all() or not missed.any():
        return None
    own, predictions = own[:, known], predictions[:, known]
    lower = ((predictions - missed) ** 2 - (own - missed) ** 2).mean(axis=0)
    gain = float(np.average(lower, weights=judged.weight))
    _, code = np.unique(judged.group, return_inverse=True)
    by_group = np.bincount(code, weights=judged.weight * (lower - gain))
    gain_se = float(np.sqrt((by_group**2).sum()) / judged.weight.sum())
    branch = None
    if gain > Z * gain_se:
        branch = _fit_branch(labelled, group_ids, model, prior)
    return JudgedBranch(
        model=branch,
        gain=OtherWordings(
            used=branch is not None,
            status="absent",
            brier_without=float(np.mean(brier(predictions, missed, judged.weight))),
            gain=gain,
            gain_se=gain_se,
            validation=validate(judged, own, checked_together=checked_together, seed=seed),
        ),
    )


def _fit_branch(
    labelled: Labelled,
    group_ids: Sequence[str],
    model: MissRateModel,
    prior: Prior | None,
) -> Branch | None:
    whole = fit_wordings(labelled, prior=prior)
    if whole is None:
        return None
    fold = np.array([model.fold_of_group[group] for group in group_ids], dtype=np.int64)
    parts = (labelled.take(fold != number) for number in range(int(fold.max()) + 1))
    folds = tuple(fit_wordings(part, prior=prior) for part in parts)
    return Branch(whole, folds, model.fold_of_group)
