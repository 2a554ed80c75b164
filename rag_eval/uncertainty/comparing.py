"""Compare strategies by their misses and by the quality of their miss rates, on the same queries.

This file holds the figures of each strategy, the differences of each pair with interval and
adjusted p, and the prediction-powered estimates. `reporting.terminal` shows them.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.measures.intervals import effective_groups, wilson
from rag_eval.measures.paired import FEW_DIFFERING, FLIPS, holm, paired_comparison
from rag_eval.uncertainty.scores import (
    Figure,
    bootstrap_bounds,
    compute_skill,
    finite,
    group_sums,
    mean_figure,
    resample_sums,
    skill_figure,
)

# ---- Prediction-powered means: few labelled outcomes, and predictions for many unlabelled queries

FEW_GROUPS = 3
"""With fewer labelled groups no power is fitted and no interval is given."""


@dataclasses.dataclass(frozen=True)
class PredictionPowered:
    """A mean estimated from labels and predictions.

    Parameters
    ----------
    value, low, high
        The estimate and its 95 % interval. The interval is None where labelled groups are too few.
    labels_value, labels_low, labels_high
        The estimate and interval from the labels alone, by the same formula.
    power
        Weight of the predictions, 0 to 1.
    extra_labels
        Share of further labelled groups that would have narrowed the interval as much.
        0 where the predictions add nothing.
    n_labelled, n_unlabelled, n_groups_labelled, n_groups_unlabelled
        Numbers of queries and groups. A group with at least one label counts as labelled.
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
        """Write the estimate as JSON values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """Claims from the production traffic of one strategy. A simple random sample was audited.

    Parameters
    ----------
    claim, query, group
        Names of the n claims, of their questions, and of the groups of the questions.
    missed
        float64 [n] results of the audits, 0 or 1; NaN = not audited.
    predicted
        float64 [n] calibrated miss rates, from models that did not see the claim's group.
    reason
        Why no estimate is possible; empty where it is.
    """

    claim: tuple[str, ...]
    query: tuple[str, ...]
    group: tuple[str, ...]
    missed: FloatArray
    predicted: FloatArray
    reason: str = ""

    @classmethod
    def nothing(cls, reason: str) -> Self:
        """Make a record without claims that states the reason."""
        return cls((), (), (), np.zeros(0), np.zeros(0), reason)

    def first(self) -> Mapping[str, int]:
        """Return the row of each question's claim with the smallest name.

        Names do not depend on the audits, so the sample stays random among these claims.
        """
        rows = sorted(range(len(self.claim)), key=lambda row: self.claim[row], reverse=True)
        return {self.query[row]: row for row in rows}


def powered_figure(found: PredictionPowered | None) -> Figure:
    """Write an estimate as a figure with its denominators; no estimate gives an empty figure."""
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
    """Estimate the miss rate of all claims, or return None with the reason."""
    if of.reason:
        return None, of.reason
    return prediction_powered(
        of.missed, of.predicted, np.unique(of.group, return_inverse=True)[1]
    ), ""


def powered_difference(a: Audited, b: Audited) -> tuple["PredictionPowered | None", str]:
    """Estimate the mean difference a - b over shared questions, or return None with the reason.

    Each question counts with its first claim by name.
    """
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
        float64 [n] outcomes (or paired differences of outcomes); NaN = not labelled. Labelled
        queries must be a random sample.
    predicted
        float64 [n] calibrated predictions from models that did not see the query's group.
        NaN = no prediction. Queries without a prediction are left out. If no labelled query has
        a prediction, the labelled queries count by their labels alone.
    group
        int64 [n] unit of inference.
    unit_range
        Whether outcomes lie in [0, 1]. If so, the interval is Wilson's on the effective number
        of groups. Otherwise it is the interval of t.

    Raises
    ------
    ValueError
        The arrays differ in length.
    """
    if not outcome.shape == predicted.shape == group.shape or outcome.ndim != 1:
        raise ValueError(
            f"outcomes {outcome.shape}, predictions {predicted.shape}, groups {group.shape}; "
            "accepted: one of each a query"
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
    # at a power of 0 both variances are the same sum, so rounding could push the ratio below 1
    worth = max(alone / variance, 1.0) if variance > 0 else 1.0
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


# ---- The difference of two Brier skills on the same queries: interval, test, detectable difference

_ROUNDING = 1e-12
_BLOCK = 4_000_000


@dataclasses.dataclass(frozen=True)
class SkillDifference:
    """Skill of a - skill of b, with two-sided p and smallest detectable difference.

    p and the detectable difference are None if fewer than 10 groups differ or a skill is undefined.
    """

    delta: Figure
    p: float | None = None
    detectable: float | None = None


def skill_difference(
    predicted: tuple[FloatArray, FloatArray],
    missed: tuple[FloatArray, FloatArray],
    group: IntArray,
    seed: int,
) -> SkillDifference:
    """Compare two forecasters of the misses of two strategies.

    Parameters
    ----------
    predicted, missed
        float64 [n] of a and of b; NaN = no value. A query counts if it has all four values.
    group
        int64 [n] unit of inference.
    seed
        Seed of the resampling and of the swaps.

    Notes
    -----
    The interval is a bootstrap over groups. The test swaps a and b in random groups and computes
    the skills again, because under the null hypothesis a and b are exchangeable within a group.
    ``p = (1 + swaps at least as extreme) / (1 + swaps)``.
    """
    parts = np.column_stack(
        [(predicted[0] - missed[0]) ** 2, missed[0], (predicted[1] - missed[1]) ** 2, missed[1]]
    )
    there = ~np.isnan(parts).any(axis=1)
    if not there.any():
        return SkillDifference(Figure(None, None, None, 0, 0))
    sums = group_sums(np.column_stack([parts[there], np.ones(int(there.sum()))]), group[there])
    n, n_groups = int(there.sum()), len(sums)
    value = float(_difference(sums.sum(axis=0)))
    differing = int((np.abs(sums[:, :2] - sums[:, 2:4]) > _ROUNDING).any(axis=1).sum())
    # too few differing groups would give an interval without width, which would be false
    if not np.isfinite(value) or differing < FEW_DIFFERING:
        return SkillDifference(Figure(finite(value), None, None, n, n_groups))
    drawn = _difference(resample_sums(sums, seed))
    low, high = bootstrap_bounds(value, drawn, n_groups)
    detectable = (
        None
        if low is None
        else finite(
            _power_factor(n_groups) * float(np.nanstd(drawn)) * (n_groups / (n_groups - 1)) ** 0.5
        )
    )
    return SkillDifference(Figure(value, low, high, n, n_groups), _swap_p(sums, seed), detectable)


def _difference(sums: FloatArray) -> FloatArray:
    """Compute skill of a - skill of b from sums [..., 5].

    The sums are squared errors and misses of a, squared errors and misses of b, and queries.
    """
    return np.asarray(
        compute_skill(sums[..., 0], sums[..., 1], sums[..., 4])
        - compute_skill(sums[..., 2], sums[..., 3], sums[..., 4])
    )


def _swap_p(sums: FloatArray, seed: int) -> float:
    """Compute the two-sided p of swapping a and b in random groups.

    This is the sign-flip test for a figure that is not a mean over queries.
    """
    rng = np.random.default_rng(seed)
    total, change = sums.sum(axis=0), sums[:, 2:4] - sums[:, :2]
    bar = abs(float(_difference(total))) - _ROUNDING
    extreme, block = 0, max(1, _BLOCK // len(sums))
    for start in range(0, FLIPS, block):
        moved = (
            rng.integers(2, size=(min(block, FLIPS - start), len(sums)), dtype=np.int8).astype(
                np.float64
            )
            @ change
        )
        swapped = np.column_stack(
            [total[:2] + moved, total[2:4] - moved, np.full(len(moved), total[4])]
        )
        extreme += int((np.abs(_difference(swapped)) >= bar).sum())
    return (1 + extreme) / (1 + FLIPS)


def _power_factor(n_groups: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, n_groups - 1) + t.ppf(0.8, n_groups - 1))


# ---- The comparison of strategies

Measure = Literal["observed", "raw", "calibrated", "powered", "brier", "skill"]
"""The figures that are compared.

`observed` is the miss rate in outcomes. `raw` and `calibrated` are mean estimated miss rates.
`powered` is the prediction-powered miss rate of production traffic. `brier` and `skill` are the
Brier score and skill of the calibrated miss rate.
"""
NO_TRAFFIC = "prediction-powered estimates are of production traffic, which was not looked at here"
_LEAST = 2


@dataclasses.dataclass(frozen=True)
class Misses:
    """Outcomes and miss rates of one strategy on n queries, in the same order for all strategies.

    Parameters
    ----------
    name
        Name of the strategy.
    missed
        float64 [n] outcomes, 0 or 1; NaN = not judged.
    calibrated
        float64 [n] calibrated miss rates, from models that did not see the query's group.
        NaN = no estimate.
    raw
        float64 [n] uncalibrated estimates, `heuristic_v0`; None if they are not compared.
    """

    name: str
    missed: FloatArray
    calibrated: FloatArray
    raw: FloatArray | None = None


@dataclasses.dataclass(frozen=True)
class StrategyFigures:
    """Figures of one strategy with intervals.

    `raw` is None if no uncalibrated estimates were given. If `powered` is None, `powered_reason`
    says why.
    """

    name: str
    observed: Figure
    raw: Figure | None
    calibrated: Figure
    brier: Figure
    skill: Figure
    powered: PredictionPowered | None
    powered_reason: str = ""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Difference a - b under one measure, on the queries that both strategies have.

    Parameters
    ----------
    delta
        Difference, with its 95 % interval over groups.
    p, p_holm
        Two-sided p of the sign-flip test (for skill, of swapping the strategies in random groups).
        `p_holm` is adjusted by Holm over all pairs, separately for each measure. Both are None
        for prediction-powered differences, which are not tested.
    n_better, n_worse, n_tied
        Queries on which a is better, worse, equal. None for measures without a value per query.
    detectable
        Smallest true difference found with 80 % power at two-sided 5 %. None if it is unknown or
        larger than any possible difference.
    powered, powered_reason
        For the measure `powered`, the full estimate or the reason why it is missing. It describes
        production traffic; the other measures describe the compared queries.
    """

    a: str
    b: str
    measure: Measure
    delta: Figure
    p: float | None = None
    n_better: int | None = None
    n_worse: int | None = None
    n_tied: int | None = None
    detectable: float | None = None
    p_holm: float | None = None
    powered: PredictionPowered | None = None
    powered_reason: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Strategies, their differences, and the number of compared queries and groups."""

    strategies: tuple[StrategyFigures, ...]
    differences: tuple[Difference, ...]
    n: int
    n_groups: int

    def to_json(self) -> dict[str, Any]:
        """Write the comparison as JSON values, with figures as objects."""
        return {
            "n": self.n,
            "n_groups": self.n_groups,
            "strategies": [_plain(entry) for entry in self.strategies],
            "differences": [_plain(entry) for entry in self.differences],
        }


def _plain(entry: StrategyFigures | Difference) -> dict[str, Any]:
    values = {
        field.name: getattr(entry, field.name)
        for field in dataclasses.fields(entry)
        if field.name != "powered_reason" or entry.powered_reason
    }
    return {
        name: value._asdict()
        if isinstance(value, Figure)
        else value.to_json()
        if isinstance(value, PredictionPowered)
        else value
        for name, value in values.items()
    }


def compare(
    strategies: Sequence[Misses],
    group: IntArray,
    *,
    seed: int = 0,
    audited: Mapping[str, Audited] | None = None,
) -> Comparison:
    """Compare strategies on the same queries.

    Parameters
    ----------
    strategies
        Two or more.
    group
        int64 [n] unit of inference of the queries.
    seed
        Seed of the resampling and of the sign flips.
    audited
        Production traffic of every strategy, by name, for the prediction-powered estimates.
        None leaves these estimates out.

    Returns
    -------
    Comparison
        Differences of every pair in the order given. p is Holm-adjusted over all pairs,
        separately for each measure.

    Raises
    ------
    InputError
        There are fewer than two strategies, or a strategy stands twice.
    ValueError
        An array does not fit the queries, or a value lies outside [0, 1].
    """
    names = [entry.name for entry in strategies]
    if len(names) < _LEAST or len(set(names)) < len(names):
        raise InputError(
            Problem(
                "bad_comparison",
                "A comparison needs two or more different strategies.",
                found=", ".join(map(quoted, names)) or "none",
                accepted="each strategy once",
            )
        )
    for entry in strategies:
        _check(entry, group)
    live = audited or {name: Audited.nothing(NO_TRAFFIC) for name in names}
    rows = [
        row
        for a, b in itertools.combinations(strategies, 2)
        for row in [*_pair(a, b, group, seed), _powered(live, a.name, b.name)]
    ]
    return Comparison(
        tuple(_figures(entry, group, seed, live[entry.name]) for entry in strategies),
        _adjusted(rows),
        len(group),
        len(np.unique(group)),
    )


def _adjusted(rows: list[Difference]) -> tuple[Difference, ...]:
    """Adjust p over all pairs, separately for each measure.

    The measures answer different questions, and estimated miss rates nearly always differ.
    """
    for measure in dict.fromkeys(row.measure for row in rows):
        places = [at for at, row in enumerate(rows) if row.measure == measure]
        # NumPy turns None into NaN
        adjusted = holm(np.array([rows[at].p for at in places], dtype=np.float64))
        for at, p in zip(places, adjusted.tolist(), strict=True):
            rows[at] = dataclasses.replace(rows[at], p_holm=finite(p))
    return tuple(rows)


def _check(entry: Misses, group: IntArray) -> None:
    for part in (entry.missed, entry.calibrated, entry.raw):
        if part is not None and (part.shape != group.shape or ((part < 0) | (part > 1)).any()):
            raise ValueError(
                f"strategy {quoted(entry.name)}: values must lie in [0, 1] (or be NaN), one a "
                f"query; found shape {part.shape} for {len(group)} queries"
            )


def _figures(entry: Misses, group: IntArray, seed: int, live: Audited) -> StrategyFigures:
    return StrategyFigures(
        entry.name,
        mean_figure(entry.missed, group, seed),
        None if entry.raw is None else mean_figure(entry.raw, group, seed),
        mean_figure(entry.calibrated, group, seed),
        mean_figure((entry.calibrated - entry.missed) ** 2, group, seed),
        skill_figure(entry.calibrated, entry.missed, group, seed),
        *powered_mean(live),
    )


def _pair(a: Misses, b: Misses, group: IntArray, seed: int) -> list[Difference]:
    columns: dict[Measure, tuple[FloatArray, FloatArray]] = {"observed": (a.missed, b.missed)}
    if a.raw is not None and b.raw is not None:
        columns["raw"] = (a.raw, b.raw)
    columns["calibrated"] = (a.calibrated, b.calibrated)
    columns["brier"] = ((a.calibrated - a.missed) ** 2, (b.calibrated - b.missed) ** 2)
    left, right = (np.column_stack([pair[side] for pair in columns.values()]) for side in (0, 1))
    found = paired_comparison(left, right, group, seed, higher_is_better=False)
    both = ~np.isnan(left - right)
    rows = []
    for at, measure in enumerate(columns):
        n = int(both[:, at].sum())
        delta = Figure(
            finite(found.delta[at]),
            finite(found.ci_low[at]),
            finite(found.ci_high[at]),
            n,
            int(found.n_groups[at]),
        )
        better, worse, tied = (
            int(part[at]) if n else None for part in (found.n_better, found.n_worse, found.n_tied)
        )
        rows.append(
            Difference(
                a.name,
                b.name,
                measure,
                delta,
                finite(found.p[at]),
                better,
                worse,
                tied,
                finite(found.minimum_detectable[at]),
            )
        )
    skill = skill_difference((a.calibrated, b.calibrated), (a.missed, b.missed), group, seed)
    rows.append(
        Difference(a.name, b.name, "skill", skill.delta, skill.p, detectable=skill.detectable)
    )
    return rows


def _powered(live: Mapping[str, Audited], a: str, b: str) -> Difference:
    found, reason = powered_difference(live[a], live[b])
    return Difference(a, b, "powered", powered_figure(found), powered=found, powered_reason=reason)
