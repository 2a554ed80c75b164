"""The success criteria are judged by relative gains with intervals over groups of questions."""

import numpy as np
import pandas as pd
import pytest

from rag_eval.gates.success import judge_gains, relative_gain


def test_a_gain_is_the_ratio_of_means_and_its_interval_follows_the_groups():
    rng = np.random.default_rng(3)
    theirs = rng.uniform(0.2, 0.6, 60)
    groups = [f"g{at // 2}" for at in range(60)]
    gain, low, high = relative_gain((1.2 * theirs).tolist(), theirs.tolist(), groups)
    assert (gain, low, high) == pytest.approx((0.2, 0.2, 0.2))
    ours = theirs * rng.uniform(0.8, 1.6, 60)
    gain, low, high = relative_gain(ours.tolist(), theirs.tolist(), groups)
    assert gain == pytest.approx(ours.sum() / theirs.sum() - 1)
    assert low < gain < high
    _, wide_low, wide_high = relative_gain([*ours, *ours], [*theirs, *theirs], [*groups, *groups])
    assert (wide_low, wide_high) == pytest.approx((low, high))  # copies of a group add nothing


@pytest.mark.parametrize(
    ("hybrid", "bm25", "verdict"),
    [
        ([0.9, 0.9, 0.8, 0.9], [0.5, 0.6, 0.5, 0.5], "met"),
        ([0.5, 0.6, 0.5, 0.5], [0.5, 0.6, 0.5, 0.5], "not met"),
        ([0.9, 0.1, 0.9, 0.3], [0.5, 0.6, 0.5, 0.4], "not met"),  # +10 %, interval holds 0
        ([0.9, 1.0, 1.0, 1.0], [0.9, 0.9, 0.9, 1.0], "not measurable"),
    ],
)
def test_hybrid_is_held_against_the_better_single_strategy(hybrid, bm25, verdict):
    values = {"bm25": bm25, "vector": [0.4, 0.4, 0.4, 0.4], "hybrid": hybrid}
    rows = [
        {"strategy": name, "level": "document", "query_id": f"q{at}", "group_id": f"g{at}"}
        | {"paraphrase_id": wording, "eligible": True, "recall_at_10": value + shift, "mrr": value}
        for name, column in values.items()
        for at, value in enumerate(column)
        for wording, shift in (("original", 0.05), ("p1", -0.05))
    ]
    frame = pd.DataFrame(rows)
    judged = list(judge_gains(frame, "document", "hybrid", "vector", ["bm25", "vector"]))
    best = [one for one in judged if "bm25, the best single strategy" in one.criterion]
    assert [one.verdict for one in best] == [verdict] * 2
    assert all("4 questions" in one.found for one in judged)
    assert all(one.ci_low <= one.value <= one.ci_high for one in judged)
