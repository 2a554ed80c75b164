"""What the signals are computed from: a block of queries, their terms as one table, and the scores of retrieved chunks under both engines.

Belongs here: look-ups that several signals share. Not here: any signal.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.batch import RankedBatch, Vectors
from rag_eval.uncertainty.signals.corpus_weights import CorpusWeights

FloatArray = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

POOL = 100
"""Ranks of each list whose chunks both engines score."""
GATHERED_BYTES = 2**21
"""Memory of chunk vectors gathered at a time: what fits the processor's cache is three times as fast."""


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """A block of queries with its look-ups.

    Parameters
    ----------
    batch
        The block.
    k
        Cutoff.
    corpus
        Weights of the batch's corpus.
    centre
        float32 [d] mean of the chunk vectors; None where there are none.
    """

    batch: RankedBatch
    k: int
    corpus: CorpusWeights
    centre: Vectors | None

    @property
    def n(self) -> int:
        """Queries of the block."""
        return len(self.batch)

    @property
    def top(self) -> Rows:
        """int32 [n, min(k, depth)] the strategy's first k."""
        return self.batch.rows[:, : self.k]

    @functools.cached_property
    def entries(self) -> tuple[Ints, Ints]:
        """Query and term of each distinct term of each query, sorted by both; unknown terms too."""
        lengths = self.length
        flat = np.fromiter((term for row in self.batch.query_terms for term in row), dtype=np.int64, count=int(lengths.sum()))
        width = int(flat.max(initial=0)) + 1
        distinct = np.unique(np.repeat(np.arange(len(lengths)), lengths) * width + flat)
        return distinct // width, distinct % width

    @functools.cached_property
    def length(self) -> Ints:
        """int64 [n] terms of a query, repeated ones repeatedly."""
        return np.fromiter((len(row) for row in self.batch.query_terms), dtype=np.int64, count=self.n)

    @functools.cached_property
    def known(self) -> npt.NDArray[np.bool_]:
        """Bool [m] which entries are terms of the corpus."""
        return np.asarray(self.entries[1] < self.corpus.n_terms)

    @functools.cached_property
    def idf(self) -> FloatArray:
        """[m] idf of each entry; an unknown term has that of a term in no chunk."""
        values = np.full(len(self.known), self.corpus.nowhere)
        values[self.known] = self.corpus.idf[self.entries[1][self.known]]
        return values

    @functools.cached_property
    def idf_sum(self) -> FloatArray:
        """[n] summed idf of a query's distinct terms; NaN where it has none."""
        total = self.per_query(self.idf)
        return np.where(total > 0, total, np.nan)

    def per_query(self, values: npt.NDArray[np.float64]) -> FloatArray:
        """Sum over the entries of each query: [m] gives [n], [m, j] gives [n, j]."""
        query = self.entries[0]
        if values.ndim == 1:
            return np.bincount(query, weights=values, minlength=self.n).astype(np.float64)
        summed = np.zeros((self.n, values.shape[1]))
        if len(query):
            has, first = np.unique(query, return_index=True)
            summed[has] = np.add.reduceat(values, first, axis=0)
        return summed

    @functools.cached_property
    def held(self) -> npt.NDArray[np.bool_]:
        """Bool [m, min(k, depth)] whether each of the first k chunks holds the entry's term."""
        query, term = self.entries
        chunk = self.top[query].astype(np.int64)
        return self.corpus.holds(chunk, np.broadcast_to(term[:, None], chunk.shape))

    @functools.cached_property
    def listed(self) -> tuple[FloatArray, FloatArray]:
        """Lexical score and cosine of the strategy's first POOL chunks, [n, at most POOL] each."""
        rows = self.batch.rows[:, :POOL]
        cosine = np.where(rows >= 0, self.batch.raw[:, :POOL], np.nan) if self.batch.cosine else self.cosine(rows)
        return self._picked(self._dense.real, rows), cosine

    @functools.cached_property
    def listed_coverage(self) -> FloatArray:
        """Share of the query's idf that each of the strategy's first POOL chunks holds; NaN where there is no chunk."""
        return self._picked(self._dense.imag, self.batch.rows[:, :POOL])

    @functools.cached_property
    def other_listed(self) -> tuple[FloatArray, FloatArray]:
        """As `listed`, of the second retriever's list; [n, 0] where there is none."""
        rows = self.other
        return self._picked(self._dense.real, rows), self.cosine(rows)

    @property
    def other(self) -> Rows:
        """int32 [n, at most POOL] the second retriever's list; [n, 0] where there is none."""
        rows = self.batch.other_rows
        return self.batch.rows[:, :0] if rows is None else rows[:, :POOL]

    @functools.cached_property
    def _dense(self) -> npt.NDArray[np.complex64]:
        """BM25 of every chunk by the query's summed idf, in [0, 1), and as the imaginary part the share of that idf which it holds, [n, n_chunks]."""
        from scipy.sparse import csr_array

        query, term = (part[self.known] for part in self.entries)
        share = (self.idf / self.idf_sum[self.entries[0]])[self.known].astype(np.complex64)
        asked = csr_array((share, term, np.searchsorted(query, np.arange(self.n + 1))), shape=(self.n, self.corpus.n_terms))
        product: npt.NDArray[np.complex64] = (asked @ self.corpus.by_term).toarray()
        return product

    def _picked(self, dense: npt.NDArray[np.float32], rows: Rows) -> FloatArray:
        """Values of `dense` [n, n_chunks] at `rows`; NaN where there is no chunk or the query has no term."""
        if not dense.shape[1]:
            return np.full(rows.shape, np.nan)
        found = np.take_along_axis(dense, np.maximum(rows, 0), axis=1).astype(np.float64)
        return np.where((rows >= 0) & ~np.isnan(self.idf_sum)[:, None], found, np.nan)

    def cosine(self, rows: Rows) -> FloatArray:
        """Cosine of each chunk, [n, j]; NaN where there is no chunk, or no vector of the query."""
        queries, chunks = self.batch.query_vectors, self.batch.chunk_vectors
        if queries is None or chunks is None or not len(chunks):
            return np.full(rows.shape, np.nan)
        found = np.empty(rows.shape)
        step = max(1, GATHERED_BYTES // (4 * max(rows.shape[1] * chunks.shape[1], 1)))
        for start in range(0, self.n, step):
            block = slice(start, start + step)
            found[block] = np.einsum("nd,njd->nj", queries[block], chunks[np.maximum(rows[block], 0)])
        return np.where((rows >= 0) & queries.any(axis=1)[:, None], found, np.nan)
