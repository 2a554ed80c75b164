"""The success criteria are judged by relative gains with intervals."""

import numpy as np
import pandas as pd
import pytest

from rag_eval.measures.overlap import NamedGold, SharedGold

APART = SharedGold.of_groups(np.arange(4))


@pytest.fixture
def success(project_root, monkeypatch):
    monkeypatch.syspath_prepend(str(project_root / "benchmarks"))
    return pytest.importorskip("success", reason="the benchmarks are not there")


def test_a_gain_is_the_ratio_of_means_and_copies_add_nothing(success):
    rng = np.random.default_rng(3)
    theirs = rng.uniform(0.2, 0.6, 60)
    gold, twice = SharedGold.of_groups(np.arange(60)), np.tile(np.arange(60), 2)
    gain, low, high = success._relative_gain(1.2 * theirs, theirs, gold)
    assert (gain, low, high) == pytest.approx((0.2, 0.2, 0.2))
    ours = theirs * rng.uniform(0.8, 1.6, 60)
    gain, low, high = success._relative_gain(ours, theirs, gold)
    assert gain == pytest.approx(ours.sum() / theirs.sum() - 1)
    assert low < gain < high
    _, *copied = success._relative_gain(ours[twice], theirs[twice], gold.take(twice))
    assert copied == pytest.approx([low, high], abs=0.02)


@pytest.mark.parametrize(
    ("hybrid", "bm25", "verdict"),
    [
        ([0.9, 0.9, 0.8, 0.9], [0.5, 0.6, 0.5, 0.5], "met"),
        ([0.5, 0.6, 0.5, 0.5], [0.5, 0.6, 0.5, 0.5], "not met"),
        ([0.9, 0.1, 0.9, 0.3], [0.5, 0.6, 0.5, 0.4], "not met"),  # +10 %, interval holds 0
        ([0.6, 0.75, 0.53, 0.65], [0.5, 0.6, 0.5, 0.5], "not met"),  # +20 %, interval from 8 %
        ([0.9, 1.0, 1.0, 1.0], [0.9, 0.9, 0.9, 1.0], "not measurable"),
    ],
)
def test_hybrid_is_held_against_the_better_single_strategy(success, hybrid, bm25, verdict):
    values = {"bm25": bm25, "vector": [0.4, 0.4, 0.4, 0.4], "hybrid": hybrid}
    rows = [
        {"strategy": name, "level": "document", "query_id": f"q{at}", "group_id": f"g{at}"}
        | {"paraphrase_id": wording, "eligible": True, "recall_at_10": value + shift, "mrr": value}
        for name, column in values.items()
        for at, value in enumerate(column)
        for wording, shift in (("original", 0.05), ("p1", -0.05))
    ]
    frame, gold = pd.DataFrame(rows), NamedGold(["q0", "q1", "q2", "q3"], APART)
    judged = list(
        success._judge_gains(frame, "document", "hybrid", "vector", ["bm25", "vector"], gold=gold)
    )
    best = [one for one in judged if "bm25, the best single strategy" in one.criterion]
    assert [one.verdict for one in best] == [verdict] * 2
    assert all("4 questions" in one.found for one in judged)
    assert all(one.ci_low <= one.value <= one.ci_high for one in judged)
