import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.levels import (
    Extents,
    Spans,
    collapse,
    first_relevant_rank,
    span_carriers,
    span_ranks,
    span_recall,
)

CHUNKS = 12


@given(
    st.lists(st.lists(st.integers(0, CHUNKS - 1), unique=True, max_size=8), max_size=6),
    st.lists(st.integers(-1, 4), min_size=CHUNKS, max_size=CHUNKS),
    st.integers(0, 10),
)
@settings(max_examples=200, deadline=None)
def test_collapse_keeps_the_best_rank_of_each_group(rankings, group_of, depth_out):
    chunks = np.full((len(rankings), 8), -1)
    expected = np.full((len(rankings), depth_out), -1)
    for row, ranking in enumerate(rankings):
        chunks[row, : len(ranking)] = ranking
        seen = list(dict.fromkeys(group_of[chunk] for chunk in ranking if group_of[chunk] >= 0))[
            :depth_out
        ]
        expected[row, : len(seen)] = seen
    np.testing.assert_array_equal(collapse(chunks, group_of, depth_out), expected)


def test_collapse_of_nothing():
    assert collapse(np.empty((2, 0), dtype=int), [0, 1], 3).tolist() == [[-1] * 3] * 2
    assert collapse([[-1]], np.empty(0, dtype=int), 1).tolist() == [[-1]]


@st.composite
def span_cases(draw):
    n_queries = draw(st.integers(1, 3))
    golds = [
        draw(st.lists(st.lists(st.integers(0, CHUNKS - 1), max_size=3, unique=True), max_size=4))
        for _ in range(n_queries)
    ]
    runs = draw(
        st.lists(
            st.tuples(
                st.integers(0, n_queries - 1),
                st.lists(st.integers(0, CHUNKS - 1), unique=True, max_size=6),
            ),
            max_size=5,
        )
    )
    return golds, runs


def span_arrays(golds, runs):
    spans = [carriers for gold in golds for carriers in gold]
    chunks = np.full((len(runs), 6), -1)
    for row, (_, ranking) in enumerate(runs):
        chunks[row, : len(ranking)] = ranking
    indptr = np.cumsum([0, *map(len, golds)])
    carrier_indptr = np.cumsum([0, *map(len, spans)])
    carriers = np.array([chunk for span in spans for chunk in span], dtype=np.int64)
    return (
        chunks,
        Spans(indptr, carrier_indptr, carriers),
        np.array([q for q, _ in runs], dtype=np.int64),
    )


@given(span_cases())
@settings(max_examples=200, deadline=None)
def test_span_measures_equal_a_slow_reference(case):
    golds, runs = case
    chunks, spans, query_of = span_arrays(golds, runs)
    ks = [1, 3, 10]
    recall, first = (
        span_recall(chunks, spans, query_of, ks),
        first_relevant_rank(chunks, spans, query_of),
    )
    owner, each = span_ranks(chunks, spans, query_of)
    assert recall.shape == (len(runs), 3)
    for row, (q, ranking) in enumerate(runs):
        for column, k in enumerate(ks):
            carried = sum(any(chunk in span for chunk in ranking[:k]) for span in golds[q])
            np.testing.assert_equal(
                recall[row, column], carried / len(golds[q]) if golds[q] else math.nan
            )
        ranks = [
            rank for rank, chunk in enumerate(ranking, 1) if any(chunk in span for span in golds[q])
        ]
        np.testing.assert_equal(first[row], min(ranks, default=math.inf) if golds[q] else math.nan)
        assert each[owner == row].tolist() == [
            min((rank for rank, chunk in enumerate(ranking, 1) if chunk in span), default=math.inf)
            for span in golds[q]
        ]


def test_no_ks():
    chunks, spans, query_of = span_arrays([[[0]]], [(0, [0])])
    assert span_recall(chunks, spans, query_of, []).shape == (1, 0)


extents = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 20)), max_size=8)


@given(extents, extents)
@settings(max_examples=200, deadline=None)
def test_carriers_overlap_by_half_of_the_shorter(spans, chunks):
    def columns(rows):
        document, start, length = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return Extents(document, start, start + length)

    indptr, carriers = span_carriers(columns(spans), columns(chunks))
    assert len(indptr) == len(spans) + 1
    for at, (document, start, length) in enumerate(spans):
        expected = set()
        for chunk, (other, begin, size) in enumerate(chunks):
            common = (
                len(set(range(start, start + length)) & set(range(begin, begin + size)))
                if document == other
                else 0
            )
            if common and common >= min(length, size) / 2:
                expected.add(chunk)
        assert set(carriers[indptr[at] : indptr[at + 1]].tolist()) == expected


def test_exactly_half_carries_and_less_does_not():
    span = Extents([0], [0], [10])
    assert span_carriers(span, Extents([0, 0, 1], [5, 6, 0], [50, 50, 10]))[1].tolist() == [0]


def test_span_ranking_with_a_repeated_chunk_is_refused():
    with pytest.raises(ValueError, match="more than once"):
        span_recall([[1, 1]], Spans(np.array([0, 1]), np.array([0, 1]), np.array([1])), [0], [1])
