"""Signals of a miss: cheap figures of a ranked list, vectorised over a batch of questions.

A signal is never a confidence. `signals` computes all signals.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import (
    BoolArray,
    Float32Array,
    FloatArray,
    Int32Array,
    IntArray,
    expand_ranges,
)
from rag_eval.corpus.analyzer import count_matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# ---- The terms of the corpus.

K1, B = 0.9, 0.4
"""Parameters of BM25 in lexical scores; the parameters of a strategy do not change them."""


class TermSpace:
    """Terms of the corpus: counts of every chunk, idf, and the weights that signals need.

    `chunk_terms` are the term ids of each chunk, with every repetition. A query term at or above
    `n_terms` is unknown. Weights are computed once, so that live queries are fast.
    """

    def __init__(self, chunk_terms: Sequence[Sequence[int]], n_terms: int) -> None:
        self.n_chunks, self.n_terms = len(chunk_terms), n_terms
        self.counts = self.queries(chunk_terms)
        """Count of each term in each chunk, float32 [n_chunks, n_terms], with sorted indices."""
        frequency = np.bincount(self.counts.indices, minlength=n_terms).astype(np.float64)
        self.frequency: FloatArray = frequency
        """Number of chunks that hold each term, [n_terms]."""
        self.idf: FloatArray = np.log1p((self.n_chunks - frequency + 0.5) / (frequency + 0.5))
        """Idf of each term, [n_terms]: ln(1 + (N - df + 0.5) / (df + 0.5)), as in Lucene's BM25."""
        self.nowhere = float(np.log1p((self.n_chunks + 0.5) / 0.5))
        """Idf of a term that no chunk holds; the weight of an unknown term."""

    def queries(self, terms: Sequence[Sequence[int]]) -> "csr_array":
        """Count the known terms of queries, float32 [n, n_terms]."""
        from scipy.sparse import csr_array

        counts, indices, starts = count_matrix(terms, self.n_terms)
        shape = len(terms), self.n_terms
        return csr_array((counts.astype(np.float32), indices, starts), shape=shape)

    @functools.cached_property
    def by_term(self) -> "csr_array":
        """Transpose of `counts`, float32 [n_terms, n_chunks]."""
        transposed: csr_array = self.counts.T.tocsr()
        return transposed

    @functools.cached_property
    def _lengths(self) -> FloatArray:
        return np.asarray(self.counts.sum(axis=1, dtype=np.float64)).ravel()

    @functools.cached_property
    def share(self) -> "csr_array":
        """Share of each term in the terms of a chunk, float32 [n_chunks, n_terms]."""
        return _scale_rows(self.counts, self.counts.data, self._lengths)

    @functools.cached_property
    def unit(self) -> "csr_array":
        """(1 + ln tf) * idf, scaled to rows of unit norm or zero, float32 [n_chunks, n_terms]."""
        weighted = (1 + np.log(self.counts.data)) * self.idf[self.counts.indices]
        norm = np.bincount(_row_of(self.counts), weights=weighted**2, minlength=self.n_chunks)
        return _scale_rows(self.counts, weighted, np.sqrt(norm))

    @functools.cached_property
    def probability(self) -> FloatArray:
        """Share of each term in all terms of the corpus, [n_terms]."""
        total = np.bincount(
            self.counts.indices, weights=self.counts.data, minlength=self.n_terms
        ).astype(np.float64)
        return total / max(float(total.sum()), 1.0)

    @functools.cached_property
    def slow(self) -> Float32Array:
        """Compute k1 (1 - b + b length / mean length) of each chunk, [n_chunks + 1].

        The last value is for a chunk of -1. BM25's weight of a term is tf / (tf + slow).
        """
        mean = max(float(self._lengths.mean()) if self.n_chunks else 0.0, 1e-9)
        slow: Float32Array = (K1 * (1 - B + B * np.append(self._lengths, mean) / mean)).astype(
            np.float32
        )
        return slow

    @functools.cached_property
    def _short_counts(self) -> npt.NDArray[np.uint16]:
        most = np.iinfo(np.uint16).max
        return np.asarray(np.minimum(self.by_term.data, most), dtype=np.uint16)

    def frequencies(self, terms: IntArray, chunks: Int32Array) -> npt.NDArray[np.uint16]:
        """Count how often chunks [m, j] hold terms [m], at most 65,535, [m, j].

        The postings of the distinct terms are spread over a dense table, because look-ups in the
        table are fast. A chunk of -1 holds no terms.
        """
        distinct, row = np.unique(terms, return_inverse=True)
        starts = self.by_term.indptr.astype(np.int64)
        owner, posting = expand_ranges(starts[distinct], np.diff(starts)[distinct])
        width = self.n_chunks + 1  # the last column is for chunks of -1
        table = np.zeros((len(distinct), width), dtype=np.uint16)
        table[owner, self.by_term.indices[posting]] = self._short_counts[posting]
        found: npt.NDArray[np.uint16] = table[row[:, None], chunks]
        return found


