"""The sentence splitter: cases, and that it keeps offsets and loses nothing."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus import sentences

CASES = [
    ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
    (
        "Dr. Smith weighs 3.5 kg, e.g. in Fig. 2. He left.",
        ["Dr. Smith weighs 3.5 kg, e.g. in Fig. 2.", "He left."],
    ),
    ("Shown by Lee et al. in 1999. Done.", ["Shown by Lee et al. in 1999.", "Done."]),
    ("Apples, pears, etc. Then more.", ["Apples, pears, etc.", "Then more."]),
    ("J. R. Tolkien wrote it. So did I. Yes.", ["J. R. Tolkien wrote it.", "So did I.", "Yes."]),
    ("The answer is no. See No. 5 there.", ["The answer is no.", "See No. 5 there."]),
    ('He said "Stop." Then he left.', ['He said "Stop."', "Then he left."]),
    ("Wait... what? (Really.) Yes.", ["Wait... what?", "(Really.)", "Yes."]),
    ("A heading\n\nA paragraph\nwrapped. End", ["A heading", "A paragraph\nwrapped.", "End"]),
    ("A\r\nbe. C\r\n\r\nD", ["A\r\nbe.", "C", "D"]),
    ("今日は。明日は！「そう。」はい", ["今日は。", "明日は！", "「そう。」", "はい"]),
    ("see pandas.DataFrame.ffill for v2.1.3 now", ["see pandas.DataFrame.ffill for v2.1.3 now"]),
    ("", []),
    (" \n ", []),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_cases(text, expected):
    assert [text[start:end] for start, end in sentences.spans(text)] == expected


@given(
    st.text(alphabet="abA1. !?…\"')(\n\r。\t\u2003é", max_size=60),
    st.integers(0, 10),
    st.integers(0, 10),
)
def test_sentences_are_ordered_and_cover_all_but_white_space(text, before, after):
    low, high = min(before, len(text)), max(min(before, len(text)), len(text) - after)
    found = sentences.spans(text, low, high)
    assert all(low <= start < end <= high for start, end in found)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(found))
    assert "".join("".join(text[start:end].split()) for start, end in found) == "".join(
        text[low:high].split()
    )
    assert all(text[start:end] == text[start:end].strip() for start, end in found)


@pytest.mark.parametrize("part", [".", ". ", '."', "\n", "\n ", ".)", "。", "\r", "a. "])
def test_long_runs_end(part):
    text = part * 200_000
    assert sentences.borders(text) == sorted(set(sentences.borders(text)))
