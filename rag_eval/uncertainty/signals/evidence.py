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
Frequencies = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int32]

POOL = 30
"""Ranks of each list whose chunks both engines score, at least."""
CUTOFFS = 3
"""And at least so many times K; a hundred ranks at K = 10 told no more than thirty."""
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
    def pool(self) -> int:
        """Ranks of each list that both engines score."""
        return max(POOL, CUTOFFS * self.k)

    @property
    def rows(self) -> Rows:
        """int32 [n, at most pool] the strategy's list."""
        return self.batch.rows[:, : self.pool]

    @property
    def other(self) -> Rows:
        """int32 [n, at most pool] the second retriever's list; [n, 0] where there is none."""
        rows = self.batch.other_rows
        return self.batch.rows[:, :0] if rows is None else rows[:, : self.pool]

    @functools.cached_property
    def entries(self) -> tuple[Ints, Ints]:
        """Query and term of each distinct term of each query, sorted by both; unknown terms too."""
        lengths = self.length
        flat = np.fromiter(
            (term for row in self.batch.query_terms for term in row),
            dtype=np.int64,
            count=int(lengths.sum()),
        )
        width = int(flat.max(initial=0)) + 1
        distinct = np.unique(np.repeat(np.arange(len(lengths)), lengths) * width + flat)
        return distinct // width, distinct % width

    @functools.cached_property
    def length(self) -> Ints:
        """int64 [n] terms of a query, repeated ones repeatedly."""
        return np.fromiter(
            (len(row) for row in self.batch.query_terms), dtype=np.int64, count=self.n
        )

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

    def per_query(self, values: FloatArray | Frequencies) -> FloatArray:
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
    def frequencies(self) -> Frequencies:
        """float32 [m, j] how often each chunk of `rows` holds the entry's term, 0 where there is no chunk."""
        return self._frequencies(self.rows)

    @functools.cached_property
    def held(self) -> npt.NDArray[np.bool_]:
        """Whether each of the first k chunks holds the entry's term, bool [m, min(k, depth)]."""
        return self.frequencies[:, : self.k] > 0

    @functools.cached_property
    def coverage(self) -> FloatArray:
        """Share of the query's idf that each chunk of `rows` holds, [n, j]; NaN where there is no chunk or no term."""
        return self._scores((self.frequencies > 0).astype(np.float32), self.rows)

    @functools.cached_property
    def listed(self) -> tuple[FloatArray, FloatArray]:
        """Lexical score and cosine of the chunks of `rows`, [n, j] each."""
        cosine = (
            np.where(self.rows >= 0, self.batch.raw[:, : self.pool], np.nan)
            if self.batch.cosine
            else self.cosine(self.rows)
        )
        return self._lexical(self.rows, self.frequencies), cosine

    @functools.cached_property
    def other_listed(self) -> tuple[FloatArray, FloatArray]:
        """As `listed`, of `other`."""
        return self._lexical(self.other, self._frequencies(self.other)), self.cosine(self.other)

    def _frequencies(self, rows: Rows) -> Frequencies:
        query, term = self.entries
        found = np.zeros((len(query), rows.shape[1]), dtype=np.float32)
        found[self.known] = self.corpus.frequencies(term[self.known], rows[query[self.known]])
        return found

    def _lexical(self, rows: Rows, frequencies: Frequencies) -> FloatArray:
        """BM25 of each chunk by the query's summed idf, in [0, 1), [n, j]; NaN where there is no chunk or no term."""
        return self._scores(
            frequencies / (frequencies + self.corpus.slow[rows][self.entries[0]]), rows
        )

    def _scores(self, weights: Frequencies, rows: Rows) -> FloatArray:
        """Sum of weight x idf over the entries of each query, by their summed idf."""
        share = (self.idf / self.idf_sum[self.entries[0]]).astype(np.float32)
        summed = self.per_query(weights * share[:, None])
        return np.where((rows >= 0) & ~np.isnan(self.idf_sum)[:, None], summed, np.nan)

    def cosine(self, rows: Rows) -> FloatArray:
        """Cosine of each chunk, [n, j]; NaN where there is no chunk, or no vector of the query."""
        queries, chunks = self.batch.query_vectors, self.batch.chunk_vectors
        if queries is None or chunks is None or not len(chunks):
            return np.full(rows.shape, np.nan)
        found = np.empty(rows.shape)
        step = max(1, GATHERED_BYTES // (4 * max(rows.shape[1] * chunks.shape[1], 1)))
        for start in range(0, self.n, step):
            block = slice(start, start + step)
            found[block] = np.einsum(
                "nd,njd->nj", queries[block], chunks[np.maximum(rows[block], 0)]
            )
        asked: npt.NDArray[np.bool_] = np.asarray(queries.any(axis=1))
        return np.where((rows >= 0) & asked[:, None], found, np.nan)
