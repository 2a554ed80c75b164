import json
from pathlib import Path

import pytest

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