def _row_of(matrix: "csr_array") -> IntArray:
    """Return the row of each stored value of a matrix."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _scale_rows(matrix: "csr_array", data: npt.NDArray[Any], norm: FloatArray) -> "csr_array":
    """Divide values at the places of a matrix by the norm of their row, float32."""
    from scipy.sparse import csr_array

    scaled = (data / norm[_row_of(matrix)]).astype(np.float32)
    return csr_array((scaled, matrix.indices, matrix.indptr), shape=matrix.shape)


# ---- A batch of ranked lists, and its look-ups.


@dataclasses.dataclass(frozen=True)
class RankedBatch:
    """Ranked lists of n queries by one strategy, with other facts about the queries.

    `rows` [n, depth] are chunk rows, best first, -1 after the end of a list. `raw` and `norm`
    [n, depth] are the engine's own scores and scores in [0, 1], 0 where rows is -1. `raw` is a
    cosine similarity if `cosine`, else unbounded. `query_terms` are the term ids of each wording,
    with every repetition. `other_rows` and `other_raw` [n, other_depth] are the lists of a second
    retriever. Vectors [n, d] and [n_chunks, d] have unit norm or are zero. `question` [n] is the
    code of a wording's question. `document` [n_chunks] is the code of each chunk's document, from
    0 without gaps.
    """

    rows: Int32Array
    raw: FloatArray
    norm: FloatArray
    cosine: bool
    space: TermSpace
    query_terms: Sequence[Sequence[int]]
    other_rows: Int32Array | None = None
    other_raw: FloatArray | None = None
    query_vectors: Float32Array | None = None
    chunk_vectors: Float32Array | None = None
    question: IntArray | None = None
    document: IntArray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def known(self) -> "csr_array":
        """Counts of known query terms, float32 [n, n_terms]."""
        return self.space.queries(self.query_terms)


POOL = 30
"""Least number of ranks of each list whose chunks both engines score."""
CUTOFFS = 3
"""Least number of these ranks as a multiple of K; at K = 10, 100 ranks were no better than 30."""
GATHERED_BYTES = 2**21
"""Bytes of chunk vectors in one block; blocks that fit a cache are three times as fast."""


class Evidence:
    """A block of queries with its look-ups; `centre` [d] is the mean of the chunk vectors.

    `rows` and `other` are the lists of the strategy and of the second retriever, int32 [n, at most
    pool]. `query` and `term` name each distinct term of each query, unknown terms too, [m] each.
    `idf` [m] is that of a term in no chunk where the term is unknown. `idf_sum` [n] is NaN for a
    query without terms.
    """

    def __init__(self, batch: RankedBatch, k: int, centre: Float32Array | None) -> None:
        self.batch, self.k, self.centre = batch, k, centre
        self.n, self.space, self.pool = len(batch), batch.space, max(POOL, CUTOFFS * k)
        self.rows = batch.rows[:, : self.pool]
        other = batch.rows[:, :0] if batch.other_rows is None else batch.other_rows
        self.other = other[:, : self.pool]
        self.length = np.array([len(row) for row in batch.query_terms], dtype=np.int64)
        flat = np.array(list(itertools.chain.from_iterable(batch.query_terms)), dtype=np.int64)
        width = int(flat.max(initial=0)) + 1
        distinct = np.unique(np.repeat(np.arange(self.n), self.length) * width + flat)
        self.query, self.term = distinct // width, distinct % width
        self.known: BoolArray = np.asarray(self.term < self.space.n_terms)
        self.idf: FloatArray = np.full(len(self.known), self.space.nowhere)
        self.idf[self.known] = self.space.idf[self.term[self.known]]
        total = self.per_query(self.idf)
        self.idf_sum: FloatArray = np.where(total > 0, total, np.nan)

    def per_query(self, values: FloatArray | Float32Array) -> FloatArray:
        """Sum over the terms of each query: [m] gives [n], [m, j] gives [n, j]."""
        if values.ndim == 1:
            return np.bincount(self.query, weights=values, minlength=self.n).astype(np.float64)
        summed = np.zeros((self.n, values.shape[1]))
        if len(self.query):
            has, first = np.unique(self.query, return_index=True)
            summed[has] = np.add.reduceat(values, first, axis=0)
        return summed

    @functools.cached_property
    def frequencies(self) -> Float32Array:
        """Number of times that each chunk of `rows` holds a query's term, [m, j]."""
        return self._frequencies(self.rows)

    @functools.cached_property
    def listed(self) -> tuple[FloatArray, FloatArray]:
        """Lexical score and cosine of the chunks of `rows`, [n, j] each."""
        raw = np.where(self.rows >= 0, self.batch.raw[:, : self.pool], np.nan)
        cosine = raw if self.batch.cosine else self._cosine(self.rows)
        return self._lexical(self.rows, self.frequencies), cosine

    @functools.cached_property
    def other_listed(self) -> tuple[FloatArray, FloatArray]:
        """Lexical score and cosine of the chunks of `other`, [n, j] each."""
        return self._lexical(self.other, self._frequencies(self.other)), self._cosine(self.other)

    def _frequencies(self, rows: Int32Array) -> Float32Array:
        found = np.zeros((len(self.query), rows.shape[1]), dtype=np.float32)
        known = self.known
        found[known] = self.space.frequencies(self.term[known], rows[self.query[known]])
        return found

    def _lexical(self, rows: Int32Array, frequencies: Float32Array) -> FloatArray:
        """Compute BM25 of each chunk divided by the query's summed idf, in [0, 1), [n, j]."""
        weights = frequencies / (frequencies + self.space.slow[rows][self.query])
        return self.shares(weights, rows)

    def shares(self, weights: Float32Array, rows: Int32Array) -> FloatArray:
        """Sum weight x idf over the terms of each query, divided by their summed idf, [n, j].

        NaN for an empty place, and for a query without terms.
        """
        share = (self.idf / self.idf_sum[self.query]).astype(np.float32)
        summed = self.per_query(weights * share[:, None])
        return np.where((rows >= 0) & ~np.isnan(self.idf_sum)[:, None], summed, np.nan)

    def _cosine(self, rows: Int32Array) -> FloatArray:
        """Compute the cosine of query and chunk, [n, j]; NaN without a chunk or a vector."""
        queries, chunks = self.batch.query_vectors, self.batch.chunk_vectors
        if queries is None or chunks is None or not len(chunks):
            return np.full(rows.shape, np.nan)
        found = np.empty(rows.shape)
        step = max(1, GATHERED_BYTES // (4 * max(rows.shape[1] * chunks.shape[1], 1)))
        for start in range(0, self.n, step):
            block = slice(start, start + step)
            near = chunks[np.maximum(rows[block], 0)]
            found[block] = np.einsum("nd,njd->nj", queries[block], near)
        asked: BoolArray = np.asarray(queries.any(axis=1))
        return np.where((rows >= 0) & asked[:, None], found, np.nan)


# ---- Agreement of two retrievers.

PERSISTENCE = 0.9
RANKS = 100
"""Largest K of the overlap; later ranks weigh under 0.00003 in rank-biased overlap."""


def _agreement(evidence: Evidence) -> dict[str, FloatArray]:
    """Compare the lists of two retrievers; NaN if one list is empty or absent.

    `overlap` is the share of the first K that both lists have. `rbo` is the rank-biased overlap of
    the first K, divided by its maximum (Webber et al., TOIS 2010, p = 0.9). `other_first` is ln of
    the rank of the other's first chunk in this list, `first_in_other` the reverse. A missing chunk
    has rank depth + 1. `same_first` is 1 if both lists begin with the same chunk. K is at most 100.
    """
    rows, other = evidence.batch.rows, evidence.batch.other_rows
    if other is None or not rows.shape[1] or not other.shape[1]:
        return {}
    width = min(evidence.k, RANKS)
    together = _agreeing(rows[:, :width], other[:, :width], width)
    weight = PERSISTENCE ** np.arange(width)
    signals = {
        "overlap": together[:, -1] / width,
        "rbo": (together / np.arange(1, width + 1)) @ (weight / weight.sum()),
        "other_first": np.log(_rank(rows, other[:, 0])),
        "first_in_other": np.log(_rank(other, rows[:, 0])),
        "same_first": (rows[:, 0] == other[:, 0]).astype(np.float64),
    }
    both = (rows[:, 0] >= 0) & (other[:, 0] >= 0)
    return {name: np.where(both, values, np.nan) for name, values in signals.items()}


def _agreeing(first: Int32Array, second: Int32Array, width: int) -> FloatArray:
    """Count the chunks that the first d of both share, for every d up to `width`, [n, width]."""
    query, left, right = np.nonzero(
        (first[:, :, None] == second[:, None, :]) & (first >= 0)[:, :, None]
    )
    found = np.bincount(
        query * width + np.maximum(left, right), minlength=len(first) * width
    ).reshape(-1, width)
    agreeing: FloatArray = np.cumsum(found, axis=1).astype(np.float64)
    return agreeing


def _rank(rows: Int32Array, chunk: Int32Array) -> FloatArray:
    """Return the rank, from 1, of one chunk in each list; depth + 1 for a missing chunk."""
    same = rows == chunk[:, None]
    rank: FloatArray = np.where(same.any(axis=1), same.argmax(axis=1) + 1.0, rows.shape[1] + 1.0)
    return rank


# ---- Statistics of rows, in which NaN marks an empty place.


def _mean(values: FloatArray) -> FloatArray:
    """Compute the mean of each row; NaN for a row without numbers."""
    count = (~np.isnan(values)).sum(axis=1)
    return np.where(count > 0, np.nansum(values, axis=1) / np.maximum(count, 1), np.nan)


def _deviation(values: FloatArray) -> FloatArray:
    """Compute the standard deviation of each row (divisor n); NaN for fewer than two numbers."""
    count = (~np.isnan(values)).sum(axis=1)
    spread = np.nansum((values - _mean(values)[:, None]) ** 2, axis=1)
    return np.where(count > 1, np.sqrt(spread / np.maximum(count, 1)), np.nan)


def _highest(values: FloatArray) -> FloatArray:
    """Return the largest number of each row; NaN for a row without numbers."""
    best = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(best), best, np.nan)


