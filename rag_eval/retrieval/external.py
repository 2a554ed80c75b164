"""Retrievers that are not ours: what one query brought back, why one failed, and how a source is asked.

Belongs here: the types that all sources share and the closed set of failure codes. Each source has a file of its own (`external_http`,
`external_port`, `external_run_file`); what comes back is placed in the corpus by `external_units`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from rag_eval.corpus.outgoing import shown

FAILURES: Mapping[str, str] = {
    "timeout": "no whole reply within the time limit",
    "connection": "the connection could not be made, or broke",
    "rate_limited": "429 on every try, or a Retry-After longer than is waited",
    "server_error": "5xx on every try",
    "refused": "another status than 200 (4xx)",
    "redirect": "a redirect to another host, or too many",
    "reply_too_large": "more bytes than settings.external.max_reply_bytes",
    "malformed_reply": "not JSON in UTF-8, or compressed although that was not asked for",
    "wrong_shape": "JSON, but not {chunks: [{...}, ...]}",
    "missing_id": "a chunk without id, chunk_id, snippet_id, doc_id or section_id",
    "bad_id": "an id that is no text, is empty or too long, or holds control characters",
    "duplicate_id": "the same chunk twice in one reply",
    "bad_score": "a score that is missing or no finite number",
    "bad_text": "a text that is no text",
    "bad_offsets": "offsets that are not 0 <= start < end",
    "raised": "the imported retriever raised an exception",
    "not_recorded": "the recorded outputs lack this question",
    "recorded_error": "the recorded output is an error without any context",
}
"""Code -> what happened. A query that ends in one of these is failed: counted, scored 0, asked again by the next run."""

MAX_ID_CHARS = 1000


class QueryError(Exception):
    """One query failed.

    Parameters
    ----------
    code
        One of FAILURES.
    message
        What happened; untrusted text in it has gone through `quoted`. A failure shows it masked, for it may repeat a source.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        if code not in FAILURES:
            raise ValueError(f"code: found {code}, accepted {', '.join(FAILURES)}")
        self.code = code

    @property
    def failure(self) -> "Failure":
        """The failure as it is counted."""
        return Failure(self.code, shown(f"{self.code}: {self}"))


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a query has no result: a code of FAILURES and one line for a person."""

    code: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """One retrieved thing as the source names it; empty texts and -1 stand for what it does not say.

    Parameters
    ----------
    id
        An id of any kind: of one of our chunks, of a document (or one of its names), of a section, or the source's own.
    doc_id, section_id
        Named as such.
    text
        Its text.
    start, end
        Place in the document's text, in characters.
    score
        The source's own score, finite.
    """

    id: str
    doc_id: str
    section_id: str
    text: str
    start: int
    end: int
    score: float

    @property
    def name(self) -> str:
        """The id that a person would look for."""
        return self.id or self.doc_id or self.section_id


@dataclasses.dataclass(frozen=True, slots=True)
class Retrieved:
    """What one query brought back, best first; `version` as the source states it, else empty."""

    items: tuple[Item, ...]
    version: str = ""


Outcome = Retrieved | Failure | None
"""Of one wording; None where the source was never run on it, which a list made beforehand may not have been."""


class Advance(Protocol):
    """Told how many queries were just done, and what there is to say about them."""

    def __call__(self, count: int, note: str = "", /) -> object:
        """Note progress."""
        ...


class Source(Protocol):
    """A retriever that is asked while the evaluation runs."""

    version: str
    """What the source states about itself: equal versions mean equal answers. Empty where it states nothing."""

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask for every query; one outcome a query, in their order. Raises nothing that a query caused."""
        ...

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a second try: what a single live query costs.

        Raises
        ------
        QueryError
            No usable reply came.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def failed_note(failed: int) -> str:
    """Note for the progress: how many failed so far."""
    return f"{failed:,} failed" if failed else ""
