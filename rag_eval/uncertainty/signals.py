"""Signals of a miss: cheap figures of a ranked list, vectorised over a batch of questions.

A signal is never a confidence. `signals` computes all signals.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

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
from rag_eval.corpus.analyzer import Rows, count_matrix

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# ---- The terms of the corpus.

K1, B = 0.9, 0.4
"""Parameters of BM25 in lexical scores; the parameters of a strategy do not change them."""


class TermSpace:
    """Terms of the corpus: counts of every chunk, idf, and the weights that signals need.

    `chunk_terms` are the term ids of each chunk, with every repetition. A query term at or above
    `n_terms` is unknown. `counts` float32 [n_chunks, n_terms] has sorted indices. `frequency`
    [n_terms] is the number of chunks that hold a term, `idf` ln(1 + (N - df + 0.5) / (df + 0.5)) as
    in Lucene's BM25, and `nowhere` the idf of a term that no chunk holds. Weights are computed
    once, so that live queries are fast.
    """

    def __init__(self, chunk_terms: Rows, n_terms: int) -> None:
        self.n_chunks, self.n_terms = len(chunk_terms), n_terms
        self.counts = self.queries(chunk_terms)
        frequency = np.bincount(self.counts.indices, minlength=n_terms).astype(np.float64)
        self.frequency: FloatArray = frequency
        self.idf: FloatArray = np.log1p((self.n_chunks - frequency + 0.5) / (frequency + 0.5))
        self.nowhere = float(np.log1p((self.n_chunks + 0.5) / 0.5))

    def queries(self, terms: Rows) -> "csr_array":
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
    def unit(self) -> "csr_array":
        """(1 + ln tf) * idf, scaled to rows of unit norm or zero, float32 [n_chunks, n_terms]."""
        from scipy.sparse import csr_array

        weighted = (1 + np.log(self.counts.data)) * self.idf[self.counts.indices]
        row = _row_of(self.counts)
        norm = np.bincount(row, weights=weighted**2, minlength=self.n_chunks)
        scaled = (weighted / np.sqrt(norm)[row]).astype(np.float32)
        return csr_array((scaled, self.counts.indices, self.counts.indptr), shape=self.counts.shape)

    @functools.cached_property
    def slow(self) -> Float32Array:
        """Compute k1 (1 - b + b length / mean length) of each chunk, [n_chunks + 1].

        The last value is for a chunk of -1. BM25's weight of a term is tf / (tf + slow).
        """
        lengths = np.asarray(self.counts.sum(axis=1, dtype=np.float64)).ravel()
        mean = max(float(lengths.mean()) if self.n_chunks else 0.0, 1e-9)
        slow = K1 * (1 - B + B * np.append(lengths, mean) / mean)
        return np.asarray(slow, dtype=np.float32)

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
        # the last column is for chunks of -1
        table = np.zeros((len(distinct), self.n_chunks + 1), dtype=np.uint16)
        table[owner, self.by_term.indices[posting]] = self._short_counts[posting]
        counts: npt.NDArray[np.uint16] = table[row[:, None], chunks]
        return counts


def _row_of(matrix: "csr_array") -> IntArray:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


# ---- A batch of ranked lists, and its look-ups.


@dataclasses.dataclass(frozen=True)
class RankedBatch:
    """Ranked lists of n queries by one strategy, with other facts about the queries.

    `rows` [n, depth] are chunk rows, best first, -1 after the end of a list. `raw` and `norm` are
    the engine's own scores (cosines if `cosine`) and scores in [0, 1], 0 where rows is -1.
    `query_terms` has every repetition. `other_rows` and `other_raw` are the lists of a second
    retriever. Vectors [n, d] and [n_chunks, d] have unit norm or are zero. `question` [n] is the
    code of a wording's question, `document` [n_chunks] that of each chunk's document, from 0
    without gaps.
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

    def take(self, which: slice | IntArray) -> "RankedBatch":
        """Take some queries; the parts without a query axis are shared."""
        names = "rows raw norm other_rows other_raw query_vectors question".split()
        parts = {name: getattr(self, name) for name in names}
        cut = {name: part[which] for name, part in parts.items() if part is not None}
        places = np.arange(len(self))[which].tolist()
        terms = [self.query_terms[place] for place in places]
        return dataclasses.replace(self, query_terms=terms, **cut)


