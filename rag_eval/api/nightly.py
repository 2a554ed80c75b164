"""Run the whole evaluation of a gold set, and read written reports as frames."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import pandas as pd

from rag_eval.api.results import Tabular
from rag_eval.core.errors import InputError
from rag_eval.core.parts import explain_missing
from rag_eval.reporting.exchange import trec_scores
from rag_eval.reporting.miss_rates import MissRateTables
from rag_eval.reporting.report import REPORT_FILE, Report, read_object, whole_report
from rag_eval.reporting.verdicts import verdict_rows

ReportLike: TypeAlias = "WrittenReport | str | Path"
PER_QUERY_FILE = "per-query.parquet"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class WrittenReport(Tabular):
    """A report on disk, with its figures as frames.

    Attributes
    ----------
    table
        A row for each strategy, level and measure: `value`, `ci_low`, `ci_high`, `questions`,
        `effective_questions`, `failed` (retrievals failed and score 0) and `without_relevant`
        (questions left out).
    comparisons
        Paired differences between strategies: `difference` is strategy minus against.
    miss_rates
        A row for each strategy: `status`, the `stated` and the `observed` miss rate with its
        interval.
    gates
        A row for each gate: `gate`, `required`, `status`, `reason`, `evidence`.
    runs
        The run of each strategy, by name: its lowest seed, under every wording.
    qrels
        The judgements of the questions, a TREC file.
    report
        The whole report, typed.
    folder
        The folder of the report.
    """

    comparisons: pd.DataFrame
    miss_rates: pd.DataFrame
    gates: pd.DataFrame
    report: Report
    folder: Path

    @property
    def passed(self) -> bool:
        """Whether every required gate passed."""
        return not verdict_rows(self.report).failed

    @property
    def runs(self) -> dict[str, pd.DataFrame]:
        """Read each strategy's run, as `evaluate` reads it."""
        rows = pd.read_parquet(self.folder / "runs.parquet")
        rows = rows[rows["seed"] == rows.groupby("strategy")["seed"].transform("first")]
        return {
            str(name): part[["qid", "docno"]].assign(score=trec_scores(part)[0])
            for name, part in rows.groupby("strategy", sort=False)
        }

    @property
    def qrels(self) -> Path:
        """Return the file of judgements, as `evaluate` reads it."""
        return self.folder / "qrels.trec"

    @property
    def wordings(self) -> "pd.Series[str]":
        """Read the question that each query of `runs` asks, as `evaluate` reads it."""
        return pd.read_parquet(self.folder / "questions.parquet").set_index("qid")["query_id"]

    @property
    def per_query(self) -> pd.DataFrame:
        """Read the measures of each strategy, level, question, wording and seed."""
        return pd.read_parquet(self.folder / PER_QUERY_FILE)


def run(gold_set: str | Path) -> WrittenReport:
    """Evaluate a gold set as `rag-eval run` does, and return its report.

    Settings are those of the command: `settings.toml` and the environment. A second run computes
    only what changed. A failed gate is no error; see `WrittenReport.passed`.

    Parameters
    ----------
    gold_set
        Folder of the gold set, such as `gold_sets/pandas_api`.

    Raises
    ------
    ImportError
        Only the core is installed; the message names the extra.
    InputError
        The gold set cannot be used.

    Examples
    --------
    >>> report = run("gold_sets/smoke")  # doctest: +SKIP
    >>> report.table.loc[("hybrid", "document", "R@10"), "value"]  # doctest: +SKIP
    """
    if missing := explain_missing("rag_eval.run"):
        raise ImportError(missing)
    from rag_eval.core.settings import Settings, telemetry_off

    telemetry_off()
    from rag_eval.pipeline.opening import open_gold_set
    from rag_eval.pipeline.stages import evaluate_all

    settings = Settings()
    (outcome,) = evaluate_all([open_gold_set(Path(gold_set), settings)], settings)
    return load(outcome.folder)


