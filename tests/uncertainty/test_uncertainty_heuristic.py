import numpy as np
import pytest
from signals_reference import heuristic

from rag_eval.uncertainty.heuristic import heuristic_v0
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
        ([0.9, 0.8], 0, 0.09),  # only the history term
        ([0.9, 0.5], 0, 0.09),  # 0.5 is above the tail
        ([0.9, 0.4], 0, 0.09 + 0.3 * 0.5),
        ([0.4, 0.4], 0, 0.09 + 0.3 * 0.5),  # tail_density is at most 0.5
        ([0.9, 0.25], 0, 0.09 + 0.1),  # near the threshold, but not in the tail
        ([0.9, 0.3], 0, 0.09 + 0.15 + 0.1),  # near the threshold and in the tail
        ([0.3] * 8, 0, 0.09 + 0.15 + 0.3),  # near_threshold adds at most 0.3
        ([0.9, 0.9], 5, 0.09 + 0.05),
        ([0.3] * 8, 30, 0.64),
    ],
)
def test_the_formula_of_the_heuristic(scores, words, expected):
    batch = batch_of([scores], [list(range(words))], cosine=True)
    assert heuristic_v0(batch) == pytest.approx([expected])
