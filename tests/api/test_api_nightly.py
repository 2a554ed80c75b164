"""A gold set is run from Python as by the command, and a written report gives frames."""

import json
import re
import shutil

import pytest

import rag_eval
from rag_eval.api import gold_sets
from rag_eval.gates.gate import GatePart

GATE = {
    "id": "floor",
    "gate": "floors",
    "severity": "P1",
    "required": True,
    "status": "fail",
    "reason_code": "below_floor",
    "evidence": {},
}


@pytest.fixture
def evaluated(project, shared_runs):
    shared_runs.run(project)
    return project


def test_a_written_report_gives_its_figures_as_frames(evaluated):
    folder = evaluated.reports / "tiny"
    loaded = rag_eval.load(folder)
    written = json.loads((folder / "retrieval-metrics.json").read_text("utf-8"))
    part = next(one for one in written["strategies"] if one["name"] == "bm25")
    for one in part["measures"]:
        row = loaded.table.loc[("bm25", one["level"], one["label"])]
        assert (row["value"], row["questions"]) == (one["value"], one["n_scored"])
    assert len(loaded.comparisons) == len(written["comparisons"])
    first = written["comparisons"][0]
    key = tuple(first[name] for name in ("a", "b", "level", "measure"))
    assert loaded.comparisons.loc[key, "difference"] == first["delta"]
    gate = GatePart.model_validate(GATE)
    gates = gold_sets._gates(loaded.report.model_copy(update={"gates": (gate,)}))
    columns = [GATE["required"], GATE["status"], GATE["reason_code"]]
    assert gates.loc["floor", ["required", "status", "reason"]].tolist() == columns
    observed = written["uncertainty"]["strategies"]["bm25"]["observed"]["miss_any"]
    assert loaded.miss_rates.loc["bm25", "observed"] == observed["value"]
    assert {"strategy", "query_id", "mrr"} <= set(loaded.per_query)
    assert loaded.passed
    assert loaded.report.gold.name == "tiny"


def test_a_gold_set_is_run_with_the_settings_of_the_command(evaluated, monkeypatch):
    before = rag_eval.load(evaluated.reports / "tiny").report
    monkeypatch.setenv("RAG_EVAL_HOME", str(evaluated.home))
    monkeypatch.setenv("RAG_EVAL_REPORTS", str(evaluated.reports))
    after = rag_eval.run(evaluated.gold).report
    assert after.content_hash == before.content_hash
    assert after.run_id != before.run_id


def test_miss_rates_are_compared_as_the_protocol_does(evaluated, monkeypatch, project_root, capsys):
    text = (project_root / "docs" / "protocol.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name in ("my_docs", "other_docs"):
        shutil.copytree(evaluated.reports / "tiny", evaluated.root / "reports" / name)
    monkeypatch.chdir(evaluated.root)
    names: dict[str, rag_eval.ComparedMissRates] = {}
    exec(compile(code, "protocol.md", "exec"), names)  # noqa: S102 - our own documentation
    assert r"miss\_any" in capsys.readouterr().out
    written = (evaluated.root / "comparison" / "calibrated-miss-rates.tex").read_text("utf-8")
    found = names["found"].table.query("strategy == 'bm25' and target == 'miss_any' and k == 10")
    assert len(found) == 2
    observed = names["found"].table["observed"].iloc[0]
    assert f"{observed:.3f}" in written
    columns = (project_root / "docs" / "protocol.md").read_text("utf-8")
    for name in re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", columns, re.MULTILINE):
        assert {*filter(None, name)} <= {*names["found"].table, *names["found"].differences}


def test_a_kept_run_is_a_report_of_its_night(evaluated):
    (kept,) = (evaluated.home / "runs").glob("*.json")
    loaded = rag_eval.compare_miss_rates(kept, evaluated.reports / "tiny").table
    assert loaded["run_id"].unique().tolist() == [kept.stem]
    with pytest.raises(rag_eval.InputError, match="at least one report"):
        rag_eval.compare_miss_rates()


def test_a_changed_report_is_refused(evaluated):
    path = evaluated.reports / "tiny" / "retrieval-metrics.json"
    path.write_text(path.read_text("utf-8").replace('"tiny"', '"huge"'), "utf-8")
    with pytest.raises(rag_eval.InputError, match="content_hash"):
        rag_eval.load(path)
