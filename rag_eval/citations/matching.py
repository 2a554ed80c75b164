"""Match cited spans with gold spans, and cut copies of sources out of a text."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Ranges,
    expand_ranges,
    find_overlaps,
)
from rag_eval.core.types import ELLIPSIS, SNIPPET_CHARS, is_joined
from rag_eval.corpus.analyzer import word_spans

# ---- Text that is copied word for word from sources

SHORTEST = 24
"""Least length of a copy in characters without white space: four or five words."""
_SHORTEST_QUOTE = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Factor of the hash, odd so that every character counts. A collision only shortens a text."""
_SPACES = "\u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000"
_WHITE = np.array(
    [*range(0x09, 0x0E), *range(0x1C, 0x21), *range(0x2000, 0x200B), *map(ord, _SPACES)],
    dtype=np.uint32,
)
"""Characters that `str.isspace` counts as white space."""


class Source(NamedTuple):
    """A piece of a source; pieces with equal names belong to one source."""

    name: str
    text: str


class Uncopied(NamedTuple):
    """A text that copies no source by more than a snippet.

    `text` has an ellipsis for each cut. `used` maps each copied source to its number of characters.
    """

    text: str
    used: dict[str, int]


def _plain(text: str) -> tuple[npt.NDArray[np.uint64], IntArray]:
    """Return codes and places of all characters but white space, ASCII in lower case."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    places = np.flatnonzero(~np.isin(codes, _WHITE)).astype(np.int64)
    shown = codes[places].astype(np.uint64)
    is_capital = (shown >= ord("A")) & (shown <= ord("Z"))
    return np.where(is_capital, shown + np.uint64(32), shown), places


def _windows(codes: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.uint64]:
    """Hash every run of `width` codes, [len(codes) - width + 1]."""
    n = len(codes) - width + 1
    hashes = np.zeros(n, dtype=np.uint64)
    for place in range(width):
        hashes = hashes * _FACTOR + codes[place : place + n]  # modulo 2**64
    return hashes


class Sources:
    """Sources that texts may copy, indexed once; finding copies takes the time of the text."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._names = list(dict.fromkeys(source.name for source in sources))
        number = {name: at for at, name in enumerate(self._names)}
        found: dict[int, list[tuple[npt.NDArray[np.uint64], int]]] = {}
        for name, text in dict.fromkeys(sources):
            codes, _ = _plain(text)
            width = min(SHORTEST, len(codes))
            if width >= _SHORTEST_QUOTE:
                hashes = np.unique(_windows(codes, width))
                found.setdefault(width, []).append((hashes, number[name]))
        self._index: dict[int, tuple[npt.NDArray[np.uint64], IntArray]] = {}
        for width, parts in found.items():
            hashes = np.concatenate([one for one, _ in parts])
            owners = np.repeat([owner for _, owner in parts], [len(one) for one, _ in parts])
            order = np.argsort(hashes, kind="stable")
            self._index[width] = hashes[order], owners[order].astype(np.int64)

    def find_copies(self, text: str) -> dict[str, IntArray]:
        """Return copied source -> places of the copied characters of the text, rising."""
        codes, places = _plain(text)
        ranges: dict[int, list[tuple[IntArray, IntArray]]] = {}
        for width, (hashes, owners) in self._index.items():
            if len(codes) < width:
                continue
            own = _windows(codes, width)
            low, high = (np.searchsorted(hashes, own, side) for side in ("left", "right"))
            start, at = expand_ranges(low, high - low)
            order = np.argsort(owners[at], kind="stable")
            owner, start = owners[at][order], start[order]
            edges = np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1, [len(owner)]])
            for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                if last > first:
                    begins = start[first:last]
                    ends = places[begins + width - 1] + 1
                    ranges.setdefault(int(owner[first]), []).append((places[begins], ends))
        return {self._names[owner]: _unite_places(parts) for owner, parts in sorted(ranges.items())}


