"""One question on a terminal, as a person wants to read it: question, answer, citations with verdicts, evidence, gold.

Everything shown comes from corpora, gold sets and models: personal data is masked, and it is escaped, cut to a snippet with its address beside it,
and never interpreted as markup.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from rag_eval.corpus.outgoing import shown_address
from rag_eval.records.answers import Answer
from rag_eval.records.citation import FIXES
from rag_eval.records.problems import quoted
from rag_eval.records.snippets import snippet
from rag_eval.reporting.outgoing import Outgoing

if TYPE_CHECKING:
    from rich.console import Console


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
    """What became of one citation: code, the field at fault, and whether it is right."""

    code: str
    field: str
    correct: bool


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Everything a run knows about one question.

    Parameters
    ----------
    run_id, gold_set, strategy
        Where it comes from.
    question, answerable
        As the gold set has them.
    answer
        With its evidence and citations.
    verdicts
        One for each citation of the answer, in order.
    targets
        Judged documents, best grade first.
    spans
        Gold evidence.
    measures
        coverage, groundedness, supported, gap_reason; None where not measured.
    rejected
        Replies that broke the contract: attempt, codes, messages, reply.
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
    measures: dict[str, Any]
    rejected: tuple[dict[str, Any], ...] = ()


MAX_EVIDENCE = 10
MAX_ANSWER_CHARS = 2000


def _link(address: str | None) -> str:
    """Where the source can be opened, for the end of the line that names it."""
    return f"  {quoted(shown_address(address), MAX_ANSWER_CHARS)}" if address else ""


def _citations(found: Explanation, outgoing: Outgoing) -> list[str]:
    lines = []
    for number, (span, verdict, quote) in enumerate(
        zip(found.answer.citations, found.verdicts, outgoing.quotes, strict=True), 1
    ):
        item = (
            found.answer.evidence[span.evidence]
            if 0 <= span.evidence < len(found.answer.evidence)
            else None
        )
        where = item.token if item else quote.doc_id
        right = (
            "matches the gold"
            if verdict.correct
            else (
                "valid, but not the gold evidence"
                if found.spans or not found.answerable
                else "valid; the gold quotes no evidence for this question"
            )
            if verdict.code == "ok"
            else f"{verdict.code}{f' [{verdict.field}]' if verdict.field else ''}: {FIXES[verdict.code]}"
        )
        lines.append(f"  {number}. {quoted(where)}  {right}{_link(quote.source_url)}")
        if span.quote:
            lines.append(
                f"     {snippet(quote.text) or '(its source is shown above as far as it may be)'}"
            )
    return lines or ["  none"]


def _rejected(found: Explanation, outgoing: Outgoing) -> list[str]:
    lines = []
    for row in found.rejected:
        lines.append(f"  attempt {row['attempt']}: {', '.join(row['codes'])}")
        lines += [f"     {snippet(outgoing.said(str(message)))}" for message in row["messages"]]
        lines.append(f"     reply: {snippet(outgoing.said(str(row['reply'])))}")
    return ["Rejected replies", *lines, ""] if lines else []


def _gold(found: Explanation, outgoing: Outgoing) -> list[str]:
    if not found.answerable:
        return ["  the corpus holds no answer: NOT FOUND is right"]
    targets = ", ".join(quoted(target) for target in found.targets) or "none judged"
    lines = [f"  documents: {targets}"]
    lines += [
        f"  {'cited ' if span.cited else 'missed'}  {quoted(span.doc_id)} [{span.start}, {span.end})  {outgoing.line(span.text)}{_link(span.source_url)}"
        for span in found.spans
    ]
    return lines


def _evidence(found: Explanation, outgoing: Outgoing) -> list[str]:
    used = {span.evidence for span in found.answer.citations}
    targets = set(found.targets)
    lines = []
    for place, item in enumerate(found.answer.evidence[:MAX_EVIDENCE]):
        marks = [
            name
            for name, there in (
                ("cited", place in used),
                ("gold document", item.chunk.doc_id in targets),
            )
            if there
        ]
        lines.append(
            f"  {place + 1:>2}. {quoted(item.token)}  {item.kind}, rank {item.chunk.k_final}, score {item.chunk.score_norm:.3f}{'  <- ' + ', '.join(marks) if marks else ''}{_link(item.chunk.source_url)}"
        )
        lines.append(f"      {outgoing.line(item.chunk.text)}")
    more = len(found.answer.evidence) - MAX_EVIDENCE
    return (lines or ["  none"]) + ([f"  ... and {more} more"] if more > 0 else [])


def explanation_lines(found: Explanation) -> list[str]:
    """Write the explanation as lines of plain text."""
    answer, outgoing = found.answer, Outgoing(found.answer)
    signal = "" if answer.signal is None else f", signal {answer.signal:.2f}"
    codes = f" ({', '.join(answer.codes)})" if answer.codes else ""
    measures = [
        f"{name} {float(found.measures[name]):.2f}"
        for name in ("coverage", "groundedness")
        if found.measures[name] is not None
    ]
    shown = (
        outgoing.text
        if answer.outcome == "answered"
        else f"{answer.outcome.replace('_', ' ')}{codes}: {outgoing.text}"
        if answer.text
        else f"{answer.outcome}{codes}"
    )
    use = f"use of what was retrieved: {str(found.measures['gap_reason']).replace('_', ' ')}"
    return [
        f"Question  {quoted(answer.query_id)}  ({quoted(found.gold_set)}, run {quoted(found.run_id)})",
        f"  {outgoing.line(found.question, MAX_ANSWER_CHARS)}",
        "",
        f"Answer  ({answer.mode}, evidence from {quoted(found.strategy)}, {answer.attempts} attempt{'s' if answer.attempts != 1 else ''}{signal})",
        f"  {snippet(shown, MAX_ANSWER_CHARS)}",
        f"  {'; '.join([*measures, use])}",
        "",
        *_rejected(found, outgoing),
        "Citations",
        *_citations(found, outgoing),
        "",
        "Gold",
        *_gold(found, outgoing),
        "",
        f"Evidence  ({len(answer.evidence)} pieces)",
        *_evidence(found, outgoing),
    ]


def show_explanation(console: "Console", found: Explanation) -> None:
    """Print the explanation."""
    for line in explanation_lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
