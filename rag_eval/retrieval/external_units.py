"""Units of an external retriever: the retrieved items with their places in the corpus."""

import dataclasses
import functools
import re
import urllib.parse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.frames import Column, FrameSchema, make_frame
from rag_eval.corpus.masking import mask
from rag_eval.gold.resolving import Catalogue
from rag_eval.retrieval.kinds.external import Item, Outcome, Retrieved
from rag_eval.retrieval.ranking import Ranking, ranking, scale_min_max
from rag_eval.storage.hashing import text_hash

UNITS = FrameSchema(
    "units",
    {
        "unit_id": Column("str", "the id that the source gave"),
        "doc_id": Column("str", "the document; an unknown id is kept as given"),
        "section_id": Column("str", "the section; empty where unknown"),
        "start": Column("int", "first character in the document's text; -1 where unknown"),
        "end": Column("int", "one past the last character; -1 where unknown"),
        "chunk": Column("int", "row of the chunks frame where it is one of our chunks; else -1"),
        "known": Column("bool", "whether the corpus has the document"),
        "text": Column("str", "the text of the place, else as the source gave it, masked"),
        "returned": Column("str", "text of the source, masked, where it differs from the corpus"),
    },
)
_CACHED_TEXTS = 512
MAX_SEARCHED_CHARS = 200_000
"""Longest text that is searched with single blanks for white space, in characters."""
MAX_RETURNED_CHARS = 200_000
"""Longest stored text of a source for one place in one ranking, in characters."""


class Even:
    """A text with single blanks between words, and the places of its characters in the source."""

    def __init__(self, text: str) -> None:
        words = list(re.finditer(r"\S+", text))
        self.text = " ".join(word[0] for word in words)
        self._source = np.array([word.start() for word in words], dtype=np.int64)
        lengths = np.array([len(word[0]) + 1 for word in words], dtype=np.int64)
        self._even = np.cumsum(lengths) - lengths

    def source(self, place: int) -> int:
        """Convert an offset in the even text to an offset in the source."""
        word = int(np.searchsorted(self._even, place, side="right")) - 1
        return int(self._source[word] + place - self._even[word])


def _other_words(given: str, stands: str) -> str:
    """Return the masked text of a source when it differs from the text of its place, else "".

    A part of the place's text, other white space, and masks count as no difference.
    """
    if not given.strip() or given == stands:
        return ""
    masked = mask(given).text
    place, plain, hidden = (" ".join(text.split()) for text in (stands, given, masked))
    if plain in place or hidden in place or hidden in " ".join(mask(stands).text.split()):
        return ""
    return masked


_Key = tuple[object, ...]
"""Key of a unit: items with equal keys are one unit. The first part names the kind of key."""


class _Row(NamedTuple):
    """Columns of UNITS before `returned`."""

    unit_id: str
    doc_id: str
    section_id: str
    start: int
    end: int
    chunk: int
    known: bool
    text: str


