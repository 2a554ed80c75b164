"""Quotes against the sources that they name, on human answers with their own source numbers and with wrong ones."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.citations.quoted import (
    Quote,
    Source,
    normalised,
    quote_markers,
    quote_match_rate,
    quotes_verbatim,
    same_words,
)

NOT_VERBATIM = {
    ("PAQ_val_1581_0", 0),
    ("PAQ_val_1074_1", 0),
    ("PAQ_val_1074_1", 3),
    ("PAQ_val_1515_0", 2),
    ("PAQ_val_1977_1", 1),
}
"""(unique_id, place among the answer's quotes): the annotators put a title and a colon before the words of the source, or only those."""


@pytest.fixture(scope="module")
def quotesum(shared_data):
    """(unique_id, quotes, sources) of every human answer."""
    rows = [
        json.loads(line)
        for line in (shared_data / "quotesum" / "dev.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    ]
    answers = []
    for row in rows:
        sources = [
            Source(row[f"source{n}"], row[f"title{n}"])
            for n in range(1, 9)
            if row[f"source{n}"].strip()
        ]
        answers.append((row["unique_id"], quote_markers(row["summary"]), sources))
    return answers


def test_human_quotes_are_in_the_source_that_they_name_but_for_five(quotesum):
    found = [quotes_verbatim(quotes, sources) for _, quotes, sources in quotesum]
    correct, due = quote_match_rate(found)
    assert (correct, due) == (1125, 1130)
    assert correct / due >= 0.99
    wrong = {
        (unique_id, int(place))
        for (unique_id, _, _), matches in zip(quotesum, found, strict=True)
        for place in np.flatnonzero(~matches)
    }
    assert wrong == NOT_VERBATIM


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_quotes_with_wrong_source_numbers_are_not(quotesum, seed):
    """A random derangement of each question's sources: no number stays. A quote that the other source says too still matches, as it should."""
    rng = np.random.default_rng(seed)
    found = []
    for _, quotes, sources in quotesum:
        numbers = np.arange(1, len(sources) + 1)
        assert len(numbers) > 1
        moved = rng.permutation(numbers)
        while (moved == numbers).any():
            moved = rng.permutation(numbers)
        permuted = [Quote(int(moved[quote.source - 1]), quote.text) for quote in quotes]
        assert all(new.source != old.source for new, old in zip(permuted, quotes, strict=True))
        found.append(quotes_verbatim(permuted, sources))
    correct, due = quote_match_rate(found)
    assert due == 1130
    assert correct / due <= 0.25


def test_markers():
    text = "In [ 1 one [sic] ] and [2 two words ][ 3\tthree ]; not [4], [x y], [ 5  ] or [ 6 open"
    assert [(quote.source, quote.text) for quote in quote_markers(text)] == [
        (1, "one [sic]"),
        (2, "two words"),
        (3, "three"),
    ]
    assert [text[quote.start : quote.end] for quote in quote_markers(text)] == [
        "[ 1 one [sic] ]",
        "[2 two words ]",
        "[ 3\tthree ]",
    ]
    assert [(quote.source, quote.text) for quote in quote_markers("[see [ 2 this ] here]")] == [
        (2, "this")
    ]
    assert [(quote.source, quote.text) for quote in quote_markers("[ 1 a [ 2 b ] ] [ 3 c ]")] == [
        (1, "a [ 2 b ]"),
        (3, "c"),
    ]
    assert quote_markers("[" * 5000 + " 1 a" + "]" * 10) == [Quote(1, "a", 4999, 5005)]


def test_a_quote_is_sought_in_the_text_or_the_title_of_its_own_source_only():
    sources = [Source("The first\n text.", "Title one"), Source("Second.", "")]
    quotes = [
        Quote(1, "first text"),
        Quote(1, "Title one"),
        Quote(2, "first text"),
        Quote(1, "one The first"),
        Quote(1, "First text"),
        Quote(0, "first"),
        Quote(3, "first"),
        Quote(2, " "),
    ]
    assert quotes_verbatim(quotes, sources).tolist() == [
        True,
        True,
        False,
        False,
        False,
        False,
        False,
        False,
    ]


def test_the_longest_composition_is_no_obstacle():
    assert len(unicodedata.normalize("NFD", "\u1f82")) == 4
    assert same_words(unicodedata.normalize("NFD", "\u1f82"), "\u1f82")


def test_answers_without_a_quote_owe_one():
    assert quote_match_rate([np.array([True, False]), np.zeros(0, dtype=bool)]) == (1, 3)
    assert quote_match_rate([]) == (0, 0)


@given(
    st.text(alphabet="ae\u0301\u00e9 \n\u00a0\u1f82\u1100\u1161\u11a8x", max_size=12),
    st.text(alphabet="ae\u0301\u00e9 \n\u00a0\u1f82\u1100\u1161\u11a8x", max_size=12),
)
def test_same_words_is_equality_of_the_normalised(one, two):
    assert same_words(one, two) == (normalised(one) == normalised(two))
    assert same_words(one, unicodedata.normalize("NFD", one))
    assert same_words(unicodedata.normalize("NFD", one), one)
    assert same_words(" " + one.replace(" ", "\n\n") + "\t", one)