def _nth_highest(values: FloatArray, n: int) -> FloatArray:
    """Return the n-th largest number of each row, n from 1; NaN for fewer numbers."""
    if values.shape[1] < n:
        return np.full(len(values), np.nan)
    filled = np.where(np.isnan(values), -np.inf, values)
    found = np.partition(filled, values.shape[1] - n, axis=1)[:, values.shape[1] - n]
    return np.where(np.isfinite(found), found, np.nan)


def _standardise(values: FloatArray) -> FloatArray:
    """Subtract each row's mean and divide by its standard deviation; 0 if all are equal."""
    spread = _deviation(values)
    spread = np.where(np.isnan(spread) | (spread <= 0), np.inf, spread)
    scaled: FloatArray = (values - _mean(values)[:, None]) / spread[:, None]
    return scaled


# ---- The pool of both retrievers.


def _candidates(evidence: Evidence) -> dict[str, FloatArray]:
    """Compare the first K with the other chunks in the pool of both retrievers.

    `lexical_other` and `cosine_other` are the best scores among the first K of the other list.
    `lexical_crowd` is the K-th best lexical score of the pool. `beyond_lexical`, `beyond_cosine`
    and `beyond_fused` are the best score of the pool outside the first K minus the best inside.
    `fused_gap` is the best minus the second best fused score. A fused score is the sum of lexical
    score and cosine, each standardised over the pool. A missing score gives NaN.
    """
    rows, other = evidence.rows, evidence.other
    again = _again(rows, other, evidence.space.n_chunks)
    lexical, cosine = (
        np.concatenate([own, np.where(again, np.nan, theirs)], axis=1)
        for own, theirs in zip(evidence.listed, evidence.other_listed, strict=True)
    )
    parts = np.stack([_standardise(lexical), _standardise(cosine)])
    fused = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    k, cut = evidence.k, min(evidence.k, rows.shape[1])
    return {
        "lexical_other": _highest(evidence.other_listed[0][:, :k]),
        "cosine_other": _highest(evidence.other_listed[1][:, :k]),
        "lexical_crowd": _nth_highest(lexical, k),
        "beyond_lexical": _highest(lexical[:, cut:]) - _highest(lexical[:, :cut]),
        "beyond_cosine": _highest(cosine[:, cut:]) - _highest(cosine[:, :cut]),
        "beyond_fused": _highest(fused[:, cut:]) - _highest(fused[:, :cut]),
        "fused_gap": _nth_highest(fused, 1) - _nth_highest(fused, 2),
    }


