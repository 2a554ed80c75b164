import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.overlap import ann_recall, mean_pairwise_rbo, rank_biased_overlap

lists = st.lists(st.integers(0, 11), unique=True, max_size=8)


def slow_rbo(a, b, p):
    """Equation 32 of Webber et al. (2010), term by term."""
    if not a or not b:
        return 1.0 if a == b else 0.0
    short, long = sorted((a, b), key=len)
    s, m = len(short), len(long)

    def x(d):
        return len(set(short[:d]) & set(long[:d]))

    total = sum(x(d) / d * p**d for d in range(1, m + 1)) + sum(
        x(s) * (d - s) / (s * d) * p**d for d in range(s + 1, m + 1)
    )
    return (1 - p) / p * total + ((x(m) - x(s)) / m + x(s) / s) * p**m


def rows(rankings, depth=8):
    out = np.full((len(rankings), depth), -1)
    for row, ranking in enumerate(rankings):
        out[row, : len(ranking)] = ranking
    return out


@given(st.lists(st.tuples(lists, lists), min_size=1, max_size=5), st.sampled_from([0.5, 0.9, 0.98]))
@settings(max_examples=200, deadline=None)
def test_equals_the_published_formula(pairs, p):
    a, b = rows([a for a, _ in pairs]), rows([b for _, b in pairs])
    ours = rank_biased_overlap(a, b, p)
    np.testing.assert_allclose(ours, [slow_rbo(x, y, p) for x, y in pairs], atol=1e-12)
    np.testing.assert_allclose(ours, rank_biased_overlap(b, a, p), atol=1e-12)
    assert ((ours >= 0) & (ours <= 1)).all()


def test_known_values():
    assert rank_biased_overlap([[1, 2, 3]], [[1, 2, 3]])[0] == pytest.approx(1)
    assert rank_biased_overlap([[1, 2, 3]], [[4, 5, 6]])[0] == 0
    assert rank_biased_overlap([[1, 2, -1]], [[1, 2, 3]])[0] == pytest.approx(1)
    # a swap at the top costs the weight of depth 1: (1 - p) / p * p
    assert rank_biased_overlap([[1, 2]], [[2, 1]], 0.9)[0] == pytest.approx(0.9)
    assert rank_biased_overlap([[-1], [-1]], [[-1], [3]]).tolist() == [1, 0]


def test_a_change_at_the_top_costs_more_than_one_at_the_bottom():
    base = [list(range(10))]
    top, bottom = [[99, *range(1, 10)]], [[*range(9), 99]]
    assert rank_biased_overlap(base, top)[0] < rank_biased_overlap(base, bottom)[0]


@given(st.lists(st.tuples(st.integers(0, 3), lists), max_size=9))
@settings(max_examples=100, deadline=None)
def test_mean_over_all_pairs_of_a_query(runs):
    query = np.array([q for q, _ in runs], dtype=np.int64)
    ours = mean_pairwise_rbo(rows([ranking for _, ranking in runs]), query, 4)
    for q in range(4):
        own = [ranking for owner, ranking in runs if owner == q]
        pairs = [slow_rbo(own[i], own[j], 0.9) for i in range(len(own)) for j in range(i)]
        np.testing.assert_allclose(ours[q], np.mean(pairs) if pairs else math.nan, atol=1e-12)


def test_pairs_beyond_one_block_are_all_counted(monkeypatch):
    rng = np.random.default_rng(3)
    rankings = np.argsort(rng.random((40, 12)), axis=1)[:, :6]
    query = np.repeat(np.arange(8), 5)
    whole = mean_pairwise_rbo(rankings, query, 8)
    monkeypatch.setattr("rag_eval.measures.overlap._BLOCK", 7)
    np.testing.assert_allclose(mean_pairwise_rbo(rankings, query, 8), whole, atol=1e-12)


def test_ann_recall_is_the_share_of_the_exact_list():
    approximate, exact = (
        [[1, 2, 3], [3, 2, 9], [1, -1, -1], [1, 2, 3]],
        [[3, 2, 1], [1, 2, 3], [1, 2, -1], [-1, -1, -1]],
    )
    np.testing.assert_allclose(ann_recall(approximate, exact, 3), [1, 2 / 3, 1 / 2, math.nan])
    np.testing.assert_allclose(ann_recall(approximate, exact, 1), [0, 0, 1, math.nan])


def test_defective_input_is_refused():
    with pytest.raises(ValueError, match="p is 1"):
        rank_biased_overlap([[1]], [[1]], 1)
    with pytest.raises(ValueError, match="rankings"):
        rank_biased_overlap([[1]], [[1], [2]])
    with pytest.raises(ValueError, match="more than once"):
        rank_biased_overlap([[1, 2]], [[1, 1]])
    with pytest.raises(ValueError, match="exact"):
        ann_recall([[1]], [[1], [2]], 1)
