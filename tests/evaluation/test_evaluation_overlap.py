"""Overlap of two strategies: shared results of lists, and questions that only one finds."""

import numpy as np
import pandas as pd
import pytest
from cli_project import CONFIG


@pytest.mark.parametrize(("level", "unit"), [("document", "document"), ("span", "section")])
def test_pairs_are_those_of_the_stored_runs(scenario, level, unit):
    project = scenario.project  # one home builds the indexes once
    project.write(
        "gold_set.yaml",
        CONFIG.replace("depth: 20", f"depth: 20\nlevel: {level}")
        .replace("  - {name: vector", "  - {name: again, kind: bm25, k1: 0.1}\n  - {name: vector")
        .replace("seeds: [13]", "seeds: [29, 13]"),
    )
    project.run()
    report = project.report()
    found = report["overlap"]
    assert (found["k"], found["unit"], found["level"]) == (10, unit, level)
    assert [(pair["a"], pair["b"]) for pair in found["pairs"]] == [
        ("bm25", "again"),
        ("bm25", "vector"),
        ("again", "vector"),
    ]
    frame = pd.read_parquet(project.reports / "tiny" / "per-query.parquet")
    frame = frame[
        (frame["level"] == level) & (frame["paraphrase_id"] == "original") & (frame["seed"] == 29)
    ]
    hit = {
        name: part.set_index("query_id")["success_at_10"]
        for name, part in frame.groupby("strategy")
    }
    for pair in found["pairs"]:
        one, two = hit[pair["a"]].dropna(), hit[pair["b"]].dropna()
        assert (
            pair["n"]
            == len(one)
            == len(two)
            == pair["both"] + pair["only_a"] + pair["only_b"] + pair["neither"]
        )
        assert pair["both"] == int(((one == 1) & (two == 1)).sum())
        assert pair["only_a"] == int(((one == 1) & (two == 0)).sum())
        assert pair["only_b"] == int(((one == 0) & (two == 1)).sum())
    if level != "document":
        return
    lists = {}
    for name in ("bm25", "again", "vector"):
        run = pd.read_csv(
            project.reports / "tiny" / f"run-{name}.trec",
            sep=r"\s+",
            header=None,
            names=["query", "q0", "doc", "rank", "score", "tag"],
        )
        lists[name] = {
            query: set(part.sort_values("rank")["doc"].head(10))
            for query, part in run.groupby("query")
        }
    for pair in found["pairs"]:
        a, b = lists[pair["a"]], lists[pair["b"]]
        shares = [
            len(a.get(query, set()) & b.get(query, set()))
            / max(len(a.get(query, ())), len(b.get(query, ())))
            for query in {*a, *b}
            if "terse" not in query
        ]
        assert pair["overlap"]["value"] == pytest.approx(np.mean(shares))
        assert pair["overlap"]["n_scored"] == len(shares)
