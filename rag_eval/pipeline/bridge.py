"""Rows of the graph for stages that still read their inputs by themselves.

Each function here calls an older stage with `Runs` and describes its result. To convert a stage,
give its row a stage function with inputs, the result type and `describe`, and delete the function
here. With the last function, delete this module.
"""

import shutil
from pathlib import Path
from typing import Any

from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.report import Report
from rag_eval.gates.verdict import required_failures
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.measures import HEADLINE, Runs, list_measures
from rag_eval.pipeline.retrieval import IndexOpener
from rag_eval.pipeline.runner import Result, Table, Work, json_part
from rag_eval.reporting.metrics_report import REPORT_FILE
from rag_eval.reporting.mlflow import record
from rag_eval.storage.artifacts import Artifact, atomic_path
from rag_eval.storage.secrets import without_secrets


class Bridged(Result):
    """The result of an older stage: its identity, its description, and the reason of a failure."""

    version: str = json_part()
    shown: dict[str, Any] = json_part(volatile=True)
    failure: str = json_part()


def describe(result: Bridged) -> dict[str, Any]:
    """Return the description of an older stage."""
    return {
        name: Table(tuple(value["columns"]), value["rows"]) if isinstance(value, dict) else value
        for name, value in result.shown.items()
    }


def failure(result: Bridged) -> str:
    """Return the reason why a job must fail after this stage; empty without one."""
    return result.failure


def _bridged(version: str, failure: str = "", /, **shown: Any) -> Bridged:
    return Bridged(version=version, failure=failure, shown=shown)


def _of_artifact(artifact: Artifact | None, **shown: Any) -> Bridged:
    if artifact is None:
        raise ValueError("a stage that is not configured was run")
    shown |= {"reused": artifact.reused, "made": str(artifact.folder.resolve())}
    return _bridged(artifact.key, **shown)


def runs_of(evaluation: Evaluation) -> Runs:
    """Return the runs of an evaluation, opened once."""
    return evaluation.once("runs", lambda: Runs(evaluation, IndexOpener(evaluation)))


def report_of(evaluation: Evaluation) -> Report:
    """Return the report of this evaluation, or else the report on disk."""

    def read() -> Report:
        path = evaluation.reports / REPORT_FILE
        if not path.is_file():
            message = "there is no report yet; materialize retrieval_metrics_report first"
            raise InputError(Problem("no_report", message, file=str(path)))
        return Report.model_validate_json(path.read_bytes(), strict=True)

    return evaluation.once("report", read)


def retrieval_metrics_report(work: Work, **_: Result | None) -> Bridged:
    """Write retrieval-metrics.json and the files beside it."""
    from rag_eval.pipeline.answers import traces_or_error
    from rag_eval.pipeline.report import retrieval_metrics_report as stage

    evaluation, runs = work.evaluation, runs_of(work.evaluation)
    report = stage(evaluation, runs.opened, runs)
    evaluation.once("report", lambda: report)
    publish(evaluation)
    entries = [entry.dump() for entry in report.strategies]
    latency = [{"strategy": entry["name"], **entry["latency_ms"]} for entry in entries]
    gates = [
        gate.dump() | {key: gate.evidence.get(key) for key in ("accepted", "value")}
        for gate in report.gates
    ]
    return _bridged(
        report.content_hash,
        run_id=report.run_id,
        content_hash=report.content_hash,
        index_hash=report.index.hash,
        strategy=report.strategy,
        recall_at_10=report.recallAt10,
        mrr=report.mrr,
        cache_hit_rate=report.cacheHitRate,
        n_queries=report.gold.n_queries,
        n_groups_answerable=report.gold.n_groups_answerable,
        **list_measures(entries, report.evaluation.level, HEADLINE),
        latency_ms=Table(("strategy", "n", "p50", "p95", "p99"), latency),
        gates=Table(("id", "required", "status", "reason_code", "value", "accepted"), gates),
        report=str(evaluation.reports.resolve()),
        trace_error=traces_or_error(runs, report.dump()) or "none",
    )


def html_report(work: Work, **_: Result | None) -> Bridged:
    """Write index.html and the tables of the page."""
    from rag_eval.pipeline.report import PAGE, TABLES
    from rag_eval.pipeline.report import html_report as stage

    evaluation = work.evaluation
    report, folder = report_of(evaluation), evaluation.reports.resolve()
    if stage(runs_of(evaluation), report) is None:
        return _bridged(report.content_hash, page="not written: html_report is off")
    publish(evaluation)
    port = work.settings.view_port
    return _bridged(
        report.content_hash,
        page=str(folder / PAGE),
        page_bytes=(folder / PAGE).stat().st_size,
        tables=str(folder / TABLES),
        viewer=f"http://127.0.0.1:{port}/runs/{report.run_id}/",
        **{path.stem.replace("-", "_"): str(path) for path in sorted(folder.glob("*.svg"))},
    )


def mlflow_record(work: Work, **_: Result | None) -> Bridged:
    """Record the report in MLflow. A failure of the tracking store does not affect the report."""
    from rag_eval.pipeline.report import questions_table

    evaluation, settings, uri = work.evaluation, work.settings, work.settings.mlflow_uri
    report = report_of(evaluation)
    try:
        run = record(
            report,
            evaluation.config.name,
            uri,
            report_files(evaluation.reports),
            settings.home / "mlartifacts",
            tags=dict(evaluation.tags),
            questions=questions_table(runs_of(evaluation), report),
        )
    except Exception as error:  # noqa: BLE001 - a tracking store may raise any exception
        reason = quoted(without_secrets(f"{type(error).__name__}: {error}", uri), 400)
        return _bridged("", f"MLflow did not record this run ({reason}); the report is complete")
    return _bridged(run, mlflow_run=run, run_id=report.run_id)


def gate_verdict(work: Work, **_: Result | None) -> Bridged:
    """Show whether a required gate did not pass."""
    report = report_of(work.evaluation)
    gates = [gate.dump() for gate in report.gates]
    failed = required_failures(gates)
    statuses = ("pass", "fail", "insufficient_evidence")
    return _bridged(
        report.content_hash,
        f"required gates did not pass: {', '.join(failed)}" if failed else "",
        verdict="fail" if failed else "pass",
        required_failures=", ".join(failed) or "none",
        **{f"n_{status}": sum(gate["status"] == status for gate in gates) for status in statuses},
        gates=Table(("id", "severity", "required", "status", "reason_code"), gates),
        run_id=report.run_id,
    )


def report_files(folder: Path) -> list[Path]:
    """List the files that MLflow stores for every run."""
    names = [REPORT_FILE, "index.html", "measures.csv", "per-query.parquet", "answers.jsonl"]
    names += ["citations.jsonl", "evidence-trust.jsonl", "reliability.svg", "learning-curve.svg"]
    return [folder / name for name in names if (folder / name).is_file()]


def publish(evaluation: Evaluation) -> None:
    """Copy the primary gold set's report and page to the top of the folder of reports."""
    if not evaluation.is_primary:
        return
    top = evaluation.settings.reports
    # A page must never stand beside the report of another run.
    (top / "index.html").unlink(missing_ok=True)
    for name in (REPORT_FILE, "index.html"):
        if (evaluation.reports / name).is_file():
            with atomic_path(top / name) as partial:
                shutil.copyfile(evaluation.reports / name, partial)
