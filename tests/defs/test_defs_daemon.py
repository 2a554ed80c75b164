"""Dagster's daemon sees an old report, and a backfill starts a run for each gold set."""

import datetime as dt
import logging
import sys
import time

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._daemon.freshness import FreshnessDaemon

from rag_eval.defs.build import JOB

# Dagster 1.13 reads its own deprecated property when it lists schedules
pytestmark = pytest.mark.filterwarnings("ignore:.*environment_vars:DeprecationWarning")
REPORT = dg.AssetKey(["reporting", "retrieval_metrics_report"])


@pytest.fixture
def workspace(project_root, tmp_path, monkeypatch):
    """Yield the daemon's view of the code location, on an instance that starts no run."""
    monkeypatch.chdir(project_root)
    monkeypatch.setenv("RAG_EVAL_GOLD_SETS", str(project_root / "gold_sets"))
    origin = LoadableTargetOrigin(
        executable_path=sys.executable, module_name="rag_eval.definitions", attribute="defs"
    )
    target = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(origin))
    coordinator = {
        "module": "dagster._core.test_utils",
        "class": "MockedRunCoordinator",
    }
    with (
        dg.DagsterInstance.local_temp(
            str(tmp_path), overrides={"run_coordinator": coordinator}
        ) as instance,
        create_test_daemon_workspace_context(target, instance) as context,
    ):
        yield context


def test_the_daemon_sees_that_a_night_brought_no_report(workspace):
    def state(day: int) -> FreshnessState:
        with freeze_time(dt.datetime(2024, 3, day, 3, tzinfo=dt.UTC)):
            list(FreshnessDaemon().run_iteration(workspace))
            return workspace.instance.get_freshness_state_records([REPORT])[REPORT].freshness_state

    def report(day: int) -> None:
        with freeze_time(dt.datetime(2024, 3, day, 2, 20, tzinfo=dt.UTC)):
            workspace.instance.report_runless_asset_event(
                dg.AssetMaterialization(REPORT, partition="smoke")
            )

    assert FreshnessDaemon.daemon_type() in workspace.instance.get_required_daemon_types()
    report(1)
    assert state(1) == state(2) == FreshnessState.PASS
    assert state(3) == FreshnessState.FAIL
    report(4)
    assert state(4) == FreshnessState.PASS


def test_backfill_starts_a_run_for_each_gold_set(workspace):
    location = next(iter(workspace.create_request_context().code_locations))
    (repository,) = location.get_repositories().values()
    origin = repository.get_partition_set(f"{JOB}_partition_set").get_remote_origin()
    backfill = PartitionBackfill(
        backfill_id="all",
        status=BulkActionStatus.REQUESTED,
        partition_set_origin=origin,
        partition_names=["pandas_api", "smoke"],
        from_failure=False,
        reexecution_steps=None,
        tags={},
        backfill_timestamp=time.time(),
    )
    workspace.instance.add_backfill(backfill)
    errors = list(execute_backfill_iteration(workspace, logging.getLogger("backfill")))
    assert [error for error in errors if error] == []
    runs = workspace.instance.get_runs()
    assert sorted(run.tags["dagster/partition"] for run in runs) == ["pandas_api", "smoke"]
    assert {run.tags["dagster/max_retries"] for run in runs} == {"2"}