def _again(rows: Int32Array, other: Int32Array, n_chunks: int) -> BoolArray:
    """Tell which places of the second list repeat a chunk of the first list, or are empty."""
    # The last column is for empty places, because their index is -1.
    seen = np.zeros((len(rows), n_chunks + 1), dtype=bool)
    np.put_along_axis(seen, rows.astype(np.int64), values=True, axis=1)
    seen[:, -1] = True
    found: BoolArray = np.take_along_axis(seen, other.astype(np.int64), axis=1)
    return found


# ---- Spread over documents.


def _clustering(evidence: Evidence) -> dict[str, FloatArray]:
    """Compute `same_document`: the share of the first K in the document of the first chunk.

    NaN without a retrieved chunk, and if no document has several chunks.
    """
    document, rows = evidence.batch.document, evidence.batch.rows[:, : evidence.k]
    # the largest code + 1 is the number of documents
    if document is None or not rows.shape[1] or document.max(initial=-1) + 1 == len(document):
        return {}
    held = rows >= 0
    owner = np.where(held, document[np.maximum(rows, 0)], -1)
    count = held.sum(axis=1)
    same = ((owner == owner[:, :1]) & held).sum(axis=1)
    return {"same_document": np.where(count > 0, same / np.maximum(count, 1), np.nan)}


