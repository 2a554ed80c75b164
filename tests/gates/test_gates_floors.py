"""Floors, answer contract, trust and poisoning; required gates fail closed."""

import json

import pytest
from gate_inputs import NO_ANSWERS, configured, gate_inputs

from rag_eval.core.config import Floor
from rag_eval.gates.gate import GatePart
from rag_eval.gates.verdict import judge_floor, judge_gates, required_failures

RATE = {"value": 0.6, "ci_low": 0.5, "ci_high": 0.7, "n_effective": 60}


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
            {**RATE, "n_effective": 49},
            "insufficient_evidence",
            "too_few_queries",
        ),
        ("recall_at_10", ">= 0.5", {**RATE, "n_effective": 50}, "pass", "met"),
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
    direction, bound = accepted.split()
    floor = Floor(measure=measure, direction=direction, bound=bound)
    found = judge_floor(floor, figure, 50)
    assert (found.status, found.reason_code) == (status, code)
    assert found.evidence["accepted"] == accepted


def test_a_required_gate_must_pass():
    statuses = ("pass", "fail", "insufficient_evidence", "not_applicable")
    gates = [
        GatePart(
            id=f"{status} {required}",
            gate="trust",
            severity="P1",
            required=required,
            status=status,
            reason_code="met",
            evidence={},
        )
        for status in statuses
        for required in (True, False)
    ]
    assert required_failures(gates) == ["fail True", "insufficient_evidence True"]


def test_the_cache_of_a_first_run_is_not_judged():
    config = configured(
        acceptance={"cache_hit_rate": ">= 0.7"}, gates={"required": ["acceptance"], "advisory": []}
    )
    found = {
        is_first: judge_gates(
            gate_inputs(config, is_first=is_first, figures={"cache_hit_rate": {"value": 0.1}})
        )
        for is_first in (True, False)
    }
    assert [gate.status for gate in found[True]] == ["not_applicable"]
    assert required_failures(found[True]) == []
    assert required_failures(found[False]) == ["acceptance.cache_hit_rate"]


def judge(gate, *, required=(), answers=NO_ANSWERS, config=(), **parts):
    """Judge a run by one gate, which is advisory unless `required` names the gate."""
    gates = {"required": required, "advisory": [gate], **dict(config)}
    made = configured(gates=gates)
    return judge_gates(gate_inputs(made, answers=answers, **parts))


def test_the_convergent_share_is_held_to_its_lower_bound():
    share = {"value": 0.6, "ci_low": 0.51, "ci_high": 0.7, "n_scored": 90, "n_effective": 90}
    figures = {
        "delta_s": {"value": 0.2, "ci_high": 0.3, "n_effective": 90},
        "convergent_hit_share": share,
    }
    both = judge("stability", figures=figures)
    assert {gate.id: gate.status for gate in both} == {
        "stability.delta_s": "pass",
        "stability.convergent_hit": "pass",
    }
    figures["convergent_hit_share"] = share | {"ci_low": 0.4, "ci_high": 0.49}
    strict = judge("stability", figures=figures)[1]
    assert (strict.status, strict.reason_code) == ("fail", "bound_not_met")
    reason = "no question has a second wording"
    figures["convergent_hit_share"] = {"value": None, "value_reason": reason}
    lacking = judge("stability", figures=figures)[1]
    assert (lacking.status, lacking.evidence["reason"]) == ("insufficient_evidence", reason)


# --- The answer contract


def judge_contract(outcomes, **gates):
    answers = {
        "outcomes": outcomes,
        "n_questions": sum(outcomes.values()),
        "codes": {"unknown_snippet": outcomes.get("failed", 0)},
    }
    config = configured(
        gates={"required": [], "advisory": [], **gates}, answers={"top_k": 5} if outcomes else None
    )
    return judge_gates(gate_inputs(config, answers=answers if outcomes else NO_ANSWERS))


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ({"answered": 3, "not_found": 2, "insufficient_evidence": 1}, "pass"),
        ({"answered": 3, "failed": 1}, "fail"),
        ({"answered": 3, "contract_error_reply": 1}, "fail"),
    ],
)
def test_a_required_contract_holds_every_answer_to_it(outcomes, status):
    (gate,) = judge_contract(outcomes, required=["answer_contract"])
    assert (gate.status, gate.required) == (status, True)
    assert gate.evidence["n_scored"] == sum(outcomes.values())
    assert required_failures([gate]) == ([] if status == "pass" else ["answer_contract"])


