"""A whole evaluation in one process, outside Dagster: the same stages in the same order, then what is left behind."""

import dataclasses
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_eval.evaluation.answer_measure_steps import answer_measures
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.calibration_steps import miss_rate_calibration
from rag_eval.evaluation.citation_steps import citations
from rag_eval.evaluation.claim_steps import miss_rate_claims
from rag_eval.evaluation.corpus_steps import corpus_chunks, corpus_snapshot
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.html_steps import html_report, per_question
from rag_eval.evaluation.index_steps import IndexOpener, corpus_index
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.measure_steps import Runs, ranking_measures
from rag_eval.evaluation.outcome_steps import retrieval_outcomes
from rag_eval.evaluation.report_steps import PAGE, retrieval_metrics_report
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.evaluation.trace_steps import traces_or_error
from rag_eval.evaluation.trust_measure_steps import trust_measures
from rag_eval.evaluation.trust_steps import evidence_trust
from rag_eval.evaluation.uncertainty_steps import calibrated_miss_rates
from rag_eval.gates.verdicts import required_failures
from rag_eval.reporting.metrics_report import FILE_NAME
from rag_eval.reporting.mlflow_record import record
from rag_eval.settings import Settings
from rag_eval.storage.artifacts import ArtifactStore
from rag_eval.storage.atomic import atomic_path, sweep
from rag_eval.storage.credentials import without_secrets
from rag_eval.storage.locking import home_lock

ANOTHER_HOME_S = 3600.0
"""A half-written report of this age is no run's under another home that writes to the same reports."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one evaluation ended with.

    Parameters
    ----------
    gold_set
        Its name.
    report
        The finished report.
    folder
        Where its files are.
    failed
        Ids of required gates that did not pass.
    seconds
        Duration of the stages, without MLflow.
    mlflow_run
        Id of the MLflow parent run, None where recording failed.
    mlflow_error
        Why recording failed, without user and password of the tracking address.
    trace_error
        Why the traces could not be written.
    """

    gold_set: str
    report: dict[str, Any]
    folder: Path
    failed: list[str]
    seconds: float
    mlflow_run: str | None
    mlflow_error: str | None
    trace_error: str | None


class NotRecordedError(Exception):
    """MLflow did not record a run; says why, and nothing of what opens the tracking store."""


def report_files(folder: Path) -> list[Path]:
    """Files that MLflow keeps of every run; rankings and the CSV copy stay in the folder of reports."""
    names = (
        FILE_NAME,
        PAGE,
        "measures.csv",
        "per-query.parquet",
        "answers.jsonl",
        "citations.jsonl",
        "evidence-trust.jsonl",
        "reliability.png",
        "learning-curve.png",
    )
    return [folder / name for name in names if (folder / name).is_file()]


def mlflow_record(runs: Runs, report: dict[str, Any], tags: dict[str, str] | None = None) -> str:
    """Record a finished report in MLflow and return the parent run's id.

    Raises
    ------
    NotRecordedError
        Whatever the tracking store did; the report on disk stands.
    """
    evaluation, settings = runs.evaluation, runs.evaluation.settings
    files, questions, uri = (
        report_files(evaluation.reports),
        per_question(runs, report),
        settings.mlflow_uri,
    )
    with evaluation.progress.step("Recording in MLflow"):
        try:
            return record(
                report,
                evaluation.config.name,
                uri,
                files,
                settings.home / "mlartifacts",
                extra_tags=tags,
                questions=questions,
            )
        except Exception as failure:  # noqa: BLE001 - whatever a tracking store raises
            reason = without_secrets(f"{type(failure).__name__}: {failure}", uri)
    raise NotRecordedError(
        reason
    )  # outside of the handler: neither cause nor context repeats the address


def publish(evaluation: Evaluation, report_folder: Path) -> None:
    """Copy the primary gold set's page and report to the top of the folder of reports, atomically and last."""
    (evaluation.settings.reports / PAGE).unlink(
        missing_ok=True
    )  # at no moment stands a page beside another run's report
    for name in (FILE_NAME, PAGE):
        if not (report_folder / name).is_file():
            continue
        with atomic_path(evaluation.settings.reports / name) as partial:
            shutil.copyfile(report_folder / name, partial)


def evaluate(evaluation: Evaluation, *, primary: bool) -> Outcome:
    """Run all stages of one gold set.

    Parameters
    ----------
    evaluation
        What to evaluate.
    primary
        Whether its report is also the one at the top of the folder of reports.

    Raises
    ------
    InputError
        The input cannot be used; nothing was written to the reports.
    """
    started = time.perf_counter()
    opened = IndexOpener(evaluation)
    runs = Runs(evaluation, opened)
    corpus_snapshot(evaluation)
    corpus_chunks(evaluation)
    evidence_trust(evaluation)
    gold_variants(evaluation)  # a gold set with errors ends the run before anything is indexed
    corpus_index(evaluation, opened)
    for name in runs.names:
        runs.artifact(name)
    ranking_measures(runs)
    stability_measures(runs)
    trust_measures(runs)
    answers(runs)
    citations(runs)
    answer_measures(runs)
    miss_rate_claims(runs)
    retrieval_outcomes(runs)
    miss_rate_calibration(runs)
    calibrated_miss_rates(runs)
    report = retrieval_metrics_report(evaluation, opened, runs)
    html_report(runs, report)
    if primary:
        publish(evaluation, evaluation.reports)
    seconds = time.perf_counter() - started
    trace_error = traces_or_error(runs, report)
    run_id, error = None, None
    try:
        run_id = mlflow_record(runs, report)
    except Exception as failure:  # noqa: BLE001 - whatever a tracking store does, the report on disk stands; the caller shows the error
        error = (
            str(failure)
            if isinstance(failure, NotRecordedError)
            else f"{type(failure).__name__}: {failure}"
        )
    return Outcome(
        evaluation.config.name,
        report,
        evaluation.reports,
        required_failures(report["gates"]),
        seconds,
        run_id,
        error,
        trace_error,
    )


def evaluate_all(evaluations: Sequence[Evaluation], settings: Settings) -> list[Outcome]:
    """Evaluate several gold sets, one after the other, holding the home; the primary one last, so that its report is written last.

    Only the whole primary gold set is also published at the top of the folder of reports.
    """
    primary = settings.primary_gold_set
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.config.name == primary)
    with home_lock(settings.home):
        ArtifactStore(settings.home / "artifacts").sweep()
        sweep(settings.home, "", "runs", "embeddings/*")
        sweep(settings.reports, "", "*", older_than_s=ANOTHER_HOME_S)
        return [
            evaluate(
                evaluation,
                primary=evaluation.config.name == primary
                and evaluation.known
                and not evaluation.partial,
            )
            for evaluation in ordered
        ]
