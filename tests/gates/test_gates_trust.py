"""The gates `trust` and `poisoning`."""

import json

import pytest
from gate_inputs import configured, gate_inputs

from rag_eval.gates.verdict import judge_gates


def trust_gate(figure, **gates):
    config = configured(gates={"required": [], "advisory": ["trust"], **gates})
    return judge_gates(gate_inputs(config, trust={"bm25": {"avg_trust": figure}}))


def poisoning_gate(trust, **gates):
    config = configured(gates={"required": ["poisoning"], "advisory": [], **gates})
    return judge_gates(gate_inputs(config, trust=trust))


@pytest.mark.parametrize(
    ("figure", "status", "code"),
    [
        (
            {"value": 0.6, "ci_low": 0.55, "ci_high": 0.65, "n_scored": 80, "n_groups": 60},
            "pass",
            "met",
        ),
        (
            {"value": 0.5999, "ci_low": 0.59, "ci_high": 0.7, "n_groups": 60},
            "fail",
            "value_not_met",
        ),
        ({"value": 0.9, "n_groups": 49}, "insufficient_evidence", "too_few_queries"),
        ({"value": 0.0}, "fail", "value_not_met"),
        (
            {"value": None},
            "insufficient_evidence",
            "not_measured",
        ),
    ],
)
def test_mean_trust_is_compared_as_it_is(figure, status, code):
    (found,) = trust_gate(figure)
    assert (found.id, found.status, found.reason_code, found.as_json()["severity"]) == (
        "trust",
        status,
        code,
        "P1",
    )
    assert found.evidence["accepted"] == ">= 0.6"


def test_trust_says_why_there_is_none_and_takes_the_gold_sets_floor():
    (found,) = trust_gate(
        {"value": None, "value_reason": "nothing says whom to trust"}, required=["trust"]
    )
    assert (found.required, found.evidence["reason"]) == (True, "nothing says whom to trust")
    (found,) = trust_gate({"value": 0.9}, min_trust=0.95)
    assert found.status == "fail"
    assert trust_gate({"value": 0.9}, advisory=[]) == []


def part(retrieved, blocked, *examples):
    return {"n_retrieved": retrieved, "n_blocked": blocked, "blocked": list(examples)}


def test_one_blocked_chunk_of_any_strategy_fails():
    (found,) = poisoning_gate(
        {
            "bm25": part(900, 0),
            "mine": part(3, 1, {"chunk_id": "c1", "reasons": ["pattern.reply_instruction"]}),
        },
    )
    assert (
        found.id,
        found.status,
        found.reason_code,
        found.required,
        found.as_json()["severity"],
    ) == ("poisoning", "fail", "blocked_retrieved", True, "P0")
    assert (found.evidence["value"], found.evidence["n_scored"]) == (1, 903)
    assert found.evidence["examples"] == [
        {"strategy": "mine", "chunk_id": "c1", "reasons": ["pattern.reply_instruction"]}
    ]


def test_few_questions_are_no_excuse_but_nothing_at_all_is():
    assert poisoning_gate({"bm25": part(1, 0)})[0].status == "pass"
    assert poisoning_gate({"bm25": part(1, 1)})[0].status == "fail"
    for nothing, code in (
        ({"bm25": part(0, 0)}, "nothing_retrieved"),
        ({}, "nothing_retrieved"),
    ):
        (found,) = poisoning_gate(nothing)
        assert (found.status, found.reason_code) == ("insufficient_evidence", code)
    assert poisoning_gate({"bm25": part(1, 1)}, required=[]) == []


def test_what_a_poisoned_corpus_calls_itself_is_bounded():
    hostile = {
        "chunk_id": "x" * 10_000,
        "doc_id": "a\x1b[2J\u202e\nb",
        "reasons": ["r" * 5000] * 500,
        "n": 3,
        "text": {"deep": ["y" * 9000] * 9},
    }
    (found,) = poisoning_gate(
        {"s" * 500: part(400, 400, *[hostile] * 400), "t": part(1, 1, hostile)}
    )
    text = json.dumps(found.evidence, ensure_ascii=False)
    assert len(found.evidence["examples"]) == 20
    assert len(text) < 200_000
    assert not {"\u202e", "\x1b"} & set(text)
    assert found.evidence["examples"][0]["doc_id"].startswith("a\\u001b[2J")
