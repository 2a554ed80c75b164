"""What a text copies of its sources: found whatever the white space, counted for each source, cut to a snippet; and cut quotes that still validate."""

import gc
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.citations.copied import SHORTEST, Source, copies, uncopied
from rag_eval.citations.live_index import LiveIndex, Place
from rag_eval.citations.quoted import begins_with
from rag_eval.citations.validators import validate
from rag_eval.corpus.masking import mask

SOURCE = " ".join(f"word{number}" for number in range(100))
OTHER = " ".join(f"thing{number}" for number in range(100))
OWN = " ".join(f"mine{number}" for number in range(60))


def longest(text, source):
    """Slow reference: length of the longest run of a text that stands in a source, white space evened out."""
    text, source = " ".join(text.split()), " ".join(source.split())
    best = 0
    for start in range(len(text)):
        while start + best < len(text) and text[start : start + best + 1] in source:
            best += 1
    return best


def test_copies_are_cut_for_each_source_and_own_words_stay():
    left = uncopied(
        f"{OWN} {SOURCE} {OWN} {OTHER} {OWN}",
        [Source("a", SOURCE), Source("b", OTHER), Source("b", OTHER[50:])],
    )
    assert left.text.count(OWN) == 3
    assert left.text.count("…") == 2
    assert left.used == {"a": 199, "b": 199}
    assert SOURCE[:190] in left.text
    assert longest(left.text, SOURCE) <= 200
    assert longest(left.text, OTHER) <= 200


def test_pieces_of_one_source_share_its_two_hundred_characters():
    first, second = SOURCE[:150], SOURCE[300:450]
    left = uncopied(f"{first} {OWN} {second}", [Source("a", SOURCE)])
    assert first in left.text
    assert second not in left.text
    assert left.used == {"a": 199}


def test_two_hundred_characters_stay_whole():
    text = SOURCE[:200].rstrip()
    assert uncopied(f"{OWN} {text}", [Source("a", SOURCE)]).text == f"{OWN} {text}"


def test_white_space_and_ascii_case_do_not_hide_a_copy():
    hidden = SOURCE.upper().replace(" ", "\u00a0\n ")
    assert (
        longest(uncopied(hidden, [Source("a", SOURCE)]).text.lower().replace("\u00a0", " "), SOURCE)
        <= 200
    )


def test_a_short_quote_is_a_copy_and_a_few_equal_words_are_not():
    assert copies("he said: It never rains. And left", [Source("a", "It never rains.")])[
        "a"
    ].sum() == len("It never rains.")
    assert copies("for example, this", [Source("a", "for example, " + SOURCE)]) == {}
    assert copies("a", [Source("a", "a")]) == {}
    assert copies("", [Source("a", SOURCE)]) == {}


def test_marks_stay_with_their_letters():
    source = "e\u0301" * 300
    left = uncopied(f"{OWN} {source}", [Source("a", source)])
    assert "e…" not in left.text or left.text.endswith("e\u0301…")


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 400)), max_size=5), st.text(max_size=40)
)
def test_nothing_longer_than_a_snippet_is_left_of_any_source(pieces, own):
    text = own.join(SOURCE[start : start + length] for start, length in pieces)
    assert longest(uncopied(text, [Source("a", SOURCE)]).text, SOURCE) <= 200 + SHORTEST


def test_the_work_grows_with_the_length():
    def seconds(n):
        text, source = "ab " * n, "ba " * n
        times = []
        gc.disable()
        try:
            for _ in range(3):
                started = time.perf_counter()
                uncopied(text, [Source("a", source)])
                times.append(time.perf_counter() - started)
        finally:
            gc.enable()
        return min(times)

    seconds(1000)
    assert seconds(160_000) < 24 * max(
        seconds(20_000), 0.002
    )  # eight times the text; squared growth would be sixty-four times


TEXT = (
    "Jobs that fail are tried again three times, "
    + "and then once more " * 20
    + "before anybody is told."
)


@pytest.fixture
def live():
    text = f"{TEXT} Write to jane.doe@" + "example.org for more."
    return LiveIndex(
        {"d": text},
        {"d": "r"},
        {"d": Place("d", 0, len(text))},
        {"c": Place("d", 0, len(text), "d")},
        index_hashes=["i"],
        analyzer="english",
    )


def record(start, end, **more):
    payload = {
        "doc_id": "d",
        "section_id": "d",
        "snippet_id": "c",
        "source_url": "file",
        "offsets": {"start": start, "end": end, "unit": "char"},
        "tokens": 9,
        "index_hash": "i",
        "embed_model": "",
        "analyzer": "english",
        "rev": "r",
        "score_raw": 1.0,
        "k_pos": 1,
    }
    return {**payload, **more}


@pytest.mark.parametrize(
    ("quote", "chars", "right"),
    [
        (TEXT[:150] + "…", len(TEXT), True),
        (TEXT[:152].replace(" ", "\n") + "…", len(TEXT), True),
        (TEXT, None, True),
        (TEXT[:150] + "…", None, False),  # nothing says that it was cut
        (TEXT[:150] + "…", 100, False),  # it is longer than what it was cut from
        (TEXT[:150], len(TEXT), False),
        ("Jobs never fail…", len(TEXT), False),
        ("…", len(TEXT), False),
        (TEXT[5:150] + "…", len(TEXT), False),
        (TEXT[:150] + "…", "400", False),
    ],
)
def test_a_cut_quote_is_held_against_the_beginning_of_its_place(live, quote, chars, right):
    verdicts = validate([record(0, len(TEXT), quote=quote, quote_chars=chars)], live)
    assert verdicts.codes == ("ok" if right else "quote_mismatch",)


def test_a_masked_quote_is_held_against_the_masked_text(live):
    text = live.texts["d"]
    start = text.index("Write")
    masked = mask(text[start:]).text
    assert validate([record(start, len(text), quote=masked)], live).codes == ("ok",)
    assert validate([record(start, len(text), quote=masked[:-1])], live).codes == (
        "quote_mismatch",
    )
    assert validate([record(0, 30, quote="[key" + "█" * 26)], live).codes == (
        "quote_mismatch",
    )  # covers what is no secret


def test_beginnings():
    assert begins_with("One two  three", "One tw")
    assert not begins_with("One two", "One two three")
    assert not begins_with("One two", " ")
