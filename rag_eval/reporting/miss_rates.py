"""Compare calibrated miss rates over gold sets and nights: frames, and files of them.

A row of figures stands for one strategy, target and K of one report, a row of differences for one
pair of strategies.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from rag_eval.core.records import Absent, CountedInterval, Estimate, Interval, PairedDelta
from rag_eval.measures.intervals import holm
from rag_eval.reporting.report import Report
from rag_eval.reporting.tables import ABSENT_TEXT, csv_text, interval, latex_text
from rag_eval.storage.home import write_text
from rag_eval.uncertainty.miss_rate_report import MissDifference, MissPair, ObservedMisses

_LEVEL: Final = 0.9
_DIFFERENCE_COLUMNS: Final = (
    "gold_set night run_id strategy against target k measure difference difference_low "
    "difference_high p p_holm smallest_detectable better worse tied questions effective_questions"
).split()


@dataclasses.dataclass(frozen=True)
class MissRateTables:
    """Miss rates and paired differences of one report or of several reports."""

    reports: Sequence[Report]

    @functools.cached_property
    def figures(self) -> pd.DataFrame:
        """Rows of figures, with the reasons of nulls. Calibrated targets come first."""
        rows = [row for report in self.reports for row in _figure_rows(report)]
        rows.sort(key=lambda row: row["status"] is None)
        return pd.DataFrame(rows).fillna(np.nan)

    @functools.cached_property
    def differences(self) -> pd.DataFrame:
        """Rows of paired differences; p is adjusted by Holm over all rows of the same figure."""
        rows = [row for report in self.reports for row in _difference_rows(report)]
        frame = pd.DataFrame(rows, columns=_DIFFERENCE_COLUMNS).fillna(np.nan)
        adjusted = frame.groupby("measure")["p"].transform(
            lambda p: holm(p.to_numpy(dtype=np.float64))
        )
        return frame.assign(p_holm=adjusted)

    def to_latex(self) -> str:
        """Write the figures as a LaTeX table."""
        return _latex(self.figures, ("observed", "stated", "skill", "auroc"))

    def files(self) -> dict[str, str]:
        """Write both tables as CSV and LaTeX: name -> text."""
        name = "calibrated-miss-rate"
        return {
            f"{name}s.csv": csv_text(self.figures),
            f"{name}s.tex": self.to_latex(),
            f"{name}-differences.csv": csv_text(self.differences),
            f"{name}-differences.tex": _latex(self.differences, ("difference",)),
        }

    def write(self, folder: Path) -> list[Path]:
        """Write the files into a folder, which is made if it does not exist."""
        folder.mkdir(parents=True, exist_ok=True)
        files = self.files()
        for name, text in files.items():
            write_text(folder / name, text)
        return [folder / name for name in files]


def _latex(frame: pd.DataFrame, estimates: Sequence[str]) -> str:
    """Write a frame as a LaTeX table: estimates with their intervals, other figures rounded."""
    ends = {f"{name}_{end}" for name in estimates for end in ("low", "high")}
    headings = [str(name) for name in frame if name not in ends | {"run_id", "reason"}]
    rows = []
    for values in frame.astype(object).to_dict("records"):
        row = {str(name): None if pd.isna(value) else value for name, value in values.items()}
        for name in estimates:
            row[name] = interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
        rows.append([_write(row[name]) for name in headings])
    return latex_text([name.replace("_", " ") for name in headings], rows)


def _write(value: object) -> str:
    if value is None:
        return ABSENT_TEXT
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- Rows of one report


def _source(report: Report) -> dict[str, object]:
    return {"gold_set": report.gold.name, "night": report.timestamp, "run_id": report.run_id}


def _ends(name: str, figure: Estimate | PairedDelta | Interval | None) -> dict[str, object]:
    triple = (None, None, None) if figure is None else figure.triple
    return dict(zip((name, f"{name}_low", f"{name}_high"), triple, strict=True))


def _figure_rows(report: Report) -> Iterator[dict[str, object]]:
    """Yield a row for each target, K and strategy, so that strategies stand side by side."""
    place = {part.name: at for at, part in enumerate(report.strategies)}
    for misses in sorted(
        report.uncertainty.cutoffs, key=lambda row: (row.target, row.k, place[row.strategy])
    ):
        calibration = report.calibration.strategies[misses.strategy]
        k = next((rule.k for rule in calibration.conformal if rule.level == _LEVEL), None)
        yield {
            **_source(report),
            **{name: getattr(misses, name) for name in ("strategy", "target", "k")},
            **_ends("observed", misses),
            "questions": misses.n_scored,
            "effective_questions": misses.n_effective,
            **_calibrated(report, misses),
            # Conformal K is for any gold among the first K.
            "k_for_90": k if misses.target == "miss_any" else None,
        }


def _calibrated(report: Report, misses: ObservedMisses) -> dict[str, object]:
    """Make the fields of the predictions; other targets and K have no stated miss rate."""
    part, calibration = report.uncertainty, report.calibration.strategies[misses.strategy]
    if (misses.target, misses.k) != (part.target, part.k):
        nothing = {**_ends("stated", None), **_ends("skill", None), **_ends("auroc", None)}
        reason = f"this run stated only {part.target}@{part.k}, as its gold_set.yaml says"
        return {**nothing, "status": None, "earned": None, "reason": reason}
    rates, quality = part.strategies[misses.strategy], calibration.validation
    stated = None if isinstance(rates.stated, Absent) else rates.stated
    reasons = [rates.stated.reason] if isinstance(rates.stated, Absent) else []
    reasons += [] if quality else [calibration.why.get("validation", "not validated")]
    return {
        **_ends("stated", stated),
        **_ends("skill", None if quality is None else quality.skill),
        **_ends("auroc", None if quality is None else quality.auroc),
        "status": rates.status,
        "earned": calibration.status,
        "reason": "; ".join(reasons),
    }


def _difference_rows(report: Report) -> Iterator[dict[str, object]]:
    """Yield observed differences of every target and K, then those of the predictions."""
    for pair in report.uncertainty.pairs:
        yield {
            **_paired(report, pair, pair),
            "target": pair.target,
            "k": pair.k,
            "measure": "observed",
            "smallest_detectable": pair.minimum_detectable,
            "questions": pair.n_better + pair.n_worse + pair.n_tied,
        }
    part = report.calibration
    for row in part.comparison.differences if part.comparison else ():
        if row.measure != "observed" and row.delta.value is not None:
            yield {
                **_paired(report, row, row.delta),
                "target": part.target,
                "k": part.k,
                "measure": row.measure,
                "smallest_detectable": row.detectable,
                "questions": row.delta.n,
            }


def _paired(
    report: Report, row: MissPair | MissDifference, delta: MissPair | CountedInterval
) -> dict[str, object]:
    return {
        **_source(report),
        "strategy": row.a,
        "against": row.b,
        **_ends("difference", delta),
        "p": row.p,
        "better": row.n_better,
        "worse": row.n_worse,
        "tied": row.n_tied,
        "effective_questions": delta.n_effective,
    }
