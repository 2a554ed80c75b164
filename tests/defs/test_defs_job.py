"""The Dagster job equals `rag-eval run`.

A failed check stops the job. A failed gate fails the job only at the end.
"""

import json
from pathlib import Path

import dagster as dg
import pytest

from rag_eval.core.settings import Settings
from rag_eval.defs.assets import asset_key, settings_of_nights
from rag_eval.defs.build import build_definitions, describe_failure
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import STAGES, evaluate
from rag_eval.storage.locks import WriteLock

asset = dg.AssetKey.from_user_string


def is_live(node) -> bool:
    return next(stage for stage in STAGES if stage.name == node.name).live


def test_job_gives_the_report_of_the_command_line(project, instance, tmp_path):
    """Use one home for a verdict without a report, a run, a verdict alone and a failed gate."""
    selection = [asset("reporting/mlflow_record"), asset("reporting/gate_verdict")]
    alone = project.run(instance, selection).failure("reporting__mlflow_record")
    assert "materialize retrieval_metrics_report first" in alone.description

    result = project.run(instance)
    assert result.success
    made = result.made
    assert set(made) == {"/".join(key.path) for key in project.known().assets}
    assert not any(entry["reused"] for entry in made.values())
    assert made["retrieval/hybrid"]["index_hash"] == project.report()["index"]["hash"]
    assert made["retrieval/hybrid"]["gold_hash"] == project.report()["gold"]["hash"]
    by_job = project.report()["content_hash"]
    assert made["reporting/retrieval_metrics_report"]["content_hash"] == by_job
    assert (project.settings.reports / "retrieval-metrics.json").read_bytes() == (
        project.settings.reports / "smoke" / "retrieval-metrics.json"
    ).read_bytes()

    settings = project.settings.model_copy(
        update={"home": tmp_path / "other", "reports": tmp_path / "other-reports"}
    )
    assert evaluate(open_gold_set(project.folder, settings)).report.content_hash == by_job

    blocking = ("index_not_empty", "gold_lint")
    assert all(result.checks[name].passed for name in blocking)
    check = result.checks["acceptance_recall_at_5"]
    assert check.passed  # twelve questions are too few to judge, which is no fault
    assert check.severity == dg.AssetCheckSeverity.WARN
    assert check.metadata["status"].value == "insufficient_evidence"
    latest = instance.get_latest_data_version_record(
        asset("corpus/corpus_chunks"), partition_key="smoke"
    )
    about = Path(made["corpus/corpus_chunks"]["artifact"], "artifact.json")
    written = json.loads(about.read_text(encoding="utf-8"))
    assert latest.asset_materialization.tags["dagster/data_version"] == written["id"]

    result = project.run(instance, selection)
    assert result.success
    assert result.made["reporting/gate_verdict"]["run_id"] == project.report()["run_id"]

    lines = (project.folder / "gold_set.yaml").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith(("gates:", "acceptance:"))]
    lines += [
        'acceptance: {recall_at_5: ">= 1.01"}',
        "gates: {required: [acceptance], advisory: [], min_queries: 1}",
    ]
    (project.folder / "gold_set.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = project.run(instance)
    assert not result.success
    made = result.made
    # the first run recorded outcomes, which the claims of the second one know
    later = {"miss_rate_claims", "calibrated_miss_rates", "mlflow_record", "gate_verdict"}
    reused = {
        asset_key(node)
        for node in project.known().keys
        if node.name not in later and not is_live(node)
    }
    assert all(made["/".join(key.path)]["reused"] for key in reused)
    assert "reporting/gate_verdict" not in made
    assert {"reporting/retrieval_metrics_report", "reporting/mlflow_record"} <= set(made)
    assert (project.settings.reports / "retrieval-metrics.json").is_file()
    assert not result.checks["acceptance_recall_at_5"].passed
    ended = result.failure("reporting__gate_verdict")
    assert ended.description == "required gates did not pass: acceptance.recall_at_5"
    assert ended.metadata["failed"].value == "acceptance.recall_at_5"
    assert ended.description in describe_failure(result.failed_context(instance))


def test_gold_with_errors_stops_before_retrieval_and_shows_the_problems(project, instance):
    with (project.folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"query_id": "broken"}\n')
    result = project.run(instance)
    assert not result.success
    made = result.made
    assert "gold/gold_variants" not in made
    assert not any(name.startswith(("retrieval/", "measures/", "reporting/")) for name in made)
    assert not project.settings.reports.exists()
    check = result.checks["gold_lint"]
    assert not check.passed
    assert check.severity == dg.AssetCheckSeverity.ERROR
    assert describe_failure(result.failed_context(instance)).startswith("gold set smoke, run ")
    rows = [record.data for record in check.metadata["problems"].records]
    assert {"severity": "error", "field": "text", "line": 13}.items() <= rows[0].items()
    assert check.metadata["n_errors"].value >= 1


def test_empty_corpus_text_fails_the_blocking_check(project, instance):
    for path in (project.folder / "corpus").glob("*.md"):
        path.write_text("\n", encoding="utf-8")
    result = project.run(instance)
    assert not result.success
    assert {name: check.passed for name, check in result.checks.items()} == {
        "index_not_empty": False
    }
    assert not any(name.startswith("retrieval/") for name in result.made)


@pytest.mark.slow
def test_a_job_over_every_asset_skips_what_a_gold_set_does_not_configure(project, instance, capfd):
    other = project.folder.parent / "other"
    project.folder.rename(other)
    text = (other / "gold_set.yaml").read_text(encoding="utf-8")
    (project.folder.parent / "smoke").mkdir()
    (project.folder.parent / "smoke" / "gold_set.yaml").write_text(text, encoding="utf-8")
    lines = [
        line
        for line in text.replace("name: smoke", "name: other").splitlines()
        if "name: vector" not in line and not line.startswith(("answers:", "gates:"))
    ]
    (other / "gold_set.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    everything = build_definitions(project.settings).resolve_asset_graph().materializable_asset_keys
    result = project.run(instance, sorted(everything), gold_set="other")
    assert result.success
    made = result.made
    assert made["retrieval/hybrid"]["n_failed"] == 0
    skipped = {asset("retrieval/vector"), asset("measures/answer_measures")}
    configured = project.known("other").assets
    assert skipped <= set(everything) - set(configured)
    assert set(made) == {"/".join(key.path) for key in configured}
    assert instance.get_materialized_partitions(asset("retrieval/vector")) == set()
    assert "other has no strategy vector" in capfd.readouterr().err
    report = project.report("other")
    reason = "the gold set configures no answers"
    assert report["groundedness_reason"] == report["answers"]["reason"] == reason


def test_broken_configuration_fails_its_own_run_with_file_and_line(project, instance):
    project.change("depth: 20", "depht: 20")
    result = project.run(instance)
    assert not result.success
    ended = result.failure("corpus__corpus_snapshot")
    (row,) = [record.data for record in ended.metadata["problems"].records]
    assert (row["code"], row["field"], row["accepted"].count("depth")) == (
        "unknown_key",
        "depht",
        1,
    )
    assert result.made == {}


def test_run_holds_its_lock_and_releases_it(project, instance):
    with WriteLock(project.settings):
        result = project.run(instance, [asset("corpus/corpus_snapshot")])
        assert "another run writes here" in result.failure("corpus__corpus_snapshot").description
    assert project.run(instance, [asset("corpus/corpus_snapshot")]).success
    with WriteLock(project.settings):
        pass


def test_a_night_waits_for_two_hours_unless_the_settings_say_another_time(project):
    assert settings_of_nights(project.settings).wait_s == 0
    given = project.settings.model_dump(include={"home", "reports", "gold_sets"})
    assert settings_of_nights(Settings(**given)).wait_s == 7200
