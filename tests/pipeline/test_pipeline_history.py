"""Kept runs are read once and checked by type, and a damaged kept run stops no other run."""

import json
import shutil
import types
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from cli_project import CONFIG, PARAPHRASES, jsonl

from rag_eval.core.errors import InputError
from rag_eval.gates.gate import ChangeCode
from rag_eval.measures.overlap import SharedGold
from rag_eval.pipeline.history import (
    GOLD_DIFFERS,
    GONE,
    NONE_IN_COMMON,
    _deltas,
    changes,
    find_previous,
    make_record,
    means_by_query,
    open_run,
    read_run,
    readable_runs,
)
from rag_eval.reporting.report import _first_fault, content_hash
from rag_eval.storage.home import Home

COLUMNS = {"R@10": "recall_at_10", "RR": "mrr", "nDCG@10": "ndcg_at_10"}


@pytest.fixture
def ran(project, shared_runs):
    """Return the project after two runs on equal input, with the output and report of each."""
    first, second = shared_runs.run(project, times=2)
    project.first = first.report
    project.printed, project.second = second.stdout, second.report
    return project


@pytest.fixture
def kept(ran):
    """Return the kept record of the first run."""
    path = ran.home / "runs" / f"{ran.first['run_id']}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def write(home, kept, run_id=None):
    run_id = run_id or kept["report"]["run_id"]
    (home / "runs").mkdir(parents=True, exist_ok=True)
    (home / "runs" / f"{run_id}.json").write_text(json.dumps(kept), encoding="utf-8")
    return run_id


def test_a_second_run_finds_the_same_as_the_first(ran):
    first, second = ran.first, ran.second
    assert first["previous"] is None
    assert "no run" in first["previous_reason"]
    assert second["content_hash"] == first["content_hash"] == content_hash(second)
    assert f"previous run {first['run_id']}: comparable; R@10 +0.000" in ran.printed


def test_each_thing_that_differs_is_named_once(kept):
    one, other = make_record("tiny", {}, kept["report"]), "f" * 32
    bm25, vector = one.strategies["bm25"], one.strategies["vector"]
    moved = bm25.model_copy(update={"index_hash": f"bm25s:{other}"})
    configured = vector.model_copy(update={"configuration": other})
    cases = [
        ("gold_changed", {"gold_hash": other}),
        ("chunks_changed", {"chunks_hash": other}),
        ("index_changed", {"strategies": {"bm25": moved, "vector": vector}}),
        ("configuration_changed", {"strategies": {"bm25": bm25, "vector": configured}}),
        ("configuration_changed", {"settings": other}),
        ("strategies_changed", {"strategies": {"bm25": bm25, "hybrid": vector}}),
        ("code_changed", {"code": other}),
    ]
    assert changes(one, one) == {}
    for code, update in cases:
        assert list(changes(one, one.model_copy(update=update))) == [code]
    everything = dict.fromkeys(("gold_hash", "chunks_hash", "settings", "code"), other)
    everything["strategies"] = {"bm25": moved}
    assert tuple(changes(one, one.model_copy(update=everything))) == get_args(ChangeCode)


# ---- Kept runs are read, named as unreadable, and found by name.


def set_place(kept, place, value):
    *path, last = place
    for key in path:
        kept = kept[key]
    kept[last] = value


DAMAGES = [
    (["report"], None, ""),
    (["report", "run_id"], "../../etc", "run_id"),
    (["report", "index", "hash"], "<script>", "index_hash"),
    (["report", "strategies", 0, "name"], "<b onload=x>", ""),
    (["artifacts", "ranking_measures"], "../../../etc/passwd", "artifacts"),
    (["artifacts"], 7, "artifacts"),
]


@pytest.mark.parametrize(("place", "value", "part"), DAMAGES)
def test_a_damaged_run_is_named_and_the_others_stand(ran, kept, place, value, part):
    set_place(kept, place, value)
    run_id = write(ran.home, kept, ran.first["run_id"])
    (run,) = readable_runs(Home(ran.home), "tiny")
    assert run.run_id == ran.second["run_id"]
    with pytest.raises(InputError, match=rf"{run_id}.*not a complete kept run.*{part}"):
        read_run(Home(ran.home), run_id)


def test_runs_are_found_by_name(ran):
    first, second = ran.first["run_id"], ran.second["run_id"]
    names = {"latest": second, "previous": first, first: first, first[:-3]: first}
    for name, run_id in names.items():
        assert open_run(Home(ran.home), name, "tiny").run_id == run_id
    for name in ("none", "", "../x", "2"):
        with pytest.raises(InputError, match="run_not_found"):
            open_run(Home(ran.home), name)
    with pytest.raises(InputError, match=r"run_not_found.*No latest run of another is kept"):
        open_run(Home(ran.home), "latest", "another")
    with pytest.raises(InputError, match=r"[2-9] runs of tiny by this name. Name one run"):
        open_run(Home(ran.home), first[:4], "tiny")
    write(ran.home, {}, second)
    with pytest.raises(InputError, match=rf"run_unreadable.*{second}|{second}.*run_unreadable"):
        open_run(Home(ran.home), second, "tiny")
    assert open_run(Home(ran.home), "latest", "tiny").run_id == first


