"""What leaves the home about single questions: masked rows of files, and explanations as text.

Answers are masked and quotes are snippets. Texts of strangers go through `quoted` or `snippet`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rag_eval.core.errors import quoted
from rag_eval.core.records import Open
from rag_eval.core.types import (
    ELLIPSIS,
    FIXES,
    SNIPPET_CHARS,
    Answer,
    CitedSpan,
    Evidence,
    is_joined,
    snippet,
)
from rag_eval.corpus.masking import (
    MAX_READ_CHARS,
    covered_with,
    labelled_values,
    mask_shown_address,
    mask_snippet,
    masked_text,
    masked_tree,
)
from rag_eval.measures.answers import GapFlag, RetrievalGap, UnsupportedSentence
from rag_eval.measures.support import CODE, Gap, SentenceSupport
from rag_eval.reporting.tables import interval
from rag_eval.uncertainty.confidence import UncertainRetrieval

# ---- Answers on their way out of the home: masked, with snippets of what they quote.


@dataclasses.dataclass(frozen=True, slots=True)
class OutgoingQuote:
    """The reported part of a citation.

    `text`: the quote, or its beginning and an ellipsis; empty for a citation without a quote.
    `chars`: number of characters of the whole quote if `text` is shorter; else None.
    `source_url`: address of the cited evidence; None if the citation names no evidence.
    `doc_id`: as cited; a masked snippet if the citation names no evidence.
    """

    text: str
    chars: int | None
    source_url: str | None
    doc_id: str

    @property
    def fields(self) -> Open:
        """Fields of a report: `quote`, and `quote_chars` if the quote is cut."""
        return {"quote": self.text, **({} if self.chars is None else {"quote_chars": self.chars})}


class Outgoing:
    """One answer as a report may show it: masked, with short quotes.

    Values that only a label of the evidence gives away are masked in all of its texts.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._secrets = labelled_values(item.chunk.text for item in answer.evidence)

    def _cover(self, text: str) -> str:
        return covered_with(masked_text(text), self._secrets)

    @functools.cached_property
    def text(self) -> str:
        """Masked text of the answer."""
        return self._cover(self._answer.text)

    @functools.cached_property
    def quotes(self) -> tuple[OutgoingQuote, ...]:
        """Reported part of each citation, in the order of the answer."""
        return tuple(map(self._quote, self._answer.citations))

    def line(self, text: str, limit: int = SNIPPET_CHARS) -> str:
        """Return a masked snippet of any text that stands beside the answer."""
        return snippet(self._cover(text[:MAX_READ_CHARS]), limit)

    def token(self, place: int) -> str:
        """Return the token of the cited evidence, or the masked name of a fabricated citation."""
        item = self.evidence_of(self._answer.citations[place])
        return item.token if item else self.quotes[place].doc_id

    def evidence_of(self, span: CitedSpan) -> Evidence | None:
        """Return the cited evidence; None for a citation of something that was not retrieved."""
        inside = 0 <= span.evidence < len(self._answer.evidence)
        return self._answer.evidence[span.evidence] if inside else None

    def _quote(self, span: CitedSpan) -> OutgoingQuote:
        text, chars = self._cover(span.quote), None
        if len(text) > SNIPPET_CHARS:
            end = SNIPPET_CHARS - 1
            while end and is_joined(text[end]):
                end -= 1
            text, chars = text[:end] + ELLIPSIS, len(text)
        if (item := self.evidence_of(span)) is None:
            return OutgoingQuote(text, chars, None, self.line(span.doc_id))
        return OutgoingQuote(text, chars, mask_shown_address(item.chunk.source_url), span.doc_id)

    def record(self, record: Mapping[str, Any], place: int) -> Open:
        """Make the line of citations.jsonl for the citation at `place`: masked, with a short quote.

        A user's system may state any text under any key, so every text is a snippet but the ids of
        the cited evidence.
        """
        item = self.evidence_of(self._answer.citations[place])
        chunk = item and item.chunk
        names = ("doc_id", "section_id", "snippet_id", "index_hash", "rev")
        ids = [getattr(chunk, name) for name in names] if chunk else []
        line: Open = {}
        for name, value in record.items():
            if name == "quote" and isinstance(value, str):
                quote = self.quotes[place]
                line |= quote.fields if quote.text else {}
            elif name == "source_url" and isinstance(value, str):
                line[name] = mask_shown_address(value)
            elif name == "query_id" or value in ids:
                line[name] = value
            elif isinstance(value, str):
                line[name] = self.line(value)
            else:
                line[name] = masked_tree(value, keep=())
        return line


