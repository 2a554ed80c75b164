"""Provenance, quotes, sections and the two path gates."""

import json
from pathlib import Path

import pandas as pd
import pytest
from answer_corpus import DOCS, evidence, library, scored
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.contract import Citation, find_quote, judge, path_faults, remove_marks
from rag_eval.answers.paths import find_paths

WEST, SOUTH, SETUP = "docs/capitals.md#west", "docs/capitals.md#south", "docs/setup.md#setup"

DATA = json.loads(Path(__file__).with_name("gate_cases.json").read_text(encoding="utf-8"))
PATHS = DATA["paths"]  # (text, paths in the text)
CASES = DATA["answers"]  # (body, cited tokens, codes)


@pytest.mark.parametrize(("text", "expected"), PATHS, ids=[text[:40] for text, _ in PATHS])
def test_paths_are_told_from_ordinary_words(text, expected):
    assert list(find_paths(text)) == expected


def test_verbatim_text_of_a_cited_item_passes_both_gates():
    """Text copied from a cited item passes, also with the addresses and file names of real docs."""
    names = "read_csv DataFrame read_parquet read_sql to_datetime merge concat read_excel HDFStore"
    for name in names.split():
        item = library().evidence(scored("api.rst", "s", getattr(pd, name).__doc__), "retrieve")
        assert item is not None
        assert path_faults(item.chunk.text, [item], [Citation("api.rst", 1, item.last_line)]) == []


def test_a_folder_of_the_evidence_makes_a_path_of_two_plain_words():
    assert find_paths("content/posts") == ()
    assert find_paths("content/posts", {"content"}) == ("content/posts",)


@given(st.text(alphabet="ab/.\\:1-_#~ (\"'*", max_size=60))
def test_finding_paths_never_fails_and_finds_pieces_of_the_text(text):
    assert all(path in text for path in find_paths(text))


def _citation(token):
    doc, _, lines = token.rpartition(":")
    first, _, last = lines.partition("-")
    return Citation(doc, int(first), int(last or first))


@pytest.mark.parametrize(
    ("body", "cited", "codes"),
    CASES,
    ids=[f"{number}-{body[:30]}" for number, (body, _, _) in enumerate(CASES)],
)
def test_an_answer_is_held_against_its_evidence(body, cited, codes):
    judged = judge(body, [_citation(token) for token in cited], evidence())
    assert [fault.code for fault in judged.faults] == codes
    json.dumps(judged.text)


def test_cited_lines_become_characters_of_the_document():
    judged = judge("Berlin.", [Citation("docs/capitals.md", 3, 3)], evidence(SOUTH, WEST))
    (span,) = judged.citations
    assert (span.segment, span.evidence, span.doc_id) == (-1, 1, "docs/capitals.md")
    assert DOCS["docs/capitals.md"][span.start : span.end] == "Berlin is the capital of Germany."


@pytest.mark.parametrize(
    ("quote", "code", "text"),
    [
        ("Berlin is the capital", None, "Berlin is the capital"),
        ("Berlin  is\nthe capital", None, "Berlin is the capital"),
        ("Paris is the capital of France. Berlin", None, "Paris is the capital of France.\nBerlin"),
        ("berlin is the capital", "quote_mismatch", None),
        ("Rome is the capital", "quote_mismatch", None),
        ("B", "quote_mismatch", None),
        ("Be", None, "Be"),
    ],
)
def test_a_quote_must_stand_in_the_cited_lines(quote, code, text):
    judged = judge("Berlin.", [Citation("docs/capitals.md", 2, 3, quote)], evidence())
    assert [fault.code for fault in judged.faults] == ([code] if code else [])
    if text:
        (span,) = judged.citations
        assert span.quote == text == DOCS["docs/capitals.md"][span.start : span.end]


def test_a_whitelisted_pair_of_sections_may_share_a_sentence():
    body = "Paris and pip [docs/capitals.md:2] [docs/setup.md:2]."
    cited = [Citation("docs/capitals.md", 2, 2), Citation("docs/setup.md", 2, 2)]
    assert not judge(body, cited, evidence(), cross_section_allowed=[(SETUP, WEST)]).faults
    assert judge(body, cited, evidence(), cross_section_allowed=[(SETUP, SOUTH)]).faults


def test_marks_leave_the_text_and_number_its_sentences():
    text, marks = remove_marks(
        "Paris is the capital [docs/capitals.md:2]. Rome lies on the Tiber. "
        "[docs/capitals.md:5-6] Done [1]."
    )
    assert text == "Paris is the capital. Rome lies on the Tiber. Done [1]."
    assert [(sentence, citation.first) for sentence, citation in marks] == [(0, 2), (1, 5)]


def test_a_refusal_may_name_paths_of_the_question_only():
    refusal = "INSUFFICIENT EVIDENCE: what deploy/prod.yaml says"
    assert not path_faults(refusal, evidence(), [], "What does deploy/prod.yaml say?")
    (fault,) = path_faults(refusal, evidence(), [], "What is said?")
    assert fault.code == "path_not_in_evidence"


def test_an_answer_that_names_hundreds_of_paths_is_not_searched_for():
    (fault,) = path_faults(" ".join(f"f{n}.py" for n in range(600)), evidence(), [])
    assert fault.code == "path_not_cited"


@given(st.text(max_size=30), st.text(max_size=60))
def test_find_quote_agrees_with_a_search_in_normalised_text(quote, text):
    found = find_quote(quote, text, 0, len(text))
    if found:
        assert text[slice(*found)].split() == quote.split()
    elif quote.split():
        assert " ".join(quote.split()) not in text
