"""Prediction-powered means: few labelled outcomes and calibrated predictions on many unlabelled queries, with an honest interval.

Belongs here: the estimate, its group-level variance and what the predictions are worth in labels; and claims of which a random sample was audited,
whose mean it is.

Notes
-----
Estimate: mean(y on labelled) + power * (mean(f on unlabelled) - mean(f on labelled)). It is unbiased for any fixed power, however bad
the predictions are, when the labelled queries are a random sample of all. The power is the one with the least estimated variance, kept in
[0, 1]: at 0 the predictions count for nothing, so the estimated variance is never larger than that of the labels alone. Where the model was
fitted on the same labels, labelled queries take out-of-fold predictions and unlabelled ones the mean of the folds' models, so that both
come from the same kind of model; labels drawn with unequal chances are no random sample and do not belong here.

Variance: groups are independent, so the estimate is linearised into one term a group, A_g + power * B_g, A_g from its labels and B_g from
its predictions (a group may have queries of both kinds), and G / (G - 2) times the sum of squares is taken over the G groups with labels:
one degree of freedom for the mean and one for the power. Terms of groups without labels are known to be many and add their squares as they are.

References
----------
Angelopoulos, Duchi, Zrnic (2023), PPI++: Efficient prediction-powered inference, arXiv:2311.01453.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from rag_eval.measures.intervals import effective_groups, wilson
from rag_eval.uncertainty.figures import Figure
from rag_eval.uncertainty.labelled import FloatArray, IntArray

FEW_GROUPS = 3
"""Labelled groups under which no power is fitted and no interval is given."""


@dataclasses.dataclass(frozen=True)
class PredictionPowered:
    """A mean from labels and predictions.

    Parameters
    ----------
    value, low, high
        The estimate and its 95 % interval; None where there are too few labelled groups.
    labels_value, labels_low, labels_high
        The same from the labels alone, computed in the same way.
    power
        How much the predictions count, 0 to 1.
    extra_labels
        Share of further labelled groups that would have narrowed the interval alike; 0 where the predictions add nothing.
    n_labelled, n_unlabelled, n_groups_labelled, n_groups_unlabelled
        What it rests on; a group with a label is a labelled one.
    """

    value: float | None
    low: float | None
    high: float | None
    labels_value: float | None
    labels_low: float | None
    labels_high: float | None
    power: float
    extra_labels: float
    n_labelled: int
    n_unlabelled: int
    n_groups_labelled: int
    n_groups_unlabelled: int

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """Claims of production traffic of one strategy, some of them audited: a simple random sample.

    Parameters
    ----------
    claim, query, group
        Names of the n claims, of their questions, and of what ties questions together.
    missed
        float64 [n] what the audits found, 0 or 1; NaN = not audited.
    predicted
        float64 [n] calibrated miss rates, from models that did not see the claim's group.
    reason
        Why there is nothing to estimate from; empty where there is.
    """

    claim: tuple[str, ...]
    query: tuple[str, ...]
    group: tuple[str, ...]
    missed: FloatArray
    predicted: FloatArray
    reason: str = ""

    @classmethod
    def nothing(cls, reason: str) -> Self:
        """Give the reason why there is nothing to estimate from."""
        return cls((), (), (), np.zeros(0), np.zeros(0), reason)

    def first(self) -> Mapping[str, int]:
        """Row of each question's claim with the smallest name, which says nothing of who was audited: a sample of these is as random as that of all."""
        rows = sorted(range(len(self.claim)), key=lambda row: self.claim[row], reverse=True)
        return {self.query[row]: row for row in rows}


def powered_figure(found: PredictionPowered | None) -> Figure:
    """Write an estimate as a figure with its denominators; one of nothing where there is none."""
    if found is None:
        return Figure(None, None, None, 0, 0)
    return Figure(
        found.value,
        found.low,
        found.high,
        found.n_labelled + found.n_unlabelled,
        found.n_groups_labelled + found.n_groups_unlabelled,
    )


def powered_mean(of: Audited) -> tuple["PredictionPowered | None", str]:
    """Estimate the miss rate of all claims; None with the reason where there is nothing to estimate from."""
    if of.reason:
        return None, of.reason
    return prediction_powered(
        of.missed, of.predicted, np.unique(of.group, return_inverse=True)[1]
    ), ""


def powered_difference(a: Audited, b: Audited) -> tuple["PredictionPowered | None", str]:
    """Estimate the mean difference a - b over questions that both have a claim of, each question's first by name; None with the reason where it cannot be."""
    if a.reason or b.reason:
        return None, a.reason or b.reason
    of_a, of_b = a.first(), b.first()
    both = sorted(of_a.keys() & of_b.keys())
    left, right = [of_a[query] for query in both], [of_b[query] for query in both]
    missed, predicted = a.missed[left] - b.missed[right], a.predicted[left] - b.predicted[right]
    if np.isnan(missed).all():
        return (
            None,
            f"of {len(both)} questions in the traffic of both strategies none was audited for both",
        )
    return prediction_powered(
        missed,
        predicted,
        np.unique([a.group[row] for row in left], return_inverse=True)[1],
        unit_range=False,
    ), ""


