"""The stored estimator of miss rates: predictions, their intervals, and its JSON form.

Belongs here: what a fitted model is and says. How it is fitted is `estimator`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from rag_eval.records.uncertainty import BinaryTarget
from rag_eval.uncertainty import head as heads
from rag_eval.uncertainty.head import Head
from rag_eval.uncertainty.labelled import FloatArray

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

    def predict(
        self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None = None
    ) -> FloatArray:
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

    def interval(
        self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """95 % interval of the probability, float64 [n] each: of the log-odds by the covariance of the coefficients, then calibrated.

        Parameters as in `predict`, whose value lies inside. It says how well the model knows the probability, not how the outcome varies.
        """
        value, low, high = self._each(signals, names, group_ids)
        return np.minimum(low, value), np.maximum(high, value)

    def _each(
        self, signals: FloatArray, names: Sequence[str], group_ids: Sequence[str] | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Value, low and high, float64 [n] each."""
        fold = np.full(len(signals), -1)
        if group_ids is not None:
            if len(group_ids) != len(signals):
                raise ValueError(f"{len(group_ids)} group ids for {len(signals)} rows of signals")
            fold = np.array(
                [self.fold_of_group.get(group, -1) for group in group_ids], dtype=np.int64
            )
        result = np.empty((3, len(signals)))
        for at in np.unique(fold):
            rows, fitted = fold == at, self.head if at < 0 else self.folds[at]
            z = fitted.ordered(signals[rows], names)
            log_odds = fitted.intercept + z @ fitted.coefficients
            design = np.hstack([np.ones((len(z), 1)), z])
            reach = Z95 * np.sqrt(
                np.maximum(np.einsum("ni,ij,nj->n", design, self.covariance, design), 0.0)
            )
            calibrator = fitted.calibrator
            result[:, rows] = (
                calibrator.apply(log_odds),
                calibrator.bounds(log_odds - reach)[0],
                calibrator.bounds(log_odds + reach)[1],
            )
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

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(
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
