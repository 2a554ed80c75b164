import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.abstention import abstention

CASES = json.loads(Path(__file__).with_name("abstention_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", CASES["abstain"])
def test_acknowledgement_abstains(text):
    assert abstention(text)


@pytest.mark.parametrize("text", CASES["answer"])
def test_answer_does_not_abstain(text):
    assert abstention(text) is None


def test_two_kinds_are_told_apart():
    assert abstention("NOT FOUND") == "not_found"
    assert abstention("INSUFFICIENT EVIDENCE: no date") == "insufficient_evidence"
    assert abstention("No relevant information was found.") == "not_found"
    assert abstention("There is not enough information to answer this.") == "insufficient_evidence"


@given(st.text(max_size=300))
def test_any_text_is_judged(text):
    assert abstention(text) in {None, "not_found", "insufficient_evidence"}


PIECES = ("I cannot find the ", "the provided context ", "No relevant ", "any ", "[1]", "- ")


@pytest.mark.parametrize("piece", [*PIECES, "based on the context the ", "sorry, but "])
def test_long_repetitions_come_to_an_end(piece):
    # A pattern with endless backtracking would exceed the suite's time limit.
    assert abstention(piece * (2000 // len(piece))) is None
