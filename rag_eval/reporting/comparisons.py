"""Write comparisons of the misses of strategies for a terminal and as CSV."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rag_eval.core.errors import quoted
from rag_eval.reporting.exports import write_csv
from rag_eval.reporting.terminal import interval, make_table
from rag_eval.uncertainty.comparing import (
    Comparison,
    Measure,
    PredictionPowered,
    StrategyFigures,
    powered_figure,
)
from rag_eval.uncertainty.scores import Figure

if TYPE_CHECKING:
    from rich.table import Table

_NAMES: Final[Mapping[Measure, str]] = {
    "observed": "misses, judged",
    "raw": "misses, uncalibrated",
    "calibrated": "misses, calibrated",
    "powered": "misses, powered",
    "brier": "Brier score",
    "skill": "Brier skill",
}
_POWERED_FIELDS: Final = tuple(
    "power extra_labels labels_value labels_low labels_high "
    "n_labelled n_unlabelled n_groups_labelled n_groups_unlabelled".split()
)
_TESTED: Final = ("p", "p_holm", "n_better", "n_worse", "n_tied", "detectable")
COLUMNS: Final = (
    *("a", "b", "measure", "value", "low", "high", *_TESTED, "n", "n_groups"),
    *(*_POWERED_FIELDS, "reason"),
)
"""Columns of the CSV of figures and differences, in order."""
NOTE: Final = (
    "Misses are rates with 95 % intervals over independent groups of queries: judged from outcomes;"
    " uncalibrated and calibrated as predicted; all of these on the gold questions that every"
    " strategy was judged on. Powered is of production traffic only, not of the gold questions:"
    " from random audits of claims and the calibrated predictions of the claims without one."
    " p: sign flips by group, adjusted by Holm over all pairs, each measure by itself."
    " Detectable: smallest true difference found with 80 % power at two-sided 5 %."
)
_SMALLEST_P: Final = 0.001


def _figures_of(
    entry: StrategyFigures,
) -> Iterator[tuple[Measure, Figure, PredictionPowered | None]]:
    yield "observed", entry.observed, None
    if entry.raw is not None:
        yield "raw", entry.raw, None
    yield "calibrated", entry.calibrated, None
    yield "powered", powered_figure(entry.powered), entry.powered
    yield "brier", entry.brier, None
    yield "skill", entry.skill, None


def _absences(comparison: Comparison) -> list[str]:
    reasons = [entry.powered_reason for entry in comparison.strategies]
    reasons += [row.powered_reason for row in comparison.differences]
    return list(dict.fromkeys(filter(None, reasons)))


def _figure(figure: Figure, sign: str = "") -> str:
    return interval(figure.value, figure.low, figure.high, sign, 3)


def _figure_rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yield strategy, figure, value, queries and worth of every figure."""
    for entry in comparison.strategies:
        for measure, figure, powered in _figures_of(entry):
            counts, worth = f"{figure.n:,} in {figure.n_groups:,} groups", ""
            if measure == "powered":
                counts = "-"
                if powered is not None:
                    counts = f"{powered.n_labelled:,} audited + {powered.n_unlabelled:,} not"
                    if powered.n_unlabelled:
                        worth = f"as {powered.extra_labels:.0%} more labels"
            yield [quoted(entry.name), _NAMES[measure], _figure(figure), counts, worth]


def _difference_rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yield both strategies, figure, difference, p, counts and detectable of every row."""
    for row in comparison.differences:
        p, versus = "-", "-"
        if row.p_holm is not None:
            p = f"< {_SMALLEST_P}" if row.p_holm < _SMALLEST_P else f"{row.p_holm:.3f}"
        if row.n_better is not None:
            versus = f"{row.n_better:,}/{row.n_worse:,}/{row.n_tied:,}"
        yield [
            *(quoted(row.a), quoted(row.b), _NAMES[row.measure], _figure(row.delta, "+")),
            *(p, versus, "-" if row.detectable is None else f"{row.detectable:.3f}"),
        ]


def _in_sections(rows: Iterable[list[str]]) -> Iterator[list[str] | None]:
    """Blank repeated names, and yield None before a new name to begin a section."""
    before = None
    for name, *rest in rows:
        if before not in {None, name}:
            yield None
        yield ["" if name == before else name, *rest]
        before = name


def strategies_table(comparison: Comparison) -> "Table":
    """Make the table of figures, one row for each strategy and figure."""
    absent = _absences(comparison)
    return make_table(
        f"Misses by strategy: {comparison.n:,} judged queries in {comparison.n_groups:,} "
        "independent groups; powered: of production traffic",
        ["strategy", "figure", ">value [95 % interval]", ">queries", "worth"],
        _in_sections(_figure_rows(comparison)),
        caption=f"No powered estimate: {'; '.join(absent)}." if absent else "",
    )


def differences_table(comparison: Comparison) -> "Table":
    """Make the table of differences, one row for each pair and figure."""
    rows = ([f"{a} - {b}", *rest] for a, b, *rest in _difference_rows(comparison))
    columns = ["a - b", "figure", ">difference [95 % interval]", ">p (Holm)"]
    columns += [">better/worse/tied", ">detectable"]
    title = "Differences on the same queries"
    return make_table(title, columns, _in_sections(rows), caption=NOTE)


def _powered_fields(powered: PredictionPowered | None) -> dict[str, object]:
    return {name: getattr(powered, name) for name in _POWERED_FIELDS} if powered else {}


def write_comparison_csv(path: Path, comparison: Comparison) -> None:
    """Write one row for each figure and difference; a figure of one strategy has an empty `b`."""
    rows: list[dict[str, object]] = [
        {
            "a": entry.name,
            "measure": measure,
            **dataclasses.asdict(figure),
            **_powered_fields(powered),
        }
        | {"reason": entry.powered_reason if measure == "powered" else ""}
        for entry in comparison.strategies
        for measure, figure, powered in _figures_of(entry)
    ]
    rows += [
        {"a": row.a, "b": row.b, "measure": row.measure, **dataclasses.asdict(row.delta)}
        | {name: getattr(row, name) for name in _TESTED}
        | {**_powered_fields(row.powered), "reason": row.powered_reason}
        for row in comparison.differences
    ]
    write_csv(path, COLUMNS, rows)
