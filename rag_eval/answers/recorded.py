"""Recorded outputs -> answers: contexts become evidence, markers and stated citations become cited spans.

Belongs here: what a recorded citation points to. Nothing that was cited is dropped: what is not among the contexts is kept as evidence -1.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from rag_eval.answers.abstaining import abstention
from rag_eval.answers.markers import Marked, read_markers
from rag_eval.corpus.analyzer import ANALYZER, count_tokens
from rag_eval.corpus.masking import mask
from rag_eval.corpus.outgoing import covered_with, labelled_values
from rag_eval.corpus.recorded_rows import Citation, Context, RecordedOutput
from rag_eval.records.answers import INSUFFICIENT_EVIDENCE, NOT_FOUND, Answer, Evidence, Outcome
from rag_eval.records.citation import PAYLOAD_FIELDS, CitedSpan
from rag_eval.records.retrieval import Offsets, ScoredChunk
from rag_eval.storage.hashing import digest, text_hash

NO_OUTPUT = "no_output"
"""Code of a question that the recorded outputs lack."""
NO_ANSWER = "no_answer"
"""Code of an output whose answer is null."""
EMPTY_ANSWER = "empty_answer"
"""Code of an answer without any text."""

PAYLOAD = frozenset(PAYLOAD_FIELDS)
"""A stated object with one of these keys is a citation payload and is held to all of it; one with none points to a context, as a marker does."""

_TOKEN = re.compile(r"(?P<doc>.+):(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?", re.DOTALL)
_BRACKETED = re.compile(r"\[?(\d{1,9})\]?")
_VERDICTS: dict[str, Outcome] = {
    NOT_FOUND: "not_found",
    INSUFFICIENT_EVIDENCE: "insufficient_evidence",
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Document:
    """What is known of a document: its frame rows, or nothing but the context."""

    text: str
    source_url: str
    rev: str
    chunks: tuple[tuple[str, str, int, int], ...]
    """(chunk_id, section_id, start, end)."""


def line_of(text: str, place: int) -> int:
    """Line, from 1, of a character."""
    return text.count("\n", 0, place) + 1


def lines_span(text: str, first: int, last: int) -> tuple[int, int] | None:
    """Characters of lines first to last, from 1, without the line's end; None where the text has no such lines."""
    start = 0
    for _ in range(first - 1):
        start = text.find("\n", start) + 1
        if not start:
            return None
    end = start
    for number in range(first, last + 1):
        found = text.find("\n", end)
        if found < 0:
            return (start, len(text)) if number == last and start < len(text) else None
        end = found + (number < last)
    return (start, end) if start < end else None


