"""How a question ends outside the llm mode: failed, not found, extracted, and what the domain validators say to it.

Belongs here: single endings. The order of the steps is `runner`.
"""

import dataclasses
from collections.abc import Sequence

from rag_eval.answers.codes import Fault
from rag_eval.answers.evidence import Library
from rag_eval.answers.llm_mode import MAX_KEPT_CHARS, Ended
from rag_eval.answers.pool import Passage
from rag_eval.answers.preflights import Gathered
from rag_eval.answers.questions import Plan
from rag_eval.answers.tools import Extract, Extractor
from rag_eval.answers.validators import Candidate, Validator, validate
from rag_eval.records.answers import NOT_FOUND, Answer, Evidence
from rag_eval.records.citation import CitedSpan


def failed(plan: Plan, fault: Fault, evidence: tuple[Evidence, ...] = ()) -> Ended:
    """A question that failed before anything was asked."""
    return Ended(
        Answer(
            plan.question.query_id,
            plan.mode,
            "failed",
            (fault.code,),
            evidence=evidence,
            attempts=0,
            top_k=plan.top_k,
        )
    )


def not_found(plan: Plan) -> Ended:
    """A question without evidence."""
    return Ended(
        Answer(
            plan.question.query_id,
            plan.mode,
            "not_found",
            text=NOT_FOUND,
            attempts=0,
            top_k=plan.top_k,
        )
    )


def validated(answer: Answer, plan: Plan, validators: Sequence[Validator]) -> Ended:
    """An answer that no model can be asked for again: what a validator holds against it fails it."""
    ended = Ended(answer)
    if answer.outcome == "answered":
        candidate = Candidate(
            answer.query_id,
            plan.question.text,
            answer.mode,
            answer.text,
            answer.text,
            answer.verdict,
            answer.citations,
            answer.evidence,
        )
        found = validate(candidate, validators)
        ended.counts.update(f"{fault.code}.{name}" for name, fault in found)
        if found:
            codes = tuple(dict.fromkeys(fault.code for _, fault in found))
            row = {
                "query_id": answer.query_id,
                "attempt": answer.attempts,
                "top_k": answer.top_k,
                "codes": list(codes),
                "messages": [fault.message for _, fault in found],
                "reply": answer.text[:MAX_KEPT_CHARS],
            }
            ended.rejected.append(row)
            ended.answer = dataclasses.replace(
                answer, outcome="failed", codes=codes, text="", citations=()
            )
    return ended


def _extracted(plan: Plan, evidence: tuple[Evidence, ...], extract: Extract) -> Answer:
    """Chosen sentences verbatim, one citation each; NOT FOUND where the answerer abstains."""
    base = Answer(
        plan.question.query_id,
        "deterministic",
        "not_found",
        text=NOT_FOUND,
        evidence=evidence,
        signal=float(extract.signal),
        top_k=plan.top_k,
    )
    if not extract.answered or not extract.sentences:
        return base
    citations = []
    for segment, sentence in enumerate(extract.sentences):
        chunk, start, end = evidence[sentence.passage].chunk, int(sentence.start), int(sentence.end)
        citations.append(
            CitedSpan(
                segment,
                int(sentence.passage),
                chunk.doc_id,
                chunk.offsets.start + start,
                chunk.offsets.start + end,
                chunk.text[start:end],
            )
        )
    return dataclasses.replace(
        base,
        outcome="answered",
        text=" ".join(span.quote for span in citations),
        citations=tuple(citations),
    )


def _passages(evidence: Sequence[Evidence], library: Library) -> list[Passage]:
    return [
        Passage(
            item.chunk.text,
            library.title(item.chunk.doc_id),
            min(1.0, max(0.0, item.chunk.score_norm)),
            rank,
        )
        for rank, item in enumerate(evidence, 1)
    ]


def extracted(
    plans: Sequence[Plan],
    gathered: Sequence[Gathered],
    extract: Extractor,
    library: Library,
    validators: Sequence[Validator],
) -> list[Ended]:
    """All questions in one call."""
    extracts = extract.answer(
        [plan.question.text for plan in plans],
        [_passages(found.evidence, library) for found in gathered],
    )
    return [
        validated(_extracted(plan, found.evidence, chosen), plan, validators)
        for plan, found, chosen in zip(plans, gathered, extracts, strict=True)
    ]
