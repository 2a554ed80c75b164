"""Gates I (trust), P (poisoning) and the share of questions that are convergent and hit."""

import json

import pytest

from rag_eval.gates.floors import floor_gates
from rag_eval.gates.trust import poisoning_gate, trust_gate
from rag_eval.records.gold_set import GoldSetConfig


def config(**gates):
    return GoldSetConfig.model_validate(
        {
            "name": "g",
            "corpus": {"loader": "folder", "path": "."},
            "k": [1],
            "depth": 5,
            "strategies": [{"name": "bm25", "kind": "bm25"}],
            "gates": gates,
        }
    )


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
            {"value": None, "reason": "nothing says whom to trust"},
            "insufficient_evidence",
            "not_measured",
        ),
        (None, "insufficient_evidence", "not_measured"),
    ],
)
def test_mean_trust_is_compared_as_it_is(figure, status, code):
    (found,) = trust_gate(config(), figure)
    assert (found.id, found.status, found.reason_code, found.as_json()["severity"]) == (
        "trust",
        status,
        code,
        "P1",
    )
    assert found.evidence["accepted"] == ">= 0.6"


def test_trust_says_why_there_is_none_and_takes_the_gold_sets_floor():
    (found,) = trust_gate(
        config(required=["trust"]), {"value": None, "reason": "nothing says whom to trust"}
    )
    assert (found.required, found.evidence["reason"]) == (True, "nothing says whom to trust")
    (found,) = trust_gate(config(min_trust=0.95), {"value": 0.9})
    assert found.status == "fail"
    assert trust_gate(config(advisory=[]), {"value": 0.9}) == []


def part(retrieved, blocked, *examples):
    return {"n_retrieved": retrieved, "n_blocked": blocked, "examples": list(examples)}


def test_one_blocked_chunk_of_any_strategy_fails():
    (found,) = poisoning_gate(
        config(),
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
    assert poisoning_gate(config(), {"bm25": part(1, 0)})[0].status == "pass"
    assert poisoning_gate(config(), {"bm25": part(1, 1)})[0].status == "fail"
    for nothing, code in (
        ({"bm25": part(0, 0)}, "nothing_retrieved"),
        ({}, "nothing_retrieved"),
        (None, "not_measured"),
    ):
        (found,) = poisoning_gate(config(), nothing)
        assert (found.status, found.reason_code) == ("insufficient_evidence", code)
    assert poisoning_gate(config(required=[]), {"bm25": part(1, 1)}) == []


def test_what_a_poisoned_corpus_calls_itself_is_bounded():
    hostile = {
        "chunk_id": "x" * 10_000,
        "doc_id": "a\x1b[2J\u202e\nb",
        "reasons": ["r" * 5000] * 500,
        "n": 3,
        "text": {"deep": ["y" * 9000] * 9},
    }
    (found,) = poisoning_gate(
        config(), {"s" * 500: part(400, 400, *[hostile] * 400), "t": part(1, 1, hostile)}
    )
    text = json.dumps(found.evidence, ensure_ascii=False)
    assert len(found.evidence["examples"]) == 20
    assert len(text) < 200_000
    assert not {"\u202e", "\x1b"} & set(text)
    assert found.evidence["examples"][0]["doc_id"].startswith("a\\u001b[2J")


def test_the_share_that_is_convergent_and_hit_is_held_to_its_lower_bound():
    figures = {
        "delta_s": {"value": 0.2, "ci_high": 0.3, "n_groups": 90},
        "convergent_hit_share": {
            "value": 0.6,
            "ci_low": 0.51,
            "ci_high": 0.7,
            "n_scored": 90,
            "n_groups": 90,
        },
    }
    found = {gate.id: gate for gate in floor_gates(config(), figures)}
    assert {name: gate.status for name, gate in found.items()} == {
        "stability.delta_s": "pass",
        "stability.convergent_hit": "pass",
    }
    found = {gate.id: gate for gate in floor_gates(config(min_convergent_hit=0.55), figures)}
    assert (
        found["stability.convergent_hit"].status,
        found["stability.convergent_hit"].reason_code,
    ) == ("fail", "bound_not_met")
    figures["convergent_hit_share"] = {
        "value": None,
        "value_reason": "no question has a second wording",
    }
    lacking = floor_gates(config(), figures)[1]
    assert (lacking.status, lacking.evidence["reason"]) == (
        "insufficient_evidence",
        "no question has a second wording",
    )