class RecordedAnswers:
    """Makes answers of recorded outputs over one corpus.

    Parameters
    ----------
    documents, chunks
        DOCUMENTS and CHUNKS frames: the user's corpus, or the one that `recorded` contexts make.
    index_hash, embed_model
        Of the strategy whose rankings these are.
    """

    def __init__(
        self, documents: pd.DataFrame, chunks: pd.DataFrame, index_hash: str, embed_model: str = ""
    ) -> None:
        held: dict[str, list[tuple[str, str, int, int]]] = {}
        self._of_chunk: dict[str, str] = {}
        for chunk_id, doc_id, section_id, start, end in zip(
            *(
                chunks[name].tolist()
                for name in ("chunk_id", "doc_id", "section_id", "start", "end")
            ),
            strict=True,
        ):
            held.setdefault(doc_id, []).append((chunk_id, section_id, start, end))
            self._of_chunk[chunk_id] = doc_id
        self._documents = {
            doc_id: _Document(
                text, url, rev, tuple(sorted(held.get(doc_id, []), key=lambda chunk: chunk[2]))
            )
            for doc_id, text, url, rev in zip(
                *(documents[name].tolist() for name in ("doc_id", "text", "source_url", "rev")),
                strict=True,
            )
        }
        self._named = {
            name: doc_id
            for doc_id, names in zip(
                documents["doc_id"].tolist(), documents["names"].tolist(), strict=True
            )
            for name in reversed(list(names))
        }
        self._named.update({doc_id: doc_id for doc_id in self._documents})
        self._index_hash, self._embed_model = index_hash, embed_model

    def evidence(self, contexts: Sequence[Context]) -> tuple[Evidence, ...]:
        """Make one piece of evidence of each context, in order, so that the n-th marker is the n-th piece.

        A context whose id is a chunk or document of the corpus gets its real payload where the corpus has its text; another is a document of
        its own, whose snippet no index knows. Scores that were not recorded are 1/rank.
        """
        return tuple(
            self._evidence(context, rank) for rank, context in enumerate(contexts, start=1)
        )

    def _evidence(self, context: Context, rank: int) -> Evidence:
        score = 1 / rank if context.score is None else context.score
        doc_id, section_id, snippet_id, start, end = self._masked_place(context) or self._place(
            context
        )
        document = self._documents.get(doc_id) if snippet_id else None
        if document is None:
            document = _Document(context.text, context.url, text_hash(context.text), ())
            doc_id, section_id, start, end = (
                context.document,
                context.document,
                0,
                len(context.text),
            )
            snippet_id = context.snippet or digest([context.document, text_hash(context.text)])
        text = document.text[start:end]
        first, last = (
            line_of(document.text, start),
            line_of(document.text, start + len(text.rstrip())),
        )
        chunk = ScoredChunk(
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
            score_raw=score,
            score_norm=1
            / rank,  # in [0, 1] whatever the system's scores are: only their order is known to mean anything
            k_pos=rank,
            k_final=rank,
        )
        return Evidence(
            f"{doc_id}:{first}" if first == last else f"{doc_id}:{first}-{last}",
            chunk,
            "recorded",
            first,
            last,
        )

    def _place(self, context: Context) -> tuple[str, str, str, int, int]:
        """(doc_id, section_id, chunk_id, start, end) in the corpus; empty names where it does not have the passage."""
        for name in (context.snippet, context.document):
            doc_id = self._of_chunk.get(name)
            if doc_id is not None:
                chunk = next(chunk for chunk in self._documents[doc_id].chunks if chunk[0] == name)
                if (
                    not context.text
                    or self._documents[doc_id].text[chunk[2] : chunk[3]].strip()
                    == context.text.strip()
                ):
                    return doc_id, chunk[1], chunk[0], chunk[2], chunk[3]
        doc_id = self._named.get(context.document, "")
        document = self._documents.get(doc_id)
        if document is None or not document.chunks:
            return "", "", "", -1, -1
        start, end = 0, len(document.text)
        if context.text:
            start = document.text.find(context.text)
            end = start + len(context.text)
            exact = next(
                (
                    chunk
                    for chunk in document.chunks
                    if document.text[chunk[2] : chunk[3]] == context.text
                ),
                None,
            )
            start, end = (exact[2], exact[3]) if exact else (start, end)
        if start < 0:
            return "", "", "", -1, -1
        best = max(document.chunks, key=lambda chunk: min(end, chunk[3]) - max(start, chunk[2]))
        return doc_id, best[1], best[0], start, end

    def answer(self, output: RecordedOutput) -> Answer:
        """Make the answer record of one output.

        Outcomes: `failed` with `no_answer` where the answer is null and `empty_answer` where it has no text; `not_found` and
        `insufficient_evidence` where the verdict says so or the whole text abstains; else `answered`.
        """
        evidence = self.evidence(output.contexts)
        marked, known = read_markers(output.answer or ""), self._hidden(output.contexts)
        outcome, codes = _outcome(output, marked)
        return Answer(
            output.query_id,
            "recorded",
            outcome,
            codes,
            covered_with(marked.text, known),
            covered_with(output.verdict, known),
            tuple(_covered_span(span, known) for span, _ in self._cited(output, marked, evidence)),
            evidence,
            top_k=len(evidence),
            tokens_in=output.tokens_in or 0,
            tokens_out=output.tokens_out or 0,
            seconds=output.seconds or 0.0,
            confidence=output.confidence,
        )

    def payloads(self, output: RecordedOutput) -> dict[int, Mapping[str, Any]]:
        """Place of a citation in `answer(output).citations` -> the payload that the system itself stated for it, where it stated one."""
        cited = self._cited(
            output, read_markers(output.answer or ""), self.evidence(output.contexts)
        )
        known = self._hidden(output.contexts)
        return {
            place: self._covered(payload, known) if known else payload
            for place, (_, payload) in enumerate(cited)
            if payload is not None
        }

    def _hidden(self, contexts: Sequence[Context]) -> dict[str, str]:
        """Values that the corpus has masked in what the system retrieved, and that only a label there gives away: its answer may repeat them without."""
        return labelled_values(
            context.text for context in contexts if self._masked_place(context) is not None
        )

    def _masked_place(self, context: Context) -> tuple[str, str, str, int, int] | None:
        """Place of a passage that the corpus has masked, which what the system recorded is not; None where it has it as it stands, or not at all."""
        masked = mask(context.text).text
        if masked == context.text or self._place(context)[2]:
            return None
        place = self._place(dataclasses.replace(context, text=masked))
        return place if place[2] else None

    def _covered(self, value: Any, known: dict[str, str]) -> Any:
        """Every text of a stated payload without those values; names of documents and chunks stay."""
        if isinstance(value, str):
            return (
                value
                if value in self._named or value in self._of_chunk
                else covered_with(value, known)
            )
        if isinstance(value, Mapping):
            return {name: self._covered(item, known) for name, item in value.items()}
        return (
            [self._covered(item, known) for item in value]
            if isinstance(value, list | tuple)
            else value
        )

    def _cited(
        self, output: RecordedOutput, marked: Marked, evidence: Sequence[Evidence]
    ) -> list[tuple[CitedSpan, Mapping[str, Any] | None]]:
        """Every citation, markers first, with its stated payload. A system that writes markers and lists what they stand for cites once."""
        marks = [self._numbered(number, segment, evidence) for segment, number in marked.citations]
        held = {(span.evidence, span.doc_id) for span in marks}
        further: list[tuple[CitedSpan, Mapping[str, Any] | None]] = []
        behind: dict[tuple[int, str], Mapping[str, Any]] = {}
        for citation in output.citations:
            span, payload = self._stated(citation, output.contexts, evidence), citation.payload
            payload = None if payload is None or PAYLOAD.isdisjoint(payload) else payload
            name = (span.evidence, span.doc_id)
            if span.quote or name not in held or not _whole(span, evidence):
                further.append((span, payload))
            elif payload is not None:
                behind.setdefault(name, payload)
        return [*((span, behind.get((span.evidence, span.doc_id))) for span in marks), *further]

    def _numbered(self, number: int, segment: int, evidence: Sequence[Evidence]) -> CitedSpan:
        if not 1 <= number <= len(evidence):
            return CitedSpan(segment, -1, f"[{number}]", -1, -1)
        chunk = evidence[number - 1].chunk
        return CitedSpan(segment, number - 1, chunk.doc_id, chunk.offsets.start, chunk.offsets.end)

    def _stated(
        self, citation: Citation, contexts: Sequence[Context], evidence: Sequence[Evidence]
    ) -> CitedSpan:
        if citation.number is not None:
            return self._numbered(citation.number, -1, evidence)
        if citation.payload is not None:
            return self._payload(citation.payload, contexts, evidence)
        named = _places_of(citation.token, contexts, evidence)
        if named:
            return self._numbered(named[0] + 1, -1, evidence)
        if number := _BRACKETED.fullmatch(citation.token):
            return self._numbered(int(number[1]), -1, evidence)
        token = _TOKEN.fullmatch(citation.token)
        if not token:
            return CitedSpan(-1, -1, citation.token, -1, -1)
        return self._lines(
            token["doc"],
            int(token["first"]),
            int(token["last"] or token["first"]),
            contexts,
            evidence,
        )

    def _lines(
        self,
        doc: str,
        first: int,
        last: int,
        contexts: Sequence[Context],
        evidence: Sequence[Evidence],
    ) -> CitedSpan:
        places = _places_of(doc, contexts, evidence)
        held = [
            place
            for place in places
            if evidence[place].first_line <= last
            and first <= evidence[place].last_line
            and first <= last
        ]
        inside = [
            place
            for place in held
            if evidence[place].first_line <= first and last <= evidence[place].last_line
        ]
        if not held:
            return CitedSpan(-1, -1, doc, -1, -1)
        place = (inside or held)[0]
        chunk = evidence[place].chunk
        document = self._documents.get(chunk.doc_id)
        span = lines_span(
            document.text if document and document.rev == chunk.rev else chunk.text, first, last
        )
        low, high = span or (-1, -1)
        return CitedSpan(-1, place, chunk.doc_id, low, high)

    def _payload(
        self, payload: Mapping[str, Any], contexts: Sequence[Context], evidence: Sequence[Evidence]
    ) -> CitedSpan:
        """Read a citation payload; beside its own keys, `number` (of a context), `quote` and `segment` are understood."""
        quote, segment = payload.get("quote"), payload.get("segment")
        quote = quote if isinstance(quote, str) else ""
        segment = segment if type(segment) is int and segment >= 0 else -1
        doc, snippet, number = (
            payload.get("doc_id"),
            payload.get("snippet_id"),
            payload.get("number"),
        )
        start, end = _offsets(payload.get("offsets"))
        if type(number) is int:
            span = self._numbered(number, segment, evidence)
            places = [span.evidence] if span.evidence >= 0 else []
            name = span.doc_id
        else:
            name = doc if isinstance(doc, str) else snippet if isinstance(snippet, str) else ""
            by_snippet = _places_of(snippet, contexts, evidence) if isinstance(snippet, str) else []
            places = by_snippet or (
                _places_of(doc, contexts, evidence)
                if isinstance(doc, str) and not isinstance(snippet, str)
                else []
            )
        if start >= 0:
            touched = [
                place
                for place in places
                if evidence[place].chunk.offsets.start < end
                and start < evidence[place].chunk.offsets.end
            ]
            # offsets count in the system's own document, of which a context may be any part: a passage that is named is the one meant
            start, end = (
                (start, end) if touched or not (places and isinstance(snippet, str)) else (-1, -1)
            )
            places = touched or (places if start < 0 else [])
        if not places:
            return CitedSpan(segment, -1, name, start, end, quote)
        quoting = next(
            (place for place in places if quote and quote in evidence[place].chunk.text), None
        )
        place = places[0] if quoting is None else quoting
        chunk = evidence[place].chunk
        if start < 0:
            at = chunk.text.find(quote) if quote else -1
            start, end = (
                (chunk.offsets.start + at, chunk.offsets.start + at + len(quote))
                if at >= 0
                else (chunk.offsets.start, chunk.offsets.end)
            )
        return CitedSpan(segment, place, chunk.doc_id, start, end, quote)


