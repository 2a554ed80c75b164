"""Units of an external retriever: the retrieved items with their places in the corpus."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.fields import decode_id
from rag_eval.core.frames import Column, FrameSchema, make_frame
from rag_eval.core.types import Level
from rag_eval.corpus.masking import mask
from rag_eval.gold.resolving import Catalogue
from rag_eval.retrieval.outside import Failure, Item, Outcome, Retrieved
from rag_eval.retrieval.ranking import Ranking, ranking, scale_min_max

UNITS = FrameSchema(
    "units",
    {
        "unit_id": Column("str", "the id that the source gave"),
        "doc_id": Column("str", "the document; an unknown id is kept as given"),
        "section_id": Column("str", "the section; empty where unknown"),
        "start": Column("int", "first character in the document's text; -1 where unknown"),
        "end": Column("int", "one past the last character; -1 where unknown"),
        "text": Column("str", "the text of the place, else as the source gave it, masked"),
        "chunk": Column("int", "row of the chunks frame where it is one of our chunks; else -1"),
        "known": Column("bool", "whether the corpus has the document"),
        "returned": Column("str", "text of the source, masked, where it differs from the corpus"),
    },
)


class _Unit(NamedTuple):
    """A row of UNITS. Items that give equal units, whatever their id, are one unit."""

    unit_id: str
    doc_id: str
    section_id: str = ""
    start: int = -1
    end: int = -1
    text: str = ""
    chunk: int = -1
    known: bool = True
    returned: str = ""


class _Corpus:
    """DOCUMENTS, SECTIONS and CHUNKS, with the names that the items of a source give."""

    def __init__(
        self,
        documents: pd.DataFrame,
        sections: pd.DataFrame,
        chunks: pd.DataFrame,
        items: Iterable[Item],
    ) -> None:
        catalogue = Catalogue(documents, sections)
        names = list(dict.fromkeys(name for item in items for name in _names(item)))
        found_places = catalogue.find(names)
        places = zip(found_places.document.tolist(), found_places.section.tolist(), strict=True)
        self._place_of = dict(zip(names, places, strict=True))
        self._doc_ids: list[str] = documents["doc_id"].tolist()
        self._texts: list[str] = documents["text"].tolist()
        self._section_ids: list[str] = sections["section_id"].tolist()
        self._bounds = list(zip(sections["start"].tolist(), sections["end"].tolist(), strict=True))
        self._sections_of: dict[int, list[int]] = {}
        for row, owner in enumerate(catalogue.section_document.tolist()):
            self._sections_of.setdefault(owner, []).append(row)
        columns = ("chunk_id", "doc_id", "section_id", "start", "end", "text")
        units = [
            _Unit(*row)._replace(chunk=chunk)
            for chunk, row in enumerate(
                zip(*(chunks[name].tolist() for name in columns), strict=True)
            )
        ]
        self._chunk_of = {unit.unit_id: unit for unit in units}
        self._chunk_at = {(unit.doc_id, unit.start, unit.end): unit for unit in units}

    def place(self, item: Item) -> _Unit:
        """Place an item: by our chunk id, else by the document, section, offsets or text."""
        masked = mask(item.text).text
        unit = self._chunk_of.get(item.id) or self._place_by_name(item, masked)
        has_place = unit.start >= 0
        returned = _other_words(item.text, masked, unit.text) if has_place else ""
        return unit._replace(unit_id=item.name, returned=returned)

    def _place_by_name(self, item: Item, masked: str) -> _Unit:
        document, section = self._find_names(item)
        if document < 0:
            doc_id = item.doc_id or item.name
            return _Unit(item.name, doc_id, known=False, text=masked)
        # The corpus may be masked, and a source is not.
        start, end = self._find_place(item, (item.text, masked), document, section)
        doc_id = self._doc_ids[document]
        if (unit := self._chunk_at.get((doc_id, start, end))) is not None:
            return unit
        if section < 0:
            section = self._section_at(document, start)
        text = self._texts[document][start:end] if start >= 0 else masked
        section_id = self._section_ids[section] if section >= 0 else ""
        return _Unit(item.name, doc_id, section_id, start, end, text)

    def _find_names(self, item: Item) -> tuple[int, int]:
        """Return the rows of the document and the section that an item names; -1 for none."""
        places = [self._place_of[name] for name in _names(item)]
        document = next((document for document, _ in places if document >= 0), -1)
        # A section of another document is ignored.
        in_document = [section for owner, section in places if section >= 0 and owner == document]
        return document, next(iter(in_document), -1)

    def _find_place(
        self, item: Item, texts: Sequence[str], document: int, section: int
    ) -> tuple[int, int]:
        """Place an item by its offsets, else where a text is found; (-1, -1) for neither."""
        whole, at = self._texts[document], item.offsets
        # Offsets in tokens do not give a place in the text.
        if at is not None and at.unit == "char" and 0 <= at.start < at.end <= len(whole):
            return at.start, at.end
        low, high = self._bounds[section] if section >= 0 else (0, len(whole))
        for text in filter(None, dict.fromkeys(text.strip() for text in texts)):
            start = max(whole.find(text, low, high), whole.find(text))
            if start >= 0:
                return start, start + len(text)
            if (place := _find_words(whole, text)) is not None:
                return place
        return -1, -1

    def _section_at(self, document: int, start: int) -> int:
        """Return the section of a place, or the only section of the document; -1 for none."""
        rows = self._sections_of.get(document, [])
        if len(rows) == 1:
            return rows[0]
        bounds = [(*self._bounds[row], row) for row in rows]
        holding = [(high - low, row) for low, high, row in bounds if low <= start < high]
        return min(holding, default=(0, -1))[1]


@functools.lru_cache(maxsize=512)
def _even(text: str) -> tuple[str, list[int]]:
    """Put single blanks between the words of a text; return it with the places of the words."""
    return " ".join(text.split()), [word.start() for word in re.finditer(r"\S+", text)]


def _find_words(whole: str, text: str) -> tuple[int, int] | None:
    """Find a text with other white space between its words; None for nowhere."""
    (even, starts), plain = _even(whole), " ".join(text.split())
    first = even.find(plain)
    if first < 0:
        return None
    start, end = (
        starts[even.count(" ", 0, at)] + at - (even.rfind(" ", 0, at) + 1)
        for at in (first, first + len(plain) - 1)
    )
    return start, end + 1


def _names(item: Item) -> list[str]:
    """List the names of an item, documents first; TREC runs have percent-encoded names."""
    names = (item.doc_id, item.id)
    return [*names, *map(decode_id, names), item.section_id]


def _other_words(returned: str, masked: str, place: str) -> str:
    """Return the masked text of a source when it differs from the text of its place, else "".

    A part of the place's text, other white space, and masks count as no difference.
    """
    corpus_text, plain, hidden = (
        " ".join(text.split()) for text in (f"{place}\n{mask(place).text}", returned, masked)
    )
    return "" if plain in corpus_text or hidden in corpus_text else masked


PLACED_SHARE = 0.95
"""Least share of the retrieved units with a section, or with a place for the span level.

