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
from typing import TYPE_CHECKING, Any

from rag_eval.core.config import Level
from rag_eval.core.report import Absent, Estimate, Report, StrategyPart

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

EXPERIMENT = "rag_eval"
MAX_PARAM = 500
PER_QUESTION = "per-question.json"
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag that opens the MLflow UI on runs and metrics, because the experiment has no traces."""
_SQLITE = "sqlite:///"


def _with_bounds(name: str, figure: Estimate) -> dict[str, float | None]:
    return {name: figure.value, f"{name}.ci_low": figure.ci_low, f"{name}.ci_high": figure.ci_high}


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items() if value is not None}


def strategy_metrics(entry: StrategyPart, level: Level) -> dict[str, float]:
    """Collect the metrics of one strategy under names that MLflow accepts; leave nulls out."""
    found: dict[str, float | None] = {
        f"latency_{name}_ms": getattr(entry.latency_ms, name) for name in ("p50", "p95", "p99")
    }
    for measure in entry.measures:
        if measure.level == level:
            found |= _with_bounds(measure.name, measure)
        else:
            found[f"{measure.level}.{measure.name}"] = measure.value
    return _known(found | {"cost_per_1k": entry.cost_per_1k})


def answer_metrics(report: Report) -> dict[str, float]:
    """Collect the measures of answers and citations, bounds beside their values."""
    found: dict[str, float | None] = {"faithfulness": report.faithfulness}
    for part in (report.answers, report.citations):
        for measure in () if isinstance(part, Absent) else part.measures:
            found |= _with_bounds(measure.name, measure)
    if not isinstance(report.answers, Absent):
        found["retrieval_gap_flagged"] = report.answers.gap.n_flagged
    return _known(found)


def _trust_metrics(report: Report) -> dict[str, float]:
    guard, retrieved = report.trust.poisoning, report.trust.retrieved[report.strategy]
    return _known(
        {
            **_with_bounds("avg_trust_score", retrieved.avg_trust),
            "poisoned_blocked": report.poisonedBlocked,
            "chunks_blocked": guard.n_blocked,
            "chunks_warned": guard.n_warned,
            "blocked_retrieved": retrieved.n_blocked,
        }
    )


def _miss_rate_metrics(report: Report, name: str) -> dict[str, float]:
    part, entry = report.uncertainty, report.calibration.strategies[name]
    found = _with_bounds(f"{part.target}_at_{part.k}", part.strategies[name].observed[part.target])
    about = entry.validation
    if about is not None:
        for label, figure in (
            ("brier", about.brier),
            ("brier_skill", about.skill),
            ("auroc", about.auroc),
            ("calibration_slope", about.slope),
        ):
            found[label] = figure.value
            found |= {f"{label}.ci_low": figure.low, f"{label}.ci_high": figure.high}
        found["ece"] = about.ece.value
    return _known(found | {"outcomes": entry.counts.outcomes})


def note(report: Report) -> str:
    """Describe a run in Markdown for the top of its MLflow page."""
    failed = [f"`{gate.id}`" for gate in report.gates if gate.status != "pass"]
    lines = [
        (
            "Open the artifact **index.html** for the whole report, "
            "**per-question.json** for the questions."
        ),
        "",
        f"- index `{report.index.hash}`",
        f"- gold `{report.gold.hash}`",
        f"- gates that did not pass: {', '.join(failed) or 'none'}",
    ]
    return "\n".join(lines)


def _tags(report: Report, extra: Mapping[str, str]) -> dict[str, str]:
    return {
        "index_hash": report.index.hash,
        "rev": report.index.rev,
        "gold_hash": report.gold.hash,
        "chunks_hash": report.index.chunks_hash,
        "content_hash": report.content_hash,
        "rag_eval.run_id": report.run_id,
        "rag_eval.version": report.version,
        "mlflow.note.content": note(report),
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


def _log_table(client: "MlflowClient", run_id: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Log the artifact and the tag that MLflow's log_table makes, which warns under pandas 3."""
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    client.log_text(run_id, json.dumps({"columns": list(columns), "data": rows}), PER_QUESTION)
    client.set_tag(
        run_id, "mlflow.loggedArtifacts", json.dumps([{"path": PER_QUESTION, "type": "table"}])
    )


def record(
    report: Report,
    gold_set: str,
    uri: str,
    files: Sequence[Path],
    artifacts: Path,
    *,
    tags: Mapping[str, str],
    questions: Mapping[str, Sequence[Any]],
) -> str:
    """Write the record and return the parent's run id.

    `gold_set`: name of the gold set; each gold set has an MLflow experiment.
    `uri`: tracking address.
    `files`: files that become artifacts of the parent run.
    `artifacts`: folder of artifacts for a local tracking store; a server has its own.
    `tags`: more tags, for example `dagster.run_id`.
    `questions`: columns of the per-question table.
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
    all_tags, level = _tags(report, tags), report.evaluation.level
    with _started_run(client, experiment_id, report.run_id) as parent:
        figures = strategy_metrics(report.primary, level) | answer_metrics(report)
        figures |= _trust_metrics(report) | _known({"cache_hit_rate": report.cacheHitRate})
        params = {
            "gold_set": gold_set,
            "primary": report.strategy,
            **report.evaluation.dump(),
            "n_queries": report.gold.n_queries,
            "n_chunks": report.index.n_chunks,
        }
        _log(client, parent, figures, params, all_tags)
        client.log_inputs(parent, _inputs(report, gold_set))
        for entry in report.strategies:
            with _started_run(client, experiment_id, entry.name, parent) as child:
                delta = report.stability.strategies[entry.name].delta_s.value
                figures = strategy_metrics(entry, level) | _known({"delta_s": delta})
                own = {
                    "miss_rate_status": report.calibration.strategies[entry.name].status,
                    "kind": entry.kind,
                    "embed_model": entry.embed_model or "none",
                    "rerank": entry.rerank or "none",
                }
                figures |= _miss_rate_metrics(report, entry.name)
                _log(client, child, figures, own, {**all_tags, "index_hash": entry.index_hash})
        for path in files:
            client.log_artifact(parent, str(path))
        if questions:
            _log_table(client, parent, questions)
    return parent


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
    from mlflow.entities import Dataset, DatasetInput, InputTag

    index, gold = report.index, report.gold
    corpus = {"rev": index.rev, "n_documents": index.n_documents, "n_chunks": index.n_chunks}
    questions = {"n_queries": gold.n_queries, "n_paraphrases": gold.n_paraphrases}
    return [
        DatasetInput(
            Dataset(
                name=f"{gold_set}/{kind}",
                digest=digest[:36],
                source_type="rag_eval",
                source=json.dumps({"hash": digest}),
                profile=json.dumps(profile),
            ),
            [InputTag("mlflow.data.context", kind)],
        )
        for kind, digest, profile in (
            ("corpus", index.chunks_hash, corpus),
            ("gold", gold.hash, questions),
        )
    ]
