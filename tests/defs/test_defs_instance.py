"""The Dagster home is made once whoever comes first; runs from the command line show in its lineage."""

import subprocess
import sys

import dagster as dg
import pytest

from rag_eval.defs import names
from rag_eval.defs.instance import CONFIG, CONFIG_FILE, OURS, is_prepared, prepare_home
from rag_eval.defs.lineage import report_materializations
from rag_eval.evaluation.inputs import open_gold_set
from rag_eval.evaluation.run import evaluate

PREPARE = "import sys, pathlib; from rag_eval.defs.instance import prepare_home; prepare_home(pathlib.Path(sys.argv[1]))"


def test_several_processes_at_once_leave_one_whole_home(tmp_path, project_root):
    home = tmp_path / "dagster"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE, str(home)], cwd=project_root, stderr=subprocess.PIPE
        )
        for _ in range(3)
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
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
def test_lineage_shows_runs_from_the_command_line_like_runs_of_the_job(project, instance):
    home = project.settings.home / "dagster"
    evaluation = open_gold_set(project.folder, project.settings)
    outcome = evaluate(evaluation, primary=True)
    written = report_materializations(home, evaluation, outcome.report, outcome.mlflow_run)
    assert (
        report_materializations(home, evaluation, outcome.report, outcome.mlflow_run) == written
    )  # a second run is no trouble
    project.run(instance)
    with dg.DagsterInstance.from_config(str(home)) as opened:
        for key in project.known().assets:
            told = opened.get_latest_materialization_event(key).asset_materialization
            by_job = instance.get_latest_materialization_event(key).asset_materialization
            assert told.partition == by_job.partition == "smoke"
            plots = {
                "recall_plot",
                "flip_plot",
                "trace_error",
                "reliability",
                "learning_curve",
            }  # what only the job does within the asset
            assert (
                set(told.metadata) - {"started_from", "promotions"} == set(by_job.metadata) - plots
            )  # the first of the two is who sees a status change
            if key != names.MLFLOW_RECORD:
                assert told.tags["dagster/data_version"] == by_job.tags["dagster/data_version"]
            assert told.tags["dagster/code_version"] == by_job.tags["dagster/code_version"]
        assert opened.get_materialized_partitions(names.REPORT) == {"smoke"}
    assert written == len(project.known().assets)
