"""The MLflow record of an evaluation: one parent run, and one child run for each strategy.

The inputs of the parent run are the corpus and the gold set. Its artifacts are the files of the
report. The report is on disk before the record starts, so that no failure here loses the report. No
other file imports mlflow.
"""

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rag_eval.core.records import Absent, Estimate, Interval
from rag_eval.gates.gate import count_gates
from rag_eval.reporting.report import Report
from rag_eval.storage.secrets import shown_service

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

EXPERIMENT = "rag_eval"
MAX_PARAM = 500
PORT = 5000
"""Port of the MLflow UI that `make ui` starts."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag that opens the MLflow UI on runs and metrics, because the experiment has no traces."""
_SQLITE = "sqlite:///"


def _flatten(figures: Mapping[str, Estimate | Interval | float | None]) -> dict[str, float]:
    """Write every figure as one metric, an estimate as three; leave nulls out."""
    metrics: dict[str, float | None] = {}
    for name, figure in figures.items():
        if isinstance(figure, Estimate | Interval):
            names = (name, f"{name}.ci_low", f"{name}.ci_high")
            metrics |= dict(zip(names, figure.triple, strict=True))
        else:
            metrics[name] = figure
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _strategy_metrics(report: Report, name: str) -> dict[str, float]:
    """Collect the metrics of one strategy; measures of other levels are without bounds."""
    entry = next(entry for entry in report.strategies if entry.name == name)
    part, calibration = report.uncertainty, report.calibration.strategies[name]
    figures: dict[str, Estimate | Interval | float | None] = {
        **{f"latency_{at}_ms": getattr(entry.latency_ms, at) for at in ("p50", "p95", "p99")},
        "cost_per_1k": entry.cost_per_1k,
        f"{part.target}_at_{part.k}": part.strategies[name].observed[part.target],
        "outcomes": calibration.counts.outcomes,
        "delta_s": report.stability.strategies[name].delta_s.value,
    }
    for record in entry.measures:
        is_headline = record.level == report.evaluation.level
        key = record.name if is_headline else f"{record.level}.{record.name}"
        figures[key] = record if is_headline else record.value
    if (validation := calibration.validation) is not None:
        figures |= {
            "brier": validation.brier,
            "brier_skill": validation.skill,
            "auroc": validation.auroc,
            "calibration_slope": validation.slope,
            "ece": validation.ece.value,
        }
    return _flatten(figures)


def _report_metrics(report: Report) -> dict[str, float]:
    """Collect the metrics of a run: answers, citations, trust, cache."""
    trust = report.trust.retrieved[report.strategy]
    figures: dict[str, Estimate | float | None] = {
        "faithfulness": report.faithfulness,
        "avg_trust_score": trust.avg_trust,
        "poisoned_blocked": report.poisonedBlocked,
        "chunks_blocked": report.trust.poisoning.n_blocked,
        "chunks_warned": report.trust.poisoning.n_warned,
        "blocked_retrieved": trust.n_blocked,
        "cache_hit_rate": report.cacheHitRate,
    }
    for part in (report.answers, report.citations):
        if not isinstance(part, Absent):
            figures |= {measure.name: measure for measure in part.measures}
    if not isinstance(report.answers, Absent):
        figures["retrieval_gap_flagged"] = report.answers.gap.n_flagged
    return _flatten(figures)


def _tags(report: Report, extra: Mapping[str, str]) -> dict[str, str]:
    return {
        "index_hash": report.index.hash,
        "rev": report.index.rev,
        "gold_hash": report.gold.hash,
        "chunks_hash": report.index.chunks_hash,
        "content_hash": report.content_hash,
        "rag_eval.run_id": report.run_id,
        "rag_eval.version": report.version,
        "gates": count_gates((gate.required, gate.status) for gate in report.gates),
        **extra,
    }


def _make_store(uri: str) -> None:
    """Make a missing SQLite store in a temporary folder, then move the store to its place.

    MLflow needs seconds to make its tables, and cannot repair a store that is only half made.
    """
    from mlflow import MlflowClient

    place = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or "?" in uri or place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".partial-") as folder:
        partial = Path(folder) / place.name
        MlflowClient(tracking_uri=f"{_SQLITE}{partial}").search_experiments(max_results=1)
        partial.replace(place)


