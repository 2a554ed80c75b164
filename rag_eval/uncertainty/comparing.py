"""Compare strategies by their misses and by the quality of their miss rates, on the same queries.

This file holds the figures of each strategy, the differences of each pair with interval and
adjusted p, and the prediction-powered estimate of each strategy.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.records import CountedInterval
from rag_eval.measures.overlap import SharedGold, effective_groups, wilson
from rag_eval.measures.paired import FEW_DIFFERING, holm, paired_comparison
from rag_eval.uncertainty.miss_rate_report import (
    ComparedStrategy,
    MissComparison,
    MissDifference,
    MissMeasure,
    PoweredEstimate,
)
from rag_eval.uncertainty.scores import NO_FIGURE, mean_figure
from rag_eval.uncertainty.stored import finite

# ---- Prediction-powered means: few labelled outcomes, and predictions for many unlabelled queries

FEW_GROUPS = 3
"""Least number of labelled groups for a fitted power and an interval."""


def powered_figure(estimate: PoweredEstimate | None) -> CountedInterval:
    """Write an estimate as a figure with its denominators; no estimate gives an empty figure."""
    if estimate is None:
        return NO_FIGURE
    return CountedInterval(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        n=estimate.n_labelled + estimate.n_unlabelled,
        n_effective=estimate.n_groups_labelled + estimate.n_groups_unlabelled,
    )


def prediction_powered(
    outcome: FloatArray, predicted: FloatArray, group: IntArray, *, unit_range: bool = True
) -> PoweredEstimate:
    """Estimate the mean outcome of all queries (PPI++, Angelopoulos et al. 2023, by groups).

    `outcome` [n] are outcomes, NaN = not labelled. Labelled queries must be a random sample.
    `predicted` [n] are calibrated predictions from models that did not see the query's group.
    Queries without a prediction (NaN) are left out. If no labelled query has a prediction, the
    labelled queries count by their labels alone. `group` [n] is the unit of inference. Outcomes in
    `unit_range` lie in [0, 1]: their interval is Wilson's on the effective number of groups,
    otherwise it is the interval of t.
    """
    has, labelled = ~np.isnan(predicted), ~np.isnan(outcome)
    if labelled.any() and not (has & labelled).any():
        predicted, has = np.where(labelled, 0.0, np.nan), labelled
    used, unlabelled = has & labelled, has & ~labelled
    n, m = int(used.sum()), int(unlabelled.sum())
    codes, code = np.unique(group, return_inverse=True)

    def sum_groups(rows: BoolArray, values: FloatArray | None = None) -> FloatArray:
        return np.bincount(code[rows], values, minlength=len(codes)).astype(np.float64)

    size = sum_groups(used)
    with_label = size > 0
    n_groups = int(with_label.sum())
    counts = {
        "n_labelled": n,
        "n_unlabelled": m,
        "n_groups_labelled": n_groups,
        "n_groups_unlabelled": int((sum_groups(unlabelled) > 0)[~with_label].sum()),
    }
    if n_groups < FEW_GROUPS:
        names = ("value", "low", "high", "labels_value", "labels_low", "labels_high")
        figures: dict[str, float | None] = dict.fromkeys(names)
        if n:
            figures["value"] = figures["labels_value"] = float(outcome[used].mean())
        return PoweredEstimate(**figures, power=0.0, extra_labels=0.0, **counts)
    mean_y, mean_f = float(outcome[used].mean()), float(predicted[used].mean())
    mean_u = float(predicted[unlabelled].mean()) if m else mean_f
    by_label = sum_groups(used, outcome[used] - mean_y) / n
    by_prediction = -sum_groups(used, predicted[used] - mean_f) / n
    if m:
        by_prediction += sum_groups(unlabelled, predicted[unlabelled] - mean_u) / m
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
    # At a power of 0 both variances are equal, so rounding could push the ratio below 1.
    worth = max(alone / variance, 1.0) if variance > 0 else 1.0
    kish = float(size.sum() ** 2 / (size**2).sum())
    low, high = _interval(value, variance, kish * worth, n_groups, unit_range=unit_range)
    labels_low, labels_high = _interval(mean_y, alone, kish, n_groups, unit_range=unit_range)
    return PoweredEstimate(
        value=float(np.clip(value, 0, 1)) if unit_range else value,
        low=low,
        high=high,
        labels_value=mean_y,
        labels_low=labels_low,
        labels_high=labels_high,
        power=power,
        extra_labels=worth - 1,
        **counts,
    )


def _variance(terms: FloatArray, with_label: BoolArray) -> float:
    n_groups = int(with_label.sum())
    return float(
        (terms[with_label] ** 2).sum() * n_groups / (n_groups - 2) + (terms[~with_label] ** 2).sum()
    )


def _interval(
    value: float, variance: float, kish: float, n_groups: int, *, unit_range: bool
) -> tuple[float, float]:
    from scipy.special import stdtrit

    z = float(stdtrit(n_groups - 1, 0.975))
    if not unit_range:
        half = z * float(np.sqrt(variance))
        return value - half, value + half
    rate = np.clip(np.array([value]), 0, 1)
    low, high = wilson(rate, effective_groups(rate, np.array([variance]), kish), z)
    return float(np.clip(low[0], 0, 1)), float(np.clip(high[0], 0, 1))


# ---- The comparison of strategies

NO_TRAFFIC: Final = (
    "prediction-powered estimates are of production traffic, which this comparison does not read"
)
_ROUNDING: Final = 1e-12


@dataclasses.dataclass(frozen=True)
class Misses:
    """Outcomes and miss rates of one strategy on n queries, in the same order for all strategies.

    `missed` [n] are outcomes, 0 or 1, NaN = not judged. `calibrated` [n] are miss rates from
    models that did not see the query's group, NaN = no estimate. `raw` [n] are uncalibrated
    estimates, `heuristic_v0`; None if they are not compared.
    """

    name: str
    missed: FloatArray
    calibrated: FloatArray
    raw: FloatArray | None = None

    @property
    def squared_error(self) -> FloatArray:
        """Squared error of each calibrated miss rate, [n]."""
        return np.asarray((self.calibrated - self.missed) ** 2)

    def skills(self, rows: BoolArray | None = None) -> FloatArray:
        """Compute values [n] that have the Brier skill of some queries as mean; NaN for others.

        Skill is ``1 - E / B`` with the mean squared error E and ``B = m (1 - m)``, the error of a
        forecaster who knows the miss rate m beforehand: the hardest constant reference to beat.
        Each value is the skill plus the influence of the query on it, so their mean has the
        uncertainty of the skill. All are NaN where all or none missed.

        Hampel (1974), JASA 69:383-393.
        """
        error = self.squared_error if rows is None else np.where(rows, self.squared_error, np.nan)
        known = ~np.isnan(error)
        n = max(int(known.sum()), 1)
        mean, rate = error[known].sum() / n, self.missed[known].sum() / n
        base = rate * (1 - rate)
        if base <= _ROUNDING:
            return np.full(len(error), np.nan)
        of_rate = mean * (1 - 2 * rate) / base**2
        return np.asarray(1 - error / base + of_rate * (self.missed - rate))


def compare(
    strategies: Sequence[Misses],
    gold: SharedGold,
    *,
    powered: Mapping[str, PoweredEstimate | str] | None = None,
) -> MissComparison:
    """Compare every pair of two or more strategies on the same queries, in the order given.

    `gold` is that of the n queries. `powered` holds the prediction-powered estimate of the
    production traffic of every strategy, by name, or the reason why there is none.

    Raises InputError for fewer than two strategies, or a repeated strategy.
    """
    names = [entry.name for entry in strategies]
    if len(names) < 2 or len(set(names)) < len(names):  # noqa: PLR2004 - a pair
        raise InputError(
            Problem(
                "bad_comparison",
                "A comparison needs two or more different strategies.",
                found=", ".join(map(quoted, names)) or "none",
                accepted="each strategy once",
            )
        )
    estimates = powered or dict.fromkeys(names, NO_TRAFFIC)
    pairs = itertools.combinations(strategies, 2)
    rows = [row for a, b in pairs for row in _compare_values(a, b, gold)]
    return MissComparison(
        strategies=[_describe(entry, gold, estimates[entry.name]) for entry in strategies],
        differences=_adjust(rows),
        n=len(gold),
    )


def _describe(entry: Misses, gold: SharedGold, powered: PoweredEstimate | str) -> ComparedStrategy:
    return ComparedStrategy(
        name=entry.name,
        observed=mean_figure(entry.missed, gold),
        raw=None if entry.raw is None else mean_figure(entry.raw, gold),
        calibrated=mean_figure(entry.calibrated, gold),
        brier=mean_figure(entry.squared_error, gold),
        skill=mean_figure(entry.skills(), gold, unit_range=False),
        powered=None if isinstance(powered, str) else powered,
        why={"powered": powered} if isinstance(powered, str) else {},
    )


Row = dict[str, Any]
"""Fields of a MissDifference; absent fields are null."""


def _row(a: Misses, b: Misses, measure: MissMeasure, delta: CountedInterval, **more: Any) -> Row:
    return {"a": a.name, "b": b.name, "measure": measure, "delta": delta, **more}


def _adjust(rows: list[Row]) -> list[MissDifference]:
    """Adjust p over all pairs, separately for each measure.

    The measures answer different questions, and estimated miss rates nearly always differ.
    """
    for measure in {row["measure"] for row in rows}:
        alike = [row for row in rows if row["measure"] == measure]
        # NumPy turns None into NaN.
        adjusted = holm(np.array([row.get("p") for row in alike], dtype=np.float64))
        for row, p in zip(alike, adjusted, strict=True):
            row["p_holm"] = finite(p)
    absent = dict.fromkeys(("p", "n_better", "n_worse", "n_tied", "detectable"))
    return [MissDifference(**{**absent, **row}) for row in rows]


def _compare_values(a: Misses, b: Misses, gold: SharedGold) -> list[Row]:
    """Compare all measures of the queries; skills on the queries that have all four values."""
    columns: dict[MissMeasure, tuple[FloatArray, FloatArray]] = {"observed": (a.missed, b.missed)}
    if a.raw is not None and b.raw is not None:
        columns["raw"] = (a.raw, b.raw)
    columns["calibrated"] = (a.calibrated, b.calibrated)
    columns["brier"] = (a.squared_error, b.squared_error)
    shared = ~np.isnan(a.squared_error + b.squared_error)
    columns["skill"] = (a.skills(shared), b.skills(shared))
    left, right = (np.column_stack([pair[side] for pair in columns.values()]) for side in (0, 1))
    paired = paired_comparison(
        left,
        right,
        gold,
        higher_is_better=False,
        unit_range=[measure != "skill" for measure in columns],
    )
    *_, n_errors, _ = (paired.n_better + paired.n_worse).tolist()
    if n_errors < FEW_DIFFERING:
        # Too few differing queries would give a skill a false interval without width.
        for figures in (paired.ci_low, paired.ci_high, paired.p, paired.minimum_detectable):
            figures[-1] = np.nan
    both, rows = ~np.isnan(left - right), []
    for at, (measure, n) in enumerate(zip(columns, both.sum(axis=0).tolist(), strict=True)):
        delta = CountedInterval(
            value=finite(paired.delta[at]),
            low=finite(paired.ci_low[at]),
            high=finite(paired.ci_high[at]),
            n=n,
            n_effective=float(paired.n_effective[at]),
        )
        names = ("n_better", "n_worse", "n_tied") if n and measure != "skill" else ()
        versus = {name: int(getattr(paired, name)[at]) for name in names}
        p, detectable = finite(paired.p[at]), finite(paired.minimum_detectable[at])
        rows.append(_row(a, b, measure, delta, p=p, detectable=detectable, **versus))
    return rows
