"""The success criteria are judged by relative gains with intervals over groups of questions."""

import importlib

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def success(project_root, monkeypatch):
    monkeypatch.syspath_prepend(project_root / "benchmarks")
    return importlib.import_module("success")


def test_a_gain_is_the_ratio_of_means_and_its_interval_follows_the_groups(success):
    rng = np.random.default_rng(3)
    theirs = rng.uniform(0.2, 0.6, 60)
    groups = [f"g{at // 2}" for at in range(60)]
    gain, low, high = success.relative_gain((1.2 * theirs).tolist(), theirs.tolist(), groups)
    assert (gain, low, high) == pytest.approx((0.2, 0.2, 0.2))
    ours = theirs * rng.uniform(0.8, 1.6, 60)
    gain, low, high = success.relative_gain(ours.tolist(), theirs.tolist(), groups)
    assert gain == pytest.approx(ours.sum() / theirs.sum() - 1)
    assert low < gain < high
    _, wide_low, wide_high = success.relative_gain(
        [*ours, *ours], [*theirs, *theirs], [*groups, *groups]
    )
    assert (wide_low, wide_high) == pytest.approx((low, high))  # copies of a group add nothing


@pytest.mark.parametrize(
    ("hybrid", "verdict"), [([0.9, 0.9, 0.8, 0.9], "met"), ([0.5, 0.6, 0.5, 0.5], "not met")]
)
def test_hybrid_is_held_against_the_better_single_strategy(success, hybrid, verdict):
    values = {"bm25": [0.5, 0.6, 0.5, 0.5], "vector": [0.4, 0.4, 0.4, 0.4], "hybrid": hybrid}
    rows = [
        {"strategy": name, "level": "document", "query_id": f"q{at}", "group_id": f"g{at}"}
        | {"paraphrase_id": wording, "eligible": True, "recall_at_10": value + shift, "mrr": value}
        for name, column in values.items()
        for at, value in enumerate(column)
        for wording, shift in (("original", 0.05), ("p1", -0.05))
    ]
    judged = list(success.judge_gains(pd.DataFrame(rows), "document"))
    best = [its for its in judged if "the best (bm25)" in its.criterion]
    assert [its.verdict for its in best] == [verdict] * 2
    assert all("4 questions" in its.found for its in judged)