def _runs_page(uri: str, experiment_id: str) -> str:
    """Return the address of the runs of an experiment in the MLflow UI, without credentials.

    For a store without a server, the address is that of `make ui`.
    """
    is_server = uri.startswith(("http:", "https:"))
    server = shown_service(uri).rstrip("/") if is_server else f"http://127.0.0.1:{PORT}"
    return f"{server}/#/experiments/{experiment_id}/runs"


def record(
    report: Report,
    gold_set: str,
    uri: str,
    files: Sequence[Path],
    artifacts: Path,
    *,
    tags: Mapping[str, str],
) -> tuple[str, str]:
    """Write the record; return the parent's run id and the address of the runs.

    `files` become artifacts of the parent run, in the folder `artifacts` for a local tracking
    store; a server has its own. `tags` are more tags, for example `dagster.run_id`.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # This logger prints a traceback for errors that are raised as well.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    from mlflow import MlflowClient

    _make_store(uri)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(f"{EXPERIMENT}/{gold_set}")
    if experiment is None:
        place = artifacts.resolve().as_uri() if uri.startswith("sqlite:") else None
        experiment_id = client.create_experiment(f"{EXPERIMENT}/{gold_set}", place, KIND)
    else:
        experiment_id = experiment.experiment_id
    all_tags = _tags(report, tags)
    params = {
        "gold_set": gold_set,
        "primary": report.strategy,
        **report.evaluation.dump(),
        "n_queries": report.gold.n_queries,
        "n_chunks": report.index.n_chunks,
    }
    with _started_run(client, experiment_id, report.run_id) as parent:
        figures = _strategy_metrics(report, report.strategy) | _report_metrics(report)
        _log(client, parent, figures, params, all_tags)
        for entry in report.strategies:
            params = {
                "miss_rate_status": report.calibration.strategies[entry.name].status,
                "kind": entry.kind,
                "embed_model": entry.embed_model or "none",
                "rerank": entry.rerank or "none",
            }
            child_tags = {**all_tags, "index_hash": entry.index_hash}
            with _started_run(client, experiment_id, entry.name, parent) as child:
                _log(client, child, _strategy_metrics(report, entry.name), params, child_tags)
        client.log_inputs(parent, _inputs(report, gold_set))
        for path in files:
            client.log_artifact(parent, str(path))
    return parent, _runs_page(uri, experiment_id)


@contextlib.contextmanager
def _started_run(
    client: "MlflowClient", experiment_id: str, name: str, parent: str = ""
) -> Iterator[str]:
    """Start a run, yield its id, and end the run as FINISHED, or as FAILED after an error."""
    tags = {"mlflow.parentRunId": parent} if parent else None
    run_id: str = client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
    status = "FAILED"
    try:
        yield run_id
        status = "FINISHED"
    finally:
        client.set_terminated(run_id, status)


def _log(
    client: "MlflowClient",
    run_id: str,
    metrics: Mapping[str, float],
    params: Mapping[str, object],
    tags: Mapping[str, str],
) -> None:
    from mlflow.entities import Metric, Param, RunTag

    moment = int(time.time() * 1000)
    client.log_batch(
        run_id,
        metrics=[Metric(key, value, moment, 0) for key, value in metrics.items()],
        params=[Param(key, str(value)[:MAX_PARAM]) for key, value in params.items()],
        tags=[RunTag(key, value) for key, value in tags.items()],
    )


def _inputs(report: Report, gold_set: str) -> list["DatasetInput"]:
    """Name the corpus and the gold set by their hashes, as MLflow's data sets."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = []
    for kind, whole in (("corpus", report.index.chunks_hash), ("gold", report.gold.hash)):
        source = json.dumps({"hash": whole})
        dataset = Dataset(f"{gold_set}/{kind}", whole[:36], "rag_eval", source)
        inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", kind)]))
    return inputs