A level with a smaller share is not measured. At a measured level, a unit without a section or place
counts as a miss.
"""
UNPLACED = "nothing was retrieved that the corpus knows, so nothing has a {what}"
TOO_FEW_PLACED = (
    "the source names no {what} for {n} of {all} retrieved units, by id, offsets or text;"
    " at least {share:.0%} must have one"
)


@dataclasses.dataclass(frozen=True)
class Placed:
    """Rankings over the units of one source."""

    ranking: Ranking
    """Ranking of rows of `units`; each unit occurs once, at its best place."""
    units: pd.DataFrame
    ran: npt.NDArray[np.bool_]
    """[n]: whether the source was run on the wording."""

    def unmeasured_levels(self) -> dict[Level, str]:
        """Find the levels at which the units cannot be judged, with the reason.

        Documents can always be judged, because an unknown document is not relevant.
        """
        retrieved = self.units.iloc[self.ranking.rows[self.ranking.has_chunk]]
        in_corpus = retrieved[retrieved["known"]]
        parts: tuple[tuple[Level, str, pd.Series], ...] = (
            ("section", "section", in_corpus["section_id"] == ""),
            ("span", "place in its document", in_corpus["start"] < 0),
        )
        reasons: dict[Level, str] = {}
        for level, what, lacks in parts:
            if in_corpus.empty:
                reasons[level] = UNPLACED.format(what=what)
            elif lacks.sum() > (1 - PLACED_SHARE) * len(in_corpus):
                reasons[level] = TOO_FEW_PLACED.format(
                    what=what, n=int(lacks.sum()), all=len(in_corpus), share=PLACED_SHARE
                )
        return reasons


def place_all(
    outcomes: Sequence[Outcome],
    documents: pd.DataFrame,
    sections: pd.DataFrame,
    chunks: pd.DataFrame,
    depth: int,
) -> Placed:
    """Place the items of n wordings in the corpus, as one ranking of n rows over units.

    The guard reads what the source returned: an item whose text differs from the corpus is a unit
    of its own.
    """
    lists = [outcome.items if isinstance(outcome, Retrieved) else () for outcome in outcomes]
    scored = [
        [(item.model_copy(update={"score": 0.0}), item.score) for item in items] for items in lists
    ]
    distinct = dict.fromkeys(item for items in scored for item, _ in items)
    corpus = _Corpus(documents, sections, chunks, distinct)
    unit_of = {item: corpus.place(item) for item in distinct}
    number: dict[tuple[object, ...], int] = {}
    units: list[_Unit] = []
    rows = np.full((len(outcomes), depth), -1, dtype=np.int32)
    raw = np.full((len(outcomes), depth), -np.inf)
    for query, items in enumerate(scored):
        best: dict[int, float] = {}
        for item, score in items:
            unit = unit_of[item]
            row = number.setdefault(unit[1:], len(units))
            if row == len(units):
                units.append(unit)
            best.setdefault(row, score)
        deepest = list(best.items())[:depth]
        rows[query, : len(deepest)] = [row for row, _ in deepest]
        raw[query, : len(deepest)] = [score for _, score in deepest]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    placed = dataclasses.replace(
        ranking(rows, raw, scale_min_max(raw)),
        failed=np.array([isinstance(outcome, Failure) for outcome in outcomes], dtype=bool),
        failure=failed[0].message if failed else None,
    )
    ran = np.array([outcome is not None for outcome in outcomes], dtype=bool)
    return Placed(placed, make_frame(UNITS, units), ran)