def _covered_span(span: CitedSpan, known: dict[str, str]) -> CitedSpan:
    if not known:
        return span
    return dataclasses.replace(
        span,
        quote=covered_with(span.quote, known),
        doc_id=span.doc_id if span.evidence >= 0 else covered_with(span.doc_id, known),
    )


def _offsets(value: object) -> tuple[int, int]:
    """Character offsets of a payload; (-1, -1) where they are absent, no numbers, or of tokens."""
    if not isinstance(value, Mapping) or value.get("unit", "char") != "char":
        return -1, -1
    start, end = value.get("start"), value.get("end")
    return (
        (start, end) if type(start) is int and type(end) is int and 0 <= start < end else (-1, -1)
    )


def _places_of(name: str, contexts: Sequence[Context], evidence: Sequence[Evidence]) -> list[int]:
    """Evidence that a name stands for: the system's own ids, and those of the corpus."""
    pairs = enumerate(zip(contexts, evidence, strict=True))
    return [
        place
        for place, (context, one) in pairs
        if name
        and name in {context.document, context.snippet, one.chunk.doc_id, one.chunk.snippet_id}
    ]


def _whole(span: CitedSpan, evidence: Sequence[Evidence]) -> bool:
    """Whether a citation names a piece of evidence and nothing finer."""
    if span.evidence < 0:
        return span.start < 0
    offsets = evidence[span.evidence].chunk.offsets
    return (span.start, span.end) == (offsets.start, offsets.end)


