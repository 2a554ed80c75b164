"""Number the words of texts, and find the words of queries in them: exactly or nearly."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, expand_ranges
from rag_eval.corpus.analyzer import Analyzer

_Hashes = npt.NDArray[np.uint64]

# ---- Words and terms

_BLOCK_CHARACTERS = 12_000_000
"""Most characters of texts that are searched together (two million words), to bound memory."""
_WORD = re.compile(r"[^\W_]+")
_STOPPED = -1


class Streams(NamedTuple):
    """The words and terms of several texts, one text after the other.

    Text i has words[bounds[i]:bounds[i + 1]] and terms[term_bounds[i]:term_bounds[i + 1]]. Terms
    are the stems of all words except stop words; `word_of` is the word of each term.
    """

    words: IntArray
    bounds: IntArray
    terms: IntArray
    term_bounds: IntArray
    word_of: IntArray


class Vocabulary:
    """Numbers words and terms in the order of first reading; case does not count."""

    def __init__(self) -> None:
        self._analyzer = Analyzer()
        self._spellings: dict[str, int] = {}
        self._lowered: dict[str, int] = {}
        self._term_of: list[int] = []

    @property
    def n_terms(self) -> int:
        """Number of known terms."""
        return len(self._analyzer.vocabulary)

    def _learn(self, spelling: str) -> int:
        number = self._lowered.setdefault(spelling.lower(), len(self._lowered))
        return self._spellings.setdefault(spelling, number)

    def term(self, word: str) -> int:
        """Return the term of a word in lower case, -1 for stop words and unknown words."""
        number = self._lowered.get(word, len(self._term_of))
        return self._term_of[number] if number < len(self._term_of) else _STOPPED

    def read(self, texts: Sequence[str]) -> Streams:
        """Read texts, in time linear in their length."""
        known, learn = self._spellings, self._learn
        rows = [
            [known[word] if word in known else learn(word) for word in _WORD.findall(text)]
            for text in texts
        ]
        bounds = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=bounds[1:])
        words = np.fromiter(itertools.chain.from_iterable(rows), np.int64, count=int(bounds[-1]))
        new = list(self._lowered)[len(self._term_of) :]
        # "s" is the rest of a possessive. In lower case, a word such as the Turkish dotted I can
        # fall into parts; the first one counts.
        self._term_of += [
            row[0] if row and word != "s" else _STOPPED
            for word, row in zip(new, self._analyzer.index(new), strict=True)
        ]
        terms = np.array(self._term_of, dtype=np.int64)[words]
        word_of = np.flatnonzero(terms != _STOPPED)
        return Streams(words, bounds, terms[word_of], np.searchsorted(word_of, bounds), word_of)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the characters of each word, in the order in which `Vocabulary.read` counts them."""
    return [match.span() for match in _WORD.finditer(text)]


def split_blocks(texts: Sequence[str]) -> Iterator[slice]:
    """Yield runs of texts of bounded size; no text is cut."""
    start = size = 0
    for at, text in enumerate(texts):
        if size and size + len(text) > _BLOCK_CHARACTERS:
            yield slice(start, at)
            start, size = at, 0
        size += len(text) + 1
    if len(texts) > start:
        yield slice(start, len(texts))


# ---- Windows with the exact words of a query

