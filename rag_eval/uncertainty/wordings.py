"""Questions whose other wordings were judged: what happened to those says much of what happens to this one.

Belongs here: the history of a wording (the other wordings of its question, never the wording itself), and the estimator that adds it to the
signals. Used where there is a history; everywhere else `estimator` stands.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty import head as heads
from rag_eval.uncertainty.estimator import N_FOLDS
from rag_eval.uncertainty.folds import grouped_folds
from rag_eval.uncertainty.head import Head, fit_head
from rag_eval.uncertainty.labelled import FloatArray, IntArray, Labelled
from rag_eval.uncertainty.prior import Prior

HISTORY: Final = "other_wordings"
"""Name of the additional signal: log-odds of the shrunk miss rate of the other wordings; 0 misses of 0 give NaN."""
STRENGTHS: Final = np.geomspace(0.1, 100.0, 61)
"""Candidate strengths of the overall rate, in judged wordings."""


def others(
    question: IntArray, missed: npt.NDArray[np.bool_], weight: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Weighted misses and number of the other judged wordings of each wording's question, float64 [n] each.

    Parameters
    ----------
    question
        int [n] code of the question.
    missed, weight
        [n] outcome and weight of each wording.
    """
    _, code = np.unique(question, return_inverse=True)
    misses, judged = (
        np.bincount(code, weights=weight * missed)[code],
        np.bincount(code, weights=weight)[code],
    )
    alone = np.bincount(code)[code] == 1  # exact zeros: differences of sums are not
    return np.where(alone, 0.0, np.maximum(misses - weight * missed, 0.0)), np.where(
        alone, 0.0, judged - weight
    )


@dataclasses.dataclass(frozen=True)
class Shrinkage:
    """Miss rates of few wordings drawn towards the overall one: ``(misses + strength * rate) / (judged + strength)``."""

    rate: float
    strength: float

    def log_odds(self, misses: FloatArray, judged: FloatArray) -> FloatArray:
        """Log-odds of the shrunk rate, float64 [n]; NaN where nothing was judged."""
        rate = (misses + self.strength * self.rate) / (judged + self.strength)
        result: FloatArray = np.where(judged > 0, np.log(rate) - np.log1p(-rate), np.nan)
        return result


def shrinkage(question: IntArray, missed: npt.NDArray[np.bool_], weight: FloatArray) -> Shrinkage:
    """Fit the overall rate and the strength: the one whose shrunk rates predict the left-out wordings best, by log loss.

    Parameters as in `others`; without a question of several wordings the strength is 1. This is the empirical Bayes mean of beta-binomial
    questions, its strength fitted to what it is used for: the next wording (Efron & Morris 1975, JASA 70:311-319, for the idea).
    """
    total = weight.sum()
    rate = float((weight @ missed + 0.5) / (total + 1))
    misses, judged = others(question, missed, weight)
    known = judged > 0
    if not known.any():
        return Shrinkage(rate, 1.0)
    shrunk = (misses[known, None] + STRENGTHS * rate) / (judged[known, None] + STRENGTHS)
    loss = -weight[known] @ np.log(np.where(missed[known, None], shrunk, 1 - shrunk))
    return Shrinkage(rate, float(STRENGTHS[int(np.argmin(loss))]))


@dataclasses.dataclass(frozen=True, eq=False)
class WordingsModel:
    """The estimator for wordings whose question has a history.

    Parameters
    ----------
    head
        Over the signals and `HISTORY`.
    shrinkage
        Of the history.
    n, questions
        Judged wordings with a history and distinct questions of the fit.
    """

    head: Head
    shrinkage: Shrinkage
    n: int
    questions: int

    def predict(
        self, signals: FloatArray, names: Sequence[str], misses: FloatArray, judged: FloatArray
    ) -> FloatArray:
        """Probability of a miss.

        Parameters
        ----------
        signals, names
            float64 [n, p] and the p names.
        misses, judged
            float64 [n] weighted misses and number of the other judged wordings (`others`, or sums over stored outcomes).

        Returns
        -------
        array
            float64 [n] in (0, 1); NaN without a history: there the other estimator stands.
        """
        history = self.shrinkage.log_odds(misses, judged)
        value = self.head.predict(np.column_stack([signals, history]), (*names, HISTORY))
        return np.where(judged > 0, value, np.nan)

    def to_json(self) -> dict[str, Any]:
        """Write the model as JSON, exactly."""
        return {
            "head": self.head.to_json(),
            "rate": self.shrinkage.rate,
            "strength": self.shrinkage.strength,
            "n": self.n,
            "questions": self.questions,
        }


def from_json(document: Mapping[str, Any]) -> WordingsModel:
    """Read what `WordingsModel.to_json` wrote."""
    return WordingsModel(
        heads.from_json(document["head"]),
        Shrinkage(document["rate"], document["strength"]),
        document["n"],
        document["questions"],
    )


def fit_wordings(
    labelled: Labelled, *, prior: Prior | None, rng: np.random.Generator
) -> WordingsModel | None:
    """Fit the estimator to the wordings that have a history; None where none has.

    Parameters
    ----------
    labelled
        Judged wordings; those of one question share a group.
    prior
        Of the signals; it knows nothing of the history, whose coefficient starts at 0.
    rng
        Deals the inner folds.
    """
    shrunk = shrinkage(labelled.question, labelled.missed, labelled.weight)
    misses, judged = others(labelled.question, labelled.missed, labelled.weight)
    known = judged > 0
    if not known.any():
        return None
    wider = _with_history(labelled, shrunk.log_odds(misses, judged)).take(known)
    head = fit_head(wider, prior=prior, rng=rng).head
    return WordingsModel(head, shrunk, len(wider), len(np.unique(wider.question)))


def _with_history(labelled: Labelled, history: FloatArray) -> Labelled:
    return dataclasses.replace(
        labelled,
        names=(*labelled.names, HISTORY),
        signals=np.column_stack([labelled.signals, history]),
    )


def cross_validated_wordings(
    labelled: Labelled,
    *,
    prior: Prior | None,
    repeats: int = 20,
    n_folds: int = N_FOLDS,
    seed: int = 0,
) -> FloatArray:
    """Out-of-fold predictions, float64 [repeats, n]; NaN for a wording without a history.

    The model never saw a wording of the held-out questions; their other wordings serve as the history, as they would at night.

    Raises
    ------
    ValueError
        A question is in two groups, so that folds would split it.
    """
    pairs = np.unique(np.stack([labelled.question, labelled.group]), axis=1)
    if pairs.shape[1] != len(np.unique(labelled.question)):
        raise ValueError("wordings of a question must share a group")
    misses, judged = others(labelled.question, labelled.missed, labelled.weight)
    result = np.full((repeats, len(labelled)), np.nan)
    for repeat, rng in enumerate(np.random.default_rng(seed).spawn(repeats)):
        fold = grouped_folds(labelled.group, n_folds, rng)
        for at in np.unique(fold):
            held = fold == at
            model = None if held.all() else fit_wordings(labelled.take(~held), prior=prior, rng=rng)
            if model is not None:
                result[repeat, held] = model.predict(
                    labelled.signals[held], labelled.names, misses[held], judged[held]
                )
    return result
