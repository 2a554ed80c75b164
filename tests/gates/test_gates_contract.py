"""The answer contract as a gate."""

import pytest
from gate_inputs import NO_ANSWERS, configured, gate_inputs

from rag_eval.gates.verdict import judge_gates

OFF = {"required": [], "advisory": []}


def judge(config, answers):
    return judge_gates(gate_inputs(config, answers=answers))


def made(**outcomes):
    return {
        "outcomes": outcomes,
        "n_questions": sum(outcomes.values()),
        "codes": {"unknown_snippet": outcomes.get("failed", 0)},
    }


def test_a_gate_that_nobody_asks_for_is_not_judged():
    assert judge(configured(gates=OFF), made(failed=3)) == []


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ({"answered": 3, "not_found": 2, "insufficient_evidence": 1}, "pass"),
        ({"answered": 3, "failed": 1}, "fail"),
        ({"answered": 3, "contract_error_reply": 1}, "fail"),
    ],
)
def test_fail_closed_requires_that_every_answer_kept_the_contract(outcomes, status):
    found = judge(
        configured(gates=OFF, answers={"fail_closed": True, "top_k": 5}), made(**outcomes)
    )
    assert [(gate.status, gate.required) for gate in found] == [(status, True)]
    assert found[0].evidence["n_scored"] == sum(outcomes.values())


def test_it_can_be_advisory_and_says_when_there_are_no_answers():
    found = judge(configured(gates={"required": [], "advisory": ["answer_contract"]}), NO_ANSWERS)
    assert [(gate.status, gate.required, gate.evidence["reason"]) for gate in found] == [
        ("insufficient_evidence", False, NO_ANSWERS["reason"])
    ]


def test_more_evidence_than_is_retrieved_is_refused():
    with pytest.raises(ValueError, match=r"answers\.top_k: found 29, but depth retrieves 20"):
        configured(answers={"top_k": 29})
