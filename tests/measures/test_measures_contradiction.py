"""Conflicts of a sentence with its window: cases by kind, and cases that must stay quiet."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.measures.contradiction import Conflict, find_conflicts

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("conflict_cases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['sentence']} / {case['window']}")
def test_conflicts_are_named_by_kind(case):
    found = find_conflicts(case["sentence"], case["window"])
    assert [conflict.kind for conflict in found] == case["kinds"]


@pytest.mark.parametrize("text", [case[name] for case in CASES for name in ("sentence", "window")])
def test_no_sentence_contradicts_itself(text):
    assert find_conflicts(text, text) == []


@pytest.mark.parametrize(
    ("sentence", "window", "conflict"),
    [
        ("It has three old bells.", "It has seven bells.", ("number", "three old", "seven bells")),
        ("It opened in Lyon.", "It opened in Port Louis.", ("name", "Lyon", "Port Louis")),
        ("Snow is not white.", "Snow is white.", ("negation", "not white", "is white")),
    ],
)
def test_a_conflict_quotes_both_sides(sentence, window, conflict):
    assert find_conflicts(sentence, window) == [Conflict(*conflict)]


def test_a_number_may_stand_elsewhere_in_the_evidence():
    sentence, window = "The bridge of 1931 has nine arches.", "The bridge has nine arches."
    assert [conflict.kind for conflict in find_conflicts(sentence, window)] == ["number"]
    assert find_conflicts(sentence, window, f"{window} It was built in 1931.") == []


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_texts_can_be_compared(sentence, window):
    assert all(isinstance(one, Conflict) for one in find_conflicts(sentence, window, window))
