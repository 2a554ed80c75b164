"""Overlap of rankings, semantic distance, lambda states, and flips between wordings."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.stability import (
    STATE_OF_REASON,
    _convergent_and_hit,
    _delta_s,
    _flip_matrix,
    _lambda_reasons,
    _mean_over_last,
    _mean_pairwise_rbo,
    _zones,
)
from rag_eval.measures.strategy_figures import _ann_recall

NAN = math.nan

# overlap

lists = st.lists(st.integers(0, 11), unique=True, max_size=8)


def slow_rbo(a, b, p):
    """Compute equation 32 of Webber et al. (2010), term by term."""
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


@given(st.lists(st.tuples(st.integers(0, 3), lists), max_size=9))
@settings(max_examples=100)
def test_mean_over_all_pairs_of_a_query(runs):
    query = np.array([q for q, _ in runs], dtype=np.int64)
    ours = _mean_pairwise_rbo(rows([ranking for _, ranking in runs]), query, 4)
    for q in range(4):
        own = [ranking for owner, ranking in runs if owner == q]
        pairs = [slow_rbo(own[i], own[j], 0.9) for i in range(len(own)) for j in range(i)]
        np.testing.assert_allclose(ours[q], np.mean(pairs) if pairs else math.nan, atol=1e-12)


def test_ann_recall_is_the_share_of_the_exact_list():
    approximate = [[1, 2, 3], [3, 2, 9], [1, -1, -1], [1, 2, 3]]
    exact = [[3, 2, 1], [1, 2, 3], [1, 2, -1], [-1, -1, -1]]
    np.testing.assert_allclose(_ann_recall(approximate, exact, 3), [1, 2 / 3, 1 / 2, math.nan])
    np.testing.assert_allclose(_ann_recall(approximate, exact, 1), [0, 0, 1, math.nan])


def test_defective_rankings_are_refused():
    with pytest.raises(ValueError, match="more than once"):
        _mean_pairwise_rbo([[1, 2], [1, 1]], [0, 0], 1)


def test_delta_s_equals_the_definition():
    rng = np.random.default_rng(1)
    queries, chunks = rng.normal(size=(20, 6)), rng.normal(size=(30, 6))
    top = np.argsort(rng.random((20, 30)), axis=1)[:, :5]
    top[3, 2:] = -1
    top[4] = -1
    ours = _delta_s(queries, chunks, top)
    for row in range(20):
        codes = top[row][top[row] >= 0]
        if len(codes):
            mean = chunks[codes].mean(axis=0)
            mean /= np.linalg.norm(mean)
            expected = min(max(1 - queries[row] @ mean / np.linalg.norm(queries[row]), 0), 1)
            assert ours[row] == pytest.approx(expected)
        else:
            assert math.isnan(ours[row])


# distances and states


def test_delta_s_at_its_ends():
    chunks = np.array([[1.0, 0], [0, 1], [-1, 0], [0, 0]])
    ours = _delta_s([[2, 0]] * 4 + [[0, 0]], chunks, [[0, -1], [1, -1], [2, -1], [3, -1], [0, -1]])
    assert ours.tolist() == [0, 1, 1, 1, 1]


def test_zones_at_their_edges():
    names = ["stable"] * 2 + ["transitional"] * 2 + ["risk"] * 2 + ["undefined"]
    assert _zones(np.array([0, 0.399, 0.40, 0.599, 0.60, 1, NAN])).tolist() == names


@pytest.mark.parametrize(
    ("hits", "rbo", "state", "reason"),
    [
        ([[1, 1], [1, 1]], 0.5, "convergent", "same_hits_same_order"),
        ([[0, 0], [0, 0]], 0.9, "convergent", "same_hits_same_order"),
        ([[1, 1], [1, 1]], 0.49, "divergent", "order_drifts"),
        ([[1, 1], [1, 1]], 0.2, "divergent", "order_drifts"),
        ([[1, 1], [1, 1]], 0.19, "chaotic", "lists_disagree"),
        ([[1, 0], [1, 0]], 0.9, "recursive", "seeds_change_hit"),
        ([[1, 0]], 0.3, "recursive", "seeds_change_hit"),
        ([[1, 0], [1, 0]], 0.1, "chaotic", "lists_disagree"),
        ([[1, 1], [0, 0]], 0.9, "divergent", "wordings_change_hit"),
        ([[1], [0]], 0.3, "divergent", "wordings_change_hit"),
        ([[1], [0]], 0.1, "chaotic", "lists_disagree"),
        ([[1, 0], [0, 1]], 0.9, "chaotic", "seeds_and_wordings_change_hit"),
        ([[1, 1], [1, 0]], 0.9, "chaotic", "seeds_and_wordings_change_hit"),
        ([[1, NAN], [NAN, 0]], 0.9, "divergent", "wordings_change_hit"),
        ([[1, NAN], [NAN, NAN]], NAN, "undefined", "one_run"),
        ([[NAN], [NAN]], NAN, "undefined", "one_run"),
    ],
)
def test_states_by_their_definition(hits, rbo, state, reason):
    (found,) = _lambda_reasons(np.array([hits], dtype=float), np.array([rbo]))
    assert (found, STATE_OF_REASON[found]) == (reason, state)


def test_convergent_and_hit_is_what_gates_count():
    hits = np.array([[[1, 1]], [[0, 0]], [[1, NAN]], [[1, 1]]])
    states = np.array(["convergent", "convergent", "undefined", "divergent"], dtype=object)
    np.testing.assert_array_equal(_convergent_and_hit(states, hits), [1, 0, NAN, 0])


# flips


def test_flip_matrix_has_its_denominators():
    first, second = [[1, 1], [0, 0], [1, 1]], [[1, 1], [1, 0], [NAN, NAN]]
    share, n = _flip_matrix(np.array([first, second, [[0, NAN], [1, NAN], [0, 0]]], dtype=float))
    np.testing.assert_allclose(share, [[0, 2.5 / 3, 0], [2.5 / 3, 0, 1], [0, 1, 0]])
    assert n.tolist() == [[3, 3, 2], [3, 3, 2], [2, 2, 2]]
    share, n = _flip_matrix(np.array([[[1.0], [NAN]]]))
    assert math.isnan(share[0, 1])
    assert n.tolist() == [[1, 0], [0, 0]]


def test_seeds_are_averaged_and_a_question_without_runs_has_no_mean():
    cube = np.array([[[1, 0], [1, 1], [NAN, NAN]], [[NAN, NAN], [NAN, NAN], [NAN, NAN]]])
    cells = _mean_over_last(cube)
    np.testing.assert_array_equal(cells, [[0.5, 1, NAN], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(_mean_over_last(cells), [0.75, NAN])
