"""Foreign retrievers run beside our own; every failure is counted and none ends the run.

They answer over real HTTP, through an imported port and from run files.
"""

import json
import re

import pytest
from cli_project import CONFIG
from service_process import ServiceProcess, running

from rag_eval.core.report import StrategyPart, first_fault
from rag_eval.reporting.mlflow import strategy_metrics

N_WORDINGS, N_ORIGINALS = 6, 4
QUICK = {"timeout_s": 5, "max_retries": 1, "backoff_s": 0.01, "concurrency": 2}

PORT = """
from pathlib import Path
from rag_eval.pipeline.evaluation import open_gold_set
from rag_eval.pipeline.retrieval import open_port
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

class Broken(Own):
    def __init__(self):
        super().__init__()
        self.batch_retrieve = self.together
        inner = self.port.retrieve
        def alone(query, options):
            if "night" in query:
                raise RuntimeError("no\\x1b[31m index")
            return inner(query, options)
        self.retrieve = alone

    def together(self, queries, options):
        raise MemoryError("too many")
"""


@pytest.fixture
def service(project):
    with running(project.corpus) as process:
        yield process


@pytest.fixture
def outside(project, monkeypatch):
    """Configure external strategies beside bm25 and run them."""

    def run(strategies, sources=None, extra="", limits=QUICK, exit_code=0):
        lines = "".join(
            f"  - {{name: {name}, kind: external, {where}}}\n" for name, where in strategies.items()
        )
        (project.gold / "gold_set.yaml").write_text(
            CONFIG.replace("  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n", lines)
            + extra,
            encoding="utf-8",
        )
        monkeypatch.setenv("RAG_EVAL_SOURCES", json.dumps(sources or {}))
        monkeypatch.setenv("RAG_EVAL_EXTERNAL", json.dumps(limits))
        result = project.invoke("run", "tiny")
        assert result.exit_code == exit_code, result.output
        assert "Traceback" not in result.output
        return result

    return run


def entries(project):
    report = project.report()
    assert first_fault(report) is None
    return {entry["name"]: entry for entry in report["strategies"]}


def measure(entry, label="R@5", level="document"):
    return next(
        record
        for record in entry["measures"]
        if (record["label"], record["level"]) == (label, level)
    )


