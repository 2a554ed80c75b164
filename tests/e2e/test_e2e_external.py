"""Foreign retrievers run beside our own; every failure is counted and none ends the run.

The retrievers answer over real HTTP, through an imported port and from run files.
"""

import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
from cli_project import CONFIG, jsonl, measure
from service_process import ServiceProcess, running

from rag_eval.reporting.mlflow import _strategy_metrics
from rag_eval.reporting.report import Report

pytestmark = pytest.mark.slow

N_WORDINGS, N_ORIGINALS = 6, 4
QUICK = {"timeout_s": 5, "max_retries": 1, "concurrency": 2}
TREC = """\
keep Q0 storage.md 1 2.0 t
keep Q0 alerts.md 2 1.0 t
again Q0 alerts.md 1 2.0 t
again Q0 retries.md 2 1.0 t
"""
RECORDED = [
    {"query_id": "keep", "contexts": [["storage.md", "Results older than thirty days"]]},
    {
        "query_id": "again",
        "contexts": [
            ["alerts.md", "x"],
            ["retries.md", "A failed job is tried three more times."],
            ["retries.md", "The pause between two tries doubles each time."],
        ],
    },
    {"query_id": "night", "answer": None, "error": "down", "contexts": []},
]
PORT = """
from pathlib import Path
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.live_questions import open_port
from rag_eval.core.settings import Settings

ROOT = Path({root!r})

class Own:
    '''bm25 of the same corpus through the port, from a home of its own.'''
    version = 1

    def __init__(self):
        evaluation = open_gold_set(ROOT / "inner" / "tiny", Settings(home=ROOT / "inner_home"))
        self.port = open_port(evaluation)
        self.retrieve = self.port.retrieve
        self.batch_retrieve, self.stats = self.port.batch_retrieve, self.port.stats

"""


def configure(project, strategies, more=""):
    """Configure external strategies beside bm25."""
    rows = [f"  - {{name: {name}, kind: external, {at}}}\n" for name, at in strategies.items()]
    vector = "  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n"
    project.write("gold_set.yaml", CONFIG.replace(vector, "".join(rows)) + more)


@pytest.fixture(scope="module")
def service(scenario):
    with running(scenario.project.corpus) as process:
        yield process


@pytest.fixture
def outside(project, monkeypatch):
    """Return a function that configures external strategies beside bm25 and runs them."""

    def run(strategies, sources=None, more="", limits=QUICK, exit_code=0):
        configure(project, strategies, more)
        monkeypatch.setenv("RAG_EVAL_SOURCES", json.dumps(sources or {}))
        monkeypatch.setenv("RAG_EVAL_EXTERNAL", json.dumps(limits))
        return project.run(exit_code=exit_code)

    return run


def ran(project):
    result = project.run()
    return SimpleNamespace(
        out=result.stdout,
        err=result.stderr,
        report=project.report(),
        found=project.strategies(),
        trec=project.text("run-trec.trec") if "trec" in project.strategies() else "",
        bm25=project.text("run-bm25.trec"),
    )


@pytest.fixture(scope="module")
def nights(scenario, service):
    """Run over sources without a fault, then over failing sources of settings.toml."""
    project, patch = scenario
    shutil.copytree(project.gold, project.root / "inner" / "tiny")
    (project.root / "own_port.py").write_text(PORT.format(root=str(project.root)), encoding="utf-8")
    patch.syspath_prepend(str(project.root))
    patch.delitem(sys.modules, "own_port", raising=False)
    project.write("mine.trec", TREC)
    rows = [
        {
            "answer": "a",
            **row,
            "contexts": [{"doc_id": name, "text": text} for name, text in row["contexts"]],
        }
        for row in RECORDED
    ]
    project.write("outputs.jsonl", jsonl(rows))
    sources = {name: service.url(fault=name) for name in ("ids", "unknown")}
    sources |= {"http": service.url(), "ported": "own_port:Own"}
    patch.setenv("RAG_EVAL_SOURCES", json.dumps(sources))
    patch.setenv("RAG_EVAL_EXTERNAL", json.dumps(QUICK))
    files = {"trec": "run_file: mine.trec", "recorded": "recorded: outputs.jsonl"}
    configure(project, {name: f"source: {name}" for name in sources} | files)
    good = ran(project)

    sources = {"down": service.url(fault="down", on="night")}
    patch.delenv("RAG_EVAL_SOURCES")
    patch.delenv("RAG_EVAL_EXTERNAL")
    lines = [f'{name} = "{place}"' for name, place in sources.items()]
    limits = [f"{name} = {value}" for name, value in QUICK.items()]
    (project.root / "settings.toml").write_text(
        "\n".join(["[sources]", *lines, "[external]", *limits]), encoding="utf-8"
    )
    configure(project, {name: f"source: {name}" for name in sources})
    return SimpleNamespace(good=good, bad=ran(project))


def test_every_source_is_measured_without_a_failure(nights):
    good = nights.good
    counts = {name: (entry["n_runs"], entry["n_failed"]) for name, entry in good.found.items()}
    assert counts.pop("trec") == (N_ORIGINALS, 0)
    assert counts.pop("recorded") == (N_ORIGINALS, 2)
    assert counts == dict.fromkeys(("bm25", "http", "ported", "ids", "unknown"), (N_WORDINGS, 0))
    assert measure(good.found["ids"])["value"] == 1.0
    assert measure(good.found["ids"], level="section")["value"] is None
    assert good.found["unknown"]["source"]["n_unknown"] == 1
    assert "unknown: 1 retrieved documents are not in the corpus" in good.out
    kinds = {"http": "http", "ported": "import", "trec": "run_file", "recorded": "recorded"}
    assert {name: good.found[name]["source"]["kind"] for name in kinds} == kinds
    for name in kinds:
        assert re.fullmatch(r"external:[0-9a-f]{32}", good.found[name]["index_hash"])
    assert "Dagster did not record" not in good.err
    for name in good.found:  # the data for MLflow
        figures = _strategy_metrics(Report.model_validate(good.report), name)
        assert all(isinstance(value, float) for value in figures.values())


