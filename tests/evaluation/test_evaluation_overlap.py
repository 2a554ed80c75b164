"""Overlap of two strategies: questions that both find, one finds, or none."""

import pandas as pd
from cli_project import CONFIG


def test_pairs_are_those_of_the_stored_runs(scenario):
    project = scenario.project  # one home builds the indexes once
    project.write(
        "gold_set.yaml",
        CONFIG.replace("depth: 20", "depth: 20\nlevel: span")
        .replace("  - {name: vector", "  - {name: again, kind: bm25, k1: 0.1}\n  - {name: vector")
        .replace("seeds: [13]", "seeds: [29, 13]"),
    )
    project.run()
    found = project.report()["overlap"]
    assert (found["k"], found["level"]) == (10, "span")
    assert [(pair["a"], pair["b"]) for pair in found["pairs"]] == [
        ("bm25", "again"),
        ("bm25", "vector"),
        ("again", "vector"),
    ]
    frame = pd.read_parquet(project.reports / "tiny" / "per-query.parquet")
    frame = frame[
        (frame["level"] == "span") & (frame["paraphrase_id"] == "original") & (frame["seed"] == 29)
    ]
    hit = {
        name: part.set_index("query_id")["success_at_10"]
        for name, part in frame.groupby("strategy")
    }
    for pair in found["pairs"]:
        one, two = hit[pair["a"]].dropna(), hit[pair["b"]].dropna()
        assert pair["n"] == len(one) == len(two)
        assert pair["n"] == sum(pair[part] for part in ("both", "only_a", "only_b", "neither"))
        assert pair["both"] == int(((one == 1) & (two == 1)).sum())
        assert pair["only_a"] == int(((one == 1) & (two == 0)).sum())
        assert pair["only_b"] == int(((one == 0) & (two == 1)).sum())