LEAST_WORDS = 4
EXACT = 2.0
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_SCRAMBLE = np.uint64(0xD6E8FEB86659FD93)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows [n] of words [start, end) of a text that resemble a query.

    Words are counted within the text. `likeness` is the Jaccard resemblance of the terms, or
    `EXACT` for the exact words of the query.
    """

    query: IntArray
    text: IntArray
    start: IntArray
    end: IntArray
    likeness: FloatArray


def join_windows(parts: Sequence[Windows]) -> Windows:
    """Concatenate windows."""
    none = np.zeros(0, dtype=np.int64)
    return Windows(
        np.concatenate([none, *(part.query for part in parts)]),
        np.concatenate([none, *(part.text for part in parts)]),
        np.concatenate([none, *(part.start for part in parts)]),
        np.concatenate([none, *(part.end for part in parts)]),
        np.concatenate([np.zeros(0), *(part.likeness for part in parts)]),
    )


def find_exact(queries: Streams, texts: Streams) -> Windows:
    """Find the exact words, in order, of queries of `LEAST_WORDS` words or more.

    The hash of a window is a difference of prefix sums modulo 2 ** 64. Hits are compared word by
    word, so that a collision does no harm.
    """
    sums = np.zeros(len(texts.words) + 1, dtype=np.uint64)
    powers = _list_powers(_BASE, len(texts.words))
    np.cumsum(_mix(texts.words) * powers, dtype=np.uint64, out=sums[1:])
    scale = _list_powers(_INVERSE, len(texts.words))
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
        keys = (_mix(words) * _list_powers(_BASE, length)).sum(axis=1, dtype=np.uint64)
        order = np.argsort(keys, kind="stable")
        hashes = (sums[at + length] - sums[at]) * scale[at]
        low = np.searchsorted(keys[order], hashes)
        high = np.searchsorted(keys[order], hashes, side="right")
        hit, place = expand_ranges(low, high - low)
        there = texts.words[at[hit][:, None] + np.arange(length)]
        same = (there == words[order[place]]).all(axis=1)
        begin, query = at[hit[same]], asked[order[place[same]]]
        text = text_of[begin]
        start = begin - texts.bounds[text]
        found.append(Windows(query, text, start, start + length, np.full(len(query), EXACT)))
    return join_windows(found)


def _mix(words: IntArray) -> _Hashes:
    return (words.astype(np.uint64) + np.uint64(1)) * _SCRAMBLE


def _list_powers(base: np.uint64, count: int) -> _Hashes:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


# ---- Windows of terms that resemble the terms of a query

LEAST_TERMS = 5
RESEMBLANCE = 0.8
_TOLERANCE = 1e-9
_TOGETHER = 2_000_000
"""Most postings or words that are expanded together, to bound the memory."""


class _Candidates(NamedTuple):
    """All terms of candidate texts: pair, place in the stream, query, whether the query has it."""

    pair: IntArray
    at: IntArray
    query: IntArray
    matched: BoolArray


class NearWording:
    """Finds windows whose terms resemble those of a query.

    `must` [n_queries] is a term that a window must hold, -1 for none. `wanted` [n_queries] marks
    the queries to find; queries of fewer than `LEAST_TERMS` distinct terms are never found.
    """

    def __init__(self, queries: Streams, n_terms: int, must: IntArray, wanted: BoolArray) -> None:
        n_queries = len(queries.term_bounds) - 1
        row = np.repeat(np.arange(n_queries), np.diff(queries.term_bounds))
        self._n_terms = n_terms + 1  # one further number for all terms that no query has
        self._keys = np.unique(row * self._n_terms + queries.terms)  # distinct terms, by query
        self._query, self._term = np.divmod(self._keys, self._n_terms)
        self._count = np.bincount(self._query, minlength=n_queries)
        self._first = np.cumsum(self._count) - self._count
        self._need = np.ceil(RESEMBLANCE * self._count - _TOLERANCE).astype(np.int64)
        self._must = must
        self._wanted = wanted & (self._count >= LEAST_TERMS)

    def find(self, texts: Streams) -> Windows:
        """Find windows whose Jaccard resemblance with a query's terms is `RESEMBLANCE` or more."""
        found: list[Windows] = []
        for query, text in self._find_pairs(texts):
            lengths = np.diff(texts.term_bounds)[text]
            found += [self._slide(query[part], text[part], texts) for part in _split(lengths)]
        return join_windows(found)

    def _find_pairs(self, texts: Streams) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield each pair of query and text that shares as many terms as a window needs.

        This is prefix filtering (Chaudhuri, Ganti & Kaushik, ICDE 2006). A text with `need` of the
        `count` terms of a query has at least one of the `count - need + 1` rarest terms.
        """
        n_texts = len(texts.term_bounds) - 1
        text_of = np.repeat(np.arange(n_texts), np.diff(texts.term_bounds))
        known = texts.terms < self._n_terms - 1
        held = np.unique(texts.terms[known] * n_texts + text_of[known])  # by term, then text
        if not len(held):
            return
        postings = np.searchsorted(held, np.arange(self._n_terms + 1) * n_texts)
        frequency = np.diff(postings)
        order = np.lexsort((frequency[self._term], self._query))
        rank = np.arange(len(order)) - self._first[self._query]
        kept = (rank <= (self._count - self._need)[self._query]) & self._wanted[self._query]
        query, term = self._query[kept], self._term[order][kept]
        work = np.bincount(query, weights=frequency[term], minlength=len(self._count))
        # split between queries, so that no pair is found twice
        for part in _split(work.astype(np.int64)):
            low, high = np.searchsorted(query, [part.start, part.stop])
            entry, place = expand_ranges(postings[:-1][term[low:high]], frequency[term[low:high]])
            keys = np.unique(query[low:high][entry] * n_texts + held[place] % n_texts)
            asked, text = np.divmod(keys, n_texts)
            pair, which = expand_ranges(self._first[asked], self._count[asked])
            matched = _is_among(self._term[which] * n_texts + text[pair], held)
            shared = np.bincount(pair, weights=matched, minlength=len(keys))
            enough = shared >= self._need[asked]
            yield asked[enough], text[enough]

    def _slide(self, query: IntArray, text: IntArray, texts: Streams) -> Windows:
        """Slide windows of every width that can reach `RESEMBLANCE` over the texts of pairs."""
        first, last = texts.term_bounds[:-1][text], texts.term_bounds[1:][text]
        pair, at = expand_ranges(first, last - first)
        asked = query[pair]
        terms = np.minimum(texts.terms[at], self._n_terms - 1)
        matched = _is_among(asked * self._n_terms + terms, self._keys)
        words = _Candidates(pair, at, asked, matched)
        sums = np.concatenate([[0], np.cumsum(matched)])
        count, need, room = self._count[asked], self._need[asked], last[pair] - at
        widest = np.floor(count / RESEMBLANCE + _TOLERANCE).astype(np.int64)
        found = []
        for extra in range(int((widest - need).max(initial=-1)) + 1):
            width = need + extra
            # A window begins with a term of the query.
            begin = np.flatnonzero((width <= widest) & (width <= room) & matched)
            # An upper bound, because repeated terms count repeatedly.
            shared = sums[begin + width[begin]] - sums[begin]
            least = RESEMBLANCE * (count + width)[begin] - _TOLERANCE
            begin = begin[shared * (1 + RESEMBLANCE) >= least]
            likeness = self._compare(begin, width[begin], words, texts)
            good = likeness >= RESEMBLANCE - _TOLERANCE
            begin, likeness = begin[good], likeness[good]
            origin = texts.bounds[text[pair[begin]]]
            start = texts.word_of[at[begin]] - origin
            end = texts.word_of[at[begin] + width[begin] - 1] + 1 - origin
            found.append(Windows(asked[begin], text[pair[begin]], start, end, likeness))
        return join_windows(found)

    def _compare(
        self, begin: IntArray, width: IntArray, words: _Candidates, texts: Streams
    ) -> FloatArray:
        """Return the Jaccard resemblance of windows; 0 for a window without the required term."""
        columns = np.arange(int(width.max(initial=0)))
        likeness = np.zeros(len(begin))
        step = max(1, _TOGETHER // max(len(columns), 1))
        for low in range(0, len(begin), step):
            rows = slice(low, low + step)
            places = np.minimum(begin[rows, None] + columns, len(words.at) - 1)
            within = columns < width[rows, None]
            window = np.where(within, texts.terms[words.at[places]], -1)
            order = np.argsort(window, axis=1, kind="stable")
            ranked = np.take_along_axis(window, order, axis=1)
            fresh = ranked >= 0
            fresh[:, 1:] &= ranked[:, 1:] != ranked[:, :-1]
            matched = np.take_along_axis(words.matched[places] & within, order, axis=1)
            shared = (fresh & matched).sum(axis=1)
            query = words.query[begin[rows]]
            must = self._must[query]
            holds = (must < 0) | (window == must[:, None]).any(axis=1)
            union = self._count[query] + fresh.sum(axis=1) - shared
            likeness[rows] = np.where(holds, shared / union, 0.0)
        return likeness


def _is_among(values: IntArray, held: IntArray) -> BoolArray:
    """Tell which values are in a sorted list, which must not be empty."""
    found: BoolArray = held[np.minimum(np.searchsorted(held, values), len(held) - 1)] == values
    return found


def _split(sizes: IntArray) -> list[slice]:
    """Return slices of a list whose sizes add up to about `_TOGETHER` each."""
    if not len(sizes):
        return []
    edges = np.flatnonzero(np.diff(np.cumsum(sizes) // _TOGETHER)) + 1
    return [slice(low, high) for low, high in itertools.pairwise([0, *edges.tolist(), len(sizes)])]
