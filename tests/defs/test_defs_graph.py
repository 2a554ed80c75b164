"""The asset graph equals a committed snapshot, and the schedule selects the right assets."""

import datetime as dt
import os
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import RunFailureReason
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.test_utils import create_run_for_test

from rag_eval.core.settings import Settings
from rag_eval.defs.assets import OWNER
from rag_eval.defs.build import (
    JOB,
    SCHEDULE,
    build_definitions,
    known_gold_sets,
)
from rag_eval.pipeline.stages import STAGES

asset = dg.AssetKey.from_user_string
SNAPSHOT = Path(__file__).with_name("asset_graph.txt")
RENEW = "RENEW_ASSET_GRAPH"


def describe_graph(definitions: dg.Definitions) -> list[str]:
    """Describe each asset in a line: key, kinds, checks (`!` if blocking) and dependencies."""
    assets, lines = definitions.resolve_asset_graph(), []
    for key in sorted(assets.get_all_asset_keys()):
        node = assets.get(key)
        checks = (
            ("!" if assets.get(check).blocking else "") + check.name
            for check in sorted(node.check_keys)
        )
        deps = sorted(dep.to_user_string() for dep in node.parent_keys)
        columns = (key.to_user_string(), *(" ".join(sorted(node.kinds)), " ".join(checks)))
        lines.append(f"{' | '.join(columns)} <- {' '.join(deps)}".rstrip())
    return lines


@pytest.fixture(scope="module")
def shipped(project_root):
    return build_definitions(Settings(gold_sets=project_root / "gold_sets"))


def test_asset_graph_is_the_committed_one(shipped):
    found = describe_graph(shipped)
    if os.environ.get(RENEW):
        SNAPSHOT.write_text("\n".join([*found, ""]), encoding="utf-8")
    assert found == SNAPSHOT.read_text(encoding="utf-8").splitlines(), (
        f"the asset graph changed; if that is meant, run with {RENEW}=1 and commit {SNAPSHOT.name}"
    )


def test_every_asset_says_what_it_is(shipped):
    assets = shipped.resolve_asset_graph()
    stages = {stage.name: stage for stage in STAGES}
    for key in assets.materializable_asset_keys:
        node = assets.get(key)
        stage = stages["run" if key.path[0] == "retrieval" else key.path[-1]]
        assert (node.description, node.group_name) == (stage.title, key.path[0])
        assert node.code_version
        assert node.owners == [OWNER]
        assert node.partitions_def.get_partition_keys() == ["pandas_api", "smoke"]
        assert node.freshness_policy is not None
    report = assets.get(asset("reporting/retrieval_metrics_report"))
    assert report.metadata["stores"] == "baselines, kept_runs, traces, reports"


def test_prefix_is_the_first_part_of_every_key(project):
    plain, prefixed = (
        build_definitions(
            project.settings.model_copy(update={"asset_key_prefix": prefix})
        ).resolve_asset_graph()
        for prefix in ("", "search")
    )
    assert prefixed.get_all_asset_keys() == {
        key.with_prefix("search") for key in plain.get_all_asset_keys()
    }
    assert {(key.asset_key, key.name) for key in prefixed.asset_check_keys} == {
        (key.asset_key.with_prefix("search"), key.name) for key in plain.asset_check_keys
    }
    for key in plain.get_all_asset_keys():
        parents = prefixed.get(key.with_prefix("search")).parent_keys
        assert parents == {parent.with_prefix("search") for parent in plain.get(key).parent_keys}


def test_stages_that_talk_to_services_have_retries_and_a_pool(shipped):
    steps = [asset for asset in shipped.assets if isinstance(asset, dg.AssetsDefinition)]
    pools = {
        asset.key.path[-1]: asset.op.pool for asset in steps if asset.op.retry_policy is not None
    }
    assert all(asset.op.pool is None for asset in steps if asset.op.retry_policy is None)
    assert pools["answers"] == pools["answer_measures"] == "rag_eval_chat"
    assert pools["bm25"] == "rag_eval_sources"
    assert pools["corpus_index"] == "rag_eval_vectors"
    assert pools["mlflow_record"] == "rag_eval_mlflow"
    assert not {"corpus_snapshot", "retrieval_metrics_report", "gate_verdict"} & set(pools)


def test_every_stage_of_a_shared_home_has_retries(project_root):
    shared = Settings(
        gold_sets=project_root / "gold_sets",
        home="s3://bucket/home",
        database_url="postgresql://me@127.0.0.1:9/d",
        tracking_uri="http://127.0.0.1:9",
    )
    made = build_definitions(shared)
    steps = [one for one in made.assets if isinstance(one, dg.AssetsDefinition)]
    assert len(steps) >= len(STAGES)
    assert all(step.op.retry_policy is not None for step in steps)


