"""A question that is dressed up, or split over title and text, is restated all the same; headings stay headings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.trust.plain_text import plain, readings
from rag_eval.trust.restated_readings import restated_pairs

QUERY = "how deep is the lake in summer"
ANSWER = "It is nine metres deep, says this page."
WORDS = QUERY.split()


def found(text, title="", *, allowlist=True, n=1):
    names = [f"d{at}" for at in range(n)]
    pairs = restated_pairs(
        [QUERY],
        [text] * n,
        titles=[title] * n,
        doc_ids=names,
        sources=["pages.example"] * n,
        vouched=np.zeros(n, dtype=bool) if allowlist else None,
    )
    return list(zip(pairs["chunk"], pairs["rule"], pairs["severity"], strict=True))


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"<b>{word}</b>" for word in WORDS),
        "".join(f"<b>{word}</b>" for word in WORDS),
        " ".join(f'<span title="a>b">{word}</span>' for word in WORDS),
        " ".join(f"<x-y>{word}</x-y>" for word in WORDS),
        " ".join(f"&lt;i&gt;{word}&lt;/i&gt;" for word in WORDS),
        " ".join(f"{word}<!-- and -->" for word in WORDS),
        " ".join(f"{word[0]}\u200b{word[1:]}" for word in WORDS),
        "\u200b".join(WORDS),
        QUERY.replace("e", "е").replace("a", "а"),  # Cyrillic
        QUERY.replace("e", "&#101;").replace("o", "&#x6f;"),
        "".join(chr(ord(letter) + 0xFEE0) if letter != " " else letter for letter in QUERY),
        " ".join(f"<i>{word[0]}</i>{word[1:]}" for word in WORDS),
    ],
)
def test_a_dressed_question_blocks(text):
    assert found(f"{text}? {ANSWER}") == [(0, "running_text", "blocked")]


@pytest.mark.parametrize(
    "text",
    [
        f"<h2>{QUERY}?</h2><p>{ANSWER}</p>",
        f"<b>{QUERY}?</b> {ANSWER}",
        f"## {QUERY} &amp; more\n\n{ANSWER}",
    ],
)
def test_a_heading_is_no_graver_than_it_was(text):
    assert "blocked" not in [severity for *_, severity in found(text)]


def test_a_question_that_begins_in_the_title_and_ends_in_the_text_blocks():
    assert found(f"lake in summer? {ANSWER}", "How deep is the") == [(0, "running_text", "blocked")]
    assert found(f"<b>lake</b> in summer? {ANSWER}", "How d\u200beep is the") == [
        (0, "running_text", "blocked")
    ]
    assert found(f"lake in summer? {ANSWER}", "How deep is the.") == []
    assert found(ANSWER, "How deep is the lake in summer") == [(0, "heading", "warning")]
    assert found(
        f"# How deep is the lake in summer\n\n{ANSWER}", "How deep is the lake in summer"
    ) == [(0, "heading", "warning")]


def test_titles_are_not_counted_twice_and_sources_are_still_counted():
    assert found(ANSWER, "How deep is the lake in summer", n=2) == [
        (0, "heading", "warning"),
        (1, "heading", "warning"),
    ]
    assert [
        rule for _, rule, _ in found(f"<i>{WORDS[0]}</i> {' '.join(WORDS[1:])}? {ANSWER}", n=3)
    ] == ["repeated"] * 3


def test_nothing_to_compare_gives_no_pairs():
    none = restated_pairs([QUERY], [], titles=[], doc_ids=[], sources=[], vouched=None)
    assert (len(none), list(none.columns)) == (
        0,
        ["query", "chunk", "start", "end", "rule", "severity"],
    )
    vouched = restated_pairs(
        [QUERY],
        [f"{QUERY}? <b>x</b>"],
        titles=["How deep is the"],
        doc_ids=["d"],
        sources=["s"],
        vouched=np.ones(1, dtype=bool),
    )
    assert len(vouched) == 0


def test_offsets_are_of_the_text_as_it_stands():
    text = f"So: {QUERY}? {ANSWER}"
    (row,) = restated_pairs(
        [QUERY], [text], titles=[""], doc_ids=["d"], sources=["s"], vouched=np.zeros(1, dtype=bool)
    ).to_dict("records")
    assert text[row["start"] : row["end"]] == QUERY


@given(st.text(st.sampled_from("ab <>/&;!-\n\u200bе\"'=lt"), max_size=60))
def test_plain_text_keeps_what_needs_no_undressing(text):
    assert readings(text)[0] == text
    if not set(text) & set("<&\u200bе"):
        assert readings(text) == [text]
    assert "\u200b" not in plain(text)


def test_plain_text_keeps_lines_and_what_only_looks_like_a_tag():
    assert plain("a < b\n# One\n\nif x > 2: a &amp; b") == "a < b\n# One\n\nif x > 2: a & b"
