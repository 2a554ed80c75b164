"""Selection, order, normalisation, fusion and MMR agree with the slow reference, with many ties."""

import numpy as np
import pytest
import reference
from corpora import listed, made_ranking
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.retrieval.dense import Hybrid
from rag_eval.retrieval.lexical import _select
from rag_eval.retrieval.ranking import order, scale_by_top, scale_min_max
from rag_eval.retrieval.strategies import _mmr, order_by_scores

TIED = st.sampled_from([None, -0.5, 0.0, 0.25, 0.25, 0.5, 1.0])
"""Few distinct scores, so that most scores are tied. None marks a chunk that is no candidate."""


def ids_of(count):
    return [(f"s{row:04d}", f"c{row:04d}") for row in range(count)]


def dense_of(lists):
    return np.array(
        [[-np.inf if score is None else score for score in row] for row in lists], dtype=np.float32
    )


@st.composite
def dense_scores(draw, values=TIED):
    count = draw(st.integers(1, 60))
    return draw(st.lists(st.lists(values, min_size=count, max_size=count), min_size=1, max_size=4))


@given(dense_scores(), st.integers(1, 70))
def test_select_is_the_sorted_head(lists, depth):
    rows, scores = _select(dense_of(lists), depth)
    assert rows.shape == scores.shape == (len(lists), depth)
    for query, wanted in enumerate(lists):
        found = [
            (row, score)
            for row, score in zip(rows[query].tolist(), scores[query].tolist(), strict=True)
            if row >= 0
        ]
        assert found == reference.best(wanted, ids_of(len(wanted)), depth)
        assert np.isneginf(scores[query, len(found) :]).all()


@given(st.integers(1, 300), st.integers(1, 30_000), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_select_of_many_scores_is_the_sorted_head(depth, n_chunks, tied, seed):
    rng = np.random.default_rng(seed)
    scores = rng.gamma(1.0, 4.0, n_chunks).astype(np.float32)
    scores[rng.random(n_chunks) < tied] = scores[0]
    scores[rng.random(n_chunks) < tied] = -np.inf
    rows, best = _select(scores[None, :], min(depth, n_chunks))
    every = np.arange(n_chunks, dtype=np.int32)[None, :]
    wanted, values = order(every, scores[None, :].astype(np.float64), depth)
    assert np.array_equal(rows, wanted)
    assert np.array_equal(best, values)


@given(
    dense_scores(st.one_of(TIED, st.floats(-1e12, 1e12, allow_nan=False))),
    st.integers(1, 70),
    st.randoms(use_true_random=False),
)
def test_order_does_not_depend_on_the_order_given(lists, depth, random):
    scores = np.array([[-np.inf if score is None else score for score in row] for row in lists])
    rows = np.broadcast_to(np.arange(scores.shape[1], dtype=np.int32), scores.shape)
    shuffled = list(range(scores.shape[1]))
    random.shuffle(shuffled)
    first, second = order(rows, scores, depth), order(rows[:, shuffled], scores[:, shuffled], depth)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])
    assert first[0].dtype == np.int32
    for query in range(len(lists)):
        kept = [
            (-score, row)
            for row, score in zip(first[0][query].tolist(), first[1][query].tolist(), strict=True)
            if row >= 0
        ]
        assert kept == sorted(kept)


@given(dense_scores())
def test_normalisation(lists):
    dense = dense_of(lists).astype(np.float64)
    lowest, top = scale_min_max(dense), scale_by_top(np.where(dense < 0, -np.inf, dense))
    for query, row in enumerate(lists):
        found = [score for score in row if score is not None]
        wanted = iter(reference.min_max(found))
        assert lowest[query].tolist() == [0.0 if score is None else next(wanted) for score in row]
        found = [score for score in row if score is not None and score >= 0]
        wanted = iter(reference.by_top(found))
        assert top[query].tolist() == [
            0.0 if score is None or score < 0 else next(wanted) for score in row
        ]


@st.composite
def two_rankings(draw):
    count = draw(st.integers(1, 30))
    width = draw(st.integers(1, count))

    def one():
        rows = draw(st.permutations(range(count)))[: draw(st.integers(0, width))]
        values = st.sampled_from([0.0, 0.125, 0.5, 1.0 / 3, 1.0])
        norms = draw(st.lists(values, min_size=len(rows), max_size=len(rows)))
        norms.sort(reverse=True)
        return list(zip(rows, norms, strict=True))

    pairs = draw(st.integers(1, 3))
    return count, width, [one() for _ in range(pairs)], [one() for _ in range(pairs)]