@pytest.mark.parametrize(
    ("reason", "is_retried"),
    [(RunFailureReason.RUN_EXCEPTION, True), (RunFailureReason.STEP_FAILURE, False)],
)
def test_only_a_run_that_lost_its_worker_is_repeated(shipped, instance, reason, is_retried):
    tags = shipped.resolve_job_def(JOB).run_tags
    run = create_run_for_test(instance, JOB, tags=tags, status=dg.DagsterRunStatus.FAILURE)
    assert auto_reexecution_should_retry_run(instance, run, reason) is is_retried


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance):
    moment = dt.datetime(2024, 2, 29, 2, 0, tzinfo=dt.UTC)
    repository = definitions.get_repository_def()
    context = dg.build_schedule_context(
        instance, scheduled_execution_time=moment, repository_def=repository
    )
    return repository.get_schedule_def(SCHEDULE).evaluate_tick(context)


def test_schedule_requests_exactly_the_assets_and_checks_of_each_nightly_gold_set(
    project, instance
):
    project.change("nightly: false", "nightly: true")
    other = project.folder.parent / "quiet"
    other.mkdir()
    (other / "gold_set.yaml").write_text(
        (project.folder / "gold_set.yaml")
        .read_text(encoding="utf-8")
        .replace("name: smoke", "name: quiet")
        .replace("nightly: true", "nightly: false")
    )
    third = project.folder.parent / "lexical"
    third.mkdir()
    (third / "gold_set.yaml").write_text(
        "name: lexical\ncorpus: {loader: folder, path: corpus}\n"
        "strategies: [{name: bm25, kind: bm25}, {name: other_one, kind: bm25}]\n"
        "gates: {required: [acceptance], advisory: []}\nacceptance: {mrr: '>= 0.5'}\n"
    )
    data = tick(build_definitions(project.settings), instance)
    requests = {request.partition_key: request for request in data.run_requests}
    assert set(requests) == {"smoke", "lexical"}
    lexical = requests["lexical"]
    assert {key for key in lexical.asset_selection if key.path[0] == "retrieval"} == {
        asset("retrieval/bm25"),
        asset("retrieval/other_one"),
    }
    selected = {key.path[-1] for key in lexical.asset_selection}
    assert {stage.name for stage in STAGES} - selected == {
        *("run", "answers", "citations", "answer_measures", "ragas_measures"),
    }
    assert {check.name for check in lexical.asset_check_keys} == {
        *("index_not_empty", "gold_lint", "acceptance_mrr"),
    }
    assert len({request.run_key for request in data.run_requests}) == 2
    assert "2024-02-29T02:00:00" in lexical.run_key


def test_schedule_follows_the_settings(project):
    settings = project.settings.model_copy(update={"schedule": "30 4 * * 1"})
    definitions = build_definitions(settings)
    schedule = definitions.get_repository_def().get_schedule_def(SCHEDULE)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 4 * * 1", "UTC")
    assert (schedule.job_name, schedule.default_status) == (JOB, dg.DefaultScheduleStatus.RUNNING)
    off = build_definitions(settings.model_copy(update={"schedule_on": False}))
    schedule = off.get_repository_def().get_schedule_def(SCHEDULE)
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    policy = (
        definitions.resolve_asset_graph()
        .get(asset("reporting/retrieval_metrics_report"))
        .freshness_policy
    )
    assert policy.fail_window.to_timedelta() == dt.timedelta(days=7, hours=12)


def test_the_nightly_job_has_every_asset_and_every_check(shipped):
    graph, job = shipped.resolve_asset_graph(), shipped.resolve_job_def(JOB)
    assert set(job.asset_layer.selected_asset_keys) == graph.materializable_asset_keys
    assert asset("reporting/gate_verdict") in job.asset_layer.selected_asset_keys
    assert set(job.asset_layer.asset_graph.asset_check_keys) == set(graph.asset_check_keys)


def test_broken_gold_set_keeps_its_partition_and_does_not_hide_others(project, instance):
    broken = project.folder.parent / "broken"
    broken.mkdir()
    (broken / "gold_set.yaml").write_text("name: [\n")
    known = {gold_set.name: gold_set for gold_set in known_gold_sets(project.settings.gold_sets)}
    assert known["broken"].strategies == ()
    assert known["smoke"].strategies == ("bm25", "vector", "hybrid", "hybrid-rrf-mmr")
    (request,) = tick(
        build_definitions(project.settings), instance
    ).run_requests  # the run of the broken set shows the error
    assert request.partition_key == "broken"
