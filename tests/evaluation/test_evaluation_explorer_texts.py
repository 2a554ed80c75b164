"""Texts of the explorer: both ways to write them agree, windows hold their marks, numbers round."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag_eval.corpus.masking import mask_shown_address, mask_snippet
from rag_eval.pipeline.explorer import address, line, marked, nullable
from rag_eval.reporting.html.elements import visible

HOSTILE = st.text(
    st.one_of(
        st.characters(), st.sampled_from(" \n\t\u202e\u200b\ud800\u0301\u00ad\ufe0fa@.x1234567890-")
    ),
    max_size=700,
)
WORDS = st.text(st.sampled_from("abc de\nf ü"), max_size=900)


@given(st.one_of(HOSTILE, WORDS), st.sampled_from([1, 7, 200, 300]))
@example("jane.doe@example.org and more", 200)
@example("x " * 300, 200)
@example("a" * 1_000_000, 200)
def test_a_line_is_the_masked_snippet_with_everything_visible(text, limit):
    assert line(text, limit) == visible(mask_snippet(text, limit))
    assert len(line(text, limit)) <= limit


@given(
    st.text(max_size=200), st.sampled_from(["https://example.org/", "javascript:", "python:", ""])
)
@example("people/jane.doe@example.org", "https://example.org/")
@example("a?tel=+44%2020%207946%200958", "https://example.org/")
def test_an_address_is_masked_and_followed_only_as_it_stands(path, start):
    source, link = address(start + path)
    assert visible(source) == source
    assert len(source) <= 500
    if mask_shown_address(start + path) != start + path:
        assert link == ""
    assert link in {"", start + path}
    assert link == "" or link.startswith("https://example.org/")


@st.composite
def texts_with_spans(draw, alphabet):
    text = draw(st.text(alphabet, min_size=1, max_size=900))
    spans = draw(
        st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=4)
    )
    return text, [(min(a, b), max(a, b)) for a, b in spans]


@given(
    texts_with_spans(st.one_of(st.characters(), st.sampled_from(" \n\u202e\u200b\ud800\u0301ab@"))),
    st.sampled_from([20, 200]),
)
def test_a_window_is_bounded_visible_and_its_marks_lie_in_it(made, limit):
    text, spans = made
    window, at = marked(text, spans, limit)
    assert len(window) <= limit
    assert visible(window) == window
    assert "\n" not in window
    assert "  " not in window
    assert all(0 <= start < end <= len(window) for start, end in at)
    assert all(first[1] < second[0] for first, second in itertools.pairwise(at))
    json.dumps(window).encode("ascii")


@given(texts_with_spans(st.sampled_from("abcdefgh")))
def test_what_is_marked_is_the_span(made):
    text, spans = made
    window, at = marked(text, spans)
    whole = [
        (start, min(end, len(text))) for start, end in sorted(spans) if start < min(end, len(text))
    ]
    assert bool(at) == bool(whole)
    if whole:
        start, end = whole[0]
        covered = end
        for more in whole[1:]:  # touching spans share a mark
            covered = max(covered, more[1]) if more[0] <= covered else covered
        first = window[at[0][0] : at[0][1]]
        assert text[start:].startswith(first)
        assert first == text[start:covered] or window[at[0][1] :] in {"", "…"}


def test_offsets_count_what_is_written_out_and_evened_out():
    text = "before\u202e   the\n\n gold\u200b words \u202e after"
    begin, end = text.index("gold"), text.index("words") + 5
    window, at = marked(text, [(begin, end)])
    assert window == "before\\u202e the gold\\u200b words \\u202e after"
    assert [window[a:b] for a, b in at] == ["gold\\u200b words"]


def test_a_span_longer_than_the_window_is_marked_over_all_of_it():
    window, at = marked("a" * 50 + "b" * 1000 + "c" * 50, [(50, 1050)])
    assert window == "…" + "b" * 198 + "…"
    assert at == [[1, 199]]


def test_personal_data_that_the_window_cuts_is_masked():
    text = "x" * 30 + " jane.doe@example.org " + "gold " * 60
    window, _ = marked(text, [(len(text) - 200, len(text) - 5)])
    assert "example.org" not in window
    assert "example.org" not in marked(text, [(40, 60)])[0]


def test_a_span_behind_the_text_marks_nothing():
    assert marked("short", [(7, 9)]) == ("short", [])


@given(
    st.lists(
        st.one_of(st.floats(-1e300, 1e300), st.sampled_from([math.nan, math.inf])), max_size=20
    ),
    st.sampled_from([4, 6]),
)
def test_rounding_gives_the_nearest_short_decimal(values, digits):
    found = nullable(values, digits)
    for before, after in zip(values, found, strict=True):
        if math.isfinite(before):
            assert after == pytest.approx(before, rel=0.5000001 * 10 ** (1 - digits), abs=0)
            assert float(f"{after:.{digits}g}") == after
        else:
            assert after is None
    assert nullable(np.array(found, dtype=float), digits) == found


def test_numbers_are_short_and_what_is_absent_is_null():
    assert (
        json.dumps(nullable([[1.0, 0.123456789], [np.nan, np.inf]]))
        == "[[1, 0.123457], [null, null]]"
    )
    assert nullable([2.5e-17, 123456789.0], 4) == [2.5e-17, 123500000]
