"""Evidence: retrieved chunks with their line numbers and cite tokens, and a view of the corpus that finds lines, sections and chunks.

Belongs here: chunk -> Evidence, lines <-> characters. A line ends at a line feed; lines count from 1.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.corpus.analyzer import ANALYZER, count_tokens
from rag_eval.records.answers import Evidence, EvidenceKind
from rag_eval.records.retrieval import Offsets, ScoredChunk

MAX_EVIDENCE_CHARS = 12_000
"""Longer chunks are cut here, at a line end where one is near, so that no single document fills a prompt."""


def line_starts(text: str) -> npt.NDArray[np.int64]:
    """Offset of the first character of each line, rising, int64 [n_lines]; a final line feed opens one more, empty line."""
    units = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return np.concatenate(
        [np.zeros(1, dtype=np.int64), np.flatnonzero(units == ord("\n")).astype(np.int64) + 1]
    )


def cite_token(doc_id: str, first: int, last: int) -> str:
    """`<doc_id>:<first>-<last>`, or `<doc_id>:<line>` for one line.

    Examples
    --------
    >>> cite_token("docs/guide.md", 3, 7), cite_token("docs/guide.md", 3, 3)
    ('docs/guide.md:3-7', 'docs/guide.md:3')
    """
    return f"{doc_id}:{first}" if first == last else f"{doc_id}:{first}-{last}"


def _bounded(text: str) -> str:
    if len(text) <= MAX_EVIDENCE_CHARS:
        return text
    cut = text.rfind("\n", MAX_EVIDENCE_CHARS // 2, MAX_EVIDENCE_CHARS)
    return text[: cut if cut > 0 else MAX_EVIDENCE_CHARS]


class Library:
    """The corpus as evidence needs it.

    Parameters
    ----------
    documents, sections, chunks
        DOCUMENTS, SECTIONS and CHUNKS frames of one corpus revision.
    index_hash, embed_model
        Identity of the index that the evidence is retrieved with: the payload of chunks that grep and section find.
    """

    def __init__(
        self,
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        *,
        index_hash: str = "",
        embed_model: str = "",
    ) -> None:
        self.chunks = chunks
        self.texts: list[str] = chunks["text"].tolist()
        self._index_hash, self._embed_model = index_hash, embed_model
        self._documents: dict[str, str] = dict(
            zip(documents["doc_id"].tolist(), documents["text"].tolist(), strict=True)
        )
        self._titles: dict[str, str] = dict(
            zip(documents["doc_id"].tolist(), documents["title"].tolist(), strict=True)
        )
        self._about = dict(
            zip(
                documents["doc_id"].tolist(),
                zip(documents["rev"].tolist(), documents["source_url"].tolist(), strict=True),
                strict=True,
            )
        )
        self._sections: dict[str, tuple[str, int, int]] = {
            section: (doc, start, end)
            for section, doc, start, end in zip(
                *(sections[name].tolist() for name in ("section_id", "doc_id", "start", "end")),
                strict=True,
            )
        }
        self._starts: dict[str, npt.NDArray[np.int64]] = {}

    def text(self, doc_id: str) -> str | None:
        """Text of a document; None where the corpus has no such document."""
        return self._documents.get(doc_id)

    def title(self, doc_id: str) -> str:
        """Title of a document; empty where it has none or the corpus lacks it."""
        return self._titles.get(doc_id, "")

    def line_of(self, doc_id: str, offset: int) -> int:
        """Line of a document's character, from 1."""
        if doc_id not in self._starts:
            self._starts[doc_id] = line_starts(self._documents[doc_id])
        return int(np.searchsorted(self._starts[doc_id], offset, side="right"))

    @functools.cached_property
    def _rows_of_document(self) -> dict[str, npt.NDArray[np.int64]]:
        groups = self.chunks.groupby("doc_id", sort=False).indices
        return {str(doc): np.asarray(rows, dtype=np.int64) for doc, rows in groups.items()}

    def section_rows(self, section_id: str) -> list[int] | None:
        """Rows of the chunks that overlap a section, in the order of the text; None where there is no such section."""
        place = self._sections.get(section_id)
        if place is None:
            return None
        doc_id, start, end = place
        rows = self._rows_of_document.get(doc_id, np.zeros(0, dtype=np.int64))
        starts, ends = self.chunks["start"].to_numpy()[rows], self.chunks["end"].to_numpy()[rows]
        inside = (starts < end) & (ends > start)
        return [int(row) for row in rows[inside][np.argsort(starts[inside], kind="stable")]]

    def payload(self, row: int, *, rank: int, score_raw: float, score_norm: float) -> ScoredChunk:
        """A chunk that no ranking gave, with the payload that it would carry; rank from 1."""
        chunk = self.chunks.iloc[row]
        doc_id = str(chunk["doc_id"])
        rev, url = self._about.get(doc_id, ("", ""))
        return ScoredChunk(
            doc_id=doc_id,
            section_id=str(chunk["section_id"]),
            snippet_id=str(chunk["chunk_id"]),
            source_url=url,
            offsets=Offsets(int(chunk["start"]), int(chunk["end"])),
            tokens=int(chunk["tokens"]),
            index_hash=self._index_hash,
            embed_model=self._embed_model,
            analyzer=ANALYZER,
            rev=rev,
            text=str(chunk["text"]),
            score_raw=score_raw,
            score_norm=score_norm,
            k_pos=rank,
            k_final=rank,
        )

    def evidence(self, chunk: ScoredChunk, kind: EvidenceKind) -> Evidence | None:
        """A chunk with its lines and its cite token; None where its text is blank.

        The lines are those of the corpus document. A chunk whose text does not stand at its offsets (an outside retriever's) is looked for in
        the document; where it is not found, or the corpus lacks the document, its own text counts as the document, from line 1.
        """
        text = _bounded(chunk.text)
        if not text.strip():
            return None
        whole, start = self._documents.get(chunk.doc_id), chunk.offsets.start
        if whole is not None and (
            chunk.offsets.unit != "char" or start < 0 or not whole.startswith(text, start)
        ):
            start = whole.find(text)
        if whole is None or start < 0:
            start, first, last = 0, 1, 1 + text.count("\n", 0, len(text) - 1)
        else:
            first, last = (
                self.line_of(chunk.doc_id, start),
                self.line_of(chunk.doc_id, start + len(text) - 1),
            )
        offsets = Offsets(start, start + len(text))
        if offsets != chunk.offsets:
            chunk = dataclasses.replace(
                chunk, text=text, offsets=offsets, tokens=count_tokens(text)
            )
        return Evidence(cite_token(chunk.doc_id, first, last), chunk, kind, first, last)


def merged(steps: Iterable[Sequence[Evidence]]) -> tuple[Evidence, ...]:
    """Evidence of several preflights in the order of the preflights and of their ranks; what was found twice stays where it was found first."""
    found: dict[tuple[str, int, int, str], Evidence] = {}
    for step in steps:
        for item in step:
            found.setdefault(
                (
                    item.chunk.doc_id,
                    item.chunk.offsets.start,
                    item.chunk.offsets.end,
                    item.chunk.text,
                ),
                item,
            )
    return tuple(found.values())


def line_span(item: Evidence, first: int, last: int) -> tuple[int, int] | None:
    """Characters, in the document, of the lines first..last as far as the evidence has them, without white space at the ends; None where that is nothing."""
    if first < item.first_line or last > item.last_line or first > last:
        return None
    text = item.chunk.text
    starts = line_starts(text)
    low, after = int(starts[first - item.first_line]), last - item.first_line + 1
    high = int(starts[after]) if after < len(starts) else len(text)
    piece = text[low:high]
    if not piece.strip():
        return None
    low += len(piece) - len(piece.lstrip())
    return item.chunk.offsets.start + low, item.chunk.offsets.start + low + len(piece.strip())
