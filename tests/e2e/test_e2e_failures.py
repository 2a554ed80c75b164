"""A failure of foreign code fails only its own query; gates judge the scored queries."""

import json

import pytest
from cli_project import CONFIG, QUERIES

RERANK = CONFIG.replace(
    "{name: bm25, kind: bm25}", "{name: bm25, kind: bm25, rerank: {kind: mine, depth: 5}}"
)


@pytest.fixture
def reranked(project, monkeypatch):
    (project.gold / "gold_set.yaml").write_text(RERANK, encoding="utf-8")
    monkeypatch.syspath_prepend(str(project.root))

    def run(code):
        (project.root / "mine.py").write_text(code, encoding="utf-8")
        monkeypatch.setenv("RAG_EVAL_RERANKERS", json.dumps({"mine": "mine:Mine"}))
        monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
        return project.invoke("run", "tiny")

    return run


def entry(project, name="bm25"):
    return next(part for part in project.report()["strategies"] if part["name"] == name)


def test_a_failing_query_is_counted_and_scores_zero(project, reranked):
    first = QUERIES[0]["text"]
    result = reranked(
        "class Mine:\n    name = 'mine'\n    def scores(self, queries, texts):\n"
        f"        if {first!r} in queries:\n            raise RuntimeError('down \\x1b[31m')\n"
        "        return [[float(len(t)) for t in row] for row in texts]\n"
    )
    assert result.exit_code == 0, result.stderr
    found = entry(project)
    assert (found["n_failed"], entry(project, "vector")["n_failed"]) == (1, 0)
    assert found["first_failure"] == "RuntimeError: down \\u001b[31m"
    recall = next(
        record
        for record in found["measures"]
        if record["label"] == "R@10" and record["level"] == "document"
    )
    assert recall["n_failed"] == 1
    assert recall["n_scored"] == recall["n_attempted"] - recall["n_ineligible"]
    assert "\x1b" not in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "scores",
    ["[[float('nan')] * len(row) for row in texts]", "[]"],
    ids=["NaN", "none"],
)
def test_nonsense_scores_of_a_reranker_fail_every_query(project, reranked, scores):
    result = reranked(
        "class Mine:\n    name = 'mine'\n    def scores(self, queries, texts):\n"
        f"        return {scores}\n"
    )
    assert result.exit_code == 0, result.stderr
    assert entry(project)["n_failed"] == entry(project)["n_runs"] - entry(project)["n_empty"]
    assert (
        next(record for record in entry(project)["measures"] if record["label"] == "RR")["value"]
        == 0
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "",
        "import nothing_of_this_name\n",
        "class Mine:\n    def __init__(self):\n        raise OSError('no model')\n",
    ],
    ids=["missing", "import", "start"],
)
def test_a_reranker_that_cannot_load_ends_the_run(project, reranked, code):
    result = reranked(code)
    assert result.exit_code == 1
    assert "reranker_unusable" in result.stderr
    assert "Traceback" not in result.output


def test_a_required_gate_rests_on_the_groups_that_were_scored(project):
    """Two of the questions have a quoted anchor; a floor at the span level needs five groups."""
    text = (
        CONFIG.replace("required: []", "required: [acceptance]")
        .replace("advisory: [acceptance]", "advisory: []")
        .replace("min_queries: 50", "min_queries: 5")
    )
    (project.gold / "gold_set.yaml").write_text(
        text + 'level: span\nacceptance: {success_at_10: ">= 0.0"}\n', encoding="utf-8"
    )
    assert project.invoke("run", "tiny").exit_code == 2
    gate = project.report()["gates"][0]
    assert (gate["status"], gate["reason_code"]) == ("insufficient_evidence", "too_few_queries")
    assert gate["evidence"]["n_groups"] < 5


@pytest.mark.slow
def test_compare_names_what_was_configured_otherwise(project):
    project.invoke("run", "tiny")
    (project.gold / "gold_set.yaml").write_text(
        CONFIG.replace(
            "{name: bm25, kind: bm25}",
            "{name: bm25, kind: bm25, rerank: {kind: mmr, lambda: 0.1, embedding: {model: lsa-8}}}",
        ).replace("depth: 20", "depth: 6"),
        encoding="utf-8",
    )
    project.invoke("run", "tiny")
    shown = project.invoke("compare", "latest", "previous").stdout
    assert "DIFFERENT: configured otherwise: the level, cutoffs, depth" in shown
    assert "strategies bm25" in shown