# ---- Coherence of the retrieved chunks.

FIRST = 10


def _coherence(evidence: Evidence) -> dict[str, FloatArray]:
    """Measure how closely the retrieved chunks share one topic.

    `coherence` is the mean cosine of all pairs of the first ten chunks. The cosine is of vectors,
    or of tf-idf terms if the strategy has no vectors. It is NaN for fewer than two chunks.
    `clarity` is the Kullback-Leibler divergence, in nats, of the terms of the first ten from the
    terms of the corpus; NaN without a term. See Cronen-Townsend et al., SIGIR 2002. Here the list
    replaces their query model.
    """
    from scipy.sparse import csr_array

    space, vectors, n = evidence.space, evidence.batch.chunk_vectors, evidence.n
    rows = evidence.batch.rows[:, :FIRST]
    held = rows >= 0
    count = held.sum(axis=1)
    places = np.concatenate([[0], np.cumsum(count)])
    ones = np.ones(len(rows[held]), dtype=np.float32)
    chosen = csr_array((ones, rows[held], places), shape=(n, space.n_chunks))
    if vectors is None:
        summed = chosen @ space.unit
        squares = summed.data.astype(np.float64) ** 2
        norm = np.bincount(_row_of(summed), weights=squares, minlength=n)
        lengths = np.diff(space.unit.indptr) > 0
    else:
        total = chosen @ vectors
        norm, lengths = np.vecdot(total, total).astype(np.float64), np.vecdot(vectors, vectors)
    single = np.bincount(_row_of(chosen), weights=lengths[chosen.indices], minlength=n)
    pairs = np.where(count > 1, count * (count - 1), 1)
    mixed = chosen @ space.share
    query = _row_of(mixed)
    terms = np.bincount(query, weights=mixed.data, minlength=n)
    share = mixed.data / terms[query]
    gains = share * np.log(share / space.probability[mixed.indices])
    clarity = np.bincount(query, weights=gains, minlength=n)
    return {
        "coherence": np.where(count > 1, (norm - single) / pairs, np.nan),
        "clarity": np.where(terms > 0, clarity, np.nan),
    }


