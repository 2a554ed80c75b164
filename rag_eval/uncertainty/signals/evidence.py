"""What the signals are computed from: the query's terms as one table, which of them a chunk holds, and scores of any (query, chunk) pair.

Belongs here: look-ups over a block of queries that several signals share. Not here: any signal.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.batch import RankedBatch, TermSpace

FloatArray = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

K1, B = 0.9, 0.4
"""BM25's parameters, as the project's default; the lexical score of a pair does not follow a strategy's own."""


class Postings:
    """Term frequencies of (chunk, term) pairs, looked up by binary search.

    Parameters
    ----------
    space
        Terms of the corpus.
    """

    def __init__(self, space: TermSpace) -> None:
        counts = space.counts
        lengths = np.diff(counts.indptr)
        self.space = space
        self._keys: Ints = np.repeat(np.arange(space.n_chunks, dtype=np.int64), lengths) * max(space.n_terms, 1) + counts.indices
        self._counts = counts.data
        self.chunk_length: FloatArray = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
        """[n_chunks] terms of a chunk, repeated ones repeatedly."""
        self.mean_length = max(float(self.chunk_length.mean()) if space.n_chunks else 0.0, 1e-9)

    def frequency(self, chunk: Ints, term: Ints) -> npt.NDArray[np.float32]:
        """How often chunk i holds term i; 0 for a chunk of -1 or an unknown term. Shapes of both alike."""
        if not len(self._keys):
            return np.zeros(chunk.shape, dtype=np.float32)
        key = np.where((chunk < 0) | (term >= self.space.n_terms), -1, chunk * self.space.n_terms + term)
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        found: npt.NDArray[np.float32] = np.where(self._keys[at] == key, self._counts[at], np.float32(0))
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """A block of queries with its look-ups.

    Parameters
    ----------
    batch
        The block.
    k
        Cutoff.
    postings
        Of the batch's corpus.
    """

    batch: RankedBatch
    k: int
    postings: Postings

    @functools.cached_property
    def top(self) -> Rows:
        """int32 [n, min(k, depth)] the strategy's first k."""
        return self.batch.rows[:, : self.k]

    @functools.cached_property
    def other_top(self) -> Rows | None:
        """int32 [n, min(k, other depth)] the second retriever's first k."""
        return None if self.batch.other_rows is None else self.batch.other_rows[:, : self.k]

    @functools.cached_property
    def entries(self) -> tuple[Ints, Ints]:
        """Query and term of each distinct term of each query, sorted by query; unknown terms too."""
        lengths = np.fromiter((len(row) for row in self.batch.query_terms), dtype=np.int64, count=len(self.batch))
        flat = np.fromiter((term for row in self.batch.query_terms for term in row), dtype=np.int64, count=int(lengths.sum()))
        width = int(flat.max(initial=0)) + 1
        distinct = np.unique(np.repeat(np.arange(len(lengths)), lengths) * width + flat)
        return distinct // width, distinct % width

    @functools.cached_property
    def length(self) -> Ints:
        """int64 [n] terms of a query, repeated ones repeatedly."""
        return np.fromiter((len(row) for row in self.batch.query_terms), dtype=np.int64, count=len(self.batch))

    @functools.cached_property
    def entry_idf(self) -> FloatArray:
        """Idf of each entry; an unknown term has that of a term in no chunk."""
        idf = self.postings.space.idf
        term = self.entries[1]
        known = term < len(idf)
        nowhere = np.log1p((self.postings.space.n_chunks + 0.5) / 0.5)
        return np.where(known, idf[np.where(known, term, 0)] if len(idf) else 0.0, nowhere)

    @functools.cached_property
    def idf_sum(self) -> FloatArray:
        """[n] summed idf of a query's distinct terms."""
        return self.per_query(self.entry_idf)

    def per_query(self, values: FloatArray) -> FloatArray:
        """Sum over the entries of each query: [m] gives [n], [m, j] gives [n, j]."""
        n, query = len(self.batch), self.entries[0]
        if values.ndim == 1:
            return np.bincount(query, weights=values, minlength=n)
        summed = np.zeros((n, values.shape[1]))
        if len(query):
            start = np.searchsorted(query, np.arange(n))
            has = np.bincount(query, minlength=n) > 0
            summed[has] = np.add.reduceat(values, start[has], axis=0)
        return summed

    def frequencies(self, rows: Rows) -> npt.NDArray[np.float32]:
        """How often the chunks at `rows` [n, j] hold the entries' terms: [m, j]."""
        query, term = self.entries
        chunk = rows[query].astype(np.int64)
        return self.postings.frequency(chunk, np.broadcast_to(term[:, None], chunk.shape))

    @functools.cached_property
    def top_frequencies(self) -> npt.NDArray[np.float32]:
        """`frequencies` of the strategy's first k."""
        return self.frequencies(self.top)

    @functools.cached_property
    def other_frequencies(self) -> npt.NDArray[np.float32] | None:
        """`frequencies` of the second retriever's first k."""
        return None if self.other_top is None else self.frequencies(self.other_top)

    def coverage(self, frequencies: npt.NDArray[np.float32]) -> FloatArray:
        """Share of a query's idf that each chunk holds, [n, j]; NaN for a query without terms."""
        with np.errstate(invalid="ignore"):
            return self.per_query((frequencies > 0) * self.entry_idf[:, None]) / self.idf_sum[:, None]

    def lexical(self, rows: Rows, frequencies: npt.NDArray[np.float32]) -> FloatArray:
        """BM25 of each chunk by the query's summed idf, in [0, 1), [n, j]; NaN where there is no chunk or no term."""
        long = 1 - B + B * self.postings.chunk_length[np.maximum(rows, 0)] / self.postings.mean_length
        weight = self.entry_idf[:, None] * frequencies / (frequencies + K1 * long[self.entries[0]])
        with np.errstate(invalid="ignore"):
            scores = self.per_query(weight) / self.idf_sum[:, None]
        return np.where(rows >= 0, scores, np.nan)

    def cosine(self, rows: Rows) -> FloatArray:
        """Cosine of each chunk, [n, j]; NaN where there is no chunk or vector."""
        queries, chunks = self.batch.query_vectors, self.batch.chunk_vectors
        if queries is None or chunks is None:
            return np.full(rows.shape, np.nan)
        found = np.einsum("nd,njd->nj", queries, chunks[np.maximum(rows, 0)]).astype(np.float64)
        blank = ~queries.any(axis=1)
        return np.where((rows < 0) | blank[:, None], np.nan, found)


def last(values: FloatArray) -> FloatArray:
    """Last number of each row before the NaNs, [n]; NaN where there is none."""
    held = ~np.isnan(values)
    at = values.shape[1] - 1 - held[:, ::-1].argmax(axis=1)
    return np.where(held.any(axis=1), np.take_along_axis(values, at[:, None], axis=1)[:, 0], np.nan)


def mean(values: FloatArray) -> FloatArray:
    """Mean of the numbers of each row, [n]; NaN where there is none."""
    count = (~np.isnan(values)).sum(axis=1)
    return np.where(count > 0, np.nansum(values, axis=1) / np.maximum(count, 1), np.nan)


def deviation(values: FloatArray) -> FloatArray:
    """Standard deviation of the numbers of each row (of n), [n]; NaN where there are fewer than two."""
    count = (~np.isnan(values)).sum(axis=1)
    spread = np.nansum((values - mean(values)[:, None]) ** 2, axis=1)
    return np.where(count > 1, np.sqrt(spread / np.maximum(count, 1)), np.nan)


def highest(values: FloatArray) -> FloatArray:
    """Largest number of each row, [n]; NaN where there is none."""
    best = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(best), best, np.nan)