def write_run(project, name="mine.trec"):
    rows = [
        "keep Q0 storage.md 1 2.0 t",
        "keep Q0 alerts.md 2 1.0 t",
        "again Q0 alerts.md 1 2.0 t",
        "again Q0 retries.md 2 1.0 t",
    ]
    (project.gold / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


def inner(project, monkeypatch):
    """The same gold set elsewhere, for a port that serves its corpus."""
    folder = project.root / "inner" / "tiny"
    folder.mkdir(parents=True)
    for path in project.gold.rglob("*"):
        if path.is_file():
            (folder / path.relative_to(project.gold)).parent.mkdir(parents=True, exist_ok=True)
            (folder / path.relative_to(project.gold)).write_bytes(path.read_bytes())
    (project.root / "own_port.py").write_text(PORT.format(root=str(project.root)), encoding="utf-8")
    monkeypatch.syspath_prepend(str(project.root))
    monkeypatch.delitem(__import__("sys").modules, "own_port", raising=False)


def test_all_sources_beside_bm25(project, service, outside, monkeypatch):
    inner(project, monkeypatch)
    write_run(project)
    sources = {"search": service.url(), "port": "own_port:Own"}
    result = outside(
        {"http": "source: search", "ported": "source: port", "trec": "run_file: mine.trec"}, sources
    )
    found = entries(project)
    assert {name: (entry["n_runs"], entry["n_failed"]) for name, entry in found.items()} == {
        "bm25": (6, 0),
        "http": (6, 0),
        "ported": (6, 0),
        "trec": (N_ORIGINALS, 0),
    }
    assert all(not entry.get("failures") for entry in found.values())
    assert {name: found[name]["source"]["kind"] for name in ("http", "ported", "trec")} == {
        "http": "http",
        "ported": "import",
        "trec": "run_file",
    }
    assert all(
        re.fullmatch(r"external:[0-9a-f]{32}", found[name]["index_hash"])
        for name in ("http", "ported", "trec")
    )
    # The port returns our chunks in our order, so every figure, also delta_s, equals that of bm25.
    assert found["ported"]["measures"] == found["bm25"]["measures"]
    stability = project.report()["stability"]["strategies"]
    assert stability["ported"] == stability["bm25"]
    # HTTP brings texts that are found in the documents: all levels are measured
    assert all(level["measured"] for level in found["http"]["levels"].values())
    assert (
        measure(found["http"], level="span")["value"] == 0.5
    )  # "number of retries" shares no word with the quoted sentence
    assert measure(found["http"])["n_scored"] == 3
    # a run file of names: documents are judged, spans are not, and nobody calls that 0
    assert found["trec"]["source"]["wordings"] == "original"
    assert measure(found["trec"])["value"] == pytest.approx(2 / 3)
    assert measure(found["trec"], "RR")["value"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    span = measure(found["trec"], level="span")
    assert (span["value"], span["n_scored"]) == (None, 0)
    assert "place in its document" in span["value_reason"]
    assert found["trec"]["latency_ms"]["p95"] is None
    assert found["http"]["latency_ms"]["n"] == 2
    assert "original wordings only" in result.stdout
    assert stability["trec"]["delta_s"]["value"] is None
    assert "no chunks of this corpus" in stability["trec"]["delta_s"]["value_reason"]
    assert stability["trec"]["rbo"]["n_scored"] == 0
    # against a run of the original wordings only those are compared
    rows = {(row["a"], row["b"]): row.get("n_wordings") for row in project.report()["comparisons"]}
    assert rows[("bm25", "http")] is None
    assert rows[("bm25", "trec")] == N_ORIGINALS
    exported = (project.reports / "tiny" / "run-trec.trec").read_text(encoding="utf-8").splitlines()
    assert [line.split()[:4] for line in exported] == [
        ["keep", "Q0", "storage.md", "1"],
        ["keep", "Q0", "alerts.md", "2"],
        ["again", "Q0", "alerts.md", "1"],
        ["again", "Q0", "retries.md", "2"],
    ]
    assert "Dagster did not record" not in result.stderr
    for entry in found.values():  # the data for MLflow
        figures = strategy_metrics(StrategyPart.model_validate(entry), "document")
        assert all(isinstance(value, float) for value in figures.values())


def test_our_own_export_comes_back_as_the_same_figures(project, outside):
    outside({"other": "run_file: missing.trec"}, exit_code=1)
    (project.gold / "gold_set.yaml").write_text(CONFIG, encoding="utf-8")
    assert project.invoke("run", "tiny").exit_code == 0
    exported = (project.reports / "tiny" / "run-bm25.trec").read_text(encoding="utf-8")
    (project.gold / "mine.trec").write_text(exported, encoding="utf-8")
    (project.gold / "paraphrases.jsonl").write_text("", encoding="utf-8")
    outside({"mine": "run_file: mine.trec"})
    found = entries(project)
    documents = [
        [record for record in found[name]["measures"] if record["level"] == "document"]
        for name in ("bm25", "mine")
    ]
    assert documents[0] == documents[1]


def test_faults_are_counted_by_code_and_end_nothing(project, service, outside):
    faults = {
        "down": "server_error",
        "html": "malformed_reply",
        "types": "bad_id",
        "oversized": "reply_too_large",
        "half": "connection",
    }
    strategies = {f"f-{fault}": f"source: s-{fault}" for fault in faults}
    sources = {f"s-{fault}": service.url(fault=fault, on="night") for fault in faults}
    result = outside(strategies, sources, limits={**QUICK, "max_reply_bytes": 100_000})
    found = entries(project)
    for fault, code in faults.items():
        entry = found[f"f-{fault}"]
        assert (entry["n_failed"], entry["failures"]) == (1, {code: 1}), fault
        assert entry["first_failure"].startswith(f"{code}: ")
        recall = measure(entry)
        assert (recall["n_scored"], recall["n_failed"], recall["n_ineligible"]) == (3, 1, 1)
        assert recall["value"] == pytest.approx(2 / 3)
        assert f"f-{fault}: 1 of 6 retrievals FAILED and score 0 ({code} 1)" in result.stdout
    assert "1 failed" in result.stderr


@pytest.mark.slow
def test_the_next_run_asks_a_killed_service_again(project, outside):
    service = ServiceProcess(project.corpus)
    try:
        # one query finds out whether a version is stated, three wordings are answered,
        # then the process kills itself
        outside(
            {"mine": "source: mine"},
            {"mine": service.url(die_after=4)},
            limits={**QUICK, "concurrency": 1},
        )
        service.process.wait(timeout=10)
        first = entries(project)["mine"]
        assert (first["n_failed"], first["failures"]) == (3, {"connection": 3})
        port = service.port
    finally:
        service.kill()
    with running(project.corpus, port) as again:
        outside({"mine": "source: mine"}, {"mine": again.url(die_after=400)})
        assert entries(project)["mine"]["n_failed"] == 0
        assert project.report()["reused"]["runs"] == {"bm25": True, "mine": False}


@pytest.mark.slow
def test_a_service_with_an_equal_version_is_not_asked_again(project, service, outside):
    plain, stated = service.url(), service.url(version="v7")
    hashes, asked = [], []
    for _ in range(2):
        outside(
            {"plain": "source: plain", "stated": "source: stated"},
            {"plain": plain, "stated": stated},
        )
        hashes.append(project.report()["content_hash"])
        asked.append((service.asked(plain), service.asked(stated)))
    assert hashes[0] == hashes[1]
    assert asked[1][0] == 2 * asked[0][0]
    assert asked[1][1] == asked[0][1] + 1  # the query that asks for the version
    assert project.report()["reused"]["runs"] == {"bm25": True, "plain": False, "stated": True}
    assert entries(project)["stated"]["source"]["version"] == "v7"
    outside(
        {"plain": "source: plain", "stated": "source: stated"},
        {"plain": plain, "stated": service.url(version="v8")},
    )
    assert project.report()["reused"]["runs"]["stated"] is False
    assert project.report()["content_hash"] != hashes[0]


@pytest.mark.slow
def test_a_port_whose_batch_breaks_fails_only_the_culprit(project, outside, monkeypatch):
    inner(project, monkeypatch)
    outside({"mine": "source: mine"}, {"mine": "own_port:Broken"})
    entry = entries(project)["mine"]
    assert (entry["n_failed"], entry["failures"]) == (1, {"raised": 1})
    assert entry["first_failure"] == "raised: RuntimeError: no\\u001b[31m index"
    assert measure(entry)["value"] == pytest.approx(
        measure(entries(project)["bm25"])["value"] - 1 / 3
    )


def test_documents_by_name_and_unknown_ones(project, service, outside):
    sources = {
        "ids": service.url(fault="ids"),
        "unknown": service.url(fault="unknown"),
        "empty": service.url(fault="empty"),
    }
    result = outside(
        {"ids": "source: ids", "unknown": "source: unknown", "empty": "source: empty"}, sources
    )
    found = entries(project)
    assert measure(found["ids"])["value"] == 1.0
    assert measure(found["ids"], level="section")["value"] is None
    assert (
        measure(found["unknown"])["value"],
        found["unknown"]["n_empty"],
        found["unknown"]["source"]["n_unknown"],
    ) == (0.0, 0, 1)
    assert "unknown: 1 retrieved documents are not in the corpus" in result.stdout
    assert (
        measure(found["empty"])["value"],
        found["empty"]["n_empty"],
        found["empty"]["n_failed"],
    ) == (0.0, N_WORDINGS, 0)


@pytest.mark.slow
def test_an_external_strategy_alone_and_as_the_primary(project, service, outside):
    (project.gold / "gold_set.yaml").write_text("", encoding="utf-8")
    result = outside(
        {"mine": "source: mine"}, {"mine": service.url(fault="down")}, extra="primary: mine\n"
    )
    assert project.report()["recallAt10"] == 0.0
    assert "delta_s -" in result.stdout
    text = (
        (project.gold / "gold_set.yaml")
        .read_text(encoding="utf-8")
        .replace("  - {name: bm25, kind: bm25}\n", "")
    )
    (project.gold / "gold_set.yaml").write_text(text, encoding="utf-8")
    assert project.invoke("run", "tiny").exit_code == 0
    assert list(entries(project)) == ["mine"]
    shown = project.invoke("compare", "latest", "previous")
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("keep Q0 storage.md 1", "bad_columns"),
        ("keep Q0 storage.md 1 inf t", "bad_number"),
        ("else Q0 storage.md 1 1 t", "other_queries"),
    ],
)
def test_a_run_file_at_fault_ends_the_run_with_its_lines(project, outside, row, code):
    (project.gold / "mine.trec").write_text(row + "\n", encoding="utf-8")
    result = outside({"mine": "run_file: mine.trec"}, exit_code=1)
    assert code in result.stderr
    assert "mine.trec" in result.stderr