# ---- The semantic gap.


def _coverage(evidence: Evidence) -> dict[str, FloatArray]:
    """Compute the shares of the query's idf that chunks hold; NaN for a query without terms.

    `cover_union` is the share in the first K chunks together, `cover_best` in the best of these
    chunks, `cover_top` in the first chunk. `cover_rare` is `cover_best` with squared idf.
    `cover_crowd` is the share in the K-th best chunk of the pool, 0 for fewer than K chunks. No
    chunk holds an unknown term.
    """
    idf, total = evidence.idf, evidence.idf_sum
    squared = evidence.per_query(idf**2)
    squares = np.where(squared > 0, squared, np.nan)
    has_term = evidence.frequencies > 0
    first = has_term[:, : evidence.k]
    shares = evidence.per_query(first * idf[:, None]) / total[:, None]
    rare = evidence.per_query(first * (idf**2)[:, None]) / squares[:, None]
    pool = evidence.shares(has_term.astype(np.float32), evidence.rows)
    crowd = _nth_highest(pool, evidence.k)
    asked = ~np.isnan(total)
    found = {
        "cover_union": evidence.per_query(first.any(axis=1) * idf) / total,
        "cover_best": shares.max(axis=1, initial=0.0),
        "cover_rare": rare.max(axis=1, initial=0.0),
        "cover_top": shares[:, 0] if shares.shape[1] else np.zeros(evidence.n),
        "cover_crowd": np.where(np.isnan(crowd), 0.0, crowd),
    }
    return {name: np.where(asked, values, np.nan) for name, values in found.items()}


# ---- Scores.

DEPTH = 100
"""Number of first ranks that stand for the corpus."""