def load(report: str | Path) -> WrittenReport:
    """Read a written report; the core suffices.

    Parameters
    ----------
    report
        Folder of a report, such as `reports/pandas_api`, its `retrieval-metrics.json`, or a kept
        run of a home, `.rag_eval/runs/<run id>.json`.

    Raises
    ------
    InputError
        There is no report, or it is not whole, was changed, or is of another version.

    Examples
    --------
    >>> load("reports/absent")
    Traceback (most recent call last):
        ...
    rag_eval.core.errors.InputError: ...retrieval-metrics.json: error run_not_found: ...
    """
    path = Path(report) if os.fspath(report).endswith(".json") else Path(report) / REPORT_FILE
    written = read_object(path)
    whole = whole_report(written.get("report", written), path)
    return WrittenReport(
        _measures(whole), _comparisons(whole), _miss_rates(whole), _gates(whole), whole, path.parent
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ComparedMissRates(Tabular):
    """Calibrated miss rates of several strategies, targets and K, over gold sets and nights.

    Attributes
    ----------
    table
        A row for each `gold_set`, `night`, `strategy`, `target` and `k`. `observed` is the share of
        questions missed, over so many `questions`, worth `effective_questions` independent ones.
        `stated` is the mean miss rate that the run stated before its gold was read, under `status`.
        `skill` (Brier) and `auroc` are of predictions for groups of questions outside the fit, and
        `earned` is the status that the outcomes support. `k_for_90` is the conformal K. `_low` and
        `_high` bound 95 % intervals. A run calibrates one target and K; other rows are observed
        only, and `reason` says why a figure is missing. Rows of the calibrated target come first.
    differences
        Paired differences, `strategy` minus `against`. The figure (`measure`) is `observed` misses
        of every target and K; for the calibrated target also `raw` (uncalibrated) and `calibrated`
        miss rates, their `brier` score and `skill`. `p_holm` is adjusted over all rows of a figure.
        `smallest_detectable` is found with 80 % power.
    """

    differences: pd.DataFrame
    _tables: MissRateTables

    def to_latex(self) -> str:
        """Write `table` as a LaTeX table (package booktabs)."""
        return self._tables.tables[0].tex()

    def write(self, folder: str | Path) -> list[Path]:
        """Write both tables as CSV and LaTeX; return the paths."""
        return self._tables.write(Path(folder))


def compare_miss_rates(*reports: ReportLike) -> ComparedMissRates:
    """Compare the miss rates of reports: of several gold sets, and of several nights.

    Parameters
    ----------
    reports
        Reports of `run` or `load`, or what `load` reads.

    Raises
    ------
    InputError
        No report is given, or a report cannot be read.

    Examples
    --------
    >>> found = compare_miss_rates("reports/scifact", "reports/npl")  # doctest: +SKIP
    >>> found.table.query("target == 'miss_any' and k == 10")  # doctest: +SKIP
    """
    if not reports:
        message = "a comparison of miss rates needs at least one report"
        raise InputError.of("bad_arguments", message, field="reports")
    written = [report if isinstance(report, WrittenReport) else load(report) for report in reports]
    tables = MissRateTables([night.report for night in written])
    return ComparedMissRates(*tables.frames(), tables)


def _measures(report: Report) -> pd.DataFrame:
    rows = [
        {"strategy": part.name, **measure.dump()}
        for part in report.strategies
        for measure in part.measures
    ]
    counts = ["n_scored", "n_effective", "n_failed", "n_ineligible"]
    return _frame(rows, ["strategy", "level", "label"], [*_ESTIMATE, *counts])


def _comparisons(report: Report) -> pd.DataFrame:
    columns = ["delta", "ci_low", "ci_high", "p", "p_adjusted", "minimum_detectable"]
    columns += ["n_better", "n_worse", "n_tied", "n_effective"]
    rows = [pair.dump() for pair in report.comparisons]
    return _frame(rows, ["a", "b", "level", "measure"], columns)


def _miss_rates(report: Report) -> pd.DataFrame:
    rows = [
        {
            "strategy": name,
            "status": part.status,
            "stated": part.stated.value,
            **part.observed[report.uncertainty.target].dump(),
        }
        for name, part in report.uncertainty.strategies.items()
    ]
    columns = ["status", "stated", *_ESTIMATE, "n_scored", "n_effective"]
    return _frame(rows, ["strategy"], columns).rename(columns={"value": "observed"})


def _gates(report: Report) -> pd.DataFrame:
    rows = [dataclasses.asdict(row) for row in verdict_rows(report).rows]
    return _frame(rows, ["id"], ["required", "status", "reason_code", "evidence"])


_ESTIMATE: Final = ("value", "ci_low", "ci_high")
_FIGURES: Final = {*_ESTIMATE, "delta", "p", "p_adjusted", "stated"}
_NAMES: Final = {
    "label": "measure",
    "a": "strategy",
    "b": "against",
    "delta": "difference",
    "p_adjusted": "p_holm",
    "minimum_detectable": "smallest_detectable",
    "n_scored": "questions",
    "n_effective": "effective_questions",
    "n_ineligible": "without_relevant",
    "id": "gate",
    "reason_code": "reason",
} | {f"n_{name}": name for name in ("failed", "better", "worse", "tied")}
"""Names of a frame for the fields of a report that it calls otherwise."""


def _frame(
    rows: Sequence[Mapping[str, object]], index: list[str], columns: list[str]
) -> pd.DataFrame:
    """Make a frame of some fields of the rows of a report; a null of a figure becomes NaN."""
    frame = pd.DataFrame(rows, columns=[*index, *columns])
    frame = frame.astype(dict.fromkeys(_FIGURES.intersection(columns), float))
    return frame.rename(columns=_NAMES).set_index([_NAMES.get(name, name) for name in index])
