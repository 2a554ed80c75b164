"""The MLflow record of an evaluation: one parent run, one child run a strategy, the corpus and gold set as inputs, the files as artifacts.

The only file that imports mlflow. What fails here never loses the report, which is on disk before this starts.
"""

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "rag_eval"
MAX_PARAM = 500
PER_QUESTION = "per-question.json"
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Makes the MLflow UI open on runs and their metrics, not on traces, of which there are none."""
_SQLITE = "sqlite:///"


def strategy_metrics(entry: Mapping[str, Any], level: str) -> dict[str, float]:
    """Collect the metrics of one strategy under names that MLflow accepts; bounds of intervals beside their values, nulls left out."""
    found: dict[str, float | None] = {}
    for record in entry["measures"]:
        name = record["name"] if record["level"] == level else f"{record['level']}.{record['name']}"
        found[name] = record["value"]
        if record["level"] == level:
            found |= {f"{name}.ci_low": record["ci_low"], f"{name}.ci_high": record["ci_high"]}
    found |= {
        f"latency_{name}_ms": value
        for name, value in entry["latency_ms"].items()
        if name in {"p50", "p95", "p99"}
    }
    found["cost_per_1k"] = entry["cost_per_1k"]
    return {name: float(value) for name, value in found.items() if value is not None}


def answer_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Collect the measures of answers and citations, bounds beside their values; nothing where no answers were made."""
    found: dict[str, float | None] = {"faithfulness": report["faithfulness"]}
    for part in ("answers", "citations"):
        for record in report[part].get("measures", ()):
            found |= {
                record["name"]: record["value"],
                f"{record['name']}.ci_low": record["ci_low"],
                f"{record['name']}.ci_high": record["ci_high"],
            }
    if "gap" in report["answers"]:
        found["retrieval_gap_flagged"] = report["answers"]["gap"]["n_flagged"]
    return {name: float(value) for name, value in found.items() if value is not None}


def trust_metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Collect trust and poisoning figures; nulls left out."""
    guard, retrieved = (
        report["trust"]["poisoning"],
        report["trust"]["retrieved"][report["strategy"]],
    )
    average = retrieved["avg_trust"]
    found = {
        "avg_trust_score": average["value"],
        "avg_trust_score.ci_low": average["ci_low"],
        "avg_trust_score.ci_high": average["ci_high"],
        "poisoned_blocked": report["poisonedBlocked"],
    }
    found |= {
        "chunks_blocked": guard["n_blocked"],
        "chunks_warned": guard["n_warned"],
        "blocked_retrieved": retrieved["n_blocked"],
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def miss_rate_metrics(report: Mapping[str, Any], name: str) -> dict[str, float]:
    """Collect the miss rate of one strategy and how well its predictions fit; nulls left out."""
    part, entry = report["uncertainty"], report["calibration"]["strategies"][name]
    target = f"{part['target']}_at_{part['k']}"
    observed, validation = part["strategies"][name]["observed"][part["target"]], entry["validation"]
    found: dict[str, float | None] = {
        target: observed["value"],
        f"{target}.ci_low": observed["ci_low"],
        f"{target}.ci_high": observed["ci_high"],
    }
    if validation is not None:
        for key, name_there in (
            ("brier", "brier"),
            ("skill", "brier_skill"),
            ("auroc", "auroc"),
            ("slope", "calibration_slope"),
        ):
            found |= {
                name_there: validation[key]["value"],
                f"{name_there}.ci_low": validation[key]["low"],
                f"{name_there}.ci_high": validation[key]["high"],
            }
        found |= {"smece": validation["smece"]["value"], "ece": validation["ece"]["value"]}
    found["outcomes"] = entry["counts"]["outcomes"]
    return {key: float(value) for key, value in found.items() if value is not None}


def note(report: Mapping[str, Any]) -> str:
    """Describe a run in Markdown, as MLflow shows it above everything else: what to open, on what it was measured, and the verdict."""
    failed = [f"`{gate['id']}`" for gate in report["gates"] if gate["status"] != "pass"]
    lines = [
        "Open the artifact **index.html** for the whole report, **per-question.json** for the questions.",
        "",
        f"- index `{report['index']['hash']}`",
        f"- gold `{report['gold']['hash']}`",
    ]
    return "\n".join([*lines, f"- gates that did not pass: {', '.join(failed) or 'none'}"])


def _tags(report: Mapping[str, Any], extra: Mapping[str, str]) -> dict[str, str]:
    return {
        "index_hash": report["index"]["hash"],
        "rev": report["index"]["rev"],
        "gold_hash": report["gold"]["hash"],
        "chunks_hash": report["index"]["chunks_hash"],
        "content_hash": report["content_hash"],
        "rag_eval.run_id": report["run_id"],
        "rag_eval.version": report["version"],
        "mlflow.note.content": note(report),
        **extra,
    }


def _make_store(uri: str) -> None:
    """Make a SQLite store that is not there yet: beside its place, then renamed. MLflow needs seconds for its tables, and never mends a store whose making was killed."""
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
    """Log what MLflow's log_table logs and marks, without the frame that it warns about under pandas 3."""
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    client.log_text(run_id, json.dumps({"columns": list(columns), "data": rows}), PER_QUESTION)
    client.set_tag(
        run_id, "mlflow.loggedArtifacts", json.dumps([{"path": PER_QUESTION, "type": "table"}])
    )


