"""The bars of conformal K on SciFact, by the benchmark that prints them."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_scifact_reaches_the_bars(shared_data, project_root):
    environment = {
        **os.environ,
        "RAG_EVAL_TEST_DATA": str(shared_data),
        "PYTHONPATH": str(project_root),
    }
    found = subprocess.run(
        [sys.executable, "benchmarks/conformal_k.py"],
        cwd=project_root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    results = [line for line in lines if "method" in line]
    assert {(line["strategy"], line["method"], line["level"]) for line in results} == {
        (strategy, method, level)
        for strategy in ("bm25", "vector", "hybrid")
        for method in ("fixed", "recall", "adaptive", "mondrian")
        for level in (0.8, 0.9, 0.95)
    }
    for line in results:
        name = (line["strategy"], line["method"], line["level"])
        assert line["n"] == 1109, name
        assert line["splits"] == 200, name
        if line["method"] != "mondrian":
            assert line["coverage"] >= line["level"] - 0.01, name
        if line["level"] == 0.9 and line["method"] == "adaptive":
            assert line["shorter"] >= 0.25, name
        if line["level"] == 0.9 and line["method"] == "mondrian":
            assert line["riskiest_third"] >= 0.9, name
            assert all(line["k_by_third"]), name
    powered = [line for line in lines if line["bench"] == "prediction_powered"]
    assert len(powered) == 9
    for line in powered:
        assert line["extra_labels"] > 0.05, line
        assert line["widest_ratio"] <= 1.02, line
