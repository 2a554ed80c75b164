"""Where the wording of a query stands in texts, word for word or nearly so.

Belongs here: the search for windows of words. What a window is good for is decided in `restating`.

Cost: with T words in the texts, D distinct query lengths, and P candidate pairs, O(T D) for the exact search and, for the near one, the
sum over queries of the document frequencies of their rarest terms (two of a query of five to nine) plus the words of the P
texts that hold four fifths of a query's terms. Nothing is computed for every pair of query and text.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rag_eval.trust.token_stream import Ints, Streams, ragged

LEAST_WORDS = 4
LEAST_TERMS = 5
RESEMBLANCE = 0.8
_PAIRS = 2_000_000
"""Postings, or words of candidate texts, that are expanded together."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_SCRAMBLE = np.uint64(0xD6E8FEB86659FD93)


class Windows(NamedTuple):
    """Windows that say what a query says: query, text, first word and one past the last (within the text), resemblance; exact ones 2."""

    query: Ints
    text: Ints
    start: Ints
    end: Ints
    likeness: npt.NDArray[np.float64]


def joined(parts: list[Windows]) -> Windows:
    """Put windows after one another."""
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return Windows(nothing, nothing, nothing, nothing, np.zeros(0))
    return Windows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


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
        low, high = np.searchsorted(keys[order], hashes), np.searchsorted(keys[order], hashes, side="right")
        hit, place = ragged(low, high - low)
        same = (texts.words[at[hit][:, None] + np.arange(length)] == words[order[place]]).all(axis=1)
        begin, query = at[hit[same]], asked[order[place[same]]]
        text = text_of[begin]
        start = begin - texts.bounds[text]
        found.append(Windows(query, text, start, start + length, np.full(len(query), 2.0)))
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


class _Queries(NamedTuple):
    """Distinct terms of each query: `terms[bounds[i]:bounds[i + 1]]`, and how many of them a window must have."""

    terms: Ints
    bounds: Ints
    count: Ints
    need: Ints


def _distinct(queries: Streams, n_terms: int) -> _Queries:
    row = np.repeat(np.arange(len(queries.term_bounds) - 1), np.diff(queries.term_bounds))
    keys = np.unique(row * n_terms + queries.terms)
    bounds = np.searchsorted(keys, np.arange(len(queries.term_bounds)) * n_terms)
    count = np.diff(bounds)
    return _Queries(keys % n_terms, bounds, count, np.ceil(RESEMBLANCE * count - 1e-9).astype(np.int64))


def near(queries: Streams, texts: Streams, n_terms: int, must: Ints, wanted: npt.NDArray[np.bool_]) -> Windows:
    """Windows of terms whose Jaccard resemblance with the query's terms is `RESEMBLANCE` or more; queries of `LEAST_TERMS` terms or more.

    Parameters
    ----------
    queries, texts
        Streams of one vocabulary.
    n_terms
        Its number of terms.
    must
        `[n_queries]` a term that a window must hold (the question word), -1 for none.
    wanted
        bool `[n_queries]`: the queries to look for.

    Notes
    -----
    Candidates come by prefix filtering (Chaudhuri, Ganti & Kaushik, ICDE 2006): a text with `need` of a query's `count` terms has at
    least one of its `count - need + 1` rarest.
    """
    if not len(texts.terms):
        return joined([])
    its = _distinct(queries, n_terms)
    text_of = np.repeat(np.arange(len(texts.term_bounds) - 1), np.diff(texts.term_bounds))
    held = np.unique(texts.terms * len(texts.term_bounds) + text_of)  # sorted by term, then text
    posting_of, holder = held // len(texts.term_bounds), held % len(texts.term_bounds)
    postings = np.searchsorted(posting_of, np.arange(n_terms + 1))
    frequency = np.diff(postings)

    query_of = np.repeat(np.arange(len(its.count)), its.count)
    order = np.lexsort((frequency[its.terms], query_of))
    rank = np.arange(len(order)) - its.bounds[query_of]
    kept = (rank <= (its.count - its.need)[query_of]) & (wanted & (its.count >= LEAST_TERMS))[query_of]
    query, term = query_of[kept], its.terms[order][kept]
    found = []
    for part in _runs(frequency[term]):
        entry, place = ragged(postings[:-1][term[part]], frequency[term[part]])
        keys = np.unique(query[part][entry] * len(texts.term_bounds) + holder[place])
        asked, text = keys // len(texts.term_bounds), keys % len(texts.term_bounds)
        pair, which = ragged(its.bounds[asked], its.count[asked])
        wanted = its.terms[which] * len(texts.term_bounds) + text[pair]
        spot = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
        enough = np.bincount(pair, weights=held[spot] == wanted, minlength=len(keys)) >= its.need[asked]
        found.append(_windows(asked[enough], text[enough], its, texts, n_terms, must))
    # a query's terms may fall into two runs, which find the same windows twice
    windows = joined(found)
    _, first = np.unique(np.stack(windows[:4]), axis=1, return_index=True)
    return Windows(*(column[first] for column in windows))


