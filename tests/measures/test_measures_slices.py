"""Slices hold the right questions, and their figures equal those of the per-query table."""

import pandas as pd
import pytest
from cli_project import QUERIES, jsonl

from rag_eval.measures.strategy_figures import MAX_TAGS

TAGS = (["storage", "old"], ["old", "old"], [], ["old"])


def slices_of(project, shared_runs, tags):
    rows = [{**row, "tags": given} for row, given in zip(QUERIES, tags, strict=True)]
    (project.gold / "queries.jsonl").write_text(jsonl(rows), encoding="utf-8")
    shared_runs.run(project)
    return project.report()["slices"]


def test_figures_are_those_of_the_per_query_table(project, shared_runs):
    slices = slices_of(project, shared_runs, TAGS)
    frame = pd.read_parquet(project.reports / "tiny" / "per-query.parquet")
    frame = frame[frame["level"] == "document"]
    means = frame.groupby(["strategy", "query_id"])[["recall_at_10", "success_at_10"]].mean()
    members = {"old": ["again", "keep", "price"], "storage": ["keep"]}
    assert slices["n_tags"] == 2
    assert [part["tag"] for part in slices["by"]] == list(members)
    for part in slices["by"]:
        ids = members[part["tag"]]
        assert part["n_queries"] == len(ids)
        for strategy, figure in part["strategies"].items():
            wanted = means.loc[strategy].loc[ids]
            assert figure["value"] == pytest.approx(wanted["recall_at_10"].mean())
            assert figure["miss"]["value"] == pytest.approx(1 - wanted["success_at_10"].mean())
            assert figure["n_scored"] == int(wanted["recall_at_10"].notna().sum())
    assert slices["by"][1]["strategies"]["bm25"]["ci_low"] is None


def test_the_most_frequent_tags_are_shown(project, shared_runs):
    many = [[f"tag {at}-{n}" for n in range(20)] + ["all"] for at in range(len(QUERIES))]
    slices = slices_of(project, shared_runs, many)
    assert (slices["n_tags"], len(slices["by"])) == (20 * len(QUERIES) + 1, MAX_TAGS)
    assert slices["by"][0]["tag"] == "all"