# ---- This run beside the previous run.


def test_figures_that_are_gone_or_damaged_are_never_fatal(ran):
    home, now = Home(ran.home), open_run(Home(ran.home), "latest")
    gold = types.SimpleNamespace(
        queries=pd.DataFrame({"query_id": ["keep"]}), shared=SharedGold.of_groups(np.arange(1))
    )
    now = now.model_copy(update={"run_id": "3" + now.run_id[1:]})
    figures = now.per_query()
    assert find_previous(home, now, gold, figures).means.shape == (1, 6)
    for path in (ran.home / "artifacts" / "ranking_measures").rglob("per_query.parquet"):
        path.write_bytes(b"no table")
    means, part = find_previous(home, now, gold, figures)[::-1]
    assert (means, part.deltas, part.why["deltas"], part.changes) == (None, None, GONE, {})
    shutil.rmtree(ran.home / "artifacts" / "ranking_measures")
    assert find_previous(home, now, gold, figures).part.why["deltas"] == GONE


TABLE = pd.DataFrame(
    {
        "strategy": "a",
        "level": "document",
        "query_id": ["p", "p", "q"],
        **{name: [0.0, 1.0, np.nan] for name in COLUMNS.values()},
    }
)


def test_means_are_those_inside_each_question():
    found = means_by_query(TABLE, ["b", "a"], ["q", "p", "new"], "document")
    expected = np.array([[np.nan], [0.5], [np.nan]]).repeat(3, axis=1)
    np.testing.assert_array_equal(found, np.hstack([np.full((3, 3), np.nan), expected]))


def test_deltas_are_over_what_both_scored():
    now, before = np.array([1, 0.5, np.nan, 0.2]), np.array([0.5, 0.5, 1, np.nan])
    values = [np.stack([column, *[column * np.nan] * 2], axis=1) for column in (now, before)]
    found, empty, _ = (
        row.dump() for row in _deltas(["a"], *values, SharedGold.of_groups(np.arange(4)))
    )
    assert (found["before"], found["after"], found["delta"]) == (0.5, 0.75, 0.25)
    assert (found["n_better"], found["n_worse"], found["n_tied"]) == (1, 0, 1)
    assert empty["delta"] is empty["before"] is empty["after"] is None
    assert empty["after_reason"] == "no question was scored in both runs"


def run_tiny(project):
    result = project.command("run", "tiny")
    return project.report(), result.output


def test_a_changed_corpus_is_named_and_its_questions_are_paired(project, shared_runs):
    (before,) = shared_runs.run(project)
    project.write(
        "corpus/new.md",
        "# Jobs\n\nHow often is a failed job tried again? Number of retries of a failed job.\n",
    )
    path = project.reports / "tiny" / "per-query.parquet"
    old = pd.read_parquet(path)
    last, printed = run_tiny(project)
    part = last["previous"]
    assert (part["run_id"], part["comparable"]) == (before.report["run_id"], False)
    assert list(part["changes"]) == ["chunks_changed", "index_changed"]
    assert "not comparable (chunks changed, index changed); R@10 " in printed
    means = [
        frame[frame["level"] == "document"].groupby(["strategy", "query_id"])[[*COLUMNS.values()]]
        for frame in (old, pd.read_parquet(path))
    ]
    left, right = (frame.mean() for frame in means)
    assert len(part["deltas"]) == 6
    for row in part["deltas"]:
        was, is_now = (
            mean.loc[row["strategy"]][COLUMNS[row["measure"]]].dropna() for mean in (left, right)
        )
        assert (row["before"], row["after"]) == pytest.approx((was.mean(), is_now.mean()))
        assert row["n_better"] == int((is_now - was > 1e-12).sum())
        assert row["n_worse"] == int((was - is_now > 1e-12).sum())
    assert any(row["n_better"] or row["n_worse"] for row in part["deltas"])
    assert _first_fault(last) is None


@pytest.mark.slow
def test_runs_that_cannot_be_paired_say_why(project):
    first, _ = run_tiny(project)
    config = project.gold / "gold_set.yaml"
    config.write_text(CONFIG.replace("name: bm25", "name: third"), encoding="utf-8")
    config.write_text(config.read_text().replace("name: vector", "name: fourth"), encoding="utf-8")
    second, _ = run_tiny(project)
    part = second["previous"]
    assert (part["deltas"], part["deltas_reason"]) == (None, NONE_IN_COMMON)
    assert "strategies_changed" in part["changes"]
    project.write("paraphrases.jsonl", jsonl(PARAPHRASES[:1]))
    third, printed = run_tiny(project)
    part = third["previous"]
    assert (part["run_id"], list(part["changes"])) == (second["run_id"], ["gold_changed"])
    assert (part["deltas"], part["deltas_reason"]) == (None, GOLD_DIFFERS)
    assert "not comparable (gold changed)" in printed
    (project.home / "runs" / f"{third['run_id']}.json").write_text("{", encoding="utf-8")
    fourth, _ = run_tiny(project)
    assert fourth["previous"]["run_id"] == second["run_id"] != first["run_id"]
    assert all(_first_fault(report) is None for report in (second, third, fourth))