def test_sources_from_settings_toml(project, service, outside, monkeypatch):
    outside({"mine": "source: search"}, {"search": service.url()})
    monkeypatch.delenv("RAG_EVAL_SOURCES")
    monkeypatch.delenv("RAG_EVAL_EXTERNAL")
    (project.root / "settings.toml").write_text(
        f'[sources]\nsearch = "{service.url()}"\n\n[external]\nconcurrency = 2\n', encoding="utf-8"
    )
    assert project.invoke("run", "tiny").exit_code == 0
    assert entries(project)["mine"]["n_failed"] == 0


def test_recorded_contexts_are_a_ranking_of_the_original_wordings(project, outside):
    outputs = [
        {
            "query_id": "keep",
            "answer": "a",
            "contexts": [
                {
                    "doc_id": "storage.md",
                    "text": "Results older than thirty days are deleted at midnight.",
                }
            ],
        },
        {
            "query_id": "again",
            "answer": "a",
            "contexts": [
                {"doc_id": "alerts.md", "text": "x"},
                {"doc_id": "retries.md", "text": "A failed job is tried three more times."},
                {"doc_id": "retries.md", "text": "The pause between two tries doubles each time."},
            ],
        },
        {"query_id": "night", "answer": None, "error": "down", "contexts": []},
    ]
    (project.gold / "outputs.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in outputs), encoding="utf-8"
    )
    outside({"mine": "recorded: outputs.jsonl"})
    entry = entries(project)["mine"]
    assert (entry["n_runs"], entry["n_failed"], entry["failures"]) == (
        N_ORIGINALS,
        2,
        {"not_recorded": 1, "recorded_error": 1},
    )
    assert (entry["source"]["kind"], entry["source"]["wordings"], entry["source"]["n_placed"]) == (
        "recorded",
        "original",
        3,
    )
    assert measure(entry)["value"] == pytest.approx(2 / 3)
    assert measure(entry, "RR")["value"] == pytest.approx((1 + 1 / 2 + 0) / 3)


def test_a_name_that_no_setting_enables_lists_those_that_are(project, outside):
    result = outside(
        {"mine": "source: nope"},
        {"search": "http://127.0.0.1:9/search", "port": "own_port:Own"},
        exit_code=1,
    )
    assert "unknown_source" in result.stderr
    assert "port, search" in result.stderr
    assert "RAG_EVAL_SOURCES" in result.stderr
