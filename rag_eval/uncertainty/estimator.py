"""The estimator of miss rates: fitted to outcomes so that no query is judged by a model that saw its group.

Belongs here: the model that is stored, and cross-validated predictions. A single fit is `head`; what the predictions are worth is judged in
the validation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from rag_eval.records.uncertainty import BinaryTarget
from rag_eval.uncertainty import head as heads
from rag_eval.uncertainty.folds import grouped_folds, random_folds
from rag_eval.uncertainty.head import Fitted, Head, fit_head, prior_head
from rag_eval.uncertainty.labelled import FloatArray, IntArray, Labelled
from rag_eval.uncertainty.prior import Prior

N_FOLDS: Final = 10
Z95: Final = 1.959963984540054


@dataclasses.dataclass(frozen=True, eq=False)
class MissRateModel:
    """A fitted estimator of the miss rate of one strategy.

    Parameters
    ----------
    target, k
        What a miss is.
    head
        The fit to all outcomes: for queries whose group has none.
    covariance
        float64 [1 + p, 1 + p] of the head's intercept and coefficients, cluster-robust by group.
    folds
        Fits that leave a tenth of the groups out each; empty where nothing was fitted.
    fold_of_group
        Group id -> the fold that did not see it.
    prior
        Id of the prior; empty where there was none.
    n, groups, misses
        Outcomes, distinct groups and misses of the fit.
    """

    target: BinaryTarget
    k: int
    head: Head
    covariance: FloatArray
    folds: tuple[Head, ...]
    fold_of_group: Mapping[str, int]
    prior: str
    n: int
    groups: int
    misses: int

    def predict(self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None = None) -> FloatArray:
        """Probability of a miss.

        Parameters
        ----------
        signals
            float64 [n, p], not z-scored, NaN where not defined.
        names
            Names of the signals; in any order, more than the model knows are ignored.
        group_ids
            Group of each query: one whose outcomes were fitted is predicted by the fit that did not see them. None: all are new.

        Returns
        -------
        array
            float64 [n] in (0, 1).

        Raises
        ------
        ValueError
            A signal of the model is missing.
        """
        return self._each(signals, names, group_ids)[0]

    def interval(self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None = None) -> tuple[FloatArray, FloatArray]:
        """95 % interval of the probability, float64 [n] each: of the log-odds by the covariance of the coefficients, then calibrated.

        Parameters as in `predict`, whose value lies inside. It says how well the model knows the probability, not how the outcome varies.
        """
        value, low, high = self._each(signals, names, group_ids)
        return np.minimum(low, value), np.maximum(high, value)

    def _each(self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Value, low and high, float64 [n] each."""
        fold = np.full(len(signals), -1)
        if group_ids is not None:
            if len(group_ids) != len(signals):
                raise ValueError(f"{len(group_ids)} group ids for {len(signals)} rows of signals")
            fold = np.array([self.fold_of_group.get(group, -1) for group in group_ids], dtype=np.int64)
        result = np.empty((3, len(signals)))
        for at in np.unique(fold):
            rows, fitted = fold == at, self.head if at < 0 else self.folds[at]
            z = fitted.ordered(signals[rows], names)
            log_odds = fitted.intercept + z @ fitted.coefficients
            design = np.hstack([np.ones((len(z), 1)), z])
            reach = Z95 * np.sqrt(np.maximum(np.einsum("ni,ij,nj->n", design, self.covariance, design), 0.0))
            calibrator = fitted.calibrator
            result[:, rows] = calibrator.apply(log_odds), calibrator.bounds(log_odds - reach)[0], calibrator.bounds(log_odds + reach)[1]
        return result[0], result[1], result[2]

    def to_json(self) -> dict[str, Any]:
        """Write the model as JSON; `from_json` gives back one that predicts the same bits."""
        return {
            "schema_version": 1,
            "target": self.target,
            "k": self.k,
            "head": self.head.to_json(),
            "covariance": self.covariance.tolist(),
            "folds": [fold.to_json() for fold in self.folds],
            "fold_of_group": dict(self.fold_of_group),
            "prior": self.prior,
            "n": self.n,
            "groups": self.groups,
            "misses": self.misses,
        }


def from_json(document: Mapping[str, Any]) -> MissRateModel:
    """Read what `MissRateModel.to_json` wrote."""
    return MissRateModel(
        document["target"],
        document["k"],
        heads.from_json(document["head"]),
        np.array(document["covariance"], dtype=np.float64),
        tuple(map(heads.from_json, document["folds"])),
        dict(document["fold_of_group"]),
        document["prior"],
        document["n"],
        document["groups"],
        document["misses"],
    )


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
    if not pairs or not len(pairs) == len({group for group, _ in pairs}) == len({code for _, code in pairs}):
        raise ValueError("accepted one group id for each group code, and at least one outcome")
    rng = np.random.default_rng(seed)
    fitted = fit_head(labelled, prior=prior, rng=rng, unlabelled=unlabelled)
    fold = grouped_folds(labelled.group, N_FOLDS, rng)
    several = len(pairs) > 1
    folds = tuple(fit_head(labelled.take(fold != at), prior=prior, rng=rng, unlabelled=unlabelled).head for at in np.unique(fold)) if several else ()
    fold_of_group = dict(sorted(zip(group_ids, fold.tolist(), strict=True))) if several else {}
    misses = int(labelled.missed.sum())
    return MissRateModel(target, k, *fitted, folds, fold_of_group, prior.id if prior else "", len(labelled), len(pairs), misses)


def from_prior(prior: Prior, names: Sequence[str], unlabelled: FloatArray, *, target: BinaryTarget = "miss_any", k: int = 10) -> MissRateModel:
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
    return MissRateModel(target, k, *prior_head(prior, names, unlabelled), (), {}, prior.id, 0, 0, 0)


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
    given = labelled if folds == "grouped" else dataclasses.replace(labelled, group=np.arange(len(labelled), dtype=np.int64))
    result = np.empty((repeats, len(given)))
    for repeat, rng in enumerate(np.random.default_rng(seed).spawn(repeats)):
        fold = grouped_folds(given.group, n_folds, rng) if folds == "grouped" else random_folds(len(given), n_folds, rng)
        result[repeat] = _out_of_fold(given, fold, prior, rng)
    return result


def _out_of_fold(labelled: Labelled, fold: IntArray, prior: Prior | None, rng: np.random.Generator) -> FloatArray:
    result = np.empty(len(labelled))
    for at in np.unique(fold):
        held = fold == at
        fitted: Fitted = fit_head(labelled.take(~held), prior=prior, rng=rng)
        result[held] = fitted.head.predict(labelled.signals[held], labelled.names)
    return result
