"""Baselines: the accepted run, its record, and the drift since."""

import json
import shutil

import pandas as pd
import pytest
from cli_project import CONFIG, DOCUMENTS, QRELS
from gate_inputs import gate_inputs

from rag_eval.core.errors import InputError
from rag_eval.core.report import first_fault
from rag_eval.core.settings import Settings
from rag_eval.gates.regression import measured_run
from rag_eval.gates.verdict import judge_gates
from rag_eval.gold.configuration import load_config
from rag_eval.pipeline.baselines import (
    HISTORY,
    Snapshot,
    _targets,
    accept_baseline,
    acceptances,
    drift_part,
    load_baseline,
    take_snapshot,
    try_baseline,
)
from rag_eval.pipeline.history import open_kept_run
from rag_eval.reporting.metrics_report import content_hash, dumps
from rag_eval.storage.artifacts import home_lock


def accept(project, name="latest", who="Ada", why="one", **options):
    given = Settings(home=project.home, reports=project.reports)
    return accept_baseline(given, name, who, why, **{"gold_set": "tiny", **options})


@pytest.fixture
def ran(project, shared_runs):
    """Return the project after one run."""
    shared_runs.run(project)
    return project


@pytest.fixture
def accepted(ran):
    """Return the project after one accepted run."""
    accept(ran)
    return ran


def read_newest(project):
    """Return the snapshot, report and per-query figures of the newest run."""
    run = open_kept_run(project.home, "latest")
    gold = run.artifact("gold_variants")
    documents = run.artifact("corpus_snapshot").frame("documents")
    taken = take_snapshot(documents, gold.frame("qrels_document"), gold.frame("spans"))
    return taken, run.report().dump(), run.per_query()


def run_again(project, exit_code=0):
    assert project.invoke("run", "tiny").exit_code == exit_code
    return project.report()


def test_the_newest_acceptance_counts_and_none_is_forgotten(accepted):
    first = accepted.report()["run_id"]
    second = run_again(accepted)["run_id"]
    accept(accepted, who="Ben", why="two")
    assert load_baseline(accepted.home, "tiny").report.run_id == second != first
    accept(accepted, first, why="back", gold_set=None)
    assert load_baseline(accepted.home, "tiny").report.run_id == first
    assert [one.why for one in acceptances(accepted.home, "tiny")] == ["one", "two", "back"]


def test_a_baseline_whose_run_is_gone_or_changed_is_not_read(accepted):
    (path,) = (accepted.home / "runs").glob("*.json")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"mrr": 1.0', '"mrr": 0.5'), encoding="utf-8")
    assert try_baseline(accepted.home, "tiny")[1]
    path.write_text(text, encoding="utf-8")
    assert try_baseline(accepted.home, "tiny")[1] == ""
    shutil.rmtree(accepted.home / "artifacts" / "corpus_snapshot")
    found, fault = try_baseline(accepted.home, "tiny")
    assert (found, "no longer in the home" in fault) == (None, True)


def test_nothing_accepted_is_no_baseline(project):
    assert load_baseline(project.home, "tiny") is None
    assert acceptances(project.home, "tiny") == []
    for name in ("../tiny", "", "a/b", "." * 3):
        with pytest.raises(InputError, match="bad_name"):
            load_baseline(project.home, name)


