"""Turn recorded outputs into answers.

Contexts become evidence. Markers and listed citations become cited spans. Every citation is kept;
`evidence` is -1 for a citation outside the contexts.
"""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import JsonValue

from rag_eval.answers.abstention import abstention
from rag_eval.answers.contract import place_citation, unmarked_segment
from rag_eval.answers.evidence import Library, cite_token
from rag_eval.answers.replies import join_error, read_token
from rag_eval.citations.checking import Payload
from rag_eval.core.errors import ProblemList, quoted
from rag_eval.core.types import (
    INSUFFICIENT_EVIDENCE,
    NOT_FOUND,
    PAYLOAD_FIELDS,
    Answer,
    AnswerOutcome,
    CitedSpan,
    Evidence,
    Offsets,
    ScoredChunk,
    Window,
    snippet,
)
from rag_eval.corpus.analyzer import count_tokens
from rag_eval.corpus.chunking import segments
from rag_eval.corpus.loaders.recorded import Citation, Context, RecordedOutput
from rag_eval.corpus.markers import read_marks
from rag_eval.corpus.masking import covered_with, labelled_values, mask
from rag_eval.storage.hashing import digest, text_hash


def read_markers(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Take the markers out of an answer, and return them as (segment, number): see `read_marks`.

    Scripts outside of the package call this function.

    Examples
    --------
    >>> read_markers("Terns fly far [1][2][1]. They eat fish. [3]")
    ('Terns fly far. They eat fish.', [(0, 1), (0, 2), (1, 3)])
    """
    return read_marks(text)[:2]


_VERDICTS: dict[str, AnswerOutcome] = {
    NOT_FOUND: "not_found",
    INSUFFICIENT_EVIDENCE: "insufficient_evidence",
}

_Place = tuple[int, int, int]
"""Row of a chunk, and the start and end of a passage in the chunk's document."""
_Cited = tuple[CitedSpan, Mapping[str, JsonValue] | None]
"""A citation, and the payload that the system states for it."""


@dataclasses.dataclass(frozen=True)
class _Shown:
    """The system's contexts for one question, and the evidence made of them."""

    contexts: Sequence[Context]
    evidence: Sequence[Evidence]

    @functools.cached_property
    def _places(self) -> Mapping[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, (context, item) in enumerate(zip(self.contexts, self.evidence, strict=True)):
            ids = ("doc_id", "snippet_id", "section_id", "source_url")
            ours = (getattr(item.chunk, name) for name in ids)
            theirs = context.document, context.snippet, context.title, context.url
            for name in {*theirs, *ours} - {""}:
                places.setdefault(name, []).append(place)
        return places

    def find(self, name: str) -> list[int]:
        """Return the places of the evidence with this id or address of the system or the corpus."""
        return self._places.get(name, [])

    @property
    def names(self) -> Mapping[str, list[int]]:
        """Names of the contexts in lower case, with their numbers from 1, as markers have them."""
        return {name.casefold(): [at + 1 for at in at_all] for name, at_all in self._places.items()}

    def cite_number(self, number: int, segment: int = -1) -> CitedSpan:
        """Cite a whole context by its number, from 1."""
        if not 1 <= number <= len(self.evidence):
            return CitedSpan(segment, -1, f"[{number}]", -1, -1)
        chunk = self.evidence[number - 1].chunk
        return CitedSpan(segment, number - 1, chunk.doc_id, chunk.offsets.start, chunk.offsets.end)

    def cites_whole(self, span: CitedSpan) -> bool:
        """Tell whether a citation names a whole piece of evidence."""
        if span.evidence < 0:
            return span.start < 0
        offsets = self.evidence[span.evidence].chunk.offsets
        return (span.start, span.end) == (offsets.start, offsets.end)


class RecordedAnswers:
    """Makes answers of recorded outputs over the user's corpus, or one of the recorded contexts."""

    def __init__(
        self, library: Library, documents: pd.DataFrame, *, has_corpus: bool = False
    ) -> None:
        """`has_corpus` tells whether the documents are a corpus, or only recorded contexts."""
        self._library, self._has_corpus = library, has_corpus
        ids = library.chunks["chunk_id"].tolist()
        self._row_of = {chunk_id: row for row, chunk_id in enumerate(ids)}
        self.unread: list[tuple[RecordedOutput, str]] = []
        """Texts of the answers that resemble citation markers and are none, with their outputs."""
        self._named: dict[str, str] = {}
        doc_ids = documents["doc_id"].tolist()
        for doc_id, names in zip(doc_ids, documents["names"].tolist(), strict=True):
            self._named.update(dict.fromkeys(names, doc_id))
        self._named.update(zip(doc_ids, doc_ids, strict=True))

    def _make_evidence(self, context: Context, rank: int, place: _Place | None) -> Evidence:
        """Make the evidence of the context with the marker `rank`.

        A context with an id and text of the corpus gets the payload of its chunk. Any other context
        is a document of its own. A missing score is 1/rank; the scale of other scores is unknown.
        """
        score_raw, score_norm = 1 / rank if context.score is None else context.score, 1 / rank
        if place is None:
            doc_id, text, rev = context.document, context.text, text_hash(context.text)
            index = self._library.index
            chunk = ScoredChunk(
                doc_id,
                doc_id,
                context.snippet or digest([doc_id, rev]),
                context.url,
                Offsets(0, len(text)),
                count_tokens(text),
                index.index_hash,
                index.stated_model,
                self._library.analyzer,
                rev,
                text,
                score_raw,
                score_norm,
                rank,
                rank,
                page=context.page,
            )
            first, last = 1, 1 + text.rstrip().count("\n")
        else:
            row, start, end = place
            chunk = self._library.payload(row, rank, score_raw, score_norm)
            whole = self._library.text(chunk.doc_id) or ""
            text, window = whole[start:end], Window.around(start, end, len(whole))
            page = chunk.page if context.page is None else context.page
            offsets = Offsets(start, end)
            chunk = dataclasses.replace(chunk, text=text, offsets=offsets, window=window, page=page)
            ends = start, start + max(len(text.rstrip()) - 1, 0)
            first, last = (self._library.line_of(chunk.doc_id, at) for at in ends)
        return Evidence(cite_token(chunk.doc_id, first, last), chunk, "recorded", first, last)

    def _locate(self, context: Context) -> tuple[_Place | None, bool]:
        """Find a passage in the corpus, and tell whether it only matches after masking."""
        if place := self._place(context):
            return place, False
        masked = mask(context.text).text
        if masked == context.text:
            return None, False
        same = {"doc_id": context.document, "text": masked}  # a name may be a hash of the text
        place = self._place(context.model_copy(update=same))
        return place, place is not None

    def _place(self, context: Context) -> _Place | None:
        """Find a passage in the corpus as it is; None for an unknown passage."""
        for name in (context.snippet, context.document):
            if (row := self._row_of.get(name)) is not None:
                text, start = self._library.texts[row], self._library.starts[row]
                if not context.text or text.strip() == context.text.strip():
                    return row, start, start + len(text)
        doc_id = self._named.get(context.document, "")
        rows, whole = self._library.document_rows(doc_id), self._library.text(doc_id) or ""
        start, end = 0, len(whole)
        if context.text:
            exact = [row for row in rows if self._library.texts[row] == context.text]
            start = self._library.starts[exact[0]] if exact else whole.find(context.text)
            end = start + len(context.text)
        if start < 0 or not rows:
            return None

        def overlap(row: int) -> int:
            low = self._library.starts[row]
            return min(end, low + len(self._library.texts[row])) - max(start, low)

        return max(rows, key=overlap), start, end

    def answer(self, output: RecordedOutput) -> tuple[Answer, list[Payload | None]]:
        """Make the answer of one output, and the payload that the system stated for each citation.

        Null gives `failed` (code `no_answer`), or `contract_error_reply` beside a fix. A verdict,
        or else an abstaining text, gives `not_found` or `insufficient_evidence`. An empty text
        without a verdict gives `failed` (code `empty_answer`). Any other text gives `answered`.

        Without contexts, the cited snippets of the corpus are the evidence, in the order of citing.
        """
        contexts = output.contexts or self._cited_contexts(output.citations)
        located = list(map(self._locate, contexts))
        places = [place for place, _ in located]
        evidence = list(map(self._make_evidence, contexts, itertools.count(1), places))
        shown = _Shown(contexts, evidence)
        refusal = join_error(output.error, output.fix) if output.fix else ""
        text = output.answer if output.answer is not None else refusal
        marks: list[tuple[int, int]] = []
        if output.segments is None:  # else `[1]` is a part of the text
            n_sources = len(contexts) if output.contexts else len(output.citations)
            text, marks, unread = read_marks(text, shown.names, n_sources)
            self.unread += [(output, mark) for mark in unread]
        # mask labelled values of the contexts, because the answer may repeat a value without the
        # label
        pairs = zip(contexts, located, strict=True)
        secrets = labelled_values([context.text for context, (_, is_masked) in pairs if is_masked])
        outcome, codes = _judge_outcome(output, text)
        cited = self._cite(output, text, marks, shown)
        stated = [None if held is None else self._cover(held, secrets) for _, held in cited]
        answer = Answer(
            output.query_id,
            "recorded",
            outcome,
            codes,
            covered_with(text, secrets),
            covered_with(output.verdict, secrets),
            tuple(_cover_span(span, secrets) for span, _ in cited),
            tuple(shown.evidence),
            top_k=len(shown.evidence),
            tokens_in=output.tokens_in or 0,
            tokens_out=output.tokens_out or 0,
            confidence=output.confidence,
            delta_s=output.delta_s,
            lambda_state=output.lambda_state or "",
        )
        return answer, stated

    def answer_all(
        self, outputs: Iterable[RecordedOutput], asked: Collection[str], warnings: ProblemList
    ) -> tuple[dict[str, Answer], dict[str, list[Payload | None]]]:
        """Make the answers to the `asked` questions, and the stated payloads, by query_id.

        A warning counts the texts of the answers that resemble citation markers and are none.
        """
        answers: dict[str, Answer] = {}
        payloads_of: dict[str, list[Payload | None]] = {}
        for output in outputs:
            if output.query_id in asked:
                answers[output.query_id], payloads = self.answer(output)
                if any(payloads):
                    payloads_of[output.query_id] = payloads
        if self.unread:
            output, mark = self.unread[0]
            warnings.add(
                "unread_markers",
                f"{len(self.unread)} texts of the answers resemble citation markers and are none",
                output.file,
                line=output.line,
                field="answer",
                found=quoted(snippet(mark)),
                accepted="a form of the table in docs/recorded.md",
                severity="warning",
            )
        return answers, payloads_of

    def _cited_contexts(self, citations: Sequence[Citation]) -> list[Context]:
        """Make a context of each cited snippet that the corpus has."""
        names = ((citation.payload or {}).get("snippet_id") for citation in citations)
        present = (name for name in names if isinstance(name, str) and name in self._row_of)
        return [Context(id=name) for name in dict.fromkeys(present)]

    def _cover(self, value: Any, secrets: dict[str, str]) -> Any:
        """Cover known values in every text of a stated payload, except ids of the corpus."""
        if isinstance(value, str):
            is_id = value in self._named or value in self._row_of
            return value if is_id else covered_with(value, secrets)
        if isinstance(value, Mapping):
            return {name: self._cover(item, secrets) for name, item in value.items()}
        return [self._cover(item, secrets) for item in value] if isinstance(value, list) else value

    def _cite(
        self, output: RecordedOutput, text: str, marks: list[tuple[int, int]], shown: _Shown
    ) -> list[_Cited]:
        """Return every citation, markers first, with its stated payload.

        A marker and a listed citation of the same context are one citation. A listed citation of a
        part of the context supports the sentence with the marker, where there is only one. Without
        contexts, the marker n is citation n of the list.
        """
        listed = [self._read(citation, shown) for citation in output.citations]
        for at, segment in enumerate(output.segments or ()):
            span, payload = listed[at]
            listed[at] = dataclasses.replace(span, segment=segment), payload
        by_number = {} if output.contexts else dict(enumerate(listed, start=1))
        marked: list[_Cited] = []
        sentences: dict[tuple[int, str], set[int]] = {}
        for segment, number in marks:
            span, payload = by_number.get(number, (shown.cite_number(number), None))
            marked.append((dataclasses.replace(span, segment=segment), payload))
            sentences.setdefault(_name(span), set()).add(segment)
        numbers = {number for _, number in marks} & by_number.keys()
        further: list[_Cited] = []
        behind: dict[tuple[int, str], Mapping[str, JsonValue]] = {}
        n, whole = len(segments(text)), unmarked_segment(text)
        for number, (span, payload) in enumerate(listed, start=1):
            name = _name(span)
            if number in numbers:
                continue
            own_sentences = sentences.get(name, {whole})
            segment = min(own_sentences) if len(own_sentences) == 1 else whole
            if 0 <= span.segment < n:
                segment = span.segment
            is_marked = name in sentences and segment in {*own_sentences, whole}
            if span.quote or not is_marked or not shown.cites_whole(span):
                further.append((dataclasses.replace(span, segment=segment), payload))
            elif payload is not None:
                behind.setdefault(name, payload)
        return [*((span, payload or behind.get(_name(span))) for span, payload in marked), *further]

    def _read(self, citation: Citation, shown: _Shown) -> _Cited:
        """Read a listed citation; an object without a payload field counts as a marker."""
        span, payload = _read_citation(citation, shown), citation.payload
        if payload is None or payload.keys().isdisjoint(PAYLOAD_FIELDS):
            return span, None
        if self._has_corpus and span.evidence >= 0:
            context, chunk = shown.contexts[span.evidence], shown.evidence[span.evidence].chunk
            if payload.get("snippet_id") in {context.snippet, context.document}:
                payload = {**payload, "snippet_id": chunk.snippet_id}
        return span, payload


def _name(span: CitedSpan) -> tuple[int, str]:
    """Identify the context of a citation, or the name of a fabricated one."""
    return span.evidence, span.doc_id


def _read_citation(citation: Citation, shown: _Shown) -> CitedSpan:
    if citation.payload is not None:
        return _read_payload(citation.payload, shown)
    if citation.number is not None:
        return shown.cite_number(citation.number)
    if places := shown.find(citation.token):
        return shown.cite_number(places[0] + 1)
    marker = citation.token if citation.token[0] in "[【［<(" else f"[{citation.token}]"
    text, numbers, _ = read_marks(marker)
    if not text and len(numbers) == 1:
        return shown.cite_number(numbers[0][1])
    if lines := read_token(citation.token):
        for place in shown.find(lines.doc_id):
            doc_id = shown.evidence[place].chunk.doc_id
            span, _ = place_citation(dataclasses.replace(lines, doc_id=doc_id), -1, shown.evidence)
            if span.evidence >= 0:
                return span
    return CitedSpan(-1, -1, lines.doc_id if lines else citation.token, -1, -1)


def _read_payload(payload: Mapping[str, Any], shown: _Shown) -> CitedSpan:
    """Read a payload, which may also have the keys `number`, `quote` and `segment`."""
    names = ("quote", "segment", "number", "doc_id", "snippet_id", "section_id", "source_url")
    quote, segment, number, *ids = map(payload.get, names)
    quote = quote if isinstance(quote, str) else ""
    segment = segment if type(segment) is int and segment >= 0 else -1
    start, end = _read_offsets(payload.get("offsets"))
    by_snippet = isinstance(ids[1], str)
    if type(number) is int:
        span = shown.cite_number(number, segment)
        places, name = [span.evidence] if span.evidence >= 0 else [], span.doc_id
    else:
        name = next((identity for identity in ids if isinstance(identity, str)), "")
        places = shown.find(str(ids[1]) if by_snippet else name)
    if start >= 0:
        offsets = {place: shown.evidence[place].chunk.offsets for place in places}
        touched = [at for at, piece in offsets.items() if piece.start < end and start < piece.end]
        # ignore offsets outside a named passage, because they count in the system's document
        # and not in the passage
        if not touched and places and by_snippet:
            start = end = -1
        else:
            places = touched
    if not places:
        return CitedSpan(segment, -1, name, start, end, quote)
    quoting = (place for place in places if quote and quote in shown.evidence[place].chunk.text)
    place = next(quoting, places[0])
    chunk = shown.evidence[place].chunk
    if start < 0:
        low, at = chunk.offsets.start, chunk.text.find(quote) if quote else -1
        start, end = (low + at, low + at + len(quote)) if at >= 0 else (low, chunk.offsets.end)
    return CitedSpan(segment, place, chunk.doc_id, start, end, quote)


def _cover_span(span: CitedSpan, secrets: dict[str, str]) -> CitedSpan:
    doc_id = span.doc_id if span.evidence >= 0 else covered_with(span.doc_id, secrets)
    return dataclasses.replace(span, quote=covered_with(span.quote, secrets), doc_id=doc_id)


def _read_offsets(value: object) -> tuple[int, int]:
    """Return the character offsets of a payload; (-1, -1) without such offsets."""
    if isinstance(value, Mapping) and value.get("unit", "char") == "char":
        start, end = value.get("start"), value.get("end")
        if type(start) is int and type(end) is int and 0 <= start < end:
            return start, end
    return -1, -1


def _judge_outcome(output: RecordedOutput, text: str) -> tuple[AnswerOutcome, tuple[str, ...]]:
    if output.answer is None and output.fix:
        return "contract_error_reply", ("contract_error_reply",)
    if output.answer is None:
        return "failed", ("no_answer",)
    verdict = _VERDICTS.get(" ".join(output.verdict.upper().replace("_", " ").split()))
    if verdict is not None:
        return verdict, ()
    if not text.strip():
        return "failed", ("empty_answer",)
    return abstention(text) or "answered", ()