def _unite_places(parts: Sequence[tuple[IntArray, IntArray]]) -> IntArray:
    """Return every place inside some of the ranges [start, end) once, rising."""
    start, end = (np.concatenate(side) for side in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    start = np.maximum(start, np.concatenate([[0], end[:-1]]))
    _, inside = expand_ranges(start, np.maximum(end - start, 0))
    return inside


def uncopied(text: str, sources: Sources) -> Uncopied:
    """Cut a text after the first SNIPPET_CHARS copied characters of each source.

    The ellipsis counts. The work grows with the length of the text and with what it copies.
    """
    copies = sources.find_copies(text)
    dropped = np.zeros(len(text), dtype=bool)
    for copied in copies.values():
        if len(copied) > SNIPPET_CHARS:
            dropped[copied[SNIPPET_CHARS - 1 :]] = True
    used = {name: int((~dropped[copied]).sum()) for name, copied in copies.items()}
    return Uncopied(_without(text, dropped), {name: n for name, n in used.items() if n})


def _without(text: str, dropped: BoolArray) -> str:
    """Replace each dropped run by an ellipsis; combining marks stay with their letters."""
    borders = np.flatnonzero(np.diff(np.concatenate([[False], dropped, [False]]).astype(np.int8)))
    pieces: list[str] = []
    done = 0
    for start, end in zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True):
        cut, resumed = start, end
        while cut > done and is_joined(text[cut]):
            cut -= 1
        while resumed < len(text) and is_joined(text[resumed]):
            resumed += 1
        pieces += (text[done:cut].rstrip() if cut > done else "", ELLIPSIS)
        done = resumed
    return "".join(pieces) + text[done:]


# ---- Cited spans against gold spans


@dataclasses.dataclass(frozen=True)
class Spans:
    """Spans of documents that belong to questions; each field is int64 `[n]`.

    `query` and `doc` are codes from 0. A span of an unknown document (-1), or without end > start
    >= 0, overlaps nothing.
    """

    query: IntArray
    doc: IntArray
    start: IntArray
    end: IntArray

    def __len__(self) -> int:
        return len(self.query)

    @property
    def real(self) -> BoolArray:
        """Whether each span holds any text of a known document."""
        return (self.doc >= 0) & (self.start >= 0) & (self.end > self.start)

    def select(self, keep: BoolArray | IntArray) -> "Spans":
        """Return the spans at the places that are kept."""
        return Spans(self.query[keep], self.doc[keep], self.start[keep], self.end[keep])


def match_citations(
    cited: Spans, valid: BoolArray, gold: Spans, n_queries: int, owed: BoolArray
) -> tuple[BoolArray, pd.DataFrame]:
    """Match cited spans with the gold spans of the same question and document.

    A citation is correct if it is valid and overlaps a gold span by half of the shorter span. A
    fabricated, invalid or wrong citation counts in `n_cited` and `n_due`, never in `n_correct`.

    `cited` has every citation made, fabricated ones too, and `valid` [len(cited)] those with the
    code `ok`. `owed` [n_queries] is true for every answerable question, also if its answer failed
    or refused. Returns whether each citation is correct, and a row for each question: n_cited,
    n_valid, n_correct, n_due (citations made, or 1 where an owed citation is missing), n_gold,
    n_gold_matched.
    """
    of_cited, of_gold = np.flatnonzero(valid & cited.real), np.flatnonzero(gold.real)
    left, right = _pair(cited.select(of_cited), gold.select(of_gold))
    left, right = of_cited[left], of_gold[right]
    one, other = cited.select(left), gold.select(right)
    overlap = np.minimum(one.end, other.end) - np.maximum(one.start, other.start)
    shorter = np.minimum(one.end - one.start, other.end - other.start)
    enough = 2 * overlap >= shorter
    correct, matched = np.zeros(len(cited), dtype=bool), np.zeros(len(gold), dtype=bool)
    correct[left[enough]] = True
    matched[right[enough]] = True

    def count(query: IntArray) -> IntArray:
        return np.bincount(query, minlength=n_queries).astype(np.int64)

    n_cited = count(cited.query)
    counts = {
        "n_cited": n_cited,
        "n_valid": count(cited.query[valid]),
        "n_correct": count(cited.query[correct]),
        "n_due": np.maximum(n_cited, owed.astype(np.int64)),
        "n_gold": count(gold.query),
        "n_gold_matched": count(gold.query[matched]),
    }
    return correct, pd.DataFrame(counts)


