"""Answers on their way out of the home: personal data masked, and of each source at most a snippet, in the text and its quotes together.

Belongs here: what of an answer may be exported or shown. The whole answer stays in the home.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rag_eval.citations.copied import SHORTEST, Source, uncopied
from rag_eval.corpus.outgoing import (
    MAX_READ_CHARS,
    masked_text,
    masked_tree,
    masked_values,
    masked_with,
    shown,
    shown_address,
)
from rag_eval.records.answers import Answer
from rag_eval.records.snippets import ELLIPSIS, SNIPPET_CHARS, is_joined, snippet


@dataclasses.dataclass(frozen=True, slots=True)
class OutgoingQuote:
    """What is left of a citation.

    Parameters
    ----------
    text
        The quote, or its beginning and an ellipsis; empty where it quotes nothing, or nothing more of its source may stand here.
    chars
        Characters of the whole quote where `text` is not the whole; else None.
    source_url
        Address of what is cited; None where it is no evidence.
    doc_id
        As cited; what is no evidence may be any text and is a snippet of it.
    """

    text: str
    chars: int | None
    source_url: str | None
    doc_id: str

    @property
    def fields(self) -> dict[str, Any]:
        """`quote`, and `quote_chars` where it is cut."""
        return {"quote": self.text, **({} if self.chars is None else {"quote_chars": self.chars})}


class Outgoing:
    """One answer as others may see it.

    Parameters
    ----------
    answer
        As the home has it.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        texts = [item.chunk.text for item in answer.evidence]
        masked = [masked_text(text) for text in texts]
        self._known = masked_values(zip(texts, masked, strict=True))
        self._sources = [
            Source(item.chunk.doc_id, text)
            for item, text in zip(answer.evidence, masked, strict=True)
        ]
        self._sources += [
            Source(span.doc_id, masked_with(span.quote, self._known))
            for span in answer.citations
            if span.quote
        ]
        left = uncopied(masked_with(answer.text, self._known), self._sources)
        self.text = left.text
        """The answer's text."""
        self._used = dict(left.used)
        self.quotes = tuple(self._quote(place) for place in range(len(answer.citations)))
        """One for each citation, in order."""

    def said(self, text: str) -> str:
        """Any other text about the question (a rejected reply, a message): masked, and its copies of the evidence cut."""
        return uncopied(masked_with(text, self._known), self._sources).text

    def line(self, text: str, limit: int = SNIPPET_CHARS) -> str:
        """Any text that stands beside the answer (the question, a piece of a source) as a snippet: what the evidence labels is known in it too."""
        return snippet(masked_with(text[:MAX_READ_CHARS], self._known), limit)

    def names(self, place: int) -> tuple[str, ...]:
        """Ids and revision of what a citation cites, which are shown as they are; none where it cites no evidence."""
        span = self._answer.citations[place]
        if not 0 <= span.evidence < len(self._answer.evidence):
            return ()
        chunk = self._answer.evidence[span.evidence].chunk
        return chunk.doc_id, chunk.section_id, chunk.snippet_id, chunk.index_hash, chunk.rev

    def _quote(self, place: int) -> OutgoingQuote:
        span = self._answer.citations[place]
        inside = 0 <= span.evidence < len(self._answer.evidence)
        url = (
            shown_address(self._answer.evidence[span.evidence].chunk.source_url) if inside else None
        )
        doc_id = span.doc_id if inside else shown(self.said(span.doc_id))
        quote = masked_with(span.quote, self._known)
        free = self._stands(quote)
        kept = min(len(quote), max(free, self._room(span.doc_id) + free))
        if kept > free:
            self._used[span.doc_id] = self._used.get(span.doc_id, 0) + kept - free
        if kept == len(quote) <= SNIPPET_CHARS:
            return OutgoingQuote(quote, None, url, doc_id)
        kept = min(kept, SNIPPET_CHARS - 1)
        while kept and is_joined(quote[kept]):
            kept -= 1
        return OutgoingQuote(quote[:kept] + ELLIPSIS if kept else "", len(quote), url, doc_id)

    def _room(self, doc_id: str) -> int:
        return max(0, SNIPPET_CHARS - 1 - self._used.get(doc_id, 0))

    def _stands(self, quote: str) -> int:
        """Characters at the beginning of a quote that the text shows already; they count once. At most a snippet; a few letters are no copy."""
        low, high = 0, min(len(quote), SNIPPET_CHARS)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if quote[:middle] in self.text else (low, middle - 1)
        return low if low >= min(SHORTEST, len(quote)) else 0


def outgoing_record(record: Mapping[str, Any], outgoing: Outgoing, place: int) -> dict[str, Any]:
    """A line of citations.jsonl: the record of citation number `place` of an answer, from 0, with its quote cut and everything in it masked.

    What a user's system stated may be any text under any key: a long one is held against the evidence as the answer is, so that nothing but the
    quote has to be read as one.
    """
    quote, own = outgoing.quotes[place], outgoing.names(place)
    found = {
        name: value if name == "query_id" or value in own else _stated(value, outgoing)
        for name, value in record.items()
    }
    if isinstance(record.get("source_url"), str):
        found["source_url"] = shown_address(outgoing.said(record["source_url"]))
    if isinstance(record.get("quote"), str):
        del found["quote"]
        found |= {name: value for name, value in quote.fields.items() if value != ""}
    if record.get("in_evidence") is False and isinstance(record.get("doc_id"), str):
        found["doc_id"] = shown(outgoing.said(record["doc_id"]))
    return found


def _stated(value: Any, outgoing: Outgoing) -> Any:
    return masked_tree(outgoing.said(value) if isinstance(value, str) else value, keep=())


def outgoing_row(
    row: Mapping[str, Any], outgoing: Outgoing | None, texts: Sequence[str] = ("messages", "reply")
) -> dict[str, Any]:
    """A row about a question, masked; the texts that may copy its evidence are cut."""
    found: dict[str, Any] = masked_tree(dict(row))
    for name in texts:
        value = row.get(name)
        if outgoing is not None and isinstance(value, str):
            found[name] = outgoing.said(value)
        elif outgoing is not None and isinstance(value, list):
            found[name] = [outgoing.said(str(item)) for item in value]
    return found
