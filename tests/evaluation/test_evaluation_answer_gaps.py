"""FK019 over a run: which outcomes are answers that could leave their evidence unused."""

from answer_corpus import evidence

from rag_eval.evaluation.answer_measure_steps import answer_gaps
from rag_eval.records.answers import OUTCOMES, Answer


def test_refusals_of_the_contract_and_failures_leave_nothing_unused():
    found = [
        Answer(
            query_id=outcome,
            mode="llm",
            outcome=outcome,
            text="error: no atlas; fix: index the atlas",
            evidence=tuple(evidence()),
        )
        for outcome in OUTCOMES
    ]
    gaps = answer_gaps(found, "answer")
    assert {found[at].outcome for at in gaps} == {"answered", "not_found", "insufficient_evidence"}
    assert {gap.reason for gap in gaps.values()} == {"content_unused"}
