"""Strategies compared by their misses and by how well their misses were predicted, paired on the same queries.

Belongs here: figures of each strategy, differences of each pair with interval and adjusted p, prediction-powered estimates. How it is shown
is `reporting.miss_rate_tables`.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rag_eval.measures.paired import holm, paired_comparison
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.uncertainty.figures import Figure, finite, mean_figure, skill_figure
from rag_eval.uncertainty.labelled import FloatArray, IntArray
from rag_eval.uncertainty.prediction_powered import (
    Audited,
    PredictionPowered,
    powered_difference,
    powered_figure,
    powered_mean,
)
from rag_eval.uncertainty.skill_difference import skill_difference

Measure = Literal["observed", "raw", "calibrated", "powered", "brier", "skill"]
"""Miss rate seen in outcomes; mean uncalibrated and calibrated miss rate; prediction-powered miss rate of production traffic; Brier score and skill of the calibrated one."""
NO_TRAFFIC = "prediction-powered estimates are of production traffic, which was not looked at here"
_LEAST = 2


@dataclasses.dataclass(frozen=True)
class Misses:
    """What is known of one strategy on n queries, the same and in the same order for every strategy.

    Parameters
    ----------
    name
        Of the strategy.
    missed
        float64 [n] outcomes, 0 or 1; NaN = not judged.
    calibrated
        float64 [n] calibrated miss rates, from models that did not see the query's group; NaN = none.
    raw
        float64 [n] uncalibrated estimates, `heuristic_v0`; None where they are not compared.
    """

    name: str
    missed: FloatArray
    calibrated: FloatArray
    raw: FloatArray | None = None


@dataclasses.dataclass(frozen=True)
class StrategyFigures:
    """One strategy: figures with intervals; `raw` is None where not given, `powered` where `powered_reason` says why."""

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
    """a - b under one measure, on the queries that both have.

    Parameters
    ----------
    delta
        Difference, with its 95 % interval over groups.
    p, p_holm
        Two-sided p of the sign-flip test (for skill: of swapping the strategies in random groups), and adjusted by Holm over all
        pairs, each measure by itself; None where not tested (prediction-powered differences have an interval only).
    n_better, n_worse, n_tied
        Queries on which a is better, worse, equal; None for means that no single query has.
    detectable
        Smallest true difference found with 80 % power at two-sided 5 %; None where that is beyond what a difference can be, or unknown.
    powered, powered_reason
        For `powered`: the estimate in full, or why there is none. It is of production traffic and not of the queries that the rest is of.
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
    """Strategies, their differences, and the number of queries and groups that were looked at."""

    strategies: tuple[StrategyFigures, ...]
    differences: tuple[Difference, ...]
    n: int
    n_groups: int

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values, figures as objects."""
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
        Of resampling and of sign flips.
    audited
        Production traffic of every strategy, by name, for the prediction-powered estimates; None: there are none of them.

    Returns
    -------
    Comparison
        Differences of every pair in the order given, Holm-adjusted over all pairs, each measure by itself.

    Raises
    ------
    InputError
        Fewer than two strategies, or one twice.
    ValueError
        Parts that do not fit the queries, or values outside [0, 1].
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
    """Adjust over all pairs, each measure by itself: the measures are different questions, and estimates differ nearly always."""
    for measure in dict.fromkeys(row.measure for row in rows):
        places = [at for at, row in enumerate(rows) if row.measure == measure]
        adjusted = holm(
            np.array([rows[at].p for at in places], dtype=np.float64)
        )  # None becomes NaN
        for at, p in zip(places, adjusted.tolist(), strict=True):
            rows[at] = dataclasses.replace(rows[at], p_holm=finite(p))
    return tuple(rows)


def _check(entry: Misses, group: IntArray) -> None:
    for part in (entry.missed, entry.calibrated, entry.raw):
        if part is not None and (part.shape != group.shape or ((part < 0) | (part > 1)).any()):
            raise ValueError(
                f"strategy {quoted(entry.name)}: values must lie in [0, 1] (or be NaN), one a query; found shape {part.shape} for {len(group)} queries"
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
