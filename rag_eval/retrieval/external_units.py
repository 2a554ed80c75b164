"""What an external retriever brought back, placed in the corpus: its own table of units, and rankings over that table.

Belongs here: from names, offsets and texts to a document, a section and a place. What a unit is worth is judged where gold is known.
"""

import dataclasses
import functools
import urllib.parse
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.corpus.masking import mask
from rag_eval.gold.frames import make_frame
from rag_eval.gold.targets import catalogue
from rag_eval.records.frames import Column, FrameSchema
from rag_eval.retrieval.external import Item, Outcome, Retrieved
from rag_eval.retrieval.ranking import Ranking, ranking, scale_min_max
from rag_eval.storage.hashing import text_hash

UNITS = FrameSchema(
    "units",
    {
        "unit_id": Column("str", "the id that the source gave"),
        "doc_id": Column(
            "str", "the document; an id that the corpus does not know stands as it was given"
        ),
        "section_id": Column("str", "the section; empty where unknown"),
        "start": Column("int", "first character in the document's text; -1 where unknown"),
        "end": Column("int", "one past the last character; -1 where unknown"),
        "chunk": Column(
            "int",
            "row of the chunks frame where it is one of our chunks, by its id or its place; else -1",
        ),
        "known": Column("bool", "whether the corpus has the document"),
        "text": Column(
            "str",
            "the text of the place, else as the source gave it with personal data masked; may be empty",
        ),
        "returned": Column(
            "str",
            "what the source gave as the text of this place where the corpus says otherwise, personal data masked and cut to a bound; else empty",
        ),
    },
)
_CACHED_TEXTS = 512
MAX_SEARCHED_CHARS = 200_000
"""A longer text is looked for as it stands only, not with its white space evened out."""
MAX_RETURNED_CHARS = 200_000
"""So much is kept of what a source gave for one place in one ranking."""


class Even:
    """A text with every run of white space as one blank, and the way back to its characters."""

    def __init__(self, text: str) -> None:
        words = text.split()
        self.text = " ".join(words)
        starts, place = np.empty(len(words), dtype=np.int64), 0
        for at, word in enumerate(words):
            place = text.index(word, place)
            starts[at] = place
            place += len(word)
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        self._source = starts
        self._even = np.cumsum(lengths + 1) - (lengths + 1)

    def source(self, place: int) -> int:
        """Return the character of the source that stands at a place of the even text."""
        word = int(np.searchsorted(self._even, place, side="right")) - 1
        return int(self._source[word] + place - self._even[word])


def _other_words(given: str, stands: str) -> str:
    """Return what a source gave as the text of a place, masked, where that says something else; parts of the text, white space and masks are no difference."""
    if not given.strip() or given == stands:
        return ""
    masked = mask(given).text
    there = " ".join(stands.split())
    if any(" ".join(text.split()) in there for text in (given, masked)) or " ".join(
        masked.split()
    ) in " ".join(mask(stands).text.split()):
        return ""
    return masked