def test_the_contract_can_be_advisory_and_says_when_there_are_no_answers():
    assert judge_contract({"failed": 3}, advisory=[]) == []
    (gate,) = judge_contract({}, advisory=["answer_contract"])
    assert (gate.status, gate.required) == ("insufficient_evidence", False)
    assert gate.evidence["reason"] == NO_ANSWERS["reason"]


def test_more_evidence_than_is_retrieved_is_refused():
    with pytest.raises(ValueError, match=r"answers\.top_k: found 29, but depth retrieves 20"):
        configured(answers={"top_k": 29})


# --- Trust and poisoning


@pytest.mark.parametrize(
    ("figure", "status", "code"),
    [
        ({**RATE, "ci_low": 0.55, "n_scored": 80}, "pass", "met"),
        ({**RATE, "value": 0.5999, "ci_low": 0.59}, "fail", "value_not_met"),
        ({"value": 0.9, "n_effective": 49}, "insufficient_evidence", "too_few_queries"),
        ({"value": 0.0}, "fail", "value_not_met"),
        ({"value": None}, "insufficient_evidence", "not_measured"),
    ],
)
def test_mean_trust_is_compared_as_it_is(figure, status, code):
    (gate,) = judge("trust", trust={"bm25": {"avg_trust": figure}})
    assert (gate.id, gate.status, gate.reason_code, gate.severity) == ("trust", status, code, "P1")
    bounds = {name: value for name, value in figure.items() if value is not None}
    assert gate.evidence.items() >= {**bounds, "accepted": ">= 0.6"}.items()


def test_trust_says_why_there_is_none_and_takes_the_gold_sets_floor():
    absent = {"bm25": {"avg_trust": {"value": None, "value_reason": "nobody is trusted"}}}
    (gate,) = judge("trust", required=["trust"], trust=absent, config={"advisory": []})
    assert (gate.required, gate.evidence["reason"]) == (True, "nobody is trusted")
    high = {"bm25": {"avg_trust": {"value": 0.9}}}
    assert judge("trust", trust=high, config={"min_trust": 0.95})[0].status == "fail"
    assert judge("trust", trust=high, config={"advisory": []}) == []


def poisoning(*, required=("poisoning",), **retrieved):
    trust = {
        name: {"n_retrieved": n, "n_blocked": blocked, "n_warned": 2, "blocked": examples}
        for name, (n, blocked, *examples) in retrieved.items()
    }
    return judge("poisoning", required=required, trust=trust, config={"advisory": []})


def test_one_blocked_chunk_of_any_strategy_fails():
    place = {"doc_id": "d", "query_id": "q", "rank": 1, "n": 2}
    example = {"chunk_id": "c1", "reasons": ["pattern.reply_instruction"], **place}
    (gate,) = poisoning(bm25=(900, 0), mine=(3, 1, example))
    assert (gate.id, gate.status, gate.reason_code) == ("poisoning", "fail", "blocked_retrieved")
    assert (gate.required, gate.severity) == (True, "P0")
    assert (gate.evidence["value"], gate.evidence["n_scored"]) == (1, 903)
    assert gate.evidence["quarantined"] == "12 of 3,400 chunks"
    assert gate.evidence["warned"] == "4 of 903 results"
    assert gate.evidence["examples"] == [{"strategy": "mine", **example}]


def test_few_questions_are_no_excuse_but_nothing_at_all_is():
    assert poisoning(bm25=(1, 0))[0].status == "pass"
    assert poisoning(bm25=(1, 1))[0].status == "fail"
    for nothing in ({"bm25": (0, 0)}, {}):
        (gate,) = poisoning(**nothing)
        assert gate.status == "insufficient_evidence"
        assert gate.reason_code == "nothing_retrieved"
    assert poisoning(bm25=(1, 1), required=()) == []


def test_what_a_poisoned_corpus_calls_itself_is_bounded():
    hostile = {
        "chunk_id": "x" * 10_000,
        "doc_id": "a\x1b[2J\u202e\nb",
        "query_id": "q",
        "rank": 1,
        "reasons": ["r" * 5000] * 500,
        "n": 3,
    }
    (gate,) = poisoning(**{"s" * 500: (400, 400, *[hostile] * 400), "t": (1, 1, hostile)})
    text = json.dumps(gate.evidence, ensure_ascii=False)
    assert len(gate.evidence["examples"]) == 20
    assert len(text) < 200_000
    assert not {"\u202e", "\x1b"} & set(text)
    assert gate.evidence["examples"][0]["doc_id"].startswith("a\\u001b[2J")