def prediction_powered(
    outcome: FloatArray, predicted: FloatArray, group: IntArray, *, unit_range: bool = True
) -> PredictionPowered:
    """Estimate the mean outcome of all queries.

    Parameters
    ----------
    outcome
        float64 [n] outcomes (or paired differences of outcomes); NaN = not labelled. Labelled queries must be a random sample.
    predicted
        float64 [n] calibrated predictions from models that did not see the query's group; NaN = none: a labelled query without one counts as
        a label only if no labelled query has one, else it is left out; an unlabelled one is left out.
    group
        int64 [n] unit of inference.
    unit_range
        Whether outcomes lie in [0, 1]: then the interval is Wilson's on the effective number of groups, else it is that of t.

    Raises
    ------
    ValueError
        Parts of different lengths.
    """
    if not outcome.shape == predicted.shape == group.shape or outcome.ndim != 1:
        raise ValueError(
            f"outcomes {outcome.shape}, predictions {predicted.shape}, groups {group.shape}; accepted: one of each a query"
        )
    has, labelled = ~np.isnan(predicted), ~np.isnan(outcome)
    if labelled.any() and not (has & labelled).any():
        predicted, has = np.where(labelled, 0.0, np.nan), labelled
    used, unlabelled = has & labelled, has & ~labelled
    n, m = int(used.sum()), int(unlabelled.sum())
    codes, at = np.unique(group, return_inverse=True)
    with_label = np.bincount(at[used], minlength=len(codes)) > 0
    n_groups, n_more = (
        int(with_label.sum()),
        int((np.bincount(at[unlabelled], minlength=len(codes)) > 0)[~with_label].sum()),
    )
    if n_groups < FEW_GROUPS:
        mean = float(outcome[used].mean()) if n else None
        return PredictionPowered(
            mean, None, None, mean, None, None, 0.0, 0.0, n, m, n_groups, n_more
        )
    mean_y, mean_f = float(outcome[used].mean()), float(predicted[used].mean())
    mean_u = float(predicted[unlabelled].mean()) if m else mean_f
    by_label = np.bincount(at[used], outcome[used] - mean_y, minlength=len(codes)) / n
    by_prediction = -np.bincount(at[used], predicted[used] - mean_f, minlength=len(codes)) / n
    if m:
        by_prediction += (
            np.bincount(at[unlabelled], predicted[unlabelled] - mean_u, minlength=len(codes)) / m
        )
    spread = float((by_prediction**2).sum())
    power = (
        float(np.clip(-(by_label * by_prediction).sum() / spread, 0, 1))
        if m and spread > 0
        else 0.0
    )
    value = mean_y + power * (mean_u - mean_f)
    variance, alone = (
        _variance(by_label + part * by_prediction, with_label) for part in (power, 0.0)
    )
    worth = (
        max(alone / variance, 1.0) if variance > 0 else 1.0
    )  # at a power of 0 the two are the same sum, but for rounding
    kish = float(
        np.bincount(at[used], minlength=len(codes)).sum() ** 2
        / (np.bincount(at[used], minlength=len(codes)) ** 2).sum()
    )
    low, high = _interval(value, variance, kish * worth, n_groups, unit_range=unit_range)
    labels_low, labels_high = _interval(mean_y, alone, kish, n_groups, unit_range=unit_range)
    clipped = float(np.clip(value, 0, 1)) if unit_range else value
    return PredictionPowered(
        clipped,
        low,
        high,
        mean_y,
        labels_low,
        labels_high,
        power,
        worth - 1,
        n,
        m,
        n_groups,
        n_more,
    )


def _variance(terms: FloatArray, with_label: "np.ndarray") -> float:
    n_groups = int(with_label.sum())
    return float(
        (terms[with_label] ** 2).sum() * n_groups / (n_groups - 2) + (terms[~with_label] ** 2).sum()
    )


def _interval(
    value: float, variance: float, kish: float, n_groups: int, *, unit_range: bool
) -> tuple[float, float]:
    from scipy.stats import t

    z = float(t.ppf(0.975, n_groups - 1))
    if not unit_range:
        half = z * float(np.sqrt(variance))
        return value - half, value + half
    rate = np.clip(np.array([value]), 0, 1)
    low, high = wilson(rate, effective_groups(rate, np.array([variance]), kish), z)
    return float(np.clip(low[0], 0, 1)), float(np.clip(high[0], 0, 1))
