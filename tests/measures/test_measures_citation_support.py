"""Sentences are held against the spans that they cite, and against nothing else."""

import cited_answers
import numpy as np
import pytest
from answer_corpus import DOCS, evidence

from rag_eval.core.types import Answer, CitedSpan
from rag_eval.measures.support import (
    SentenceSupport,
    citation_support,
)

PARIS, BERLIN = "Paris is the capital of France.", "Berlin is the capital of Germany."
WEST = "docs/capitals.md"


def span(text: str, segment: int = -1) -> CitedSpan:
    """Cite a text of the corpus; the corpus lacks the text of a fabricated citation."""
    for doc_id, whole in DOCS.items():
        if (start := whole.find(text)) >= 0:
            place = next(
                at
                for at, item in enumerate(evidence())
                if item.chunk.doc_id == doc_id
                and item.chunk.offsets.start <= start < item.chunk.offsets.end
            )
            return CitedSpan(segment, place, doc_id, start, start + len(text))
    return CitedSpan(segment, -1, text, -1, -1)


def judged(text: str, *cited: CitedSpan):
    answer = Answer("q", "llm", "answered", text=text, citations=cited, evidence=evidence())
    return citation_support([answer])[0]


def held(sentence: str, passage: str) -> SentenceSupport:
    return SentenceSupport(0, sentence, (0,), 1.0, "supported", passage, "")


@pytest.mark.parametrize(
    ("text", "cited", "supported"),
    [
        (PARIS, [span(PARIS)], [True]),
        (PARIS, [span(BERLIN)], [False]),
        (PARIS, [span("invented.md")], [False]),
        (PARIS, [], [False]),
        (f"{PARIS} {BERLIN}", [span(PARIS, 0), span(BERLIN, 1)], [True, True]),
        (f"{PARIS} {BERLIN}", [span(BERLIN, 0), span(PARIS, 1)], [False, False]),
        # a sentence without a marker has the citations without a marker only
        (f"{PARIS} {BERLIN}", [span(PARIS), span(BERLIN)], [True, True]),
        (f"{PARIS} {BERLIN}", [span(PARIS, 0), span(BERLIN)], [True, True]),
        (f"{PARIS} {BERLIN}", [span(PARIS, 0), span(BERLIN, 0)], [True, False]),
        # spans support a sentence together
        ("Paris is the capital of France and Berlin of Germany.", [span(PARIS)], [False]),
        (
            "Paris is the capital of France and Berlin of Germany.",
            [span(PARIS), span(BERLIN)],
            [True],
        ),
        # a part of a sentence stands for the sentence
        (PARIS, [span("is the capital of France")], [True]),
        # every item of a list is a segment, and two content words must both be there
        (f"Capitals:\n- {PARIS[:-1]}\n- {BERLIN}", [span(PARIS), span(BERLIN)], [True, True]),
        (f"Capitals:\n- {PARIS[:-1]}\n- Rome burns", [span(PARIS), span(BERLIN)], [True, False]),
        ("Paris burns.", [span(PARIS)], [False]),
        ("It is.", [span(PARIS)], []),
        ("", [], []),
    ],
)
def test_a_sentence_is_supported_by_what_it_cites(text, cited, supported):
    assert [one.supported for one in judged(text, *cited)] == supported


def test_a_verdict_names_sentence_citations_and_best_passage():
    first, second = judged(f"{PARIS} Rome burns.", span(PARIS, 0), span(BERLIN, 1), span(PARIS, 1))
    assert (first.segment, first.text, first.places, first.score) == (0, PARIS, (0,), 1.0)
    assert (second.segment, second.text, second.places) == (1, "Rome burns.", (1, 2))
    assert second.score < 0.5
    assert second.passage
    assert first.conflict == second.conflict == ""
    (negated,) = judged("Paris is not the capital of France.", span(PARIS))
    assert not negated.supported
    assert "not" in negated.conflict


@pytest.mark.parametrize(
    ("sentence", "missing"),
    [
        ("The keeper's lamps were lit in 1921.", ["lit"]),
        ("It has 12 lamps.", []),
        ("It has thirteen lamps.", ["13"]),
        ("Twelve of the lamps, and twelve keepers.", ["12"]),
        ("3 of 12 keepers have it.", ["3", "3 of 12"]),
        ("No one has the lamp.", ["No"]),
        ("", []),
    ],
)
def test_words_and_numbers_that_a_passage_lacks_are_named(sentence, missing):
    assert held(sentence, "The keeper of the twelve lamps, since 1921.").missing_words() == missing


@pytest.mark.parametrize(
    ("sentence", "passage", "exchanged"),
    [
        ("Writing is faster than reading.", "Reading is faster than writing.", ("write", "read")),
        ("Reading is faster than writing.", "Reading is faster than writing.", None),
        ("It fell to 3 from 5.", "It fell from 5 to 3.", None),
        ("It fell from 3 to 5.", "It fell from 5 to 3.", ("3", "5")),
        ("Ann pays 3, Bob pays 5.", "Bob pays 3, Ann pays 5.", ("ann", "bob")),
        ("Ann pays 3, Bob pays 5.", "Bob pays 5, Ann pays 3.", None),
        ("Ann drops all and Bob drops all.", "Bob drops all and Ann drops all.", None),
        ("Bob was paid by Ann.", "Ann paid Bob.", None),
        ("Ann and Bob came.", "Bob and Ann came.", None),
        ("Cats bark.", "Dogs sing.", None),
        ("", "", None),
    ],
)
def test_words_in_exchanged_places_are_found(sentence, passage, exchanged):
    assert held(sentence, passage).exchanged_words() == exchanged


# ---- Public answers with the numbers of their sources, right and exchanged


@pytest.mark.parametrize(
    ("name", "right", "exchanged"), [("quotesum", 0.85, 0.08), ("expertqa", 0.25, 0.1)]
)
def test_exchanged_markers_lower_the_support(shared_data, name, right, exchanged):
    answers = getattr(cited_answers, name)(shared_data)[:300]
    pairs = cited_answers.with_exchanged_markers(answers, seed=7)
    shares = []
    for own in zip(*pairs, strict=True):
        rows = [one for held in citation_support(own) for one in held if one.places]
        assert len(rows) > 200
        shares.append(np.mean([one.supported for one in rows]))
    assert shares[0] >= right, shares
    assert shares[1] <= exchanged, shares
