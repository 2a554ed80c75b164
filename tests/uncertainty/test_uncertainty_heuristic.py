import numpy as np
import pytest
from signals_reference import heuristic

from rag_eval.uncertainty.heuristic import (
    JudgedTexts,
    estimate,
    heuristic_v0,
)
from rag_eval.uncertainty.signals import RankedBatch, TermSpace


def batch_of(raw, query_terms, *, cosine, rows=None):
    raw = np.array(raw, dtype=np.float64)
    if rows is None:
        rows = np.broadcast_to(np.arange(raw.shape[1], dtype=np.int32), raw.shape).copy()
    return RankedBatch(rows, raw, raw, cosine, TermSpace([[0]], 1), query_terms)


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_the_heuristic_is_the_slow_reference(cosine, k):
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
    found = heuristic_v0(batch_of(raw, queries, cosine=cosine, rows=rows), k)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("scores", "words", "expected"),
    [
        ([0.9, 0.5, 0.29], 0, 0.09),  # only the history term: 0.5 is above the tail, 0.29 below
        ([], 0, 0.09 + 0.15),  # the tail density of an empty list is 0.5
        ([0.9, 0.8, 0.7, 0.4], 0, 0.09 + 0.3 * 0.25 + 0.1),
        ([0.9, 0.3], 0, 0.09 + 0.15),  # in the tail, but not near the threshold
        ([0.4] * 8, 5, 0.09 + 0.15 + 0.3 + 0.05),  # both terms of the scores are bounded
        ([0.4] * 8, 30, 0.64),
    ],
)
def test_the_formula_of_the_heuristic(scores, words, expected):
    batch = batch_of([scores], [list(range(words))], cosine=True)
    assert heuristic_v0(batch) == pytest.approx([expected])
    question = " ".join(f"word{i}" for i in range(words))
    assert estimate(question, scores, None).value == pytest.approx(expected)


JUDGED = JudgedTexts(
    ["sort rows by index", "sort columns by label", "merge frames"],
    ["a", "b", "c"],
    np.array([1.0, 0.5, 0.0]),
)


@pytest.mark.parametrize(
    ("text", "group", "misses", "n"),
    [
        ("sort rows by label", "new", 1.5, 2),  # both share two of four words
        ("sort rows by label", "a", 0.5, 1),  # questions of the own group do not count
        ("SORTED rows, the index", "new", 1.0, 1),
        ("sort", "new", 0.0, 0),
        ("", "new", 0.0, 0),
    ],
)
def test_history_is_the_shrunk_rate_of_similar_judged(text, group, misses, n):
    guess, counts = JUDGED.refine(np.array([0.4]), [text], [group])
    assert counts.tolist() == [n]
    assert guess == pytest.approx([0.4 + 0.3 * ((misses + 5 * 0.3) / (n + 5) - 0.3)])


def test_without_judged_questions_the_history_is_constant():
    nothing = JudgedTexts([], [], np.zeros(0))
    guess, counts = nothing.refine(np.array([0.4]), ["sort rows"], ["a"])
    assert (guess.tolist(), counts.tolist()) == ([pytest.approx(0.4)], [0])
