"""Processes make the Dagster home only once, and its lineage shows runs of the command line."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from rag_eval.defs.assets import REPORT, gate_check
from rag_eval.defs.instance import (
    CONFIG,
    CONFIG_FILE,
    OURS,
    is_prepared,
    prepare_home,
    record_lineage,
)
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.report_stages import MetricsReport
from rag_eval.pipeline.stages import STAGES, evaluate, open_runner

PREPARE = (
    "import sys, pathlib; from rag_eval.defs.instance import prepare_home; "
    "prepare_home(pathlib.Path(sys.argv[1]))"
)


@pytest.mark.slow
def test_several_processes_at_once_leave_one_whole_home(tmp_path, project_root):
    home = tmp_path / "dagster"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE, str(home)], cwd=project_root, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors.decode()
    assert is_prepared(home)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert not instance.telemetry_enabled
        assert type(instance.run_coordinator).__name__ == "QueuedRunCoordinator"
        assert instance.get_concurrency_config().run_queue_config.max_concurrent_runs == 1
        assert instance.run_monitoring_enabled
        assert instance.run_retries_enabled
        assert instance.get_runs() == []


def test_preparing_again_changes_nothing_and_renews_only_what_is_ours(tmp_path):
    prepare_home(tmp_path)
    config = tmp_path / CONFIG_FILE
    before = config.stat().st_mtime_ns
    prepare_home(tmp_path)
    assert config.stat().st_mtime_ns == before
    config.write_text(f"{OURS}\n# of an older version\n", encoding="utf-8")
    assert not is_prepared(tmp_path)
    prepare_home(tmp_path)
    assert config.read_text(encoding="utf-8") == CONFIG


def test_configuration_of_a_team_stays(tmp_path):
    own = "telemetry:\n  enabled: false\n"
    (tmp_path / CONFIG_FILE).write_text(own, encoding="utf-8")
    prepare_home(tmp_path)
    assert is_prepared(tmp_path)
    assert (tmp_path / CONFIG_FILE).read_text(encoding="utf-8") == own


@pytest.mark.slow
def test_lineage_shows_runs_from_the_command_line_like_runs_of_the_job(project, instance):
    home = Path(project.settings.home) / "dagster"
    evaluation = open_gold_set(project.folder, project.settings)
    evaluate(evaluation)
    written = record_lineage(home, evaluation)
    assert record_lineage(home, evaluation) == written  # a second call adds nothing
    project.run(instance)
    # The job is the second run of this home, so its results that name their run differ.
    own = {stage.name for stage in STAGES if stage.live}
    own |= {"miss_rate_claims", "calibrated_miss_rates", "mlflow_record", "gate_verdict"}
    with dg.DagsterInstance.from_config(str(home)) as opened:
        for key in project.known().assets:
            told = opened.get_latest_materialization_event(key).asset_materialization
            by_job = instance.get_latest_materialization_event(key).asset_materialization
            assert told.partition == by_job.partition == "smoke"
            # Only the first of the two runs sees a status change.
            first = {"started_from", "promotions"}
            assert set(told.metadata) - first == set(by_job.metadata) - first
            if key.path[-1] not in own:
                assert told.tags["dagster/data_version"] == by_job.tags["dagster/data_version"]
            assert told.tags["dagster/code_version"] == by_job.tags["dagster/code_version"]
        assert opened.get_materialized_partitions(
            dg.AssetKey(["reporting", "retrieval_metrics_report"])
        ) == {"smoke"}
        keys = [key for key in project.known().checks if key.asset_key.path[-1] == REPORT]
        records = opened.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    gates = open_runner(evaluation).get(MetricsReport).report.gates
    # An advisory gate without enough evidence found no fault.
    poor = [gate for gate in gates if gate.status == "fail" or (gate.required and not gate.is_fine)]
    failed = {part for gate in poor for part in (gate.id, gate.gate)}
    assert {
        key.name: found.event.dagster_event.asset_check_evaluation_data.passed
        for key, found in records.items()
    } == {gate_check(name): name not in failed for name in project.known().gates}
    assert written == len(project.known().assets)