class Placer:
    """Places items in one corpus (DOCUMENTS, SECTIONS and CHUNKS frames).

    Equal items are one unit. Units are numbered in the order of their first item.
    """

    def __init__(
        self, documents: pd.DataFrame, sections: pd.DataFrame, chunks: pd.DataFrame
    ) -> None:
        self._corpus = Catalogue(documents, sections)
        self._doc_ids: list[str] = documents["doc_id"].tolist()
        self._texts: list[str] = documents["text"].tolist()
        self._section_ids: list[str] = sections["section_id"].tolist()
        self._bounds = list(zip(sections["start"].tolist(), sections["end"].tolist(), strict=True))
        self._sections_of: dict[int, list[int]] = {}
        for row, owner in enumerate(self._corpus.section_document.tolist()):
            self._sections_of.setdefault(owner, []).append(row)
        self._chunk_row = {name: row for row, name in enumerate(chunks["chunk_id"].tolist())}
        self._chunks = list(
            zip(
                *(
                    chunks[name].tolist()
                    for name in ("chunk_id", "doc_id", "section_id", "start", "end", "text")
                ),
                strict=True,
            )
        )
        self._chunk_at = {
            (doc_id, start, end): row
            for row, (_, doc_id, _, start, end, _) in enumerate(self._chunks)
        }
        self._units: dict[_Key, int] = {}
        self._rows: list[tuple[object, ...]] = []
        self._seen: dict[Item, tuple[_Key, _Row]] = {}
        self._even = functools.lru_cache(maxsize=_CACHED_TEXTS)(
            lambda document: Even(self._texts[document])
        )

    def rows(self, items: Sequence[Item]) -> list[tuple[int, float]]:
        """Return the unit rows and scores of one ranking, best place first, and add new units.

        Items of one place are one unit. The unit carries all texts that the source gave for the
        place, so that the guard reads them. Other texts for another query make another unit.
        """
        best: dict[_Key, float] = {}
        rows: dict[_Key, _Row] = {}
        given: dict[_Key, dict[str, None]] = {}
        for item in items:
            seen = dataclasses.replace(item, score=0.0)
            if seen not in self._seen:
                self._seen[seen] = self._unit(item)
            key, row = self._seen[seen]
            best.setdefault(key, item.score)
            rows.setdefault(key, row)
            if key[0] not in {"unknown", "name"} and (text := _other_words(item.text, row.text)):
                given.setdefault(key, {})[text] = None
        ranked = []
        for key, score in best.items():
            returned = "\n\n".join(given.get(key, ()))[:MAX_RETURNED_CHARS]
            named = (*key, text_hash(returned)) if returned else key
            if named not in self._units:
                self._units[named] = len(self._rows)
                self._rows.append((*rows[key], returned))
            ranked.append((self._units[named], score))
        return ranked

    def frame(self) -> pd.DataFrame:
        """Return the units, UNITS schema."""
        return make_frame(UNITS, self._rows)

    def _own(self, unit_id: str, chunk: int) -> tuple[_Key, _Row]:
        _, doc_id, section_id, start, end, text = self._chunks[chunk]
        return ("chunk", chunk), _Row(unit_id, doc_id, section_id, start, end, chunk, True, text)  # noqa: FBT003 - a row

    def _unit(self, item: Item) -> tuple[_Key, _Row]:
        chunk = self._chunk_row.get(item.id, -1)
        if chunk >= 0:
            return self._own(item.id, chunk)
        document, section = self._names(item)
        masked = mask(item.text).text
        if document < 0:
            doc_id = item.doc_id or item.id or item.section_id
            key: _Key = ("unknown", doc_id, item.id, text_hash(item.text), item.start, item.end)
            return key, _Row(item.name, doc_id, "", -1, -1, -1, False, masked)  # noqa: FBT003 - a row
        doc_id = self._doc_ids[document]
        start, end = self._place(item, item.text, document, section)
        if start < 0 and masked != item.text:  # The corpus may be masked, and a source is not.
            start, end = self._place(item, masked, document, section)
        if section < 0:
            section = self._section(document, start)
        section_id = self._section_ids[section] if section >= 0 else ""
        chunk = self._chunk_at.get((doc_id, start, end), -1)
        if chunk >= 0:  # The item has the exact place of one of our chunks.
            return self._own(item.name, chunk)
        # Without a place, two texts of a document may be two of its parts, so they are two units.
        key, text = ("name", document, section, text_hash(item.text)), masked
        if start >= 0:
            key, text = ("place", document, start, end), self._texts[document][start:end]
        return key, _Row(item.name, doc_id, section_id, start, end, -1, True, text)  # noqa: FBT003 - a row

    def _names(self, item: Item) -> tuple[int, int]:
        """Return the rows of the document and the section that an item names; -1 for none."""
        document, section = -1, -1
        for name in (item.doc_id, item.id):
            if document < 0 and name:
                document = self._corpus.document_row.get(
                    name, self._corpus.document_row.get(urllib.parse.unquote(name), -1)
                )
        # An id may name a document and its lead section. Then the id means the document.
        for name in (item.section_id, "" if item.id in self._corpus.document_row else item.id):
            if section < 0 and name:
                section = self._corpus.section_row.get(name, -1)
        owner = int(self._corpus.section_document[section]) if section >= 0 else -1
        if document < 0:
            document = owner
        elif owner != document:
            section = -1  # The section belongs to another document, so it is ignored.
        return document, section

    def _place(self, item: Item, given: str, document: int, section: int) -> tuple[int, int]:
        """Place an item by its offsets, else where its text is found; (-1, -1) for neither."""
        text = self._texts[document]
        if 0 <= item.start < item.end <= len(text):
            return item.start, item.end
        wanted = given.strip()
        if not wanted:
            return -1, -1
        low, high = self._bounds[section] if section >= 0 else (0, len(text))
        start = text.find(wanted, low, high)
        start = text.find(wanted) if start < 0 else start
        if start >= 0:
            return start, start + len(wanted)
        if len(wanted) > MAX_SEARCHED_CHARS:
            return -1, -1
        even, plain = self._even(document), " ".join(wanted.split())
        at = even.text.find(plain)
        return (even.source(at), even.source(at + len(plain) - 1) + 1) if at >= 0 else (-1, -1)

    def _section(self, document: int, start: int) -> int:
        """Return the section of a place, or the only section of the document; -1 for none."""
        rows = self._sections_of.get(document, [])
        if len(rows) == 1:
            return rows[0]
        if start < 0:
            return -1
        holding = [row for row in rows if self._bounds[row][0] <= start < self._bounds[row][1]]
        return min(holding, key=lambda row: self._bounds[row][1] - self._bounds[row][0], default=-1)


@dataclasses.dataclass(frozen=True)
class Placed:
    """Rankings over the units of one source."""

    ranking: Ranking
    """Ranking of rows of `units`; each unit occurs once, at its best place."""
    units: pd.DataFrame
    ran: npt.NDArray[np.bool_]
    """[n]: whether the source was run on the wording."""


def place_all(outcomes: Sequence[Outcome], placer: Placer, depth: int) -> Placed:
    """Turn the outcomes of n wordings into one ranking of n rows."""
    rows = np.full((len(outcomes), depth), -1, dtype=np.int32)
    raw = np.full((len(outcomes), depth), -np.inf)
    failed = np.zeros(len(outcomes), dtype=bool)
    first: str | None = None
    for query, outcome in enumerate(outcomes):
        if isinstance(outcome, Retrieved):
            kept = placer.rows(outcome.items)[:depth]
            rows[query, : len(kept)] = [row for row, _ in kept]
            raw[query, : len(kept)] = [score for _, score in kept]
        elif outcome is not None:
            failed[query] = True
            first = first or outcome.message
    found = ranking(rows, raw, scale_min_max(raw), (rows >= 0).sum(axis=1).astype(np.int64))
    ran = np.array([outcome is not None for outcome in outcomes], dtype=bool)
    return Placed(dataclasses.replace(found, failed=failed, failure=first), placer.frame(), ran)