@pytest.mark.parametrize("change", [{"run_id": 7}, {"who": None}, None, []])
def test_a_changed_history_is_named_with_its_line(accepted, change):
    path = accepted.home / "baselines" / "tiny" / HISTORY
    text = path.read_text(encoding="utf-8")
    spoiled = {**json.loads(text), **change} if change else change
    path.write_text(f"{text}{json.dumps(spoiled)}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_baseline(accepted.home, "tiny")
    (problem,) = caught.value.problems
    assert (problem.code, problem.line) == ("baseline_damaged", 2)


@pytest.mark.parametrize(
    ("status", "code", "is_accepted"),
    [
        ("insufficient_evidence", "no_baseline", True),
        ("insufficient_evidence", "gold_differs", True),
        ("fail", "regression", False),
        ("insufficient_evidence", "too_few_queries", False),
    ],
)
def test_reasons_that_accepting_mends_do_not_stop_it(ran, status, code, is_accepted):
    path = next((ran.home / "runs").glob("*.json"))
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["report"]["gates"] = [
        {
            "id": "regression.mrr",
            "gate": "regression",
            "severity": "P2",
            "required": True,
            "status": status,
            "reason_code": code,
            "evidence": {"measure": "mrr"},
        }
    ]
    kept["report"]["content_hash"] = content_hash(kept["report"])
    path.write_text(dumps(kept), encoding="utf-8")
    if is_accepted:
        accept(ran)
        assert load_baseline(ran.home, "tiny").record.forced is False
    else:
        with pytest.raises(InputError, match="gates_failed"):
            accept(ran)


@pytest.mark.parametrize(
    ("who", "why"),
    [("", "x"), ("x", "  "), ("a\nb", "x"), ("x", "y" * 2001), ("x", "\x1b[2J"), ("x", "\ud800")],
)
def test_who_and_why_are_one_line_each(project, who, why):
    with pytest.raises(InputError, match="bad_arguments"):
        accept(project, who=who, why=why)
    assert not (project.home / "baselines").exists()


def test_only_whole_runs_of_this_home_and_gold_set_are_accepted(ran):
    report = str(ran.reports / "tiny" / "retrieval-metrics.json")
    for name in ("none", "", "../x", report, "previous"):
        with pytest.raises(InputError, match="run_not_found"):
            accept(ran, name)
    with pytest.raises(InputError, match="run_not_found"):
        accept(ran, gold_set="another")
    with home_lock(ran.home), pytest.raises(InputError, match="home_busy"):
        accept(ran)
    path = next((ran.home / "runs").glob("*.json"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"mrr": 1.0', '"mrr": 0.5'), encoding="utf-8")
    with pytest.raises(InputError, match="run_unreadable"):
        accept(ran)
    path.write_text(text, encoding="utf-8")
    shutil.rmtree(ran.home / "artifacts" / "gold_variants")
    with pytest.raises(InputError, match=r"run_incomplete.*gold_variants"):
        accept(ran)


def test_a_run_is_judged_against_its_baseline(accepted):
    config = load_config(accepted.gold)
    chosen = {"advisory": ("regression",), "min_queries": 2, "regression": ("recall_at_1", "mrr")}
    gates = config.gates.model_copy(update={"required": (), **chosen})
    config = config.model_copy(update={"gates": gates})
    before = load_baseline(accepted.home, "tiny").measured

    def judge():
        _, report, per_query = read_newest(accepted)
        now = measured_run(report, per_query)
        return judge_gates(gate_inputs(config, before=before, now=now))

    found = judge()
    assert [(gate.id, gate.reason_code, gate.evidence["n_tied"]) for gate in found] == [
        ("regression.recall_at_1", "no_regression", 3),
        ("regression.mrr", "no_regression", 3),
    ]
    assert found[1].evidence["baseline"] == found[1].evidence["now"] == accepted.report()["mrr"]
    assert "different" not in found[0].evidence
    qrels = QRELS.replace("night\talerts.md", "night\tstorage.md")
    accepted.write("qrels.tsv", qrels)
    run_again(accepted)
    assert {gate.reason_code for gate in judge()} == {"gold_differs"}


# ---- Drift.


def test_drift_names_documents_targets_and_indexes(accepted):
    base = load_baseline(accepted.home, "tiny")
    now, report, _ = read_newest(accepted)
    same = drift_part(base, "", now, report).dump()
    assert (same["comparable"], same["notes"]) == (True, [])
    assert (same["corpus"]["changed"]["n"], same["index"]["bm25"]["same"]) == (0, True)
    assert same["baseline"]["run_id"] == base.report.run_id
    text = DOCUMENTS["alerts.md"] + "\n## Colour\n\nAlerts are red.\n"
    accepted.write("corpus/alerts.md", text)
    accepted.write("corpus/new.md", "# New\n\nSomething else.\n")
    found = run_again(accepted)["drift"]
    assert (found["corpus"]["new"], found["corpus"]["changed"], found["corpus"]["removed"]) == (
        {"n": 1, "names": ["new.md"]},
        {"n": 1, "names": ["alerts.md"]},
        {"n": 0, "names": []},
    )
    assert found["corpus"]["n_documents"] == {"before": 3, "after": 4, "same": False}
    # The document of `night` changed, but no quoted evidence changed.
    assert found["gold"]["targets_changed"] == {"n": 1, "query_ids": ["night"]}
    assert found["gold"]["evidence_changed"]["n"] == 0
    assert (found["comparable"], found["index"]["bm25"]["same"]) == (True, False)
    notes = " ".join(found["notes"])
    assert "different index hashes" in notes
    assert "1 new, 1 changed, 0 removed" in notes
    assert "target of 1 question changed" in notes
    assert first_fault(accepted.report()) is None
    assert "baseline accept" in drift_part(None, "", now, report).reason
    assert "damaged" in drift_part(None, "damaged", now, report).reason


def snapshot_of(text, gain=1):
    documents = pd.DataFrame({"doc_id": ["d"], "content_hash": [text], "text": [text]})
    qrels = {"query_id": ["q", "never"], "item_id": ["d", "d"], "gain": [gain, 0]}
    start = text.index("red")
    spans = {"query_id": ["q"], "doc_id": ["d"], "start": [start], "end": [start + 9]}
    return take_snapshot(documents, pd.DataFrame(qrels), pd.DataFrame(spans))


def test_a_change_of_quoted_evidence_differs_from_one_around_it():
    before = snapshot_of("It is red always.").targets
    moved = _targets(before, snapshot_of("Now it is red always.").targets)
    assert (moved["targets_changed"].n, moved["evidence_changed"].n) == (1, 0)
    other = _targets(before, snapshot_of("It is red no more.").targets)
    assert other["evidence_changed"].query_ids == ["q"]
    assert set(before["query_id"]) == {"q"}


def test_a_target_without_its_document_has_no_hashes():
    gone = take_snapshot(
        pd.DataFrame({"doc_id": ["e"], "content_hash": ["1"], "text": [""]}),
        pd.DataFrame({"query_id": ["r"], "item_id": ["gone"], "gain": [1]}),
        pd.DataFrame({"query_id": [], "doc_id": [], "start": [], "end": []}),
    )
    assert gone.targets.to_dict("records") == [
        {"query_id": "r", "doc_id": "gone", "content_hash": "", "span_hash": ""}
    ]
    questions = _targets(snapshot_of("It is red always.").targets, gone.targets)
    assert questions["questions_new"].query_ids == ["r"]
    assert questions["questions_removed"].query_ids == ["q"]


def test_names_from_a_corpus_are_bounded_and_printable(accepted):
    base = load_baseline(accepted.home, "tiny")
    hostile = [f"{at:04}\x1b[2J\u202e\n" + "x" * 10_000 for at in range(5000)]
    now = Snapshot(
        pd.DataFrame({"doc_id": hostile, "content_hash": "0"}),
        pd.DataFrame({"query_id": hostile, "doc_id": "d", "content_hash": "0", "span_hash": ""}),
    )
    found = drift_part(base, "", now, accepted.report()).dump()
    text = json.dumps(found, ensure_ascii=False)
    assert len(text) < 6_000_000
    assert not {"\x1b", "\u202e"} & set(text)
    assert (found["corpus"]["new"]["n"], found["corpus"]["removed"]["n"]) == (5000, 3)
    assert found["corpus"]["new"]["names"][0].startswith("0000\\u001b[2J")


def test_a_run_with_a_failed_required_gate_needs_force(project):
    config = CONFIG.replace("required: [], advisory: [acceptance]", "required: [acceptance]")
    (project.gold / "gold_set.yaml").write_text(f"{config}acceptance: {{mrr: '>= 0.5'}}\n")
    run_again(project, exit_code=2)
    with pytest.raises(InputError, match=r"gates_failed.*acceptance\.mrr"):
        accept(project)
    assert load_baseline(project.home, "tiny") is None
    accept(project, force=True)
    record = load_baseline(project.home, "tiny").record
    assert (record.forced, record.failed_gates) == (True, ["acceptance.mrr"])
