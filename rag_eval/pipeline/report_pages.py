"""The report as a result, and the stages that show it: its page, MLflow and the verdict."""

import json
from collections.abc import Mapping
from typing import Any, Final

from rag_eval.core.errors import quoted
from rag_eval.core.settings import VIEW_PORT
from rag_eval.gates.gate import GatePart
from rag_eval.gates.verdict import required_failures
from rag_eval.pipeline.report_parts import (
    EVIDENCE_FILE,
    PAGE,
    MetricsReport,
    publish,
)
from rag_eval.pipeline.runner import Result, Stage, Work, json_part
from rag_eval.reporting.html.page import build
from rag_eval.reporting.metrics_report import REPORT_FILE, dumps
from rag_eval.reporting.mlflow import record
from rag_eval.reporting.questions import slim
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.files import file_states, write_text
from rag_eval.storage.hashing import text_hash
from rag_eval.storage.secrets import without_secrets

# ---- The page of a finished report.

BYTES_PER_1000 = 3_000_000
"""Largest size of a page in bytes per 1,000 questions. Smaller gold sets have the same limit."""


class HtmlReport(Result):
    """Place of the page; empty when the settings want no page."""

    content_hash: str = json_part()
    about: dict[str, str | int] = json_part(volatile=True)


def _identify_pages(work: Work, retrieval_metrics_report: MetricsReport) -> object:
    """Identify the run that the pages show, and the pages in the folder of reports."""
    folder, run_id = work.evaluation.reports, retrieval_metrics_report.report.run_id
    return [run_id, file_states([folder / PAGE])]


@Stage(
    "html_report",
    "reporting",
    stores=("reports",),
    reads=("settings.html_report",),
    outside=_identify_pages,
    live=True,
    kinds=("html",),
)
def write_page(work: Work, retrieval_metrics_report: MetricsReport) -> HtmlReport:
    """Write index.html, which opens from disk."""
    report, path = retrieval_metrics_report.report, work.evaluation.reports / PAGE
    if not work.settings.html_report:
        return HtmlReport(content_hash=report.content_hash, about={})
    with work.progress.step("Writing the HTML report"):
        questions = work.evaluation.store.get("explorer", retrieval_metrics_report.explorer)
        write_text(path, built_page(report.dump(), questions))
    publish(work.evaluation, [path])
    places: dict[str, str | int] = {
        "page": str(path.resolve()),
        "page_bytes": path.stat().st_size,
        "viewer": f"http://127.0.0.1:{VIEW_PORT}/runs/{report.run_id}/",
    }
    return HtmlReport(content_hash=report.content_hash, about=places)


def built_page(report: Mapping[str, Any], bundle: Artifact | None) -> str:
    """Build the page of a report with the questions of a stored bundle."""
    limit = BYTES_PER_1000 * max(1000, report["gold"]["n_queries"]) // 1000
    # `dumps` sorts the keys, so a report from memory gives the same page as a report from a file.
    report = json.loads(dumps(report))
    return build(report, None if bundle is None else lambda left: slim(bundle, left), limit)


# ---- The record in MLflow.

RECORDED: Final = (
    REPORT_FILE,
    PAGE,
    *("measures.csv", "per-query.parquet", EVIDENCE_FILE),
    *("answers.jsonl", "auditable-answers.jsonl", "citations.jsonl"),
)
"""Files that MLflow stores for every run."""


class MlflowRecord(Result):
    """The run in MLflow, or the reason why MLflow did not record the run.

    Attributes
    ----------
    runs_page
        Address of the runs of this gold set in the MLflow UI; empty after an error.
    """

    mlflow_run: str = json_part()
    runs_page: str = json_part(volatile=True)
    run_id: str = json_part(volatile=True)
    error: str = json_part()


def _identify_record(work: Work, retrieval_metrics_report: MetricsReport) -> object:
    """Identify the run, and the tracking store that it is recorded in."""
    return [retrieval_metrics_report.report.run_id, text_hash(work.settings.mlflow_uri)]


@Stage(
    "mlflow_record",
    "reporting",
    stores=("reports", "mlflow"),
    after=("html_report",),
    outside=_identify_record,
    kinds=("mlflow",),
    failure=lambda result: result.error,
)
def record_in_mlflow(work: Work, retrieval_metrics_report: MetricsReport) -> MlflowRecord:
    """Record the report in MLflow. A failure of the tracking store does not affect the report."""
    report, folder = retrieval_metrics_report.report, work.evaluation.reports
    uri, run, page, error = work.settings.mlflow_uri, "", "", ""
    home = work.evaluation.home
    paths = home.take(work.evaluation.shared_reports, folder) or folder.glob("*")
    here = {path.name: path for path in paths if path.is_file() and path.parent == folder}
    files = [here[name] for name in RECORDED if name in here]
    try:
        run, page = record(
            report,
            work.config.name,
            uri,
            files,
            home.folder / "mlartifacts",
            tags=dict(work.evaluation.tags),
        )
    except Exception as failure:  # noqa: BLE001 - a tracking store may raise any exception
        reason = quoted(without_secrets(f"{type(failure).__name__}: {failure}", uri), 400)
        error = f"MLflow did not record this run ({reason}); the report is complete"
    recorded = MlflowRecord(mlflow_run=run, runs_page=page, run_id=report.run_id, error=error)
    recorded.is_lasting = not error
    return recorded


# ---- The verdict of the gates.


class GateVerdict(Result):
    """The gates of a report, and the ids of the required gates that did not pass."""

    shown = ("failed", "gates")
    content_hash: str = json_part()
    failed: list[str] = json_part()
    run_id: str = json_part(volatile=True)
    gates: list[GatePart] = json_part(volatile=True)


def _explain_failure(result: GateVerdict) -> str:
    """Say which required gates did not pass; empty when all did."""
    gates = ", ".join(result.failed)
    return f"required gates did not pass: {gates}" if gates else ""


@Stage(
    "gate_verdict",
    "reporting",
    after=("html_report", "mlflow_record"),
    outside=lambda _, retrieval_metrics_report: retrieval_metrics_report.report.run_id,
    kinds=("python",),
    failure=_explain_failure,
)
def judge_report(_: Work, retrieval_metrics_report: MetricsReport) -> GateVerdict:
    """Fail the run when a required gate did not pass. Everything else is written by then."""
    report = retrieval_metrics_report.report
    return GateVerdict(
        content_hash=report.content_hash,
        failed=required_failures(report.gates),
        run_id=report.run_id,
        gates=report.gates,
    )
