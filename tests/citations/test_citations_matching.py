"""Vectorised matching against sets of characters and words, one question at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.citations.live_index import word_spans
from rag_eval.citations.matching import Spans, Words, coverage, match_citations

N_QUERIES, N_DOCS = 3, 3
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
    """The definitions, one question at a time."""
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
        nan = float("nan")
        rows.append(
            (
                *(len(mine), sum(ok for _, ok in mine), correct, len(golden), matched, due),
                correct / len(mine) if mine and golden else nan,
                matched / len(golden) if golden else nan,
                correct / due if due and golden else nan,
                sum(ok for _, ok in mine) / len(mine) if mine else nan,
            )
        )
    return np.array(rows, dtype=float)


def reference_coverage(cited, valid, gold, documents):
    def tokens(row):
        found = (
            word_spans(documents[row[1]]) if row[1] >= 0 and row[2] >= 0 and row[3] > row[2] else []
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


@settings(max_examples=300, deadline=None)
@given(spans, gold_spans, texts, st.data())
def test_equals_the_slow_reference(cited, gold, documents, data):
    gold = [(query, doc, start, start + length) for query, doc, start, length in gold]
    valid = data.draw(st.lists(st.booleans(), min_size=len(cited), max_size=len(cited)))
    owed = data.draw(st.lists(st.booleans(), min_size=N_QUERIES, max_size=N_QUERIES))
    found = match_citations(made(cited), valid, made(gold), N_QUERIES, owed)
    columns = (
        found.n_cited,
        found.n_valid,
        found.n_correct,
        found.n_gold,
        found.n_gold_matched,
        found.n_due,
        found.precision,
        found.recall,
        found.match_rate,
        found.validity_rate,
    )
    np.testing.assert_allclose(np.stack(columns, axis=1), reference(cited, valid, gold, owed))
    np.testing.assert_allclose(
        coverage(made(cited), valid, made(gold), Words.of(documents), N_QUERIES),
        reference_coverage(cited, valid, gold, documents),
    )


def test_half_of_the_shorter_one_is_enough_and_less_is_not():
    gold = made([(0, 0, 100, 110)])
    for cited, right in (
        ((0, 105), True),
        ((0, 104), False),
        ((0, 1000), True),
        ((103, 104), True),
        ((110, 120), False),
    ):
        assert (
            match_citations(made([(0, 0, *cited)]), [True], gold, 1, [True]).n_correct[0] == right
        )


def test_fabricated_invalid_wrong_and_missing_citations_stay_in_the_denominator():
    gold = made([(query, 0, 0, 10) for query in range(6)])
    cited = made([(0, 0, 0, 10), (1, -1, -1, -1), (2, 0, 0, 10), (3, 0, 50, 60)])
    found = match_citations(cited, [True, False, False, True], gold, 6, [True] * 5 + [False])
    assert found.n_due.tolist() == [1, 1, 1, 1, 1, 0]
    assert found.n_correct.tolist() == [1, 0, 0, 0, 0, 0]
    assert np.array_equal(found.match_rate, [1, 0, 0, 0, 0, np.nan], equal_nan=True)
    assert np.array_equal(found.validity_rate, [1, 0, 0, 1, np.nan, np.nan], equal_nan=True)


def test_a_question_without_gold_has_no_precision_but_keeps_its_counts():
    found = match_citations(made([(0, 0, 0, 10)]), [True], made([]), 1, [True])
    assert (found.n_cited[0], found.n_due[0]) == (1, 1)
    assert np.isnan([found.precision[0], found.recall[0], found.match_rate[0]]).all()


def test_coverage_counts_a_token_once():
    words = Words.of(["one two three four five six"])
    gold = made([(0, 0, 0, 13), (0, 0, 4, 18)])
    assert coverage(made([(0, 0, 4, 7), (0, 0, 5, 13), (0, 0, 4, 7)]), [True] * 3, gold, words, 1)[
        0
    ] == pytest.approx(2 / 4)
    assert coverage(made([(0, 0, 0, 99)]), [False], gold, words, 1)[0] == 0
    assert np.isnan(coverage(made([(0, 0, 0, 99)]), [True], made([(0, 0, 3, 4)]), words, 1)[0])


def test_arrays_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Spans([0], [0], [0], [1, 2])
    with pytest.raises(ValueError, match="found -1"):
        made([(-1, 0, 0, 1)])
    with pytest.raises(ValueError, match="valid has shape"):
        match_citations(made([(0, 0, 0, 1)]), [], made([]), 1, [True])
    with pytest.raises(ValueError, match="accepted codes below 1"):
        match_citations(made([(1, 0, 0, 1)]), [True], made([]), 1, [True])
