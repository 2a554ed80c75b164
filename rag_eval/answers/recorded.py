"""Turn recorded outputs into answers.

Contexts become evidence. Markers and listed citations become cited spans.

Every citation is kept; `evidence` is -1 for a citation outside the contexts.
"""

import bisect
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import JsonValue

from rag_eval.answers.abstention import abstention
from rag_eval.answers.evidence import cite_token, line_starts
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
)
from rag_eval.corpus.analyzer import ANALYZER, count_tokens
from rag_eval.corpus.chunking import spans
from rag_eval.corpus.loaders.recorded import Citation, Context, RecordedOutput
from rag_eval.corpus.masking import covered_with, labelled_values, mask
from rag_eval.storage.hashing import digest, text_hash

# ---- Citation markers inside an answer: `[1]`, `[1, 3]`, `[1][3]`

MAX_DIGITS = 3
"""Most digits of a number in a marker, because `[2019]` is a year."""

_MARKER = re.compile(rf"\[\s*(\d{{1,{MAX_DIGITS}}}(?:\s*[,;]\s*\d{{1,{MAX_DIGITS}}})*)\s*\]")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]+`", re.DOTALL)
_CLOSES = ".,;:!?…)]}\"'”’»["


@dataclasses.dataclass(frozen=True, slots=True)
class Marked:
    """An answer without its markers.

    `segments` are the sentences of `text` as (start, end). `citations` are (segment, number) in
    order; the segment is -1 in a text of markers alone.
    """

    text: str
    segments: list[tuple[int, int]]
    citations: list[tuple[int, int]]


def _find_markers(text: str) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (start, end, numbers) of each marker outside code.

    A list with a 0 is an interval such as `[0, 1]`. A single `[0]` is a marker out of range.
    """
    code = [match.span() for match in _CODE.finditer(text)]
    ends = [end for _, end in code]
    for match in _MARKER.finditer(text):
        at = bisect.bisect_right(ends, match.start())
        inside = at < len(code) and code[at][0] <= match.start()
        numbers = [int(number) for number in re.findall(r"\d+", match[1])]
        if not inside and (len(numbers) == 1 or 0 not in numbers):
            yield match.start(), match.end(), numbers


def _find_openings(text: str) -> set[int]:
    """Return the offsets of markers at the beginning of a line with further text."""
    openings: set[int] = set()
    at = 0
    for line in text.split("\n"):
        waiting: list[int] = []
        reached = 0
        for match in _MARKER.finditer(line):
            if line[reached : match.start()].strip():
                break
            waiting.append(at + match.start())
            reached = match.end()
        if waiting and _MARKER.sub("", line).strip():
            openings.update(waiting)
        at += len(line) + 1
    return openings


def read_markers(text: str) -> Marked:
    """Take the markers out of an answer.

    A marker at the beginning of a line supports the sentence after the marker. Any other marker
    supports the sentence around or before the marker. Code between backticks has no markers.

    Examples
    --------
    >>> marked = read_markers("Terns fly far [1][2]. They eat fish. [3]")
    >>> marked.text, marked.citations
    ('Terns fly far. They eat fish.', [(0, 1), (0, 2), (1, 3)])
    """
    pieces: list[str] = []
    length = last = 0
    marks: list[tuple[int, bool, list[int]]] = []
    openings = _find_openings(text)
    for start, end, numbers in _find_markers(text):
        opens = start in openings
        piece = text[last:start] if opens else text[last:start].rstrip(" \t\u00a0")
        marks.append((length + len(piece), opens, numbers))
        last, following = end, text[end : end + 1]
        if opens:
            while text[last : last + 1] in {" ", "\t"}:
                last += 1
        elif following and not following.isspace() and following not in _CLOSES:
            piece += " "
        pieces.append(piece)
        length += len(piece)
    plain = "".join([*pieces, text[last:]])
    segments = spans(plain)
    starts, ends = [start for start, _ in segments], [end for _, end in segments]
    citations = []
    for place, opens, numbers in marks:
        if opens:
            segment = min(bisect.bisect_right(ends, place), len(ends) - 1)
        else:
            segment = max(bisect.bisect_left(starts, place) - 1, 0)
        citations += [(segment if segments else -1, number) for number in numbers]
    return Marked(plain, segments, citations)


# ---- Recorded outputs -> answers

NO_ANSWER = "no_answer"
"""Code of an output whose answer is null."""
EMPTY_ANSWER = "empty_answer"
"""Code of an answer without any text."""

_TOKEN = re.compile(r"(?P<doc>.+):(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?", re.DOTALL)
_BRACKETED = re.compile(r"\[?(\d{1,9})\]?")
_VERDICTS: dict[str, AnswerOutcome] = {
    NOT_FOUND: "not_found",
    INSUFFICIENT_EVIDENCE: "insufficient_evidence",
}


@dataclasses.dataclass(frozen=True)
class StatedPayload:
    """A payload that a recorded output states for citation number `place` of an answer, from 0."""

    place: int
    payload: dict[str, JsonValue]


@dataclasses.dataclass(frozen=True, slots=True)
class _Chunk:
    chunk_id: str
    section_id: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Document:
    """A document of the corpus with its chunks, or a context without a corpus document."""

    text: str
    source_url: str
    rev: str
    chunks: tuple[_Chunk, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Shown:
    """The system's contexts for one question, and the evidence made of them."""

    contexts: Sequence[Context]
    evidence: Sequence[Evidence]

    def find(self, name: object) -> list[int]:
        """Return the places of the evidence with this id, given by the system or the corpus."""
        return [
            place
            for place, (context, item) in enumerate(zip(self.contexts, self.evidence, strict=True))
            if name
            and name
            in (context.document, context.snippet, item.chunk.doc_id, item.chunk.snippet_id)
        ]

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


def _find_lines(text: str, first: int, last: int) -> tuple[int, int]:
    """Return the characters of lines first to last, from 1, without the last line end.

    (-1, -1) for missing or empty lines.
    """
    starts = [*line_starts(text).tolist(), len(text) + 1]
    if not 1 <= first <= last < len(starts):
        return -1, -1
    start, end = starts[first - 1], starts[last] - 1
    return (start, end) if start < end else (-1, -1)


class RecordedAnswers:
    """Makes answers of recorded outputs over one corpus.

    Parameters
    ----------
    documents, chunks
        DOCUMENTS and CHUNKS frames of the user's corpus, or of the recorded contexts.
    index_hash, embed_model
        Identity of the index of the strategy.
    """

    def __init__(
        self, documents: pd.DataFrame, chunks: pd.DataFrame, index_hash: str, embed_model: str = ""
    ) -> None:
        chunks_of: dict[str, list[_Chunk]] = {}
        self._chunks: dict[str, tuple[str, _Chunk]] = {}
        names = ["doc_id", "chunk_id", "section_id", "start", "end"]
        for doc_id, *rest in zip(*(chunks[name].tolist() for name in names), strict=True):
            chunk = _Chunk(*rest)
            chunks_of.setdefault(doc_id, []).append(chunk)
            self._chunks[chunk.chunk_id] = doc_id, chunk
        self._documents: dict[str, _Document] = {}
        self._named: dict[str, str] = {}
        names = ["doc_id", "text", "source_url", "rev", "names"]
        rows = zip(*(documents[name].tolist() for name in names), strict=True)
        for doc_id, text, url, rev, others in rows:
            held = sorted(chunks_of.get(doc_id, []), key=lambda chunk: chunk.start)
            self._documents[doc_id] = _Document(text, url, rev, tuple(held))
            self._named.update(dict.fromkeys(reversed(list(others)), doc_id))
        self._named.update({doc_id: doc_id for doc_id in self._documents})
        self._index_hash, self._embed_model = index_hash, embed_model

    def evidence(self, contexts: Sequence[Context]) -> tuple[Evidence, ...]:
        """Make a piece of evidence of each context, in the order of the markers.

        A context with an id and text of the corpus gets the payload of its chunk. Any other context
        is a document of its own. Missing scores are 1/rank.
        """
        return tuple(
            self._make_evidence(context, rank) for rank, context in enumerate(contexts, start=1)
        )

    def _make_evidence(self, context: Context, rank: int) -> Evidence:
        place = self._place_masked(context) or self._place(context)
        if place is None:
            rev = text_hash(context.text)
            document = _Document(context.text, context.url, rev, ())
            doc_id = section_id = context.document
            snippet_id = context.snippet or digest([doc_id, rev])
            start, end = 0, len(context.text)
        else:
            doc_id, chunk, start, end = place
            document = self._documents[doc_id]
            section_id, snippet_id = chunk.section_id, chunk.chunk_id
        text = document.text[start:end]
        first, last = (
            document.text.count("\n", 0, at) + 1 for at in (start, start + len(text.rstrip()))
        )
        scored = ScoredChunk(
            doc_id,
            section_id,
            snippet_id,
            document.source_url,
            Offsets(start, end),
            count_tokens(text),
            self._index_hash,
            self._embed_model,
            ANALYZER,
            document.rev,
            text,
            score_raw=1 / rank if context.score is None else context.score,
            score_norm=1 / rank,  # the scale of the system's scores is unknown
            k_pos=rank,
            k_final=rank,
        )
        return Evidence(cite_token(doc_id, first, last), scored, "recorded", first, last)

    def _place(self, context: Context) -> tuple[str, _Chunk, int, int] | None:
        """Return (doc_id, chunk, start, end) in the corpus; None for an unknown passage."""
        for name in (context.snippet, context.document):
            if name in self._chunks:
                doc_id, chunk = self._chunks[name]
                text = self._documents[doc_id].text[chunk.start : chunk.end]
                if not context.text or text.strip() == context.text.strip():
                    return doc_id, chunk, chunk.start, chunk.end
        doc_id = self._named.get(context.document, "")
        document = self._documents.get(doc_id)
        if document is None or not document.chunks:
            return None
        start, end = 0, len(document.text)
        if context.text:
            start = document.text.find(context.text)
            if start < 0:
                return None
            exact = (c for c in document.chunks if document.text[c.start : c.end] == context.text)
            start = next((chunk.start for chunk in exact), start)
            end = start + len(context.text)
        best = max(document.chunks, key=lambda c: min(end, c.end) - max(start, c.start))
        return doc_id, best, start, end

    def _place_masked(self, context: Context) -> tuple[str, _Chunk, int, int] | None:
        """Return the place of a passage that only matches the corpus after masking."""
        masked = mask(context.text).text
        if masked == context.text or self._place(context):
            return None
        same = {"doc_id": context.document, "text": masked}  # a name may be a hash of the text
        return self._place(context.model_copy(update=same))

    def answer(self, output: RecordedOutput) -> tuple[Answer, list[StatedPayload]]:
        """Make the answer of one output, and the payloads that the system stated.

        Null gives `failed` (code `no_answer`). A verdict, or else an abstaining text, gives
        `not_found` or `insufficient_evidence`. An empty text without a verdict gives `failed` (code
        `empty_answer`). Any other text gives `answered`.
        """
        contexts = output.contexts
        shown = _Shown(contexts, self.evidence(contexts))
        marked = read_markers(output.answer or "")
        # mask labelled values of the contexts, because the answer may repeat a value without the
        # label
        masked = [context.text for context in contexts if self._place_masked(context)]
        known = labelled_values(masked)
        outcome, codes = _judge_outcome(output, marked)
        cited = self._cite(output, marked, shown)
        answer = Answer(
            output.query_id,
            "recorded",
            outcome,
            codes,
            covered_with(marked.text, known),
            covered_with(output.verdict, known),
            tuple(_cover_span(span, known) for span, _ in cited),
            tuple(shown.evidence),
            top_k=len(shown.evidence),
            tokens_in=output.tokens_in or 0,
            tokens_out=output.tokens_out or 0,
            confidence=output.confidence,
        )
        return answer, [
            StatedPayload(place, self._cover(payload, known) if known else dict(payload))
            for place, (_, payload) in enumerate(cited)
            if payload is not None
        ]

    def _cover(self, value: Any, known: dict[str, str]) -> Any:
        """Cover known values in every text of a stated payload, except ids of the corpus."""
        if isinstance(value, str):
            named = value in self._named or value in self._chunks
            return value if named else covered_with(value, known)
        if isinstance(value, Mapping):
            return {name: self._cover(item, known) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cover(item, known) for item in value]
        return value

    def _cite(
        self, output: RecordedOutput, marked: Marked, shown: _Shown
    ) -> list[tuple[CitedSpan, Mapping[str, Any] | None]]:
        """Return every citation, markers first, with its stated payload.

        A marker and a listed citation of the same context are one citation.
        """
        marks = [shown.cite_number(number, segment) for segment, number in marked.citations]
        held = {(span.evidence, span.doc_id) for span in marks}
        further: list[tuple[CitedSpan, Mapping[str, Any] | None]] = []
        behind: dict[tuple[int, str], Mapping[str, Any]] = {}
        for citation in output.citations:
            span, payload = self._read_citation(citation, shown), citation.payload
            # an object without a payload field counts as a marker
            if payload is not None and payload.keys().isdisjoint(PAYLOAD_FIELDS):
                payload = None
            name = (span.evidence, span.doc_id)
            if span.quote or name not in held or not shown.cites_whole(span):
                further.append((span, payload))
            elif payload is not None:
                behind.setdefault(name, payload)
        return [*((span, behind.get((span.evidence, span.doc_id))) for span in marks), *further]

    def _read_citation(self, citation: Citation, shown: _Shown) -> CitedSpan:
        if citation.number is not None:
            return shown.cite_number(citation.number)
        if citation.payload is not None:
            return self._read_payload(citation.payload, shown)
        if named := shown.find(citation.token):
            return shown.cite_number(named[0] + 1)
        if number := _BRACKETED.fullmatch(citation.token):
            return shown.cite_number(int(number[1]))
        token = _TOKEN.fullmatch(citation.token)
        if not token:
            return CitedSpan(-1, -1, citation.token, -1, -1)
        first = int(token["first"])
        return self._read_lines(token["doc"], first, int(token["last"] or first), shown)

    def _read_lines(self, doc: str, first: int, last: int, shown: _Shown) -> CitedSpan:
        """Read a citation of lines, in evidence with all the lines or else some of the lines."""
        lines = {
            place: (shown.evidence[place].first_line, shown.evidence[place].last_line)
            for place in shown.find(doc)
        }
        touched = [at for at, (low, high) in lines.items() if max(first, low) <= min(last, high)]
        if not touched or first > last:
            return CitedSpan(-1, -1, doc, -1, -1)
        inside = (at for at in touched if lines[at][0] <= first and last <= lines[at][1])
        place = next(inside, touched[0])
        chunk = shown.evidence[place].chunk
        document = self._documents.get(chunk.doc_id)
        whole = document.text if document and document.rev == chunk.rev else chunk.text
        return CitedSpan(-1, place, chunk.doc_id, *_find_lines(whole, first, last))

    def _read_payload(self, payload: Mapping[str, Any], shown: _Shown) -> CitedSpan:
        """Read a payload, which may also have the keys `number`, `quote` and `segment`."""
        names = ("quote", "segment", "doc_id", "snippet_id", "number")
        quote, segment, doc, snippet, number = map(payload.get, names)
        quote = quote if isinstance(quote, str) else ""
        segment = segment if type(segment) is int and segment >= 0 else -1
        start, end = _read_offsets(payload.get("offsets"))
        by_snippet = isinstance(snippet, str)
        if type(number) is int:
            span = shown.cite_number(number, segment)
            places, name = [span.evidence] if span.evidence >= 0 else [], span.doc_id
        else:
            named = doc if isinstance(doc, str) else snippet
            name = named if isinstance(named, str) else ""
            places = shown.find(snippet if by_snippet else name)
        if start >= 0:
            offsets = [shown.evidence[place].chunk.offsets for place in places]
            touched = [
                place
                for place, own in zip(places, offsets, strict=True)
                if own.start < end and start < own.end
            ]
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


def _cover_span(span: CitedSpan, known: dict[str, str]) -> CitedSpan:
    if not known:
        return span
    doc_id = span.doc_id if span.evidence >= 0 else covered_with(span.doc_id, known)
    return dataclasses.replace(span, quote=covered_with(span.quote, known), doc_id=doc_id)


def _read_offsets(value: object) -> tuple[int, int]:
    """Return the character offsets of a payload; (-1, -1) without such offsets."""
    if not isinstance(value, Mapping) or value.get("unit", "char") != "char":
        return -1, -1
    start, end = value.get("start"), value.get("end")
    if type(start) is int and type(end) is int and 0 <= start < end:
        return start, end
    return -1, -1


def _judge_outcome(output: RecordedOutput, marked: Marked) -> tuple[AnswerOutcome, tuple[str, ...]]:
    if output.answer is None:
        return "failed", (NO_ANSWER,)
    verdict = _VERDICTS.get(" ".join(output.verdict.upper().replace("_", " ").split()))
    if verdict is not None:
        return verdict, ()
    if not marked.text.strip():
        return "failed", (EMPTY_ANSWER,)
    return abstention(output.answer) or "answered", ()
