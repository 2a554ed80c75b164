"""A failing query fails alone, and a store that is away keeps the report and no password."""

import json
import sys

import pytest
from cli_project import CONFIG, QUERIES, measure
from personal_data import outputs

RERANKED = CONFIG.replace(
    "{name: bm25, kind: bm25}", "{name: bm25, kind: bm25, rerank: {kind: mine, depth: 5}}"
)
SCORES = "class Mine:\n    name = 'mine'\n    def scores(self, queries, texts):\n"


@pytest.fixture
def reranked(project, monkeypatch):
    """Return a function that runs with a reranker of the given code."""
    project.write("gold_set.yaml", RERANKED)
    monkeypatch.syspath_prepend(str(project.root))
    monkeypatch.setenv("RAG_EVAL_RERANKERS", json.dumps({"mine": "mine:Mine"}))

    def run(code, exit_code=0):
        (project.root / "mine.py").write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        return project.run(exit_code=exit_code)

    return run


@pytest.mark.slow
def test_a_failing_query_is_counted_and_scores_zero(project, reranked):
    result = reranked(
        f"{SCORES}        if {QUERIES[0]['text']!r} in queries:\n"
        "            raise RuntimeError('down \\x1b[31m')\n"
        "        return [[float(len(t)) for t in row] for row in texts]\n"
    )
    entries = project.strategies()
    assert {name: entry["n_failed"] for name, entry in entries.items()} == {"bm25": 1, "vector": 0}
    assert entries["bm25"]["first_failure"] == "RuntimeError: down \\u001b[31m"
    recall = measure(entries["bm25"], "R@10")
    assert recall["n_failed"] == 1
    assert recall["n_scored"] == recall["n_attempted"] - recall["n_ineligible"]
    assert "\x1b" not in result.output
    lines = project.lines("uncertain-retrievals.jsonl")
    absent = [line for line in lines if line["miss_rate"]["status"] == "absent"]
    assert {(line["strategy"], line["query_id"]) for line in absent} == {("bm25", "keep")}
    assert all(line["retrieval_confidence"]["type"] == "absent" for line in absent)
    told = project.report()["uncertainty"]["strategies"]
    assert told["bm25"]["outcomes"]["n_judged"] == told["vector"]["outcomes"]["n_judged"] - 1


@pytest.mark.parametrize(
    "code", ["", "class Mine:\n    def __init__(self):\n        raise OSError('no model')\n"]
)
def test_a_reranker_that_cannot_load_ends_the_run(reranked, code):
    assert "reranker_unusable" in reranked(code, exit_code=1).stderr


@pytest.mark.slow
def test_a_failing_mlflow_keeps_the_report_and_prints_no_password(project, monkeypatch):
    password = "S3cret" + "Passw0rdXYZ"
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("RAG_EVAL_TRACKING_URI", f"http://bob:{password}@127.0.0.1:1/")
    ran = project.run()
    assert "MLflow did not record this run" in ran.output
    assert "127.0.0.1" in ran.output
    assert project.report()["run_id"] in ran.output
    texts = outputs(project.reports, project.home)
    assert [name for name, text in texts if password in text] == []
    assert password not in ran.output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CHROMA_URL", "ftp://bob:S3cretPw@host:8000"),
        ("ENDPOINTS", '{"w": {"base_url": "https://e.org", "api_key": "S3cretPw", "modle": "m"}}'),
        ("SOURCES", '{"mine": ["https://bob:S3cretPw@example.org/search"]}'),
    ],
)
def test_a_setting_that_is_refused_shows_no_password(project, monkeypatch, name, value):
    monkeypatch.setenv(f"RAG_EVAL_{name}", value)
    refused = project.run(exit_code=1)
    assert "error " in refused.output
    assert "S3cretPw" not in refused.output