def _score_shape(evidence: Evidence) -> dict[str, FloatArray]:
    """Describe how the scores s_1, s_2, ... fall; all are divided by s_1.

    All signals are NaN unless s_1 is above 0. `tail_ratio` is s_K / s_1, with the last score for
    s_K in a shorter list. `score_sd` is the SD of the first ten scores. `wig` is the mean of the
    first K minus the mean of the first hundred. See Zhou and Croft, SIGIR 2007; here the list
    replaces the corpus. `nqc` is the SD of the first hundred (Shtok et al., TOIS 2012). `cut_gap`
    is (s_K - s_K+1) / s_1, NaN without a rank K + 1.
    """
    batch, k = evidence.batch, evidence.k
    depth = min(max(DEPTH, k + 1), batch.rows.shape[1])
    if not depth:
        return {}
    held = batch.rows[:, :depth] >= 0
    raw = np.where(held, batch.raw[:, :depth], np.nan)
    first = np.where(raw[:, 0] > 0, raw[:, 0], np.nan)
    scaled = raw / first[:, None]
    last = np.maximum(np.minimum(held.sum(axis=1), k) - 1, 0)
    return {
        "tail_ratio": np.take_along_axis(scaled, last[:, None], axis=1)[:, 0],
        "score_sd": _deviation(scaled[:, :FIRST]),
        "wig": _mean(scaled[:, :k]) - _mean(scaled[:, :DEPTH]),
        "nqc": _deviation(scaled[:, :DEPTH]),
        "cut_gap": scaled[:, k - 1] - scaled[:, k] if depth > k else np.full(evidence.n, np.nan),
    }


# ---- The query.


def _specificity(evidence: Evidence) -> dict[str, FloatArray]:
    """Describe the query alone.

    `idf_mean` and `idf_max` are the mean and largest idf of the distinct terms, divided by the idf
    of an unknown term. `length` is ln(1 + terms). `unknown` is the share of distinct terms that the
    corpus lacks. `idf_mean`, `idf_max` and `unknown` are NaN without terms. `generic` is the cosine
    of the query vector and the mean chunk vector, NaN without vectors.
    """
    query = evidence.query
    count = np.bincount(query, minlength=evidence.n)
    some, per = count > 0, np.maximum(count, 1)
    top = np.zeros(evidence.n)
    np.maximum.at(top, query, evidence.idf)
    strange = np.bincount(query, weights=~evidence.known, minlength=evidence.n)
    queries, centre = evidence.batch.query_vectors, evidence.centre
    found = {}
    if queries is not None and centre is not None and centre.any():
        cosine = (queries @ (centre / np.linalg.norm(centre))).astype(np.float64)
        found["generic"] = np.where(queries.any(axis=1), cosine, np.nan)
    return found | {
        "idf_mean": evidence.idf_sum / per / evidence.space.nowhere,
        "idf_max": np.where(some, top / evidence.space.nowhere, np.nan),
        "length": np.log1p(evidence.length),
        "unknown": np.where(some, strange / per, np.nan),
    }


# ---- Other wordings of a question.

POOL_WORDINGS = 100
"""Number of ranks of each wording's list that enter the consensus."""
WORDING_SIGNALS = ("wordings_overlap", "consensus_best", "consensus_crowd", "consensus_missed")


def _wordings(batch: RankedBatch, k: int) -> dict[str, FloatArray]:
    """Compare the lists of a question's wordings; NaN for a question with a single wording.

    `wordings_overlap` is the mean share of a wording's first K that another wording's first K also
    has. The consensus score of a chunk is its mean normalised score over the wordings. A wording
    without the chunk in its first hundred counts 0. `consensus_best` is the best score of a
    question, `consensus_crowd` the K-th best score (0 for fewer chunks). `consensus_missed` is the
    best score minus the best score in this wording's first K.
    """
    n = len(batch)
    if batch.question is None or not n or not batch.rows.shape[1]:
        return {}
    _, question, count = np.unique(batch.question, return_inverse=True, return_counts=True)
    rows = batch.rows[:, : max(POOL_WORDINGS, k)].astype(np.int64)
    codes = question[:, None] * batch.space.n_chunks + rows
    usable = (rows[:, 0] >= 0) & (count[question] > 1)
    held, others = rows[:, :k] >= 0, np.zeros((n, min(k, rows.shape[1])))
    _, place, times = np.unique(codes[:, :k][held], return_inverse=True, return_counts=True)
    others[held] = times[place] - 1
    overlap = others.sum(axis=1) / np.maximum(held.sum(axis=1) * (count[question] - 1), 1)
    found = _consensus(batch, k, question, count, codes[:, :POOL_WORDINGS])
    found["wordings_overlap"] = overlap
    return {name: np.where(usable, values, np.nan) for name, values in found.items()}