class Placer:
    """Places items in one corpus; equal items are one unit, and units are numbered as they first appear.

    Parameters
    ----------
    documents, sections, chunks
        DOCUMENTS, SECTIONS and CHUNKS frames.
    """

    def __init__(
        self, documents: pd.DataFrame, sections: pd.DataFrame, chunks: pd.DataFrame
    ) -> None:
        self._corpus = catalogue(documents, sections)
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
        self._units: dict[tuple[object, ...], int] = {}
        self._rows: list[tuple[object, ...]] = []
        self._seen: dict[tuple[object, ...], tuple[tuple[object, ...], tuple[object, ...]]] = {}
        self._even = functools.lru_cache(maxsize=_CACHED_TEXTS)(
            lambda document: Even(self._texts[document])
        )

    def row(self, item: Item) -> int:
        """Return the row of an item's unit, which is added where it is new."""
        return self.rows([item])[0][0]

    def rows(self, items: Sequence[Item]) -> list[tuple[int, float]]:
        """Return the rows and scores of one ranking's units, best place first; new units are added.

        Items of one place are one unit, whatever the source calls its text. All that it gave as the text goes with that unit, so that the
        guard reads it; with other words for another query the place is another unit.
        """
        best: dict[tuple[object, ...], float] = {}
        rows: dict[tuple[object, ...], tuple[object, ...]] = {}
        given: dict[tuple[object, ...], list[str]] = {}
        for item in items:
            seen = (item.id, item.doc_id, item.section_id, item.start, item.end, item.text)
            if seen not in self._seen:
                self._seen[seen] = self._unit(item)
            key, row = self._seen[seen]
            best.setdefault(key, item.score)
            rows.setdefault(key, row)
            text = "" if key[0] in {"unknown", "name"} else _other_words(item.text, str(row[-1]))
            if text and text not in given.setdefault(key, []):
                given[key].append(text)
        found = []
        for key, score in best.items():
            returned = "\n\n".join(given.get(key, []))[:MAX_RETURNED_CHARS]
            named = (*key, text_hash(returned)) if returned else key
            if named not in self._units:
                self._units[named] = len(self._rows)
                self._rows.append((*rows[key], returned))
            found.append((self._units[named], score))
        return found

    def frame(self) -> pd.DataFrame:
        """Return the units, UNITS schema."""
        return make_frame(UNITS, self._rows)

    def _unit(self, item: Item) -> tuple[tuple[object, ...], tuple[object, ...]]:
        chunk = self._chunk_row.get(item.id, -1)
        if chunk >= 0:
            _, doc_id, section_id, start, end, text = self._chunks[chunk]
            return ("chunk", chunk), (item.id, doc_id, section_id, start, end, chunk, True, text)
        document, section = self._names(item)
        masked = mask(item.text).text
        if document < 0:
            doc_id = item.doc_id or item.id or item.section_id
            key = ("unknown", doc_id, item.id, text_hash(item.text), item.start, item.end)
            return key, (item.name, doc_id, "", -1, -1, -1, False, masked)
        doc_id = self._doc_ids[document]
        start, end = self._place(item, item.text, document, section)
        if (
            start < 0 and masked != item.text
        ):  # the corpus may be masked; what came from outside never is
            start, end = self._place(item, masked, document, section)
        if section < 0:
            section = self._section(document, start)
        section_id = self._section_ids[section] if section >= 0 else ""
        chunk = self._chunk_at.get((doc_id, start, end), -1)
        if chunk >= 0:  # the very place of one of our chunks, whatever the source calls it
            return ("chunk", chunk), (
                item.name,
                doc_id,
                self._chunks[chunk][2],
                start,
                end,
                chunk,
                True,
                self._chunks[chunk][5],
            )
        if start >= 0:
            return ("place", document, start, end), (
                item.name,
                doc_id,
                section_id,
                start,
                end,
                -1,
                True,
                self._texts[document][start:end],
            )
        # without a place two texts of one document are two units: they may be different parts of it
        return ("name", document, section, text_hash(item.text)), (
            item.name,
            doc_id,
            section_id,
            -1,
            -1,
            -1,
            True,
            masked,
        )

    def _names(self, item: Item) -> tuple[int, int]:
        """Rows of the document and the section that an item names; -1 for none."""
        document, section = -1, -1
        for name in (item.doc_id, item.id):
            if document < 0 and name:
                document = self._corpus.document_row.get(
                    name, self._corpus.document_row.get(urllib.parse.unquote(name), -1)
                )
        # an id that is a document's and its lead section's means the document
        for name in (item.section_id, "" if item.id in self._corpus.document_row else item.id):
            if section < 0 and name:
                section = self._corpus.section_row.get(name, -1)
        owner = int(self._corpus.section_document[section]) if section >= 0 else -1
        if document < 0:
            document = owner
        elif owner != document:
            section = -1  # a section of another document says nothing
        return document, section

    def _place(self, item: Item, given: str, document: int, section: int) -> tuple[int, int]:
        """Return where the item stands: as its offsets say, else where the given form of its text is found; (-1, -1) where neither helps."""
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
        """Section that holds a place; the only one where a document has one; -1 for none."""
        rows = self._sections_of.get(document, [])
        if len(rows) == 1:
            return rows[0]
        if start < 0:
            return -1
        holding = [row for row in rows if self._bounds[row][0] <= start < self._bounds[row][1]]
        return min(holding, key=lambda row: self._bounds[row][1] - self._bounds[row][0], default=-1)


@dataclasses.dataclass(frozen=True)
class Placed:
    """Rankings over the units of one source.

    Parameters
    ----------
    ranking
        Rows are rows of `units`; a unit stands once in a ranking, at its best place.
    units
        UNITS frame.
    ran
        bool [n]: wordings that the source was run on.
    """

    ranking: Ranking
    units: pd.DataFrame
    ran: npt.NDArray[np.bool_]


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
