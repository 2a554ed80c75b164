"""The answer contract as a gate."""

import pytest

from rag_eval.gates.contract import contract_gate
from rag_eval.records.gold_set import GoldSetConfig

ABSENT = {"value": None, "reason": "the gold set configures no answers"}


def config(gates=None, answers=None):
    return GoldSetConfig.model_validate(
        {
            "name": "g",
            "corpus": {"loader": "folder", "path": "."},
            "k": [1],
            "depth": 5,
            "strategies": [{"name": "bm25", "kind": "bm25"}],
            **({"gates": gates} if gates else {}),
            **({"answers": answers} if answers else {}),
        }
    )


def made(**outcomes):
    return {
        "outcomes": outcomes,
        "n_questions": sum(outcomes.values()),
        "codes": {"unknown_snippet": outcomes.get("failed", 0)},
    }


def test_nobody_asked():
    assert contract_gate(config(), made(failed=3)) == []


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ({"answered": 3, "not_found": 2, "insufficient_evidence": 1}, "pass"),
        ({"answered": 3, "failed": 1}, "fail"),
        ({"answered": 3, "contract_error_reply": 1}, "fail"),
    ],
)
def test_fail_closed_requires_that_every_answer_kept_the_contract(outcomes, status):
    found = contract_gate(config(answers={"fail_closed": True, "top_k": 5}), made(**outcomes))
    assert [(gate.status, gate.required) for gate in found] == [(status, True)]
    assert found[0].evidence["n_scored"] == sum(outcomes.values())


def test_it_can_be_advisory_and_says_when_there_are_no_answers():
    found = contract_gate(config(gates={"required": [], "advisory": ["answer_contract"]}), ABSENT)
    assert [(gate.status, gate.required, gate.evidence["reason"]) for gate in found] == [
        ("insufficient_evidence", False, ABSENT["reason"])
    ]


def test_more_evidence_than_is_retrieved_is_refused():
    with pytest.raises(ValueError, match=r"answers\.top_k: found 9, but depth retrieves 5"):
        config(answers={"top_k": 9})
