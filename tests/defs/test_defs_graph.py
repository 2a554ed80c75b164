"""The asset graph as a committed snapshot, so that a change of it shows in the diff; what the schedule selects; names."""

import datetime as dt
import json
import os
from pathlib import Path

import dagster as dg
import pytest

from rag_eval.defs import names
from rag_eval.defs.build import build_definitions
from rag_eval.defs.partitions import known_gold_sets
from rag_eval.records.problems import InputError
from rag_eval.settings import Settings

SNAPSHOT = Path(__file__).with_name("asset_graph.json")
RENEW = "RENEW_ASSET_GRAPH"


def graph(definitions: dg.Definitions) -> dict:
    assets = definitions.resolve_asset_graph()
    nodes = {
        key.to_user_string(): {
            "deps": sorted(dep.to_user_string() for dep in assets.get(key).parent_keys),
            "group": assets.get(key).group_name,
            "owners": list(assets.get(key).owners),
            "kinds": sorted(assets.get(key).kinds),
            "checks": sorted(check.name for check in assets.get(key).check_keys),
            "blocking": sorted(
                check.name for check in assets.get(key).check_keys if assets.get(check).blocking
            ),
        }
        for key in assets.get_all_asset_keys()
    }
    partitions = {
        tuple(assets.get(key).partitions_def.get_partition_keys())
        for key in assets.get_all_asset_keys()
    }
    assert len(partitions) == 1
    repository = definitions.get_repository_def()
    return {
        "assets": dict(sorted(nodes.items())),
        "partitions": list(partitions.pop()),
        "jobs": [names.JOB],
        "schedules": [schedule.name for schedule in repository.schedule_defs],
    }


def test_asset_graph_is_the_committed_one(project_root):
    found = graph(build_definitions(Settings(gold_sets=project_root / "gold_sets")))
    if os.environ.get(RENEW):
        SNAPSHOT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    assert found == json.loads(SNAPSHOT.read_text(encoding="utf-8")), (
        f"the asset graph changed; if that is meant, run with {RENEW}=1 and commit {SNAPSHOT.name}"
    )


def test_every_asset_says_what_it_is(project_root):
    assets = build_definitions(Settings(gold_sets=project_root / "gold_sets")).resolve_asset_graph()
    for key in assets.get_all_asset_keys():
        node = assets.get(key)
        assert node.description
        assert node.code_version
        assert node.owners == [names.OWNER]
        assert (node.freshness_policy is not None) == (key == names.REPORT)
    frames = (
        names.CORPUS_SNAPSHOT,
        names.CORPUS_CHUNKS,
        names.EVIDENCE_TRUST,
        names.GOLD_VARIANTS,
        names.strategy_key("bm25"),
        *names.OF_ANSWERS,
    )
    frames += (
        names.RANKING_MEASURES,
        names.STABILITY_MEASURES,
        names.MISS_RATE_CLAIMS,
        names.RETRIEVAL_OUTCOMES,
    )
    assert all(
        isinstance(assets.get(key).metadata["dagster/column_schema"], dg.TableSchema)
        for key in frames
    )


def tick(definitions: dg.Definitions, instance: dg.DagsterInstance):
    moment = dt.datetime(2024, 2, 29, 2, 0, tzinfo=dt.UTC)
    repository = definitions.get_repository_def()
    context = dg.build_schedule_context(
        instance, scheduled_execution_time=moment, repository_def=repository
    )
    return repository.get_schedule_def(names.SCHEDULE).evaluate_tick(context)


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
        "name: lexical\ncorpus: {loader: folder, path: corpus}\nstrategies: [{name: bm25, kind: bm25}, {name: other_one, kind: bm25}]\ngates: {required: [acceptance], advisory: []}\nacceptance: {mrr: '>= 0.5'}\n"
    )
    data = tick(build_definitions(project.settings), instance)
    requests = {request.partition_key: request for request in data.run_requests}
    assert set(requests) == {"smoke", "lexical"}
    lexical = requests["lexical"]
    assert {key for key in lexical.asset_selection if key.path[0] == names.RETRIEVAL} == {
        names.strategy_key("bm25"),
        names.strategy_key("other_one"),
    }
    assert set(lexical.asset_selection) >= set(names.FIXED)
    assert set(lexical.asset_check_keys) == {*names.BLOCKING, names.gate_check("acceptance.mrr")}
    assert len({request.run_key for request in data.run_requests}) == 2
    assert "2024-02-29T02:00:00" in lexical.run_key


def test_schedule_follows_the_settings(project):
    settings = project.settings.model_copy(
        update={"schedule": "30 4 * * 1", "timezone": "Europe/Berlin"}
    )
    definitions = build_definitions(settings)
    schedule = definitions.get_repository_def().get_schedule_def(names.SCHEDULE)
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("30 4 * * 1", "Europe/Berlin")
    policy = definitions.resolve_asset_graph().get(names.REPORT).freshness_policy
    assert (policy.deadline_cron, policy.timezone) == ("30 4 * * 1", "Europe/Berlin")
    assert policy.lower_bound_delta == dt.timedelta(days=7)


def test_nothing_nightly_is_said(project, instance):
    data = tick(build_definitions(project.settings), instance)
    assert data.run_requests == []
    assert "no gold set belongs to the nightly job" in data.skip_message


def test_broken_gold_set_keeps_its_partition_and_does_not_hide_others(project, instance):
    broken = project.folder.parent / "broken"
    broken.mkdir()
    (broken / "gold_set.yaml").write_text("name: [\n")
    known = {gold_set.name: gold_set for gold_set in known_gold_sets(project.settings.gold_sets)}
    assert known["broken"].strategies == ()
    assert known["smoke"].strategies == ("bm25", "vector", "hybrid", "hybrid-rrf-mmr")
    (request,) = tick(
        build_definitions(project.settings), instance
    ).run_requests  # its run shows what is wrong
    assert request.partition_key == "broken"


def test_strategies_whose_names_differ_by_punctuation_only_are_two_assets(project):
    project.change("name: hybrid-rrf-mmr", "name: hybrid-x")
    project.change("{name: vector,", "{name: hybrid_x,")
    keys = build_definitions(project.settings).resolve_asset_graph().get_all_asset_keys()
    assert {names.strategy_key("hybrid-x"), names.strategy_key("hybrid_x")} <= set(keys)


def test_no_folder_of_gold_sets_is_named(tmp_path):
    with pytest.raises(InputError, match="missing_folder"):
        build_definitions(Settings(gold_sets=tmp_path / "none"))
