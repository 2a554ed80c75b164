"""The branch for questions whose other wordings were judged, as it is stored beside an estimator: fits that saw a group are not asked about it.

Belongs here: fitting it by the estimator's own folds, judging it beside the estimator, and its JSON. The model itself is `wordings`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rag_eval.uncertainty.labelled import FloatArray, Labelled
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.prior import Prior
from rag_eval.uncertainty.scores import brier, squared_errors
from rag_eval.uncertainty.validation import Validation, validate
from rag_eval.uncertainty.wordings import (
    WordingsModel,
    cross_validated_wordings,
    fit_wordings,
    from_json,
)

Z: Final = 1.645
"""Standard errors by which the branch must be better."""
REPEATS: Final = 2
"""Dealings of the folds that decide whether the branch speaks."""
MIN_WORDINGS: Final = 50
"""Judged wordings with a history that a branch needs before it is fitted."""


@dataclasses.dataclass(frozen=True, eq=False)
class Branch:
    """Fits of the branch.

    Parameters
    ----------
    whole
        To all outcomes, for groups that have none.
    folds
        Without each of the estimator's folds.
    fold_of_group
        Group id -> the fold that did not see it, the estimator's.
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
        """Probability of a miss, float64 [n]; NaN for a wording without judged others. Parameters as in `WordingsModel.predict`."""
        fold = np.array([self.fold_of_group.get(group, -1) for group in group_ids], dtype=np.int64)
        result = np.full(len(signals), np.nan)
        for at in np.unique(fold):
            rows, model = fold == at, self.whole if at < 0 else self.folds[at]
            if model is not None:
                result[rows] = model.predict(signals[rows], names, misses[rows], judged[rows])
        return result

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON, exactly."""
        return {
            "whole": self.whole.to_json(),
            "folds": [None if fold is None else fold.to_json() for fold in self.folds],
            "fold_of_group": dict(self.fold_of_group),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Branch":
        """Read what `to_json` wrote."""
        return cls(
            from_json(document["whole"]),
            tuple(None if fold is None else from_json(fold) for fold in document["folds"]),
            dict(document["fold_of_group"]),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class JudgedBranch:
    """A branch with what it is worth.

    Parameters
    ----------
    branch
        The fits.
    validation
        Of its out-of-fold predictions, on the wordings with a history.
    brier_without
        Brier score of the estimator's own out-of-fold predictions on the same wordings.
    gain, gain_se
        How much lower the branch's squared error is, weighted mean over wordings, and the standard error of that over groups.
    """

    branch: Branch
    validation: Validation
    brier_without: float
    gain: float
    gain_se: float

    @property
    def used(self) -> bool:
        """Whether it speaks for such wordings: only where it was better than the estimator alone by more than chance."""
        return self.gain > Z * self.gain_se

    def to_json(self) -> dict[str, Any]:
        """Write figures and fits."""
        return {
            "used": self.used,
            "brier_without": self.brier_without,
            "gain": self.gain,
            "gain_se": self.gain_se,
            "validation": self.validation.to_json(),
            "model": self.branch.to_json(),
        }


def fit_branch(
    labelled: Labelled,
    model: MissRateModel,
    predictions: FloatArray,
    *,
    group_ids: Sequence[str],
    prior: Prior | None,
    checked_together: int,
    seed: int,
) -> JudgedBranch | None:
    """Fit and judge the branch; None while too few wordings have a history, or all of them missed or hit.

    Parameters
    ----------
    labelled, group_ids
        Outcomes, and the group id of each row.
    model, predictions
        The estimator and its out-of-fold predictions, float64 [repeats, n].
    """
    predictions = predictions[:REPEATS]
    own = cross_validated_wordings(labelled, prior=prior, repeats=len(predictions), seed=seed)
    known = np.asarray(np.isfinite(own).all(axis=0))
    kept = labelled.take(known)
    if known.sum() < MIN_WORDINGS or kept.missed.all() or not kept.missed.any():
        return None
    rng = np.random.default_rng(seed)
    whole = fit_wordings(labelled, prior=prior, rng=rng)
    if whole is None:
        return None
    fold = np.array([model.fold_of_group[group] for group in group_ids], dtype=np.int64)
    folds = tuple(
        fit_wordings(labelled.take(fold != at), prior=prior, rng=rng)
        for at in range(int(fold.max()) + 1)
    )
    validation = validate(kept, own[:, known], checked_together=checked_together, seed=seed)
    without = float(
        np.mean([brier(row, kept.missed, kept.weight) for row in predictions[:, known]])
    )
    lower = (
        squared_errors(predictions[:, known], kept.missed)
        - squared_errors(own[:, known], kept.missed)
    ).mean(axis=0)
    _, group = np.unique(kept.group, return_inverse=True)
    gain = float(np.average(lower, weights=kept.weight))
    sums = np.bincount(group, weights=kept.weight * (lower - gain))
    return JudgedBranch(
        Branch(whole, folds, model.fold_of_group),
        validation,
        without,
        gain,
        float(np.sqrt((sums**2).sum()) / kept.weight.sum()),
    )