POOL, CUTOFFS = 30, 3
"""Least number of ranks of each list whose chunks both engines score, also as a multiple of K.

At K = 10, 100 ranks were no better than 30.
"""
GATHERED_BYTES = 2**21
"""Bytes of chunk vectors in one block; blocks that fit a cache are three times as fast."""


class Evidence:
    """A block of queries with its look-ups.

    `pool` int32 [n, j] holds the first chunks of the strategy's list, `own` of them, then those of
    the second retriever's list that are new, -1 at the places of the others. `query` and `term`
    name each distinct term of each query, unknown terms too, [m] each, with its `idf`. `idf_sum`
    [n] is NaN for a query without terms. `frequencies` float32 [m, j] count how often each chunk of
    the pool holds a query's term.
    """

    def __init__(self, batch: RankedBatch, k: int) -> None:
        self.batch, self.k, self.n, self.space = batch, k, len(batch), batch.space
        depth = max(POOL, CUTOFFS * k)
        rows = batch.rows[:, :depth]
        other = batch.rows[:, :0] if batch.other_rows is None else batch.other_rows[:, :depth]
        repeated = _repeats(rows, other, batch.space.n_chunks)
        self.pool = np.concatenate([rows, np.where(repeated, np.int32(-1), other)], axis=1)
        self.own = rows.shape[1]
        self.length = np.array([len(row) for row in batch.query_terms], dtype=np.int64)
        flat = np.array(list(itertools.chain.from_iterable(batch.query_terms)), dtype=np.int64)
        width = int(flat.max(initial=0)) + 1
        distinct = np.unique(np.repeat(np.arange(self.n), self.length) * width + flat)
        self.query, self.term = distinct // width, distinct % width
        self.is_known: BoolArray = np.asarray(self.term < self.space.n_terms)
        known = self.term[self.is_known]
        self.idf: FloatArray = np.full(len(self.term), self.space.nowhere)
        self.idf[self.is_known] = self.space.idf[known]
        total = self.per_query(self.idf)
        self.idf_sum: FloatArray = np.where(total > 0, total, np.nan)
        self.frequencies: Float32Array = np.zeros((len(self.term), self.pool.shape[1]), np.float32)
        self.frequencies[self.is_known] = self.space.frequencies(
            known, self.pool[self.query[self.is_known]]
        )

    def per_query(self, values: FloatArray | Float32Array | BoolArray) -> FloatArray:
        """Sum over the terms of each query: [m] gives [n], [m, j] gives [n, j]."""
        if values.ndim == 1:
            return np.bincount(self.query, weights=values, minlength=self.n).astype(np.float64)
        summed = np.zeros((self.n, values.shape[1]))
        if len(self.query):
            has, first = np.unique(self.query, return_index=True)
            summed[has] = np.add.reduceat(values, first, axis=0)
        return summed

    def lexical(self) -> FloatArray:
        """Compute BM25 of each chunk of the pool over the query's summed idf, in [0, 1), [n, j].

        NaN for an empty place, and for a query without terms.
        """
        weights = self.frequencies / (self.frequencies + self.space.slow[self.pool][self.query])
        share = (self.idf / self.idf_sum[self.query]).astype(np.float32)
        summed = self.per_query(weights * share[:, None])
        return np.where((self.pool >= 0) & ~np.isnan(self.idf_sum)[:, None], summed, np.nan)

    def cosine(self) -> FloatArray:
        """Compute the cosine of query and chunk, [n, j]; NaN without a chunk or a vector."""
        cosines, first = np.full(self.pool.shape, np.nan), 0
        if self.batch.cosine:
            first, cosines[:, : self.own] = self.own, self.batch.raw[:, : self.own]
        queries, chunks = self.batch.query_vectors, self.batch.chunk_vectors
        if queries is not None and chunks is not None and len(chunks):
            step = max(1, GATHERED_BYTES // (4 * self.pool.shape[1] * chunks.shape[1] + 1))
            for start in range(0, self.n, step):
                block = slice(start, start + step)
                near = chunks[np.maximum(self.pool[block, first:], 0)]
                cosines[block, first:] = np.einsum("nd,njd->nj", queries[block], near)
            cosines[~queries.any(axis=1), first:] = np.nan
        return np.where(self.pool >= 0, cosines, np.nan)


BLOCK_BYTES, BLOCK_PLACES, QUERY_TERMS = 64 * 2**20, 50_000, 16
"""Bytes of a table of terms x chunks, places (queries x K) and assumed terms of a query."""


def read_evidence(batch: RankedBatch, k: int) -> Iterator[tuple[slice, Evidence]]:
    """Yield the evidence of a batch in blocks of queries that fit in memory."""
    bytes_a_query = 2 * QUERY_TERMS * max(batch.space.n_chunks, 1)
    step = max(1, min(BLOCK_PLACES // k, BLOCK_BYTES // bytes_a_query))
    for start in range(0, len(batch), step):
        block = slice(start, start + step)
        yield block, Evidence(batch.take(block), k)


# ---- Statistics of rows, in which NaN marks an empty place.


def _repeats(rows: Int32Array, other: Int32Array, n_chunks: int) -> BoolArray:
    """Tell which places of the second list repeat a chunk of the first list, or are empty."""
    # The last column is for empty places, because their index is -1.
    in_first = np.zeros((len(rows), n_chunks + 1), dtype=bool)
    np.put_along_axis(in_first, rows.astype(np.int64), values=True, axis=1)
    in_first[:, -1] = True
    repeated: BoolArray = np.take_along_axis(in_first, other.astype(np.int64), axis=1)
    return repeated


def _moments(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute mean and standard deviation (divisor n) of each row; NaN for fewer than 1, 2."""
    count = (~np.isnan(values)).sum(axis=1)
    n = np.maximum(count, 1)
    mean = np.where(count > 0, np.nansum(values, axis=1) / n, np.nan)
    spread = np.nansum((values - mean[:, None]) ** 2, axis=1)
    return mean, np.where(count > 1, np.sqrt(spread / n), np.nan)


def _nth_highest(values: FloatArray, n: int = 1) -> FloatArray:
    """Return the n-th largest number of each row, n from 1; NaN for fewer numbers."""
    if values.shape[1] < n:
        return np.full(len(values), np.nan)
    filled = np.where(np.isnan(values), -np.inf, values)
    nth = np.partition(filled, values.shape[1] - n, axis=1)[:, values.shape[1] - n]
    return np.where(np.isfinite(nth), nth, np.nan)


def _standardise(values: FloatArray) -> FloatArray:
    """Subtract each row's mean and divide by its standard deviation; 0 if all are equal."""
    mean, spread = _moments(values)
    spread = np.where(np.isnan(spread) | (spread <= 0), np.inf, spread)
    scaled: FloatArray = (values - mean[:, None]) / spread[:, None]
    return scaled


# ---- Families of signals of a block.

DEPTH = 100
"""Number of first ranks that stand for the corpus."""
FIRST = 10
"""Number of first chunks whose coherence is measured."""


def _score_shape(evidence: Evidence) -> dict[str, FloatArray]:
    """Describe how the scores fall: `tail_ratio` is s_K / s_1, or s_last / s_1 in a shorter list.

    `nqc` is the SD of the first hundred over s_1 (Shtok et al., TOIS 2012). NaN unless s_1 > 0.
    """
    batch, k = evidence.batch, evidence.k
    depth = min(max(DEPTH, k), batch.rows.shape[1])
    if not depth:
        return {}
    has_chunk = batch.rows[:, :depth] >= 0
    raw = np.where(has_chunk, batch.raw[:, :depth], np.nan)
    scaled = raw / np.where(raw[:, 0] > 0, raw[:, 0], np.nan)[:, None]
    last = np.maximum(np.minimum(has_chunk.sum(axis=1), k) - 1, 0)
    tail_ratio = np.take_along_axis(scaled, last[:, None], axis=1)[:, 0]
    return {"tail_ratio": tail_ratio, "nqc": _moments(scaled[:, :DEPTH])[1]}


def _coverage(evidence: Evidence) -> dict[str, FloatArray]:
    """Compute the shares of the query's idf that chunks hold; NaN for a query without terms.

    `cover_union` is the share in the first K chunks together. `cover_rare` is the share in the best
    of these chunks, with squared idf. No chunk holds an unknown term.
    """
    idf, total = evidence.idf, evidence.idf_sum
    squared = evidence.per_query(idf**2)
    squares = np.where(squared > 0, squared, np.nan)
    first = evidence.frequencies[:, : min(evidence.k, evidence.own)] > 0
    rare = evidence.per_query(first * (idf**2)[:, None]) / squares[:, None]
    covers = {
        "cover_union": evidence.per_query(first.any(axis=1) * idf) / total,
        "cover_rare": rare.max(axis=1, initial=0.0),
    }
    return {name: np.where(np.isnan(total), np.nan, values) for name, values in covers.items()}


def _agreement(evidence: Evidence) -> dict[str, FloatArray]:
    """Compare the lists of two retrievers; NaN if one list is empty or absent.

    `overlap` is the share of the first K that both lists have. `same_first` is 1 if both lists
    begin with the same chunk.
    """
    rows, other, k = evidence.batch.rows, evidence.batch.other_rows, evidence.k
    if other is None or not rows.shape[1] or not other.shape[1]:
        return {}
    repeated = _repeats(rows[:, :k], other[:, :k], evidence.space.n_chunks)
    shared = (repeated & (other[:, :k] >= 0)).sum(axis=1)
    both = (rows[:, 0] >= 0) & (other[:, 0] >= 0)
    same_first = (rows[:, 0] == other[:, 0]).astype(np.float64)
    signals = {"overlap": shared / k, "same_first": same_first}
    return {name: np.where(both, values, np.nan) for name, values in signals.items()}


def _candidates(evidence: Evidence) -> dict[str, FloatArray]:
    """Compare the first K with the other chunks in the pool of both retrievers.

    `lexical_crowd` is the K-th best lexical score of the pool. `beyond_lexical`, `beyond_cosine`
    and `beyond_fused` are the best score of the pool outside the first K minus the best inside. A
    fused score is the sum of lexical score and cosine, each standardised over the pool.
    """
    lexical, cosine = evidence.lexical(), evidence.cosine()
    parts = np.stack([_standardise(lexical), _standardise(cosine)])
    fused = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    cut = min(evidence.k, evidence.own)
    beyond = {
        f"beyond_{name}": _nth_highest(scores[:, cut:]) - _nth_highest(scores[:, :cut])
        for name, scores in (("lexical", lexical), ("cosine", cosine), ("fused", fused))
    }
    return {"lexical_crowd": _nth_highest(lexical, evidence.k), **beyond}


def _clustering(evidence: Evidence) -> dict[str, FloatArray]:
    """Compute `same_document`: the share of the first K in the document of the first chunk."""
    document, rows = evidence.batch.document, evidence.batch.rows[:, : evidence.k]
    # the largest code + 1 is the number of documents
    if document is None or not rows.shape[1] or document.max(initial=-1) + 1 == len(document):
        return {}
    has_chunk = rows >= 0
    owner, count = document[np.maximum(rows, 0)], has_chunk.sum(axis=1)
    same = ((owner == owner[:, :1]) & has_chunk).sum(axis=1)
    return {"same_document": np.where(has_chunk[:, 0], same / np.maximum(count, 1), np.nan)}


def _coherence(evidence: Evidence) -> dict[str, FloatArray]:
    """Compute `coherence`: the mean cosine of all pairs of the first ten chunks."""
    from scipy.sparse import csr_array

    space, vectors, n = evidence.space, evidence.batch.chunk_vectors, evidence.n
    rows = evidence.batch.rows[:, :FIRST]
    has_chunk = rows >= 0
    count = has_chunk.sum(axis=1)
    places = np.concatenate([[0], np.cumsum(count)])
    ones = np.ones(int(count.sum()), dtype=np.float32)
    chosen = csr_array((ones, rows[has_chunk], places), shape=(n, space.n_chunks))
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
    return {"coherence": np.where(count > 1, (norm - single) / pairs, np.nan)}


CENTRE_SAMPLE = 10_000
"""Largest number of chunk vectors in the mean, spread over the corpus; reading all is slow."""


def _find_centre(vectors: Float32Array | None) -> Float32Array | None:
    """Compute the direction of the mean chunk vector, [d]; None without vectors."""
    if vectors is None or not len(vectors):
        return None
    centre = vectors[:: -(-len(vectors) // CENTRE_SAMPLE)].mean(axis=0)
    return centre / np.linalg.norm(centre) if centre.any() else None


def _query(evidence: Evidence, centre: Float32Array | None) -> dict[str, FloatArray]:
    """Compute `length`, ln(1 + terms), and `generic`, the cosine with the mean chunk vector."""
    values, queries = {"length": np.log1p(evidence.length)}, evidence.batch.query_vectors
    if queries is not None and centre is not None:
        cosine = (queries @ centre).astype(np.float64)
        values["generic"] = np.where(queries.any(axis=1), cosine, np.nan)
    return values


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
    if batch.question is None or not len(batch) or not batch.rows.shape[1]:
        return {}
    _, question, count = np.unique(batch.question, return_inverse=True, return_counts=True)
    rows = batch.rows[:, : max(POOL_WORDINGS, k)].astype(np.int64)
    codes = question[:, None] * max(batch.space.n_chunks, 1) + rows
    first = rows[:, :k] >= 0
    _, place, times = np.unique(codes[:, :k][first], return_inverse=True, return_counts=True)
    others = np.zeros(first.shape)
    others[first] = times[place] - 1
    overlap = others.sum(axis=1) / np.maximum(first.sum(axis=1) * (count[question] - 1), 1)

    has_chunk = rows[:, :POOL_WORDINGS] >= 0
    pair, place = np.unique(codes[:, :POOL_WORDINGS][has_chunk], return_inverse=True)
    owner = pair // max(batch.space.n_chunks, 1)
    norm = batch.norm[:, :POOL_WORDINGS][has_chunk]
    score = np.bincount(place, weights=norm, minlength=len(pair)) / count[owner]
    starts = np.searchsorted(owner, np.arange(len(count) + 1))
    start, end = starts[question], starts[question + 1]
    padded = np.append(score[np.lexsort((-score, owner))], np.zeros(k))
    of_wording = np.full(has_chunk.shape, np.nan)
    of_wording[has_chunk] = score[place]
    crowd = padded[np.minimum(start + k - 1, len(padded) - 1)]
    values = {
        "wordings_overlap": overlap,
        "consensus_best": padded[start],
        "consensus_crowd": np.where(end - start >= k, crowd, 0.0),
        "consensus_missed": padded[start] - _nth_highest(of_wording[:, :k]),
    }
    usable = (rows[:, 0] >= 0) & (count[question] > 1)
    return {name: np.where(usable, column, np.nan) for name, column in values.items()}


# ---- All signals.

FAMILIES: Final = (_score_shape, _coverage, _agreement, _candidates, _coherence, _clustering)
SIGNALS: Final = (
    *"tail_ratio nqc cover_union cover_rare overlap same_first lexical_crowd".split(),
    *"beyond_lexical beyond_cosine beyond_fused length generic coherence same_document".split(),
    *WORDING_SIGNALS,
)


def signals(batch: RankedBatch, k: int) -> FloatArray:
    """Compute SIGNALS of a batch, [n, len(SIGNALS)], NaN for an undefined signal.

    `k` is the cutoff of the target, at least 1.
    """
    table = np.full((len(batch), len(SIGNALS)), np.nan)
    centre = _find_centre(batch.chunk_vectors)
    for name, values in _wordings(batch, k).items():
        table[:, SIGNALS.index(name)] = values
    for block, evidence in read_evidence(batch, k):
        for values_of in (_query(evidence, centre), *(family(evidence) for family in FAMILIES)):
            for name, values in values_of.items():
                table[block, SIGNALS.index(name)] = values
    return table
