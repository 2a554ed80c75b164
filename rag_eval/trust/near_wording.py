"""Where nearly the words of queries stand in texts: windows of terms that resemble a query's terms.

Belongs here: the tolerant search. Case, punctuation, stop words and endings count for nothing, a word more or less does not hide a query.

Cost: the sum over queries of the document frequencies of their rarest terms (two of a query of five to nine terms), and the words of
those texts that hold four fifths of a query's terms. Nothing is computed for every pair of query and text.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.trust.token_stream import Ints, Streams, ragged
from rag_eval.trust.wording import Windows, joined

Bools = npt.NDArray[np.bool_]

LEAST_TERMS = 5
RESEMBLANCE = 0.8
_TOLERANCE = 1e-9
_TOGETHER = 2_000_000
"""Postings, or words of candidate texts, that are expanded together."""


class _Words(NamedTuple):
    """Every term of every candidate pair's text: its pair, its place in the texts' terms, its query, whether the query has it."""

    pair: Ints
    at: Ints
    query: Ints
    matched: Bools


class NearWording:
    """The queries to look for.

    Parameters
    ----------
    queries
        Their streams.
    n_terms
        How many terms the vocabulary has after reading them; texts may have more.
    must
        `[n_queries]` a term that a window must hold (the question word), -1 for none.
    wanted
        bool `[n_queries]`: which of them to look for; those of fewer than `LEAST_TERMS` distinct terms are never found.
    """

    def __init__(self, queries: Streams, n_terms: int, must: Ints, wanted: Bools) -> None:
        n_queries = len(queries.term_bounds) - 1
        row = np.repeat(np.arange(n_queries), np.diff(queries.term_bounds))
        self._n_terms = n_terms + 1  # one more: all terms that no query has
        self._keys = np.unique(
            row * self._n_terms + queries.terms
        )  # the distinct terms of each query, by query
        self._query, self._term = self._keys // self._n_terms, self._keys % self._n_terms
        self._count = np.bincount(self._query, minlength=n_queries)
        self._first = np.cumsum(self._count) - self._count
        self._need = np.ceil(RESEMBLANCE * self._count - _TOLERANCE).astype(np.int64)
        self._must = must
        self._wanted = wanted & (self._count >= LEAST_TERMS)

    def windows(self, texts: Streams) -> Windows:
        """Find windows whose Jaccard resemblance with a query's terms is `RESEMBLANCE` or more."""
        found: list[Windows] = []
        for query, text in self._candidates(texts):
            lengths = np.diff(texts.term_bounds)[text]
            found += [self._look(query[part], text[part], texts) for part in _runs(lengths)]
        return joined(found)

    def _candidates(self, texts: Streams) -> Iterator[tuple[Ints, Ints]]:
        """Pairs of query and text that share as many terms as a window needs, each once.

        By prefix filtering (Chaudhuri, Ganti & Kaushik, ICDE 2006): a text with `need` of a query's `count` terms has at least one of its
        `count - need + 1` rarest.
        """
        n_texts = len(texts.term_bounds) - 1
        text_of = np.repeat(np.arange(n_texts), np.diff(texts.term_bounds))
        known = texts.terms < self._n_terms - 1
        held = np.unique(texts.terms[known] * n_texts + text_of[known])  # sorted by term, then text
        if not len(held):
            return
        postings = np.searchsorted(held, np.arange(self._n_terms + 1) * n_texts)
        frequency = np.diff(postings)
        order = np.lexsort((frequency[self._term], self._query))
        rank = np.arange(len(order)) - self._first[self._query]
        kept = (rank <= (self._count - self._need)[self._query]) & self._wanted[self._query]
        query, term = self._query[kept], self._term[order][kept]
        work = np.bincount(query, weights=frequency[term], minlength=len(self._count)).astype(
            np.int64
        )
        for part in _runs(work):  # whole queries, so that no pair is found twice
            low, high = np.searchsorted(query, [part.start, part.stop])
            entry, place = ragged(postings[:-1][term[low:high]], frequency[term[low:high]])
            keys = np.unique(query[low:high][entry] * n_texts + held[place] % n_texts)
            asked, text = keys // n_texts, keys % n_texts
            pair, which = ragged(self._first[asked], self._count[asked])
            shared = np.bincount(
                pair,
                weights=_among(self._term[which] * n_texts + text[pair], held),
                minlength=len(keys),
            )
            enough = shared >= self._need[asked]
            yield asked[enough], text[enough]

    def _look(self, query: Ints, text: Ints, texts: Streams) -> Windows:
        """Slide windows of every width that can be like enough over the texts of candidate pairs."""
        first, last = texts.term_bounds[:-1][text], texts.term_bounds[1:][text]
        pair, at = ragged(first, last - first)
        asked = query[pair]
        matched = _among(
            asked * self._n_terms + np.minimum(texts.terms[at], self._n_terms - 1), self._keys
        )
        words = _Words(pair, at, asked, matched)
        sums = np.concatenate([[0], np.cumsum(matched)])
        count, need, room = self._count[asked], self._need[asked], last[pair] - at
        widest = np.floor(count / RESEMBLANCE + _TOLERANCE).astype(np.int64)
        found = []
        for extra in range(int((widest - need).max(initial=-1)) + 1):
            width = need + extra
            begin = np.flatnonzero(
                (width <= widest) & (width <= room) & matched
            )  # a window begins with a term of the query
            shared = (
                sums[begin + width[begin]] - sums[begin]
            )  # repeated terms counted repeatedly: an upper bound
            begin = begin[
                shared * (1 + RESEMBLANCE) >= RESEMBLANCE * (count + width)[begin] - _TOLERANCE
            ]
            likeness = self._likeness(begin, width[begin], words, texts)
            good = likeness >= RESEMBLANCE - _TOLERANCE
            begin, likeness = begin[good], likeness[good]
            origin = texts.bounds[text[pair[begin]]]
            end = texts.word_of[at[begin] + width[begin] - 1] + 1 - origin
            found.append(
                Windows(
                    asked[begin],
                    text[pair[begin]],
                    texts.word_of[at[begin]] - origin,
                    end,
                    likeness,
                )
            )
        return joined(found)

    def _likeness(
        self, begin: Ints, width: Ints, words: _Words, texts: Streams
    ) -> npt.NDArray[np.float64]:
        """Jaccard resemblance of windows, each term counted once; 0 where a window lacks the term that it must hold."""
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
            shared = (
                fresh & np.take_along_axis(words.matched[places] & within, order, axis=1)
            ).sum(axis=1)
            query = words.query[begin[rows]]
            must = self._must[query][:, None]
            holds = (must[:, 0] < 0) | (window == must).any(axis=1)
            likeness[rows] = np.where(
                holds, shared / (self._count[query] + fresh.sum(axis=1) - shared), 0.0
            )
        return likeness


def _among(values: Ints, held: Ints) -> Bools:
    """Which values are in a sorted list that is not empty."""
    found: Bools = held[np.minimum(np.searchsorted(held, values), len(held) - 1)] == values
    return found


def _runs(sizes: Ints) -> list[slice]:
    """Parts of a list whose sizes add up to about `_TOGETHER` each."""
    if not len(sizes):
        return []
    edges = np.flatnonzero(np.diff(np.cumsum(sizes) // _TOGETHER)) + 1
    return [slice(low, high) for low, high in itertools.pairwise([0, *edges.tolist(), len(sizes)])]
