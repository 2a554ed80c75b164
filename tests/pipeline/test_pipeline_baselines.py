"""Baselines: the accepted run and its record."""

import json
import shutil

import pytest
from cli_project import CONFIG, QRELS

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.pipeline.history import HISTORY, _acceptances, accept_baseline, load_baseline
from rag_eval.reporting.report import content_hash, dumps
from rag_eval.storage.home import Home
from rag_eval.storage.locks import WriteLock

GATES = "required: [], advisory: [acceptance], min_queries: 50"


def accept(project, name="latest", who="Ada", why="one", **options):
    settings = Settings(home=project.home, wait_s=0)
    return accept_baseline(settings, name, who, why, **{"gold_set": "tiny", **options})


def baseline(project, gold_set="tiny"):
    return load_baseline(Home(project.home), gold_set)


@pytest.fixture
def ran(project, shared_runs):
    """Return the project after one run."""
    shared_runs.run(project)
    return project


def run_again(project, exit_code=0):
    assert project.invoke("run", "tiny").exit_code == exit_code
    return project.report()


def test_the_newest_acceptance_counts_and_none_is_forgotten(ran):
    accept(ran)
    first, second = ran.report()["run_id"], run_again(ran)["run_id"]
    accept(ran, who="Ben", why="two")
    assert baseline(ran).run.run_id == second != first
    accept(ran, first, why="back")
    assert baseline(ran).run.run_id == first
    assert [each.why for each in _acceptances(Home(ran.home), "tiny")] == ["one", "two", "back"]


def test_nothing_accepted_is_no_baseline(project):
    assert baseline(project) is None
    for name in ("../tiny", "", "a/b"):
        with pytest.raises(InputError, match="bad_name"):
            baseline(project, name)


@pytest.mark.parametrize("change", [{"run_id": 7}, None])
def test_a_changed_history_is_named_with_its_line(ran, change):
    accept(ran)
    path = ran.home / "baselines" / "tiny" / HISTORY
    text = path.read_text(encoding="utf-8")
    spoiled = {**json.loads(text), **change} if change else change
    path.write_text(f"{text}{json.dumps(spoiled)}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        baseline(ran)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line) == ("baseline_damaged", 2)


@pytest.mark.parametrize(
    ("status", "code", "is_accepted"),
    [
        ("insufficient_evidence", "gold_differs", True),
        ("fail", "regression", False),
        ("insufficient_evidence", "too_few_queries", False),
    ],
)
def test_reasons_that_accepting_mends_do_not_stop_it(ran, status, code, is_accepted):
    path = next((ran.home / "runs").glob("*.json"))
    kept = json.loads(path.read_text(encoding="utf-8"))
    gate = {"id": "regression.mrr", "gate": "regression", "severity": "P2", "required": True}
    gate |= {"status": status, "reason_code": code, "evidence": {"measure": "mrr"}}
    kept["report"]["gates"] = [gate]
    kept["report"]["content_hash"] = content_hash(kept["report"])
    path.write_text(dumps(kept), encoding="utf-8")
    if is_accepted:
        assert accept(ran).failed_gates == []
    else:
        with pytest.raises(InputError, match="gates_failed"):
            accept(ran)


@pytest.mark.parametrize(
    ("who", "why"), [("", "x"), ("a\nb", "x"), ("x", "\x1b[2J"), ("x", "y" * 2001), ("x", "\ud800")]
)
def test_who_and_why_are_one_line_each(project, who, why):
    with pytest.raises(InputError, match="bad_arguments"):
        accept(project, who=who, why=why)
    assert not (project.home / "baselines").exists()


def test_only_whole_runs_of_this_home_and_gold_set_are_accepted(ran):
    for name, gold_set in (("none", "tiny"), ("", "tiny"), ("latest", "another")):
        with pytest.raises(InputError, match="run_not_found"):
            accept(ran, name, gold_set=gold_set)
    with WriteLock(Settings(home=ran.home)), pytest.raises(InputError, match="home_busy"):
        accept(ran)
    accept(ran)
    path = next((ran.home / "runs").glob("*.json"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"mrr": 1.0', '"mrr": 0.5'), encoding="utf-8")
    for use in (accept, baseline):
        with pytest.raises(InputError, match="run_unreadable"):
            use(ran)
    path.write_text(text, encoding="utf-8")
    shutil.rmtree(ran.home / "artifacts" / "ranking_measures")
    for use in (accept, baseline):
        with pytest.raises(InputError, match=r"run_incomplete.*ranking_measures"):
            use(ran)


@pytest.mark.slow
def test_a_run_is_judged_against_its_baseline(project):
    gates = "required: [], advisory: [regression], min_queries: 2, regression: [recall_at_1, mrr]"
    config = CONFIG.replace(GATES, gates)
    (project.gold / "gold_set.yaml").write_text(config, encoding="utf-8")
    assert {gate["reason_code"] for gate in run_again(project)["gates"]} == {"no_baseline"}
    accept(project)
    report = run_again(project)
    assert [
        (gate["id"], gate["reason_code"], gate["evidence"]["n_tied"]) for gate in report["gates"]
    ] == [("regression.recall_at_1", "no_regression", 3), ("regression.mrr", "no_regression", 3)]
    evidence = report["gates"][1]["evidence"]
    assert evidence["baseline"] == evidence["now"] == report["mrr"]
    assert "different" not in evidence
    qrels = QRELS.replace("night\talerts.md", "night\tstorage.md")
    project.write("qrels.tsv", qrels)
    assert {gate["reason_code"] for gate in run_again(project)["gates"]} == {"gold_differs"}
    shutil.rmtree(project.home / "artifacts" / "ranking_measures")
    report = run_again(project)
    assert {gate["reason_code"] for gate in report["gates"]} == {"baseline_damaged"}


def test_a_run_with_a_failed_required_gate_needs_force(project):
    config = CONFIG.replace("required: [], advisory: [acceptance]", "required: [acceptance]")
    (project.gold / "gold_set.yaml").write_text(f"{config}acceptance: {{mrr: '>= 0.5'}}\n")
    run_again(project, exit_code=2)
    with pytest.raises(InputError, match=r"gates_failed.*acceptance\.mrr"):
        accept(project)
    assert baseline(project) is None
    record = accept(project, force=True)
    assert record == _acceptances(Home(project.home), "tiny")[-1]
    assert record.failed_gates == ["acceptance.mrr"]