@given(
    two_rankings(),
    st.sampled_from([(0.5, 0.5), (1.0, 0.0), (0.0, 1.0), (0.3, 0.9)]),
    st.integers(1, 70),
)
def test_weighted_fusion(rankings, weights, depth):
    count, width, lexical, vector = rankings
    options = {"alpha": weights[0], "beta": weights[1], "depth": depth}
    hybrid = Hybrid(name="h", kind="hybrid", alpha=weights[0], beta=weights[1])
    fused = hybrid.fuse(made_ranking(lexical, width), made_ranking(vector, width), depth)
    for query, (left, right) in enumerate(zip(lexical, vector, strict=True)):
        wanted = reference.weighted(left, right, ids_of(count), **options)
        assert listed(fused, query) == listed(fused, query, "norm") == wanted
        assert fused.candidates[query] == len({row for row, _ in left + right})
        assert fused.k_pos[query].tolist() == [
            place if place <= len(wanted) else 0 for place in range(1, fused.rows.shape[1] + 1)
        ]
        assert all(0 <= score <= 1 for _, score in wanted)


@given(two_rankings(), st.integers(1, 100), st.integers(1, 70))
def test_reciprocal_rank_fusion(rankings, k, depth):
    count, width, lexical, vector = rankings
    both = made_ranking(lexical, width), made_ranking(vector, width)
    fused = Hybrid(name="h", kind="hybrid", fusion="rrf", rrf_k=k).fuse(*both, depth)
    for query, (left, right) in enumerate(zip(lexical, vector, strict=True)):
        wanted = reference.reciprocal_rank(left, right, ids_of(count), k, depth)
        assert listed(fused, query) == wanted


GRID = st.sampled_from([-0.5, 0.0, 0.25, 0.5])
"""Components of vectors with exact products, so that the reference must agree to the last bit."""


@given(two_rankings(), st.sampled_from([0.0, 0.25, 0.7, 1.0]), st.integers(1, 40), st.data())
def test_mmr(rankings, lambda_, depth, data):
    count, width, lists, _ = rankings
    vectors = data.draw(
        st.lists(st.lists(GRID, min_size=3, max_size=3), min_size=count, max_size=count)
    )
    first = made_ranking(lists, width)
    found = _mmr(first, np.array(vectors, dtype=np.float32), lambda_=lambda_, depth=depth)
    for query, candidates in enumerate(lists):
        chosen = reference.mmr(candidates[:depth], vectors, lambda_)
        assert [row for row, _ in listed(found, query)] == [row for row, _ in chosen] + [
            row for row, _ in candidates[depth:]
        ]
        assert found.rerank[query, : len(chosen)].tolist() == [value for _, value in chosen]
        assert np.isnan(found.rerank[query, len(chosen) :]).all()
        place_before = {row: place for place, (row, _) in enumerate(candidates, start=1)}
        norm_before = dict(candidates)
        for place, (row, norm) in enumerate(listed(found, query, "norm")):
            assert found.k_pos[query, place] == place_before[row]
            assert norm == norm_before[row]


def test_an_outside_reranker_orders_the_head_and_keeps_the_tail():
    first = made_ranking([[(5, 1.0), (3, 0.8), (8, 0.5), (1, 0.1)], [(2, 1.0)], []], 4)
    found = order_by_scores(first, [[0.1, 0.9, 0.9], [7.0], []], depth=3)
    assert found.rows.tolist() == [[3, 8, 5, 1], [2, -1, -1, -1], [-1, -1, -1, -1]]
    assert found.k_pos.tolist() == [[2, 3, 1, 4], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found.rerank[0, :3].tolist() == [0.9, 0.9, 0.1]
    assert np.isnan(found.rerank[0, 3])


@pytest.mark.parametrize(
    "given_scores",
    [[[1.0]], [[1.0, np.nan]], [[1.0, np.inf]], [[1.0, 2.0, 3.0]], [], [[1.0, 2.0], []]],
)
def test_a_reranker_that_answers_wrongly_is_refused(given_scores):
    with pytest.raises(ValueError, match=r"reranker|zip"):
        order_by_scores(made_ranking([[(1, 1.0), (0, 0.5)]], 2), given_scores, depth=5)


def test_an_empty_place_is_no_pair_of_the_query_before():
    """An empty place (row -1) of query 1 has the pair code of the last chunk of query 0."""
    before = made_ranking([[(11, 1.0)], [(3, 1.0)]], 3)
    after = before.without(np.array([11]), 12)
    assert after.rows.tolist() == [[-1, -1, -1], [3, -1, -1]]