@dataclasses.dataclass(frozen=True)
class Words:
    """Places of words in flat arrays; document d has the words `first[d]:first[d + 1]`."""

    start: IntArray
    end: IntArray
    first: IntArray

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Words":
        """Find the words that the analyzer counts; texts are in the order of document codes."""
        spans = [np.asarray(word_spans(text), dtype=np.int64).reshape(-1, 2) for text in texts]
        flat = np.concatenate([np.empty((0, 2), dtype=np.int64), *spans])
        first = np.cumsum([0, *(len(part) for part in spans)], dtype=np.int64)
        return cls(flat[:, 0], flat[:, 1], first)

    def ranges(self, spans: Spans) -> tuple[IntArray, IntArray]:
        """Return the words [low, high), in flat positions, that overlap each span."""
        widest = 2 + max(int(self.end.max(initial=0)), int(spans.end.max(initial=0)))
        doc = np.repeat(np.arange(len(self.first) - 1, dtype=np.int64), np.diff(self.first))
        starts, ends = spans.doc * widest + spans.start, spans.doc * widest + spans.end
        low = np.searchsorted(doc * widest + self.end, starts, side="right")
        high = np.searchsorted(doc * widest + self.start, ends, side="left")
        return low.astype(np.int64), np.maximum(low, high).astype(np.int64)


def coverage(
    cited: Spans, valid: BoolArray, gold: Spans, words: Words, n_queries: int
) -> FloatArray:
    """Return the share of the tokens of the gold spans that valid citations overlap, [n_queries].

    Each token counts once. 0 without a valid citation, NaN without a gold span that has a token.
    """
    covered = _unite(cited.select(valid & cited.real), words)
    wanted = _unite(gold.select(gold.real), words)
    left, right = _pair(covered, wanted)
    one, other = covered.select(left), wanted.select(right)
    overlap = np.minimum(one.end, other.end) - np.maximum(one.start, other.start)
    shared = np.bincount(other.query, weights=overlap, minlength=n_queries)
    whole = np.bincount(wanted.query, weights=wanted.end - wanted.start, minlength=n_queries)
    share = np.full(n_queries, np.nan)
    np.divide(shared, whole, out=share, where=whole > 0)
    return share


def _unite(spans: Spans, words: Words) -> Spans:
    """Unite the spans of each (question, document) into disjoint ranges of words."""
    low, high = words.ranges(spans)
    united = Spans(spans.query, spans.doc, low, high)
    united = united.select(high > low)
    if not len(united):
        return united
    united = united.select(np.lexsort((united.start, united.doc, united.query)))
    query, doc, low, high = united.query, united.doc, united.start, united.end
    group = np.cumsum(np.concatenate([[0], (np.diff(query) != 0) | (np.diff(doc) != 0)]))
    width = int(high.max()) + 1
    # Furthest end so far; the width keeps the ranges of different groups apart.
    reach = np.maximum.accumulate(group * width + high)
    opens = np.concatenate([[True], group[1:] * width + low[1:] > reach[:-1]])
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:], [len(low)]]) - 1
    return Spans(query[first], doc[first], low[first], reach[last] - group[last] * width)


def _pair(left: Spans, right: Spans) -> tuple[IntArray, IntArray]:
    """Return the places of every pair of overlapping spans of one question and one document."""
    documents = 1 + max(int(left.doc.max(initial=0)), int(right.doc.max(initial=0)))
    one, other = (
        Ranges(spans.query * documents + spans.doc, spans.start, spans.end)
        for spans in (left, right)
    )
    return find_overlaps(one, other)
