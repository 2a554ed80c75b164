"""The estimator of miss rates: fitted to outcomes so that no query is judged by a model that saw its group.

Belongs here: which rows a fit may see. A single fit is `head`, what is stored is `model`, what predictions are worth the validation judges.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from rag_eval.records.uncertainty import BinaryTarget
from rag_eval.uncertainty.folds import grouped_folds, random_folds
from rag_eval.uncertainty.head import Fitted, fit_head, prior_head
from rag_eval.uncertainty.labelled import FloatArray, IntArray, Labelled
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.prior import Prior

N_FOLDS: Final = 10


def fit(
    labelled: Labelled,
    *,
    prior: Prior | None,
    group_ids: Sequence[str],
    seed: int,
    target: BinaryTarget = "miss_any",
    k: int = 10,
    unlabelled: FloatArray | None = None,
) -> MissRateModel:
    """Fit the estimator to outcomes, and ten times more without a tenth of the groups.

    Parameters
    ----------
    labelled
        Judged retrievals, 1 or more.
    prior
        Shipped coefficients to shrink towards; None: towards 0.
    group_ids
        Group id of each row, one per group code.
    seed
        Deals the folds; the same arguments give the same model.
    target, k
        What a miss is, kept with the model.
    unlabelled
        float64 [m, p] signals of further queries of the strategy for the z-scores: needed while outcomes are few.

    Raises
    ------
    ValueError
        No outcomes, or group ids that do not go with the group codes.
    """
    pairs = set(zip(group_ids, labelled.group.tolist(), strict=True))
    if not pairs or not len(pairs) == len({group for group, _ in pairs}) == len(
        {code for _, code in pairs}
    ):
        raise ValueError("accepted one group id for each group code, and at least one outcome")
    rng = np.random.default_rng(seed)
    fitted = fit_head(labelled, prior=prior, rng=rng, unlabelled=unlabelled)
    fold = grouped_folds(labelled.group, N_FOLDS, rng)
    several = len(pairs) > 1
    folds = (
        tuple(
            fit_head(labelled.take(fold != at), prior=prior, rng=rng, unlabelled=unlabelled).head
            for at in np.unique(fold)
        )
        if several
        else ()
    )
    fold_of_group = dict(sorted(zip(group_ids, fold.tolist(), strict=True))) if several else {}
    misses = int(labelled.missed.sum())
    return MissRateModel(
        target,
        k,
        *fitted,
        folds,
        fold_of_group,
        prior.id if prior else "",
        len(labelled),
        len(pairs),
        misses,
    )


def from_prior(
    prior: Prior,
    names: Sequence[str],
    unlabelled: FloatArray,
    *,
    target: BinaryTarget = "miss_any",
    k: int = 10,
) -> MissRateModel:
    """Build the estimator of a strategy without outcomes: its status can be `prior` and no more.

    Parameters
    ----------
    prior
        The shipped one.
    names, unlabelled
        Names [p] and signals float64 [m, p] of the strategy's own queries, for the z-scores.
    target, k
        What a miss is; the prior was fitted to `miss_any` at 10.
    """
    return MissRateModel(
        target, k, *prior_head(prior, names, unlabelled), (), {}, prior.id, 0, 0, 0
    )


def cross_validated(
    labelled: Labelled,
    *,
    prior: Prior | None,
    repeats: int = 20,
    n_folds: int = N_FOLDS,
    seed: int = 0,
    folds: Literal["grouped", "random"] = "grouped",
) -> FloatArray:
    """Out-of-fold predictions with everything inside the fold: z-scores, penalty and calibrator.

    Parameters
    ----------
    labelled
        Judged retrievals in at least two groups.
    prior
        As in `fit`; for an honest figure one that was not fitted on these outcomes.
    repeats, n_folds, seed
        How often the folds are dealt anew, how many there are, and the seed of it all.
    folds
        `random` splits groups, inner folds too: only to show how much that flatters.

    Returns
    -------
    array
        float64 [repeats, n] in (0, 1).

    Raises
    ------
    ValueError
        Fewer than two groups: nothing can be held out.
    """
    if len(np.unique(labelled.group)) < 2:  # noqa: PLR2004 -- one to fit, one to hold out
        raise ValueError("cross-validation needs outcomes of at least two groups")
    given = (
        labelled
        if folds == "grouped"
        else dataclasses.replace(labelled, group=np.arange(len(labelled), dtype=np.int64))
    )
    result = np.empty((repeats, len(given)))
    for repeat, rng in enumerate(np.random.default_rng(seed).spawn(repeats)):
        fold = (
            grouped_folds(given.group, n_folds, rng)
            if folds == "grouped"
            else random_folds(len(given), n_folds, rng)
        )
        result[repeat] = _out_of_fold(given, fold, prior, rng)
    return result


def _out_of_fold(
    labelled: Labelled, fold: IntArray, prior: Prior | None, rng: np.random.Generator
) -> FloatArray:
    result = np.empty(len(labelled))
    for at in np.unique(fold):
        held = fold == at
        fitted: Fitted = fit_head(labelled.take(~held), prior=prior, rng=rng)
        result[held] = fitted.head.predict(labelled.signals[held], labelled.names)
    return result