def _runs(sizes: Ints) -> list[slice]:
    """Parts of a list whose sizes add up to about `_PAIRS` each."""
    if not len(sizes):
        return []
    number = np.cumsum(sizes) // _PAIRS
    edges = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(sizes)]
    return [slice(low, high) for low, high in zip(edges[:-1], edges[1:], strict=True)]


def _windows(asked: Ints, text: Ints, its: _Queries, texts: Streams, n_terms: int, must: Ints) -> Windows:
    """Look through candidate pairs for their windows."""
    lengths = np.diff(texts.term_bounds)[text]
    members = np.repeat(np.arange(len(its.count)), its.count) * n_terms + its.terms
    found = [_look(asked[part], text[part], members, its, texts, n_terms, must) for part in _runs(lengths)]
    return joined(found)


def _look(asked: Ints, text: Ints, members: Ints, its: _Queries, texts: Streams, n_terms: int, must: Ints) -> Windows:
    first, last = texts.term_bounds[:-1][text], texts.term_bounds[1:][text]
    pair, at = ragged(first, last - first)
    wanted = asked[pair] * n_terms + texts.terms[at]
    spot = np.minimum(np.searchsorted(members, wanted), len(members) - 1)
    matched = members[spot] == wanted
    sums = np.concatenate([[0], np.cumsum(matched)])
    count, need = its.count[asked[pair]], its.need[asked[pair]]
    widest = np.floor(count / RESEMBLANCE + 1e-9).astype(np.int64)
    position = np.arange(len(at))
    room = last[pair] - at
    found = []
    for extra in range(int((widest - need).max(initial=-1)) + 1):
        width = need + extra
        inside = np.flatnonzero((width <= widest) & (width <= room) & matched)  # a window begins with a word of the query
        hits = sums[position[inside] + width[inside]] - sums[inside]
        inside = inside[hits >= RESEMBLANCE / (1 + RESEMBLANCE) * (count[inside] + width[inside]) - 1e-9]
        likeness, holds = _likeness(inside, width[inside], pair, at, matched, texts.terms, count, must[asked[pair[inside]]])
        good = (likeness >= RESEMBLANCE - 1e-9) & holds
        inside, likeness = inside[good], likeness[good]
        start = texts.word_of[at[inside]] - texts.bounds[text[pair[inside]]]
        end = texts.word_of[at[inside] + width[inside] - 1] + 1 - texts.bounds[text[pair[inside]]]
        found.append(Windows(asked[pair[inside]], text[pair[inside]], start, end, likeness))
    return joined(found)


def _likeness(
    inside: Ints, width: Ints, pair: Ints, at: Ints, matched: npt.NDArray[np.bool_], terms: Ints, count: Ints, must: Ints
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Jaccard resemblance of windows, each term counted once, and whether they hold the term they must."""
    columns = np.arange(int(width.max(initial=0)))
    likeness, holds = np.zeros(len(inside)), np.zeros(len(inside), dtype=bool)
    step = max(1, _PAIRS // max(len(columns), 1))
    for low in range(0, len(inside), step):
        rows = slice(low, low + step)
        places = np.minimum(inside[rows, None] + columns, len(pair) - 1)
        within = columns < width[rows, None]
        window = np.where(within, terms[at[places]], -1)
        order = np.argsort(window, axis=1, kind="stable")
        ranked = np.take_along_axis(window, order, axis=1)
        fresh = (ranked >= 0) & np.concatenate([np.ones((len(ranked), 1), dtype=bool), ranked[:, 1:] != ranked[:, :-1]], axis=1)
        shared = (fresh & np.take_along_axis(matched[places] & within, order, axis=1)).sum(axis=1)
        likeness[rows] = shared / (count[inside[rows]] + fresh.sum(axis=1) - shared)
        holds[rows] = (must[rows] < 0) | (window == must[rows, None]).any(axis=1)
    return likeness, holds
