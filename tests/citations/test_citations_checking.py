"""Matching agrees with plain sets of characters and words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.citations.checking import Spans, _coverage, _match_citations
from rag_eval.corpus.analyzer import token_spans

N_QUERIES, N_DOCS = 3, 3
YES = np.array([True])
spans = st.lists(
    st.tuples(
        st.integers(0, N_QUERIES - 1),
        st.integers(-1, N_DOCS - 1),
        st.integers(-1, 30),
        st.integers(-1, 30),
    ),
    max_size=8,
)
gold_spans = st.lists(
    st.tuples(
        st.integers(0, N_QUERIES - 1),
        st.integers(0, N_DOCS - 1),
        st.integers(0, 20),
        st.integers(1, 12),
    ),
    max_size=6,
)
texts = st.lists(
    st.text(alphabet="ab  .é", min_size=0, max_size=40), min_size=N_DOCS, max_size=N_DOCS
)


def made(rows):
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Spans(*columns.T)


def characters(start, end):
    return set(range(start, end)) if start >= 0 else set()


def reference(cited, valid, gold, owed):
    """Compute the citation measures from their definitions, one question at a time."""
    rows = []
    for query in range(N_QUERIES):
        mine = [(row, ok) for row, ok in zip(cited, valid, strict=True) if row[0] == query]
        golden = [row for row in gold if row[0] == query]

        def hits(one, other):
            a, b = characters(*one[2:]), characters(*other[2:])
            return (
                one[1] == other[1] >= 0
                and bool(a)
                and bool(b)
                and 2 * len(a & b) >= min(len(a), len(b))
            )

        correct = sum(ok and any(hits(row, other) for other in golden) for row, ok in mine)
        matched = sum(any(ok and hits(row, other) for row, ok in mine) for other in golden)
        due = len(mine) or int(owed[query])
        n_valid = sum(ok for _, ok in mine)
        rows.append((len(mine), n_valid, correct, len(golden), matched, due))
    return np.array(rows)


def reference_coverage(cited, valid, gold, documents):
    def tokens(row):
        found = (
            token_spans(documents[row[1]])
            if row[1] >= 0 and row[2] >= 0 and row[3] > row[2]
            else []
        )
        return {
            (row[1], place)
            for place, (start, end) in enumerate(found)
            if start < row[3] and row[2] < end
        }

    rows = []
    for query in range(N_QUERIES):
        anchor = set().union(*(tokens(row) for row in gold if row[0] == query))
        mine = set().union(
            *(tokens(row) for row, ok in zip(cited, valid, strict=True) if ok and row[0] == query)
        )
        rows.append(len(anchor & mine) / len(anchor) if anchor else float("nan"))
    return np.array(rows)


@settings(max_examples=300)
@given(spans, gold_spans, texts, st.data())
def test_equals_the_slow_reference(cited, gold, documents, data):
    gold = [(query, doc, start, start + length) for query, doc, start, length in gold]
    flags = [
        data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in (len(cited), N_QUERIES)
    ]
    valid, owed = (np.array(flag, dtype=bool) for flag in flags)
    _, found = _match_citations(made(cited), valid, made(gold), N_QUERIES, owed)
    names = ["n_cited", "n_valid", "n_correct", "n_gold", "n_gold_matched", "n_due"]
    np.testing.assert_array_equal(found[names], reference(cited, valid, gold, owed))
    np.testing.assert_allclose(
        _coverage(made(cited), valid, made(gold), documents, N_QUERIES),
        reference_coverage(cited, valid, gold, documents),
    )


@pytest.mark.parametrize(
    ("cited", "correct"),
    [((0, 105), 1), ((0, 104), 0), ((0, 1000), 1), ((103, 104), 1), ((110, 120), 0)],
)
def test_half_of_the_shorter_one_is_enough_and_less_is_not(cited, correct):
    found, _ = _match_citations(made([(0, 0, *cited)]), YES, made([(0, 0, 100, 110)]), 1, YES)
    assert found.tolist() == [bool(correct)]
