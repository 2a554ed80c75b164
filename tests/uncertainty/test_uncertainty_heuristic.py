"""heuristic_v0 against one query at a time in plain Python, and the places where its formula turns."""

import numpy as np
import pytest
from signals_reference import heuristic

from rag_eval.uncertainty.batch import RankedBatch, TermSpace
from rag_eval.uncertainty.heuristic import heuristic_v0


def batch_of(raw, query_terms, *, cosine, rows=None):
    raw = np.array(raw, dtype=np.float64)
    rows = (
        np.broadcast_to(np.arange(raw.shape[1], dtype=np.int32), raw.shape).copy()
        if rows is None
        else rows
    )
    return RankedBatch(rows, raw, raw, cosine, TermSpace([[0]], 1), query_terms)


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_it_is_the_slow_reference(cosine, k):
    rng = np.random.default_rng(k)
    n, depth = 60, 20
    raw = -np.sort(-np.round(rng.uniform(-0.2, 1.2, (n, depth)), 2), axis=1)
    rows = np.broadcast_to(np.arange(depth, dtype=np.int32), raw.shape).copy()
    for i, count in enumerate(rng.integers(0, depth + 1, n)):
        rows[i, count:], raw[i, count:] = -1, 0
    queries = [rng.integers(0, 12, rng.integers(0, 25)).tolist() for _ in range(n)]
    expected = [
        heuristic(raw[i].tolist(), rows[i].tolist(), queries[i], k, cosine_scores=cosine)
        for i in range(n)
    ]
    np.testing.assert_allclose(
        heuristic_v0(batch_of(raw, queries, cosine=cosine, rows=rows), k),
        expected,
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    ("scores", "words", "expected"),
    [
        ([0.9, 0.8], 0, 0.09),  # nothing but the history
        ([0.9, 0.5], 0, 0.09),  # 0.5 is above the tail
        ([0.9, 0.4], 0, 0.09 + 0.3 * 0.5),
        ([0.4, 0.4], 0, 0.09 + 0.3 * 0.5),  # at most half counts
        ([0.9, 0.25], 0, 0.09 + 0.1),  # near, and not of the tail
        ([0.9, 0.3], 0, 0.09 + 0.15 + 0.1),  # both
        ([0.3] * 8, 0, 0.09 + 0.15 + 0.3),  # at most 0.3 for those near
        ([0.9, 0.9], 5, 0.09 + 0.05),
        ([0.3] * 8, 30, 0.64),
    ],
)
def test_the_formula(scores, words, expected):
    assert heuristic_v0(batch_of([scores], [list(range(words))], cosine=True)) == pytest.approx(
        [expected]
    )


def test_other_scores_are_divided_by_the_top():
    given = [[20.0, 8.0, 6.0]]
    assert heuristic_v0(batch_of(given, [[]], cosine=False)) == heuristic_v0(
        batch_of([[1.0, 0.4, 0.3]], [[]], cosine=True)
    )


def test_an_empty_list_is_guessed_by_its_question_alone():
    empty = batch_of(np.zeros((1, 4)), [[1, 2]], cosine=False, rows=np.full((1, 4), -1, np.int32))
    assert heuristic_v0(empty) == pytest.approx([0.09 + 0.02])


def test_no_query_and_no_rank():
    assert heuristic_v0(batch_of(np.zeros((0, 4)), [], cosine=True)).shape == (0,)
    assert heuristic_v0(batch_of(np.zeros((2, 0)), [[], [1]], cosine=False)) == pytest.approx(
        [0.09, 0.1]
    )


def test_a_cutoff_under_one_is_refused():
    with pytest.raises(ValueError, match="k: found 0, accepted at least 1"):
        heuristic_v0(batch_of([[0.5]], [[0]], cosine=True), 0)
