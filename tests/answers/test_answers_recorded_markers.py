"""Markers inside answers are recognised and removed, and each supports the right sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.recorded import read_markers

CASES = [
    ("Terns fly far [1].", "Terns fly far.", [(0, 1)]),
    ("Terns fly far.[1]", "Terns fly far.", [(0, 1)]),
    ("Terns fly far. [1] They eat fish. [2]", "Terns fly far. They eat fish.", [(0, 1), (1, 2)]),
    (
        "Terns fly far[1][2]. They eat fish[3].",
        "Terns fly far. They eat fish.",
        [(0, 1), (0, 2), (1, 3)],
    ),
    (
        "Terns fly far [1] [2]. They eat fish [1, 3].",
        "Terns fly far. They eat fish.",
        [(0, 1), (0, 2), (1, 1), (1, 3)],
    ),
    ("Terns [1] fly far [ 2 ; 3 ].", "Terns fly far.", [(0, 1), (0, 2), (0, 3)]),
    ("[1] Terns fly far.\n[2] They eat fish.", "Terns fly far.\nThey eat fish.", [(0, 1), (1, 2)]),
    ("[1][2] Terns fly far. They eat fish.", "Terns fly far. They eat fish.", [(0, 1), (0, 2)]),
    ("Terns fly far.\n[1]\nThey eat fish.", "Terns fly far.\n\nThey eat fish.", [(0, 1)]),
    ("Terns[1]fly far.", "Terns fly far.", [(0, 1)]),
    ("Terns fly far [12].", "Terns fly far.", [(0, 12)]),
    ("Terns fly far [0].", "Terns fly far.", [(0, 0)]),
    ("[1]", "", [(-1, 1)]),
    ("", "", []),
    ("He wrote it [2019].", "He wrote it [2019].", []),
    ("A share lies in [0, 1].", "A share lies in [0, 1].", []),
    ("Use `a[1]` for the second [2].", "Use `a[1]` for the second.", [(0, 2)]),
    ("```\nx = [1]\n```\nSee [1] above.", "```\nx = [1]\n```\nSee above.", [(1, 1)]),
    ("The salt [EMIM][TfO] melts [1].", "The salt [EMIM][TfO] melts.", [(0, 1)]),
    ("「空は青い」。[1]海も青い。[2]", "「空は青い」。 海も青い。", [(0, 1), (1, 2)]),
    ("Dr. Smith [1] saw 3.5 kg [2]. Why?", "Dr. Smith saw 3.5 kg. Why?", [(0, 1), (0, 2)]),
]


@pytest.mark.parametrize(("answer", "text", "citations"), CASES)
def test_markers(answer, text, citations):
    # The splitter may see a code block and its sentence as one or two: compare only the numbers.
    if "```" in answer:
        assert read_markers(answer).text == text
        assert [number for _, number in read_markers(answer).citations] == [
            number for _, number in citations
        ]
        return
    marked = read_markers(answer)
    assert (marked.text, marked.citations) == (text, citations)


@given(st.text(alphabet="ab.[]1,0` \n", max_size=80))
def test_no_text_is_lost_but_markers_and_blanks(answer):
    marked = read_markers(answer)
    kept = [character for character in marked.text if not character.isspace()]
    rest = iter(answer)
    assert all(character in rest for character in kept)  # a subsequence
    assert marked.text.count("a") == answer.count("a")
    assert all(-1 <= segment < len(marked.segments) for segment, _ in marked.citations)
    assert all(marked.text[start:end].strip() for start, end in marked.segments)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Terns fly far", "They eat fish", "It rains"]),
            st.lists(st.integers(1, 99), min_size=1, max_size=4),
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_every_sentence_keeps_its_numbers(parts, behind_the_dot):
    marks = ["".join(f"[{number}]" for number in numbers) for _, numbers in parts]
    answer = " ".join(
        f"{text}.{mark}" if behind_the_dot else f"{text} {mark}."
        for (text, _), mark in zip(parts, marks, strict=True)
    )
    marked = read_markers(answer)
    assert marked.text == " ".join(f"{text}." for text, _ in parts)
    assert marked.citations == [
        (row, number) for row, (_, numbers) in enumerate(parts) for number in numbers
    ]
