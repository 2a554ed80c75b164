"""Where the very words of queries stand in texts, and windows of words as such.

Belongs here: the exact search. The tolerant one is `near_wording`; what a window is good for is decided in `sightings`.

Cost: O(T D) for T words in the texts and D distinct lengths of queries, whatever the number of queries.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rag_eval.trust.token_stream import Ints, Streams, ragged

LEAST_WORDS = 4
EXACT = 2.0
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_SCRAMBLE = np.uint64(0xD6E8FEB86659FD93)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of words that say what a query says.

    Parameters
    ----------
    query, text
        `[n]` each.
    start, end
        `[n]` first word and one past the last, counted within the text.
    likeness
        `[n]` Jaccard resemblance of their terms; `EXACT` for the query's very words.
    """

    query: Ints
    text: Ints
    start: Ints
    end: Ints
    likeness: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, rows: "Ints | npt.NDArray[np.bool_]") -> "Windows":
        return Windows(
            self.query[rows], self.text[rows], self.start[rows], self.end[rows], self.likeness[rows]
        )


def joined(parts: Sequence[Windows]) -> Windows:
    """Put windows after one another."""
    query, text, start, end = (
        np.concatenate([np.zeros(0, dtype=np.int64), *(getattr(part, name) for part in parts)])
        for name in ("query", "text", "start", "end")
    )
    return Windows(
        query, text, start, end, np.concatenate([np.zeros(0), *(part.likeness for part in parts)])
    )


def exact(queries: Streams, texts: Streams) -> Windows:
    """Windows with the query's very words in their order, of queries of `LEAST_WORDS` words or more.

    Every window's hash is a difference of prefix sums modulo 2 ** 64; a hit is compared word by word, so that nobody gains by a collision.
    """
    values, scale = _prefix(texts.words)
    lengths = np.diff(queries.bounds)
    text_of = np.repeat(np.arange(len(texts.bounds) - 1), np.diff(texts.bounds))
    room = texts.bounds[1:][text_of] - np.arange(len(texts.words))
    found = []
    for length in np.unique(lengths[lengths >= LEAST_WORDS]).tolist():
        asked = np.flatnonzero(lengths == length)
        words = queries.words[queries.bounds[asked][:, None] + np.arange(length)]
        opens = np.zeros(max(int(words.max()), int(texts.words.max(initial=0))) + 1, dtype=bool)
        opens[words[:, 0]] = True
        at = np.flatnonzero(opens[texts.words] & (room >= length))
        keys = (_mixed(words) * _powers(_BASE, length)).sum(axis=1, dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        hashes = (values[at + length] - values[at]) * scale[at]
        low, high = (
            np.searchsorted(keys[order], hashes),
            np.searchsorted(keys[order], hashes, side="right"),
        )
        hit, place = ragged(low, high - low)
        same = (texts.words[at[hit][:, None] + np.arange(length)] == words[order[place]]).all(
            axis=1
        )
        begin, query = at[hit[same]], asked[order[place[same]]]
        text = text_of[begin]
        start = begin - texts.bounds[text]
        found.append(Windows(query, text, start, start + length, np.full(len(query), EXACT)))
    return joined(found)


def _mixed(words: Ints) -> npt.NDArray[np.uint64]:
    return (words.astype(np.uint64) + np.uint64(1)) * _SCRAMBLE


def _powers(base: np.uint64, count: int) -> npt.NDArray[np.uint64]:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _prefix(words: Ints) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    sums = np.zeros(len(words) + 1, dtype=np.uint64)
    np.cumsum(_mixed(words) * _powers(_BASE, len(words)), dtype=np.uint64, out=sums[1:])
    return sums, _powers(_INVERSE, len(words))