def test_our_own_port_gives_the_figures_of_bm25(nights):
    found, stability = nights.good.found, nights.good.report["stability"]["strategies"]
    assert found["ported"]["measures"] == found["bm25"]["measures"]
    assert stability["ported"] == stability["bm25"]  # delta_s is equal too
    told = nights.good.report["uncertainty"]["strategies"]
    assert told["ported"]["observed"] == told["bm25"]["observed"]


def test_texts_over_http_are_measured_at_every_level(nights):
    http = nights.good.found["http"]
    assert all(level["measured"] for level in http["levels"].values())
    # "number of retries" shares no word with the quoted sentence
    assert measure(http, level="span")["value"] == 0.5
    assert measure(http)["n_scored"] == 3
    assert http["latency_ms"]["n"] == N_WORDINGS  # each wording once, as they are few and fast


def test_a_run_file_judges_documents_of_original_wordings(nights):
    trec, report = nights.good.found["trec"], nights.good.report
    assert trec["source"]["wordings"] == "original"
    assert measure(trec)["value"] == pytest.approx(2 / 3)
    assert measure(trec, "RR")["value"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    span = measure(trec, level="span")
    assert (span["value"], span["n_scored"]) == (None, 0)
    assert "place in its document" in span["value_reason"]
    assert trec["latency_ms"]["p95"] is None
    assert "original wordings only" in nights.good.out
    stability = report["stability"]["strategies"]["trec"]
    assert stability["delta_s"]["value"] is None
    assert "no chunks of this corpus" in stability["delta_s"]["value_reason"]
    assert stability["rbo"]["n_scored"] == 0
    # A comparison with a run of the original wordings covers only these wordings.
    rows = {(row["a"], row["b"]): row.get("n_wordings") for row in report["comparisons"]}
    assert rows["bm25", "http"] is None
    assert rows["bm25", "trec"] == N_ORIGINALS
    exported = [line.split()[:4] for line in nights.good.trec.splitlines()]
    assert exported == [line.split()[:4] for line in TREC.splitlines()]


def test_recorded_contexts_are_a_ranking_of_the_original_wordings(nights):
    entry = nights.good.found["recorded"]
    assert entry["failures"] == {"not_recorded": 1, "recorded_error": 1}
    assert (entry["source"]["wordings"], entry["source"]["n_placed"]) == ("original", 3)
    assert measure(entry)["value"] == pytest.approx(2 / 3)
    assert measure(entry, "RR")["value"] == pytest.approx((1 + 1 / 2 + 0) / 3)


def test_a_fault_is_counted_by_code_and_ends_nothing(nights):
    entry = nights.bad.found["down"]
    assert (entry["n_failed"], entry["failures"]) == (1, {"server_error": 1})
    assert entry["first_failure"].startswith("server_error: ")
    recall = measure(entry)
    assert (recall["n_scored"], recall["n_failed"], recall["n_ineligible"]) == (3, 1, 1)
    assert recall["value"] == pytest.approx(2 / 3)
    assert "down: 1 of 6 retrievals FAILED and score 0 (server_error 1)" in nights.bad.out
    assert "1 failed" in nights.bad.err


def test_the_next_run_asks_a_killed_service_again(project, outside):
    service = ServiceProcess(project.corpus)
    try:
        # The service answers one query for its version and three wordings. Then its process kills
        # itself.
        limits = {**QUICK, "concurrency": 1}
        outside({"mine": "source: mine"}, {"mine": service.url(die_after=4)}, limits=limits)
        service.process.wait(timeout=10)
        first = project.strategies()["mine"]
        assert (first["n_failed"], first["failures"]) == (3, {"connection": 3})
        port = service.port
    finally:
        service.kill()
    with running(project.corpus, port) as again:
        outside({"mine": "source: mine"}, {"mine": again.url(die_after=400)})
        assert project.strategies()["mine"]["n_failed"] == 0
        assert project.report()["reused"]["runs"] == {"bm25": True, "mine": False}


def test_a_service_with_an_equal_version_is_not_asked_again(project, service, outside):
    plain, stated = service.url(own=1), service.url(version="v7")
    strategies = {"plain": "source: plain", "stated": "source: stated"}
    hashes, asked = [], []
    for _ in range(2):
        outside(strategies, {"plain": plain, "stated": stated})
        hashes.append(project.report()["content_hash"])
        asked.append((service.asked(plain), service.asked(stated)))
    assert hashes[0] == hashes[1]
    assert asked[1][0] == 2 * asked[0][0]
    assert asked[1][1] == asked[0][1] + 1  # one more query for the version
    assert project.report()["reused"]["runs"] == {"bm25": True, "plain": False, "stated": True}
    assert project.strategies()["stated"]["source"]["version"] == "v7"
    outside(strategies, {"plain": plain, "stated": service.url(version="v8")})
    assert project.report()["reused"]["runs"]["stated"] is False
    assert project.report()["content_hash"] != hashes[0]