def _outcome(output: RecordedOutput, marked: Marked) -> tuple[Outcome, tuple[str, ...]]:
    if output.answer is None:
        return "failed", (NO_ANSWER,)
    verdict = _VERDICTS.get(" ".join(output.verdict.upper().replace("_", " ").split()))
    if verdict is not None:
        return verdict, ()
    if not marked.text.strip():
        return "failed", (EMPTY_ANSWER,)
    return abstention(output.answer) or "answered", ()


def recorded_payloads(
    query_ids: Iterable[str], outputs: Sequence[RecordedOutput], maker: RecordedAnswers
) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Stated payloads of each question by the place of the citation; questions without any are left out."""
    asked = set(query_ids)
    found = {
        output.query_id: maker.payloads(output)
        for output in outputs
        if output.query_id in asked and output.citations
    }
    return {query_id: payloads for query_id, payloads in found.items() if payloads}


def recorded_answers(
    query_ids: Iterable[str], outputs: Sequence[RecordedOutput], maker: RecordedAnswers
) -> list[Answer]:
    """Answers of all questions, in their order; a question without an output has failed with `no_output`."""
    by_id = {output.query_id: output for output in outputs}
    return [
        maker.answer(by_id[query_id])
        if query_id in by_id
        else Answer(query_id, "recorded", "failed", (NO_OUTPUT,))
        for query_id in query_ids
    ]