def record(
    report: Mapping[str, Any],
    gold_set: str,
    uri: str,
    files: Sequence[Path],
    artifacts: Path,
    *,
    extra_tags: Mapping[str, str] | None = None,
    questions: Mapping[str, Sequence[Any]] | None = None,
) -> str:
    """Write the record and return the parent's run id.

    Parameters
    ----------
    report
        The finished report.
    gold_set
        Its gold set; one MLflow experiment each.
    uri
        Tracking address.
    files
        Files that become artifacts of the parent run.
    artifacts
        Folder of artifacts for a local tracking store; a server has its own.
    extra_tags
        For example `dagster.run_id`.
    questions
        Columns of the per-question table.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(
        logging.CRITICAL
    )  # it logs a traceback of what it raises anyway
    from mlflow import MlflowClient
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    _make_store(uri)
    client = MlflowClient(tracking_uri=uri)
    name = f"{EXPERIMENT}/{gold_set}"
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        experiment_id = experiment.experiment_id
    elif uri.startswith("sqlite:"):
        experiment_id = client.create_experiment(
            name, artifact_location=artifacts.resolve().as_uri(), tags=KIND
        )
    else:
        experiment_id = client.create_experiment(name, tags=KIND)
    level = report["evaluation"]["level"]
    tags = _tags(report, extra_tags or {})

    def write(
        run_id: str,
        metrics: Mapping[str, float],
        params: Mapping[str, Any],
        own_tags: Mapping[str, str],
        moment: int,
    ) -> None:
        client.log_batch(
            run_id,
            metrics=[Metric(key, value, moment, 0) for key, value in metrics.items()],
            params=[Param(key, str(value)[:MAX_PARAM]) for key, value in params.items()],
            tags=[RunTag(key, value) for key, value in own_tags.items()],
        )

    parent = client.create_run(experiment_id, run_name=report["run_id"])
    parent_id, moment = parent.info.run_id, parent.info.start_time
    status = "FAILED"
    try:
        primary = next(
            entry for entry in report["strategies"] if entry["name"] == report["strategy"]
        )
        summary = {
            **strategy_metrics(primary, level),
            **answer_metrics(report),
            **trust_metrics(report),
            **(
                {"cache_hit_rate": report["cacheHitRate"]}
                if report["cacheHitRate"] is not None
                else {}
            ),
        }
        params = {
            "gold_set": gold_set,
            "primary": report["strategy"],
            **report["evaluation"],
            "n_queries": report["gold"]["n_queries"],
            "n_chunks": report["index"]["n_chunks"],
        }
        write(parent_id, summary, params, tags, moment)
        inputs = [
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
                (
                    "corpus",
                    report["index"]["chunks_hash"],
                    {
                        "rev": report["index"]["rev"],
                        "n_documents": report["index"]["n_documents"],
                        "n_chunks": report["index"]["n_chunks"],
                    },
                ),
                (
                    "gold",
                    report["gold"]["hash"],
                    {
                        "n_queries": report["gold"]["n_queries"],
                        "n_paraphrases": report["gold"]["n_paraphrases"],
                    },
                ),
            )
        ]
        client.log_inputs(parent_id, inputs)
        for entry in report["strategies"]:
            child = client.create_run(
                experiment_id, run_name=entry["name"], tags={"mlflow.parentRunId": parent_id}
            )
            child_status = "FAILED"
            try:
                delta = report["stability"]["strategies"][entry["name"]]["delta_s"]["value"]
                metrics = {
                    **strategy_metrics(entry, level),
                    **({} if delta is None else {"delta_s": delta}),
                }
                metrics |= miss_rate_metrics(report, entry["name"])
                own = {
                    "miss_rate_status": report["calibration"]["strategies"][entry["name"]][
                        "status"
                    ],
                    "kind": entry["kind"],
                    "embed_model": entry["embed_model"] or "none",
                    "rerank": entry["rerank"] or "none",
                }
                write(
                    child.info.run_id,
                    metrics,
                    own,
                    {**tags, "index_hash": entry["index_hash"]},
                    child.info.start_time,
                )
                child_status = "FINISHED"
            finally:
                client.set_terminated(child.info.run_id, child_status)
        for path in files:
            client.log_artifact(parent_id, str(path))
        if questions:
            _log_table(client, parent_id, questions)
        status = "FINISHED"
    finally:
        client.set_terminated(parent_id, status)
    return str(parent_id)
