import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.stability import LAMBDA_REASONS, delta_s, equally_close, lambda_states, zones


def test_delta_s_equals_the_definition():
    rng = np.random.default_rng(1)
    queries, chunks = rng.normal(size=(20, 6)), rng.normal(size=(30, 6))
    top = np.argsort(rng.random((20, 30)), axis=1)[:, :5]
    top[3, 2:] = -1
    top[4] = -1
    ours = delta_s(queries, chunks, top)
    for row in range(20):
        codes = top[row][top[row] >= 0]
        if len(codes):
            mean = chunks[codes].mean(axis=0)
            mean /= np.linalg.norm(mean)
            expected = min(max(1 - queries[row] @ mean / np.linalg.norm(queries[row]), 0), 1)
            assert ours[row] == pytest.approx(expected)
        else:
            assert math.isnan(ours[row])


def test_delta_s_at_its_ends():
    chunks = np.array([[1.0, 0], [0, 1], [-1, 0], [0, 0]])
    ours = delta_s([[2, 0]] * 4 + [[0, 0]], chunks, [[0, -1], [1, -1], [2, -1], [3, -1], [0, -1]])
    assert ours.tolist() == [0, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="query_vectors"):
        delta_s([[1.0]], chunks, [[0]])


@given(st.floats(0.1, 100))
@settings(deadline=None)
def test_delta_s_ignores_the_length_of_the_vectors(scale):
    rng = np.random.default_rng(2)
    queries, chunks, top = (
        rng.normal(size=(4, 3)),
        rng.normal(size=(9, 3)),
        [[0, 1], [2, 3], [4, 5], [6, 7]],
    )
    np.testing.assert_allclose(
        delta_s(queries, chunks, top), delta_s(queries * scale, chunks * scale, top), atol=1e-9
    )


def test_zones_at_their_edges():
    assert zones([0, 0.399, 0.40, 0.599, 0.60, 1, math.nan]).tolist() == [
        "stable",
        "stable",
        "transitional",
        "transitional",
        "risk",
        "risk",
        "undefined",
    ]


def test_anchor_and_decoy_equally_close():
    assert equally_close([0.5, 0.5, math.nan], [0.51, 0.6, 0.5]).tolist() == [True, False, False]


def states(hits, rbo):
    return lambda_states(np.array([hits], dtype=float), [rbo])


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
        ([[1, math.nan], [math.nan, 0]], 0.9, "divergent", "wordings_change_hit"),
        ([[1, math.nan], [math.nan, math.nan]], math.nan, "undefined", "one_run"),
        ([[math.nan], [math.nan]], math.nan, "undefined", "one_run"),
    ],
)
def test_states_by_their_definition(hits, rbo, state, reason):
    found = states(hits, rbo)
    assert (found.state[0], found.reason[0]) == (state, reason)
    assert found.causes == [LAMBDA_REASONS[reason][1]]


def test_every_reason_says_what_to_look_at():
    assert all(
        text.endswith(".") and ("look" in text.lower() or "add" in text.lower())
        for _, text in LAMBDA_REASONS.values()
    )


def test_convergent_and_hit_is_what_gates_count():
    hits = np.array([[[1, 1]], [[0, 0]], [[1, math.nan]], [[1, 1]]])
    assert lambda_states(hits, [0.9, 0.9, math.nan, 0.3]).convergent_and_hit.tolist() == [
        True,
        False,
        False,
        False,
    ]


def test_all_patterns_of_two_by_two_are_decided():
    for bits in itertools.product((0, 1), repeat=4):
        state = states([list(bits[:2]), list(bits[2:])], 0.9).state[0]
        assert (state == "convergent") == (len(set(bits)) == 1)


def test_defective_input_is_refused():
    with pytest.raises(ValueError, match="n_wordings"):
        lambda_states([[1, 0]], [0.5])
    with pytest.raises(ValueError, match="mean_rbo is NaN"):
        lambda_states([[[1, 0]]], [math.nan])