MAX_FLAGGED = 50
"""Most answers, and most sentences, that the report names."""


def report_gaps(answers: Sequence[Answer], gaps: Mapping[int, Gap]) -> RetrievalGap:
    """Count the answers that leave their evidence unused, and name the first ones."""
    unused = [(answers[at], gap.reason) for at, gap in gaps.items() if gap.violation]
    flagged = [  # `Outgoing` masks secrets that only the evidence labels
        GapFlag(query_id=answer.query_id, reason=reason, answer=snippet(Outgoing(answer).text))
        for answer, reason in unused[:MAX_FLAGGED]
    ]
    return RetrievalGap(
        code=CODE, severity="warning", n_checked=len(gaps), n_flagged=len(unused), flagged=flagged
    )


def name_unsupported(
    answers: Sequence[Answer], unsupported: Mapping[str, Sequence[SentenceSupport]]
) -> list[UnsupportedSentence]:
    """Make the rows of the report for the first sentences that their citations do not support."""
    pairs = ((answer, weak) for answer in answers for weak in unsupported.get(answer.query_id, ()))
    rows: list[UnsupportedSentence] = []
    for answer, weak in itertools.islice(pairs, MAX_FLAGGED):
        outgoing = Outgoing(answer)
        row = UnsupportedSentence(
            query_id=answer.query_id,
            sentence=outgoing.line(weak.text),
            citations=[outgoing.token(place) for place in weak.places],
            score=weak.score,
            verdict="partly" if weak.verdict == "partly" else "unsupported",
            passage=outgoing.line(weak.passage),
            conflict=outgoing.line(weak.conflict),
            lacks=outgoing.line(" ".join(weak.lacks)),
        )
        rows.append(row)
    return rows


