"""Gold sets from Python: run one, ask it live questions, and read its written reports as frames."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pandas as pd

from rag_eval.api.results import Tabular
from rag_eval.core.errors import InputError
from rag_eval.core.parts import explain_missing
from rag_eval.reporting.exchange import trec_scores
from rag_eval.reporting.miss_rates import MissRateTables
from rag_eval.reporting.report import REPORT_FILE, Report, read_object, whole_report
from rag_eval.reporting.verdicts import verdict_rows
from rag_eval.uncertainty.confidence import Derived

if TYPE_CHECKING:
    from rag_eval.pipeline.live_questions import LiveStrategy

ReportLike: TypeAlias = "WrittenReport | str | Path"


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
        A row for each strategy: `status`, `stated` and `observed` miss rate with its interval.
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
        return pd.read_parquet(self.folder / "per-query.parquet")


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
        return self._tables.to_latex()

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
    """
    if not reports:
        message = "a comparison of miss rates needs at least one report"
        raise InputError.of("bad_arguments", message, field="reports")
    written = [report if isinstance(report, WrittenReport) else load(report) for report in reports]
    tables = MissRateTables([night.report for night in written])
    return ComparedMissRates(tables.figures, tables.differences, tables)


# ---- Live questions


def estimate_miss_rate(
    query: str,
    documents: Sequence[object],
    scores: Sequence[float],
    history: Sequence[bool] | None = None,
) -> Derived:
    """Guess the probability that a retrieval missed, by the formula `heuristic_v0`.

    The guess needs no gold set and is always uncalibrated: it is the baseline that calibrated miss
    rates must beat. Do not discount an answer by it.

    Parameters
    ----------
    query
        The question.
    documents
        The retrieved documents, best first. Only their number counts.
    scores
        The score of each document: a cosine or another similarity. If a score is above 1, all are
        divided by the top score. Negative scores count as 0.
    history
        Whether each similar judged question missed. Their rate is drawn towards 0.3, as by five
        questions of that rate. Without such questions the formula takes 0.3.

    Returns
    -------
    Derived
        A confidence value: `value` is the miss rate, `formula` the formula, and `inputs` has every
        part of it with its provenance.

    Raises
    ------
    ImportError
        Only the core is installed; the message names the extra.
    InputError
        The query is too long, a score is not finite, or documents and scores differ in number.

    Examples
    --------
    >>> guess = estimate_miss_rate("How do I sort by two columns?", ["d1", "d2"], [0.62, 0.41])
    >>> round(guess.value, 3)
    0.4
    >>> guess.inputs["history"].basis
    'no similar judged question is known, so the formula takes 0.3'
    """
    if missing := explain_missing("rag_eval.estimate_miss_rate"):
        raise ImportError(missing)
    from rag_eval.uncertainty.heuristic import estimate
    from rag_eval.uncertainty.outcomes import MAX_QUERY

    if len(query) > MAX_QUERY:
        accepted = f"at most {MAX_QUERY:,} characters"
        raise InputError.of("bad_question", "too long", field="query", accepted=accepted)
    if len(documents) != len(scores) or not np.isfinite(np.array(scores, dtype=float)).all():
        counts = f"{len(documents)} documents, scores {list(scores)[:5]}"
        message, accepted = "these are no scores", "one finite number for each document"
        raise InputError.of("bad_scores", message, field="scores", found=counts, accepted=accepted)
    return estimate(query, scores, history)


def open_strategy(gold_set: str | Path, strategy: str = "") -> "LiveStrategy":
    """Open a strategy of a gold set for live questions; open it once for many questions.

    `retrieve` of the opened strategy takes a question of 1 to 10,000 characters and returns an
    `UncertainRetrieval`: documents, miss rate, gaps, coverage and rounds. The miss rate is
    calibrated where the last run of the gold set left a calibrator for the same index and
    configuration. Otherwise it comes from the shipped prior, or from `heuristic_v0`.
    `miss_rate.status` and `miss_rate.calibrator` say which; `reason` says why.

    Parameters
    ----------
    gold_set
        Folder of the gold set, such as `gold_sets/pandas_api`.
    strategy
        Name of a strategy that is not external. Default: the primary strategy.

    Raises
    ------
    ImportError
        Only the core is installed; the message names the extra.
    InputError
        The gold set cannot be used, or has no such strategy; of `retrieve`: the question cannot be
        used, or the retrieval failed.
    """
    if missing := explain_missing("rag_eval.open_strategy"):
        raise ImportError(missing)
    from rag_eval.core.settings import Settings, telemetry_off

    telemetry_off()
    from rag_eval.pipeline.live_questions import open_live
    from rag_eval.pipeline.opening import open_gold_set

    return open_live(open_gold_set(Path(gold_set), Settings()), strategy)


# ---- Frames of a report

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
_FIGURES: Final = frozenset("value ci_low ci_high delta p p_adjusted stated".split())


def _frame(rows: Sequence[Mapping[str, object]], index: str, columns: str) -> pd.DataFrame:
    """Make a frame of some fields of rows; a null of a figure becomes NaN."""
    names = columns.split()
    frame = pd.DataFrame(rows, columns=[*index.split(), *names])
    frame = frame.astype(dict.fromkeys(_FIGURES.intersection(names), float))
    return frame.rename(columns=_NAMES).set_index(
        [_NAMES.get(name, name) for name in index.split()]
    )


def _measures(report: Report) -> pd.DataFrame:
    rows = [
        {"strategy": part.name, **measure.dump()}
        for part in report.strategies
        for measure in part.measures
    ]
    columns = "value ci_low ci_high n_scored n_effective n_failed n_ineligible"
    return _frame(rows, "strategy level label", columns)


def _comparisons(report: Report) -> pd.DataFrame:
    rows = [pair.dump() for pair in report.comparisons]
    columns = "delta ci_low ci_high p p_adjusted minimum_detectable"
    return _frame(rows, "a b level measure", f"{columns} n_better n_worse n_tied n_effective")


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
    columns = "status stated value ci_low ci_high n_scored n_effective"
    return _frame(rows, "strategy", columns).rename(columns={"value": "observed"})


def _gates(report: Report) -> pd.DataFrame:
    rows = [vars(row) for row in verdict_rows(report).rows]
    return _frame(rows, "id", "required status reason_code evidence")
