"""FK019: whether an answer uses what was retrieved."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.support import Gap, retrieval_gaps

FRANCE = ("The capital of France is Paris.",)
CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("gap_cases.jsonl").read_text("utf-8").splitlines()
]
BROKEN = {"content_unused", "citation_unsupported", "empty_answer"}
"""Reasons that break the rule."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["answer"][:40] or "(empty)")
def test_gap_verdict(case):
    (found,) = retrieval_gaps([case["answer"]], [case["retrieved"]])
    assert (found.reason, found.violation) == (case["reason"], case["reason"] in BROKEN)


@pytest.mark.parametrize(
    "answer", ["Berlin lies on the Spree.", "", "Without the documents: Berlin."]
)
def test_retrieval_that_sets_the_tone_is_exempt(answer):
    (found,) = retrieval_gaps([answer], [FRANCE], purpose="context")
    assert found == Gap("context_only")


def test_a_citation_counts_if_it_supports_a_sentence():
    cases = [
        ("The capital of France is Berlin.", True, "cited"),
        ("The capital of France is Berlin.", False, "citation_unsupported"),
        ("The capital of France is Berlin.", None, "content_unused"),
        ("According to the document, it is Rome.", None, "refers_to_sources"),
        ("According to the document, it is Rome.", False, "citation_unsupported"),
        ("The documents do not mention Berlin.", False, "acknowledged"),
        ("The capital of France is Paris.", False, "content_used"),
    ]
    answers, cites, reasons = zip(*cases, strict=True)
    found = retrieval_gaps(answers, [FRANCE] * len(cases), cites=cites)
    assert [gap.reason for gap in found] == list(reasons)


def test_what_decided_is_named_and_short():
    (reference, used) = retrieval_gaps(
        ["As described in the documents, so it is.", "Paris is the capital of France. " * 40],
        [FRANCE, FRANCE],
    )
    assert reference.detail == "As described in the documents"
    assert used.detail == "Paris is the capital of France."
    assert len(retrieval_gaps(["paris france capital " * 400], [FRANCE])[0].detail) <= 120


@given(st.text(max_size=400))
@settings(max_examples=200)
def test_any_text_can_be_judged(text):
    (found,) = retrieval_gaps([text], [FRANCE])
    assert found.violation == (found.reason in BROKEN)
