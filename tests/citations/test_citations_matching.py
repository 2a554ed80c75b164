"""Matching agrees with plain sets of characters and words, and long copies are cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.citations.matching import (
    SHORTEST,
    Source,
    Sources,
    Spans,
    Words,
    coverage,
    match_citations,
    uncopied,
)
from rag_eval.corpus.analyzer import word_spans

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


@settings(max_examples=300)
@given(spans, gold_spans, texts, st.data())
def test_equals_the_slow_reference(cited, gold, documents, data):
    gold = [(query, doc, start, start + length) for query, doc, start, length in gold]
    flags = [
        data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in (len(cited), N_QUERIES)
    ]
    valid, owed = (np.array(flag, dtype=bool) for flag in flags)
    _, found = match_citations(made(cited), valid, made(gold), N_QUERIES, owed)
    names = ["n_cited", "n_valid", "n_correct", "n_gold", "n_gold_matched", "n_due"]
    np.testing.assert_array_equal(found[names], reference(cited, valid, gold, owed))
    np.testing.assert_allclose(
        coverage(made(cited), valid, made(gold), Words.of(documents), N_QUERIES),
        reference_coverage(cited, valid, gold, documents),
    )


@pytest.mark.parametrize(
    ("cited", "correct"),
    [((0, 105), 1), ((0, 104), 0), ((0, 1000), 1), ((103, 104), 1), ((110, 120), 0)],
)
def test_half_of_the_shorter_one_is_enough_and_less_is_not(cited, correct):
    found, _ = match_citations(made([(0, 0, *cited)]), YES, made([(0, 0, 100, 110)]), 1, YES)
    assert found.tolist() == [bool(correct)]


# ---- Copies of sources in a text

SOURCE = " ".join(f"word{number}" for number in range(100))
OTHER = " ".join(f"thing{number}" for number in range(100))
OWN = " ".join(f"mine{number}" for number in range(60))


def cut(text, source=SOURCE):
    return uncopied(text, Sources([Source("a", source)])).text


def longest(text, source):
    """Return the length of the longest run of a text that stands in a source."""
    text, source = " ".join(text.split()), " ".join(source.split())
    best = 0
    for start in range(len(text)):
        while start + best < len(text) and text[start : start + best + 1] in source:
            best += 1
    return best


def test_copies_are_cut_for_each_source_and_own_words_stay():
    sources = [Source("a", SOURCE), Source("b", OTHER), Source("b", OTHER[50:])]
    left = uncopied(f"{OWN} {SOURCE} {OWN} {OTHER} {OWN}", Sources(sources))
    assert (left.text.count(OWN), left.text.count("…")) == (3, 2)
    assert left.used == {"a": 199, "b": 199}
    assert SOURCE[:190] in left.text
    assert max(longest(left.text, SOURCE), longest(left.text, OTHER)) <= 200


def test_pieces_of_one_source_share_its_two_hundred_characters():
    pieces = SOURCE[:150], SOURCE[300:450]
    left = cut(f"{pieces[0]} {OWN} {pieces[1]}")
    assert [piece in left for piece in pieces] == [True, False]
    short = f"{OWN} {SOURCE[:200].rstrip()}"
    assert cut(short) == short


def test_short_quote_is_a_copy_and_a_few_equal_words_are_not():
    quote = "It never rains."
    found = uncopied(f"he said: {quote} And left", Sources([Source("a", quote)]))
    assert found.used == {"a": len(quote)}
    for text, source in (("for example, this", f"for example, {SOURCE}"), ("a", "a"), ("", SOURCE)):
        assert uncopied(text, Sources([Source("a", source)])) == (text, {})


def test_marks_stay_with_their_letters():
    source = "e\u0301" * 300
    left = cut(f"{OWN} {source}", source)
    assert "e…" not in left


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 400)), max_size=5), st.text(max_size=40)
)
def test_nothing_longer_than_a_snippet_is_left_of_a_source(pieces, own):
    text = own.join(SOURCE[start : start + length] for start, length in pieces)
    assert longest(cut(text), SOURCE) <= 200 + SHORTEST
