"""A failure of foreign code fails only its own query; gates judge the scored queries."""

import json
import sys

import pytest
from cli_project import CONFIG, QUERIES, measure

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
    "code",
    [
        "",
        "import nothing_of_this_name\n",
        "class Mine:\n    def __init__(self):\n        raise OSError('no model')\n",
    ],
    ids=["missing", "import", "start"],
)
def test_a_reranker_that_cannot_load_ends_the_run(reranked, code):
    assert "reranker_unusable" in reranked(code, exit_code=1).stderr
