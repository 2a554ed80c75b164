"""Explain one question of a run, or one live question, as lines of plain text.

Texts of strangers go through `quoted` or `mask_snippet`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rag_eval.core.errors import quoted
from rag_eval.core.types import FIXES, Answer, snippet
from rag_eval.corpus.masking import mask_shown_address, mask_snippet
from rag_eval.measures.citation_support import SentenceSupport
from rag_eval.reporting.metrics_report import Outgoing
from rag_eval.reporting.tables import interval
from rag_eval.uncertainty.confidence import UncertainRetrieval

# ---- One question: question, answer, citations with verdicts, evidence, gold.


@dataclasses.dataclass(frozen=True)
class GoldSpan:
    """A piece of gold evidence, and whether a citation found it."""

    doc_id: str
    start: int
    end: int
    text: str
    cited: bool
    source_url: str = ""


@dataclasses.dataclass(frozen=True)
class CitationVerdict:
    """Result of one citation: code, the field at fault, and whether it is right."""

    code: str
    field: str
    correct: bool


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Everything a run knows about one question.

    `verdicts` has one entry for each citation of the answer. `targets` are the judged documents,
    best grade first. `measures` holds coverage, groundedness, supported and gap_reason. `rejected`
    are the replies that broke the contract. `blocked` names judged documents with blocked chunks.
    """

    run_id: str
    gold_set: str
    strategy: str
    question: str
    answerable: bool
    answer: Answer
    verdicts: tuple[CitationVerdict, ...]
    targets: tuple[str, ...]
    spans: tuple[GoldSpan, ...]
    measures: Mapping[str, Any]
    rejected: tuple[Mapping[str, Any], ...] = ()
    blocked: tuple[str, ...] = ()
    misses: tuple[tuple[str, str], ...] = ()
    """Strategies that missed the question, each with a sentence on the step that lost the gold."""
    unsupported: tuple[SentenceSupport, ...] = ()
    """Sentences that their citations do not support."""
    threshold: float | None = None
    """Least signal with which the deterministic mode answers."""
    findings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Verdict and reasons of the guard on pieces of evidence that are not clean, by chunk."""


_MAX_EVIDENCE, _MAX_ANSWER_CHARS = 10, 2000


def _link(address: str | None) -> str:
    """Write the masked address of a source as the end of a line; empty without an address."""
    return f"  {quoted(mask_shown_address(address), _MAX_ANSWER_CHARS)}" if address else ""


def _describe_verdict(verdict: CitationVerdict, explanation: Explanation) -> str:
    if verdict.correct:
        return "matches the gold"
    if verdict.code != "ok":
        field = f" [{verdict.field}]" if verdict.field else ""
        return f"{verdict.code}{field}: {FIXES[verdict.code]}"
    if explanation.spans or not explanation.answerable:
        return "valid, but not the gold evidence"
    return "valid; the gold quotes no evidence for this question"


def _citations(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    answer = explanation.answer
    if not answer.citations:
        yield "  none"
    cited = zip(answer.citations, explanation.verdicts, outgoing.quotes, strict=True)
    for number, (span, verdict, quote) in enumerate(cited, 1):
        right = _describe_verdict(verdict, explanation)
        yield f"  {number}. {quoted(outgoing.token(number - 1))}  {right}{_link(quote.source_url)}"
        if span.quote:
            yield f"     {snippet(quote.text)}"


_DEGREES = {"partly": "only partly", "unsupported": "not"}


def _unsupported(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    for weak in explanation.unsupported:
        cited = ", ".join(quoted(outgoing.token(place)) for place in weak.places)
        sentence = f"sentence {weak.segment + 1} is {_DEGREES[weak.verdict]} supported"
        yield f"  {sentence} by {cited} (score {weak.score:.2f})"
        yield f"     {outgoing.line(weak.text)}"
        if weak.passage:
            yield f"     the best passage that it cites: {outgoing.line(weak.passage)}"
        if weak.conflict:
            yield f"     conflict: {outgoing.line(weak.conflict)}"
        if weak.lacks:
            yield f"     words that it lacks: {outgoing.line(' '.join(weak.lacks))}"


def _rejected(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    if explanation.rejected:
        yield "Rejected replies"
        for row in explanation.rejected:
            yield f"  attempt {row['attempt']}: {', '.join(row['codes'])}"
            for text in row["messages"]:
                yield f"     {outgoing.line(str(text))}"
            yield f"     reply: {outgoing.line(str(row['reply']))}"
        yield ""


def _gold(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    if not explanation.answerable:
        yield "  the corpus holds no answer: NOT FOUND is right"
        return
    targets = ", ".join(quoted(target) for target in explanation.targets) or "none judged"
    yield f"  documents: {targets}"
    if explanation.blocked:
        yield f"  left out by the poisoning guard: {', '.join(explanation.blocked)}"
    for span in explanation.spans:
        yield (
            f"  {'cited ' if span.cited else 'missed'}  {quoted(span.doc_id)} "
            f"[{span.start}, {span.end})  {outgoing.line(span.text)}{_link(span.source_url)}"
        )


def _evidence(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    answer = explanation.answer
    cited = {span.evidence for span in answer.citations}
    if not answer.evidence:
        yield "  none"
    for place, item in enumerate(answer.evidence[:_MAX_EVIDENCE]):
        marks = ["cited"] if place in cited else []
        marks += ["gold document"] if item.chunk.doc_id in explanation.targets else []
        yield (
            f"  {place + 1:>2}. {quoted(item.token)}  {item.kind}, rank {item.chunk.k_final}, "
            f"score {item.chunk.score_norm:.3f}{'  <- ' + ', '.join(marks) if marks else ''}"
            f"{_link(item.chunk.source_url)}"
        )
        if found := explanation.findings.get(item.chunk.snippet_id):
            yield f"      poisoning guard: {quoted(found, 600)}"
        yield f"      {outgoing.line(item.chunk.text)}"
    if (more := len(answer.evidence) - _MAX_EVIDENCE) > 0:
        yield f"  ... and {more} more"


def explain_question(explanation: Explanation) -> Iterator[str]:
    """Yield the explanation of one question as lines of plain text."""
    answer, outgoing = explanation.answer, Outgoing(explanation.answer)
    signal = "" if answer.signal is None else f", signal {answer.signal:.2f}"
    if signal and explanation.threshold is not None:
        signal += f"; it answers from {explanation.threshold:.3g}"
    text = outgoing.text
    if answer.outcome != "answered":
        codes = f" ({', '.join(answer.codes)})" if answer.codes else ""
        outcome = answer.outcome.replace("_", " ") if answer.text else answer.outcome
        text = f"{outcome}{codes}" + (f": {outgoing.text}" if answer.text else "")
    measures = [
        f"{name} {float(explanation.measures[name]):.2f}"
        for name in ("coverage", "groundedness")
        if explanation.measures[name] is not None
    ]
    use = str(explanation.measures["gap_reason"]).replace("_", " ")
    attempts = f"{answer.attempts} attempt{'s' if answer.attempts != 1 else ''}"
    yield (
        f"Question  {quoted(answer.query_id)}  "
        f"({quoted(explanation.gold_set)}, run {quoted(explanation.run_id)})"
    )
    yield f"  {outgoing.line(explanation.question, _MAX_ANSWER_CHARS)}"
    yield ""
    source = quoted(explanation.strategy)
    yield f"Answer  ({answer.mode}, evidence from {source}, {attempts}{signal})"
    yield f"  {snippet(text, _MAX_ANSWER_CHARS)}"
    yield f"  {'; '.join([*measures, f'use of what was retrieved: {use}'])}"
    yield ""
    yield from _rejected(explanation, outgoing)
    yield "Citations"
    yield from _citations(explanation, outgoing)
    yield from _unsupported(explanation, outgoing)
    yield from ("", "Gold")
    yield from _gold(explanation, outgoing)
    for strategy, sentence in explanation.misses:
        yield f"  missed by {quoted(strategy)}: {quoted(sentence, _MAX_ANSWER_CHARS)}"
    yield from ("", f"Evidence  ({len(answer.evidence)} pieces)")
    yield from _evidence(explanation, outgoing)


# ---- One live question.


def describe_retrieval(found: UncertainRetrieval) -> Iterator[str]:
    """Yield the result of one live question as lines of plain text."""
    miss = found.miss_rate
    guess = f"heuristic_v0 {found.heuristic_v0:.4g}, {found.similar_judged} similar judged"
    by = "" if miss.calibrator == "heuristic_v0" else f", by {quoted(miss.calibrator)}"
    outcomes = f", {miss.n_outcomes} outcomes" if miss.n_outcomes else ""
    yield (
        f"Miss rate  {miss.target}@{miss.k} {interval(miss.value, miss.ci_low, miss.ci_high)}"
        f"  {miss.status}{by}{outcomes} ({guess})"
    )
    if found.reason:
        yield f"  {quoted(found.reason, _MAX_ANSWER_CHARS)}"
    yield f"Coverage   {found.coverage:.4g} of the question's words, weighted by rarity"
    yield ""
    yield f"Documents  ({len(found.documents)})"
    for document, chunk in zip(found.documents, found.chunks or (), strict=True):
        place = quoted(mask_snippet(chunk.snippet_id))
        yield f"  {document['rank']}. {place}  {chunk.score_raw:.3f}{_link(chunk.source_url)}"
        yield f"     {mask_snippet(chunk.text)}"
    yield ""
    yield "Gaps" if found.gaps else "Gaps  none"
    for gap in found.gaps or ():
        yield f"  {gap.severity}: {mask_snippet(gap.description)} ({gap.mitigation})"
    for step in found.iterations:
        yield (
            f"Round {step['iteration']}  {step['strategy']}: {step['expanded']}"
            f"  ({step['unique_result_count']} of {step['result_count']} results are new)"
        )
        yield (
            f"     confidence {step['confidence_before']:.2f} -> {step['confidence_after']:.2f}"
            f" ({step['basis']}) {step['stopped']}".rstrip()
        )
