"""Compare calibrated miss rates over gold sets and nights: rows, frames and files.

A row of figures stands for one strategy, target and K of one report, a row of differences for one
pair of strategies.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import numpy as np
import pandas as pd

from rag_eval.core.records import Absent, CountedInterval, Estimate, Interval, PairedDelta
from rag_eval.core.types import BinaryTarget
from rag_eval.measures.intervals import holm
from rag_eval.reporting.report import Report
from rag_eval.reporting.tables import Cursor, Table, csv_text
from rag_eval.storage.home import write_text
from rag_eval.uncertainty.miss_rate_report import (
    MissDifference,
    MissMeasure,
    MissPair,
    ObservedMisses,
    StrategyCalibration,
    Validation,
)

Row: TypeAlias = dict[str, Any]
"""A row as JSON values; an estimate is an object of value, low and high."""
LEVEL: Final = 0.9
DIFFERENCE_COLUMNS: Final = (
    "gold_set night run_id strategy against target k measure difference difference_low "
    "difference_high p p_holm smallest_detectable better worse tied questions effective_questions"
).split()
NOT_CALIBRATED: Final = (
    "this run stated only {target}@{k}: uncertainty.target and uncertainty.k of gold_set.yaml say "
    "which"
)
NO_K: Final = "no K within the lists reaches 90 %, or no question has gold"
ANY_ONLY: Final = "conformal K is for any gold among the first K, so it belongs to miss_any"


@dataclasses.dataclass(frozen=True)
class MissRateTables:
    """Miss rates and paired differences of one report or of several reports."""

    reports: Sequence[Report]

    @functools.cached_property
    def rows(self) -> list[Row]:
        """Rows of figures; a null has its reason. Calibrated targets come first."""
        return self._put_calibrated_first(_figure_rows)

    @functools.cached_property
    def differences(self) -> list[Row]:
        """Rows of paired differences; p is adjusted by Holm over all rows of the same figure."""
        rows = self._put_calibrated_first(_difference_rows)
        for measure in get_args(MissMeasure):
            alike = [row for row in rows if row["measure"] == measure]
            adjusted = holm(np.array([row["p"] for row in alike], dtype=np.float64))
            for row, p in zip(alike, adjusted, strict=True):
                row["p_holm"] = None if np.isnan(p) else float(p)
        return rows

    def _put_calibrated_first(self, list_rows: Callable[[Report], Iterable[Row]]) -> list[Row]:
        rows = [
            ((row["target"], row["k"]) != (report.uncertainty.target, report.uncertainty.k), row)
            for report in self.reports
            for row in list_rows(report)
        ]
        return [row for _, row in sorted(rows, key=lambda pair: pair[0])]

    def frames(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return figures and differences as frames; bounds of intervals end in _low and _high."""
        differences = _frame(self.differences)
        if differences.empty:  # a single strategy
            differences = pd.DataFrame(columns=DIFFERENCE_COLUMNS)
        return _frame(self.rows), differences

    @functools.cached_property
    def tables(self) -> tuple[Table, Table]:
        """Figures and differences as tables; gold set and night are named if several."""
        several = [
            f"{key.replace('_', ' ')} = {key}"
            for key in ("gold_set", "night")
            if len({row[key] for row in self.rows}) > 1
        ]
        sources = " | ".join([*several, "strategy"])
        place = Cursor({"rows": self.rows, "differences": self.differences})
        figures = Table.of(
            "calibrated-miss-rates",
            "Miss rates by target and K, 95 % intervals; the calibrated target comes first",
            f"""{sources} | target | K = k | observed | stated | status | skill :2
            | AUROC = auroc :2 | earned | K for 90 % = k_for_90 | questions
            | effective = effective_questions :1""",
            place["rows"],
        )
        differences = Table.of(
            "calibrated-miss-rate-differences",
            "Paired differences on the same questions, 95 % intervals",
            f"""{sources} | against | target | K = k | figure = measure | difference :3+
            | p (Holm) = p_holm :4 | detectable = smallest_detectable | better | worse | tied
            | questions | effective = effective_questions :1""",
            place["differences"],
        )
        return figures, differences

    def files(self) -> dict[str, str]:
        """Write the tables as CSV and LaTeX: name -> text."""
        files = dict[str, str]()
        for table, frame in zip(self.tables, self.frames(), strict=True):
            files |= {f"{table.name}.csv": csv_text(frame), f"{table.name}.tex": table.tex()}
        return files

    def write(self, folder: Path) -> list[Path]:
        """Write the files into a folder, which is made if it does not exist."""
        folder.mkdir(parents=True, exist_ok=True)
        files = self.files()
        for name, text in files.items():
            write_text(folder / name, text)
        return [folder / name for name in files]


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Make a frame of rows; a null becomes NaN, and an estimate three columns."""
    flat = []
    for row in rows:
        cells: Row = {}
        for name, value in row.items():
            if isinstance(value, dict):
                ends = {f"{name}_{end}": value[end] for end in ("low", "high")}
                cells |= {name: value["value"], **ends}
            elif not name.endswith("_reason"):
                cells[name] = value
        flat.append({name: np.nan if value is None else value for name, value in cells.items()})
    return pd.DataFrame(flat)


# ---- Rows of one report.


def _source(report: Report) -> Row:
    return {"gold_set": report.gold.name, "night": report.timestamp, "run_id": report.run_id}


def _figure_rows(report: Report) -> Iterator[Row]:
    """Yield a row for each target, K and strategy, so that strategies stand side by side."""
    part = report.uncertainty
    place = {part.name: at for at, part in enumerate(report.strategies)}
    for misses in sorted(
        part.cutoffs, key=lambda each: (each.target, each.k, place[each.strategy])
    ):
        claim = _calibrated(report, misses)
        nulls = (claim[name] for name in ("stated", "skill") if claim[name]["value"] is None)
        yield {
            **_source(report),
            **{name: getattr(misses, name) for name in ("strategy", "target", "k")},
            "observed": _values(misses),
            "questions": misses.n_scored,
            "effective_questions": misses.n_effective,
            **claim,
            **_k_for_90(report.calibration.strategies[misses.strategy], misses.target),
            "reason": "; ".join(dict.fromkeys(part["value_reason"] for part in nulls)),
        }


def _calibrated(report: Report, misses: ObservedMisses) -> Row:
    """Make the fields of the predictions; other targets and K have no stated miss rate."""
    part, entry = report.uncertainty, report.calibration.strategies[misses.strategy]
    place, status, earned = (misses.target, misses.k), None, None
    quality: Validation | None
    if place == (part.target, part.k):
        rates, quality = part.strategies[misses.strategy], entry.validation
        status, earned, mean_rate = rates.status, entry.status, _values(rates.stated)
        nothing = Absent(reason=entry.why.get("validation", "not validated"))
    else:
        quality = None
        nothing = Absent(reason=NOT_CALIBRATED.format(target=part.target, k=part.k))
        mean_rate = _values(nothing)
    skill, auroc = (
        _values(nothing if quality is None else getattr(quality, name))
        for name in ("skill", "auroc")
    )
    return {"stated": mean_rate, "status": status, "skill": skill, "auroc": auroc, "earned": earned}


def _k_for_90(entry: StrategyCalibration, target: BinaryTarget) -> Row:
    k = next((rule.k for rule in entry.conformal if rule.level == LEVEL), None)
    reason = ANY_ONLY if target != "miss_any" else NO_K if k is None else ""
    return {"k_for_90": None if reason else k, "k_for_90_reason": reason}


def _values(figure: Estimate | PairedDelta | Interval | Absent) -> Row:
    if isinstance(figure, Absent):
        return {"value": None, "low": None, "high": None, "value_reason": figure.reason}
    value, low, high = figure.triple
    key = "delta" if isinstance(figure, PairedDelta) else "value"
    return {"value": value, "low": low, "high": high, "value_reason": figure.why.get(key, "")}


def _difference_rows(report: Report) -> Iterator[Row]:
    """Yield observed differences of every target and K, then those of the predictions."""
    for pair in report.uncertainty.pairs:
        n = pair.n_better + pair.n_worse + pair.n_tied
        place = (pair.target, pair.k, "observed")
        yield _difference(report, pair, place, pair, (pair.minimum_detectable, n))
    part = report.calibration
    for row in part.comparison.differences if part.comparison else ():
        if row.measure != "observed" and row.delta.value is not None:
            place = (part.target, part.k, row.measure)
            yield _difference(report, row, place, row.delta, (row.detectable, row.delta.n))


def _difference(
    report: Report,
    row: MissPair | MissDifference,
    place: tuple[str, int, str],
    delta: MissPair | CountedInterval,
    counts: tuple[float | None, int],
) -> Row:
    return {
        **_source(report),
        "strategy": row.a,
        "against": row.b,
        **dict(zip(("target", "k", "measure"), place, strict=True)),
        "difference": _values(delta),
        "p": row.p,
        "p_holm": None,
        "smallest_detectable": counts[0],
        "better": row.n_better,
        "worse": row.n_worse,
        "tied": row.n_tied,
        "questions": counts[1],
        "effective_questions": delta.n_effective,
    }