# ---- One question of a run: question, answer, citations with verdicts, gold, evidence.


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
    best grade first. `measures` holds coverage, groundedness and gap_reason. `rejected` are the
    replies that broke the contract. `blocked` names judged documents with blocked chunks. `misses`
    are the strategies that missed the question, each with a sentence on the step that lost the
    gold. `unsupported` are sentences that their citations do not support. `threshold` is the least
    signal with which the deterministic mode answers. `findings` are verdict and reasons of the
    guard on pieces of evidence that are not clean, by chunk.
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
    unsupported: tuple[SentenceSupport, ...] = ()
    threshold: float | None = None
    findings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the explanation of one question as lines of plain text."""
        answer, outgoing = self.answer, Outgoing(self.answer)
        yield (
            f"Question  {quoted(answer.query_id)}  "
            f"({quoted(self.gold_set)}, run {quoted(self.run_id)})"
        )
        yield f"  {outgoing.line(self.question, _MAX_ANSWER_CHARS)}"
        yield ""
        yield from _answer(self, outgoing)
        for row in self.rejected:
            yield f"  rejected reply of attempt {row['attempt']}: {', '.join(row['codes'])}"
            yield from (f"     {outgoing.line(str(text))}" for text in row["messages"])
            yield f"     reply: {outgoing.line(str(row['reply']))}"
        yield from ("", "Citations" if answer.citations else "Citations  none")
        yield from _citations(self, outgoing)
        yield from _unsupported(self, outgoing)
        yield from ("", "Gold")
        yield from _gold(self, outgoing)
        for strategy, sentence in self.misses:
            yield f"  missed by {quoted(strategy)}: {quoted(sentence, _MAX_ANSWER_CHARS)}"
        yield from ("", f"Evidence  ({len(answer.evidence)} pieces)")
        yield from _evidence(self, outgoing)


_MAX_EVIDENCE, _MAX_ANSWER_CHARS = 10, 2000


def _answer(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    answer, text = explanation.answer, outgoing.text
    signal = "" if answer.signal is None else f", signal {answer.signal:.2f}"
    if signal and explanation.threshold is not None:
        signal += f"; it answers from {explanation.threshold:.3g}"
    if answer.outcome != "answered":
        codes = f" ({', '.join(answer.codes)})" if answer.codes else ""
        text = f"{answer.outcome.replace('_', ' ')}{codes}: {text}".rstrip(": ")
    source = quoted(explanation.strategy)
    yield f"Answer  ({answer.mode}, evidence from {source}, {answer.attempts} attempts{signal})"
    yield f"  {snippet(text, _MAX_ANSWER_CHARS)}"
    measures = [
        f"{name} {float(explanation.measures[name]):.2f}"
        for name in ("coverage", "groundedness")
        if explanation.measures[name] is not None
    ]
    use = str(explanation.measures["gap_reason"]).replace("_", " ")
    yield f"  {'; '.join([*measures, f'use of what was retrieved: {use}'])}"


def _link(address: str | None) -> str:
    """Write the masked address of a source as the end of a line; empty without an address."""
    return f"  {quoted(mask_shown_address(address), _MAX_ANSWER_CHARS)}" if address else ""


def _citations(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    for place, (verdict, quote) in enumerate(
        zip(explanation.verdicts, outgoing.quotes, strict=True)
    ):
        meaning = "valid; the gold quotes no evidence for this question"
        if verdict.correct:
            meaning = "matches the gold"
        elif verdict.code == "ok" and (explanation.spans or not explanation.answerable):
            meaning = "valid, but not the gold evidence"
        elif verdict.code != "ok":
            field = f" [{verdict.field}]" if verdict.field else ""
            meaning = f"{verdict.code}{field}: {FIXES[verdict.code]}"
        token = quoted(outgoing.token(place))
        yield f"  {place + 1}. {token}  {meaning}{_link(quote.source_url)}"
        if quote.text:
            yield f"     {snippet(quote.text)}"


def _unsupported(explanation: Explanation, outgoing: Outgoing) -> Iterator[str]:
    for weak in explanation.unsupported:
        cited = ", ".join(quoted(outgoing.token(place)) for place in weak.places)
        degree = "only partly" if weak.verdict == "partly" else "not"
        sentence = f"sentence {weak.segment + 1} is {degree} supported"
        yield f"  {sentence} by {cited} (score {weak.score:.2f})"
        yield f"     {outgoing.line(weak.text)}"
        if weak.passage:
            yield f"     the best passage that it cites: {outgoing.line(weak.passage)}"
        if weak.conflict:
            yield f"     conflict: {outgoing.line(weak.conflict)}"
        if weak.lacks:
            yield f"     words that it lacks: {outgoing.line(' '.join(weak.lacks))}"


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
    for place, item in enumerate(answer.evidence[:_MAX_EVIDENCE]):
        marks = ["cited"] if place in cited else []
        marks += ["gold document"] if item.chunk.doc_id in explanation.targets else []
        yield (
            f"  {place + 1:>2}. {quoted(item.token)}  {item.kind}, rank {item.chunk.k_final}, "
            f"score {item.chunk.score_norm:.3f}{'  <- ' + ', '.join(marks) if marks else ''}"
            f"{_link(item.chunk.source_url)}"
        )
        if finding := explanation.findings.get(item.chunk.snippet_id):
            yield f"      poisoning guard: {quoted(finding, 600)}"
        yield f"      {outgoing.line(item.chunk.text)}"
    if (more := len(answer.evidence) - _MAX_EVIDENCE) > 0:
        yield f"  ... and {more} more"


# ---- One live question.


def describe_retrieval(retrieval: UncertainRetrieval) -> Iterator[str]:
    """Yield the result of one live question as lines of plain text."""
    miss = retrieval.miss_rate
    outcomes = f", {miss.n_outcomes} outcomes" if miss.n_outcomes else ""
    yield (
        f"Miss rate  {miss.target}@{miss.k} {interval(miss.value, miss.ci_low, miss.ci_high)}"
        f"  {miss.status}, by {quoted(miss.calibrator)}{outcomes} "
        f"(heuristic_v0 {retrieval.heuristic_v0:.4g}, {retrieval.similar_judged} similar judged)"
    )
    if retrieval.reason:
        yield f"  {quoted(retrieval.reason, _MAX_ANSWER_CHARS)}"
    yield f"Coverage   {retrieval.coverage:.4g} of the question's words, weighted by rarity"
    yield ""
    yield f"Documents  ({len(retrieval.documents)})"
    for document, chunk in zip(retrieval.documents, retrieval.chunks or (), strict=True):
        place = quoted(mask_snippet(chunk.snippet_id))
        yield f"  {document['rank']}. {place}  {chunk.score_raw:.3f}{_link(chunk.source_url)}"
        yield f"     {mask_snippet(chunk.text)}"
    yield ""
    yield "Gaps" if retrieval.gaps else "Gaps  none"
    for gap in retrieval.gaps or ():
        yield f"  {gap.severity}: {mask_snippet(gap.description)} ({gap.mitigation})"
    for step in retrieval.iterations:
        yield (
            f"Round {step['iteration']}  {step['strategy']}: {step['expanded']}"
            f"  ({step['unique_result_count']} of {step['result_count']} results are new)"
        )
        yield (
            f"     confidence {step['confidence_before']:.2f} -> {step['confidence_after']:.2f}"
            f" ({step['basis']}) {step['stopped']}".rstrip()
        )