def _consensus(
    batch: RankedBatch, k: int, question: IntArray, count: IntArray, codes: IntArray
) -> dict[str, FloatArray]:
    """Compute the consensus signals of each wording."""
    held = batch.rows[:, : codes.shape[1]] >= 0
    pair, place = np.unique(codes[held], return_inverse=True)
    owner = pair // max(batch.space.n_chunks, 1)
    norm = batch.norm[:, : codes.shape[1]][held]
    score = np.bincount(place, weights=norm, minlength=len(pair)) / count[owner]
    starts = np.searchsorted(owner, np.arange(len(count) + 1))
    start, end = starts[question], starts[question + 1]
    padded = np.append(score[np.lexsort((-score, owner))], np.zeros(k))
    best = padded[start]
    own = np.full(codes.shape, np.nan)
    own[held] = score[place]
    crowd = padded[np.minimum(start + k - 1, len(padded) - 1)]
    return {
        "consensus_best": best,
        "consensus_crowd": np.where(end - start >= k, crowd, 0.0),
        "consensus_missed": best - _highest(own[:, :k]),
    }


# ---- All signals.

FAMILIES: Final = (
    _score_shape,
    _coverage,
    _agreement,
    _candidates,
    _specificity,
    _coherence,
    _clustering,
)
SIGNALS: Final = (
    *"tail_ratio score_sd wig nqc cut_gap".split(),
    *"cover_union cover_best cover_rare cover_top cover_crowd".split(),
    *"overlap rbo other_first first_in_other same_first".split(),
    *"lexical_other cosine_other lexical_crowd".split(),
    *"beyond_lexical beyond_cosine beyond_fused fused_gap".split(),
    *"idf_mean idf_max length unknown generic coherence clarity same_document".split(),
    *WORDING_SIGNALS,
)
BLOCK_BYTES = 64 * 2**20
"""Bytes of one table of term frequencies: terms of a block of queries x chunks."""
QUERY_TERMS = 16
"""Assumed number of terms of a query in the size of this table."""
BLOCK_PLACES = 50_000
"""Largest number of places (queries x K) in one block."""
CENTRE_SAMPLE = 10_000
"""Largest number of chunk vectors in the mean, spread over the corpus; reading all is slow."""


def signals(batch: RankedBatch, k: int) -> FloatArray:
    """Compute SIGNALS of a batch, [n, len(SIGNALS)], NaN for an undefined signal.

    `k` is the cutoff of the target, at least 1.
    """
    found = np.full((len(batch), len(SIGNALS)), np.nan)
    vectors, centre = batch.chunk_vectors, None
    if vectors is not None and len(vectors):
        centre = vectors[:: -(-len(vectors) // CENTRE_SAMPLE)].mean(axis=0)
    for name, values in _wordings(batch, k).items():
        found[:, SIGNALS.index(name)] = values
    bytes_a_query = 2 * QUERY_TERMS * max(batch.space.n_chunks, 1)
    step = max(1, min(BLOCK_PLACES // k, BLOCK_BYTES // bytes_a_query))
    for start in range(0, len(batch), step):
        block = slice(start, start + step)
        evidence = Evidence(_part(batch, block), k, centre)
        for family in FAMILIES:
            for name, values in family(evidence).items():
                found[block, SIGNALS.index(name)] = values
    return found


def _part(batch: RankedBatch, block: slice) -> RankedBatch:
    """Take some queries of a batch; the parts without a query axis are shared."""
    names = "rows raw norm query_terms other_rows other_raw query_vectors question".split()
    parts = {name: getattr(batch, name) for name in names}
    cut = {name: part[block] for name, part in parts.items() if part is not None}
    return dataclasses.replace(batch, **cut)
