"""The graph of all stages, and whole evaluations in one process without Dagster."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rag_eval.core.settings import Settings
from rag_eval.pipeline import (
    answer_stages,
    corpus,
    measure_stages,
    miss_rate_stages,
    report_stages,
    retrieval,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.report_stages import GateVerdict, MetricsReport, MlflowRecord
from rag_eval.pipeline.runner import Runner, Stage
from rag_eval.reporting.report import Report
from rag_eval.storage.home import HOME_FOLDERS, open_home, sweep

STAGES: Final[tuple[Stage, ...]] = (
    corpus.read_corpus,
    corpus.cut_chunks,
    corpus.judge_evidence,
    corpus.admit_chunks,
    corpus.resolve_gold_set,
    retrieval.build_index,
    retrieval.retrieve,
    measure_stages.measure_rankings,
    measure_stages.measure_stability,
    measure_stages.measure_trust,
    answer_stages.answer_gold_set,
    answer_stages.check_citations,
    answer_stages.measure_answers,
    measure_stages.measure_with_ragas,
    miss_rate_stages.collect_signals,
    miss_rate_stages.state_miss_rates,
    measure_stages.trace_misses,
    miss_rate_stages.record_outcomes,
    miss_rate_stages.calibrate_miss_rates,
    miss_rate_stages.compare_miss_rates,
    report_stages.write_report,
    report_stages.write_page,
    report_stages.record_in_mlflow,
    report_stages.judge_report,
)


@functools.lru_cache(maxsize=16)
def open_runner(evaluation: Evaluation) -> Runner:
    """Open the runner of all stages. The same evaluation has the same runner, with its results."""
    return Runner(evaluation, STAGES, use_record=evaluation.use_record)


class Outcome(NamedTuple):
    """The result of one evaluation.

    `folder` holds the report's files. `failed` are the ids of the required gates that did not pass.
    `seconds` is the duration without MLflow. `recorded` is the run in MLflow, or what prevented it.
    `trace_error` says why there are no traces; empty when there are.
    """

    gold_set: str
    report: Report
    folder: Path
    failed: list[str]
    seconds: float
    recorded: MlflowRecord
    trace_error: str


def evaluate(evaluation: Evaluation) -> Outcome:
    """Run all stages of one gold set. An InputError leaves the reports as they were."""
    runner = open_runner(evaluation)
    seconds = sum(made.seconds for made in runner.run() if made.node.name != "mlflow_record")
    written, recorded = runner.get(MetricsReport), runner.get(MlflowRecord)
    return Outcome(
        evaluation.config.name,
        written.report,
        evaluation.reports,
        runner.get(GateVerdict).failed,
        seconds,
        recorded,
        written.trace_error,
    )


ANOTHER_HOME_S = 3600.0
"""Age in seconds at which a half-written report is removed. A run may still write a younger one."""


def evaluate_all(evaluations: Sequence[Evaluation], settings: Settings) -> list[Outcome]:
    """Evaluate several gold sets in sequence, each under its lock.

    The primary gold set runs last, so that its report is the newest. The top of the folder of
    reports shows only the complete primary gold set.
    """
    primary = settings.primary_gold_set
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.config.name == primary)
    home = open_home(settings).folder
    outcomes = []
    for evaluation in ordered:
        with evaluation.lock as lock:
            sweep(home, *HOME_FOLDERS, older_than_s=lock.leftover_age_s)
            sweep(settings.reports, "", "*", older_than_s=ANOTHER_HOME_S)
            outcomes.append(evaluate(evaluation))
    return outcomes
