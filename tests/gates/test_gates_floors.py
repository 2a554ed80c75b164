"""Floors are held by the bound that could prove them wrong; required gates fail closed."""

import pytest
from gate_inputs import configured, gate_inputs

from rag_eval.core.config import Floor
from rag_eval.gates.floors import judge_floor
from rag_eval.gates.verdict import judge_gates, required_failures

RATE = {"value": 0.6, "ci_low": 0.5, "ci_high": 0.7, "n_groups": 60}


@pytest.mark.parametrize(
    ("measure", "accepted", "figure", "status", "code"),
    [
        ("recall_at_10", ">= 0.5", RATE, "pass", "met"),
        ("recall_at_10", ">= 0.55", RATE, "fail", "bound_not_met"),
        ("recall_at_10", ">= 0.65", RATE, "fail", "value_not_met"),
        ("delta_s", "<= 0.7", RATE, "pass", "met"),
        ("delta_s", "<= 0.65", RATE, "fail", "bound_not_met"),
        ("delta_s", "<= 0.55", RATE, "fail", "value_not_met"),
        ("latency_p95_ms", "<= 3", {"value": 3.0}, "pass", "met"),
        ("latency_p95_ms", "<= 3", {"value": 3.1}, "fail", "value_not_met"),
        (
            "recall_at_10",
            ">= 0.5",
            {**RATE, "n_groups": 49},
            "insufficient_evidence",
            "too_few_queries",
        ),
        ("recall_at_10", ">= 0.5", {**RATE, "n_groups": 50}, "pass", "met"),
        ("recall_at_10", ">= 0.5", {**RATE, "judged_at_k": 0.1}, "pass", "met"),
        (
            "ndcg_at_10",
            ">= 0.5",
            {**RATE, "judged_at_k": 0.49},
            "insufficient_evidence",
            "too_few_judged",
        ),
        ("ndcg_at_10", ">= 0.5", {**RATE, "judged_at_k": 0.5}, "pass", "met"),
        ("recall_at_10", ">= 0.5", {"value": None}, "insufficient_evidence", "not_measured"),
        ("recall_at_10", ">= 0.5", None, "insufficient_evidence", "not_measured"),
    ],
)
def test_a_figure_is_judged_by_its_worse_bound(measure, accepted, figure, status, code):
    found, evidence = judge_floor(Floor.parse(measure, accepted), figure, 50)
    assert found == (status, code)
    assert evidence["accepted"] == accepted


def test_a_required_gate_must_pass():
    statuses = ("pass", "fail", "insufficient_evidence")
    gates = [
        {"id": f"{status} {required}", "required": required, "status": status}
        for status in statuses
        for required in (True, False)
    ]
    assert required_failures(gates) == ["fail True", "insufficient_evidence True"]


def stability(figures, **gates):
    config = configured(gates={"required": [], "advisory": ["stability"], **gates})
    return judge_gates(gate_inputs(config, figures=figures))


def test_the_convergent_share_is_held_to_its_lower_bound():
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
    found = {gate.id: gate for gate in stability(figures)}
    assert {name: gate.status for name, gate in found.items()} == {
        "stability.delta_s": "pass",
        "stability.convergent_hit": "pass",
    }
    found = {gate.id: gate for gate in stability(figures, min_convergent_hit=0.55)}
    assert (
        found["stability.convergent_hit"].status,
        found["stability.convergent_hit"].reason_code,
    ) == ("fail", "bound_not_met")
    figures["convergent_hit_share"] = {
        "value": None,
        "value_reason": "no question has a second wording",
    }
    lacking = stability(figures)[1]
    assert (lacking.status, lacking.evidence["reason"]) == (
        "insufficient_evidence",
        "no question has a second wording",
    )
