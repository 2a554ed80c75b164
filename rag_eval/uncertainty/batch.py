"""What the estimators of a miss rate look at: a batch of ranked lists, the terms of queries and chunks, a second retriever's lists, vectors.

Belongs here: the input, and nothing that judges it. Everything is an array over the whole batch.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.sparse import csr_array

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int32]
Vectors = npt.NDArray[np.float32]


class TermSpace:
    """Terms of the corpus: counts of every chunk and idf.

    Parameters
    ----------
    chunk_terms
        Term ids of each chunk (`ChunkTable.terms`), repeated as often as they occur.
    n_terms
        Size of the corpus vocabulary; a query term at or above it is unknown.
    """

    def __init__(self, chunk_terms: Sequence[Sequence[int]], n_terms: int) -> None:
        self.n_chunks, self.n_terms = len(chunk_terms), n_terms
        self.counts: csr_array = _counts(chunk_terms, n_terms)
        """float32 [n_chunks, n_terms], sorted indices."""
        frequency = np.bincount(self.counts.indices, minlength=n_terms).astype(np.float64)
        self.frequency: FloatArray = frequency
        """[n_terms] how many chunks hold a term."""
        self.idf: FloatArray = np.log1p((self.n_chunks - frequency + 0.5) / (frequency + 0.5))
        """[n_terms] ln(1 + (N - df + 0.5) / (df + 0.5)), as Lucene's BM25."""

    @functools.cached_property
    def by_term(self) -> "csr_array":
        """The transpose: float32 [n_terms, n_chunks]."""
        transposed: csr_array = self.counts.T.tocsr()
        return transposed

    def queries(self, query_terms: Sequence[Sequence[int]]) -> "csr_array":
        """Counts of the known terms of queries, float32 [n, n_terms]."""
        return _counts(
            [[term for term in row if term < self.n_terms] for row in query_terms], self.n_terms
        )


def _counts(rows: Sequence[Sequence[int]], n_terms: int) -> "csr_array":
    from scipy.sparse import csr_array

    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    indices = np.fromiter(
        (term for row in rows for term in row), dtype=np.int64, count=int(lengths.sum())
    )
    matrix: Any = csr_array(
        (
            np.ones(len(indices), dtype=np.float32),
            indices,
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        shape=(len(rows), n_terms),
    )
    matrix.sum_duplicates()
    matrix.sort_indices()
    return matrix


@dataclasses.dataclass(frozen=True)
class RankedBatch:
    """Ranked lists of n queries by one strategy, and what else is known of the queries.

    Parameters
    ----------
    rows
        int32 [n, depth] chunk rows, best first, -1 where nothing more was retrieved.
    raw
        float64 [n, depth] the engine's own scores, 0 where rows is -1.
    norm
        float64 [n, depth] scores in [0, 1] within the query, 0 where rows is -1.
    cosine
        Whether `raw` is a cosine similarity (else an unbounded score such as BM25's, divided by its top for [0, 1]).
    space
        Terms of the corpus.
    query_terms
        Term ids of each wording as analysed, repeated terms repeatedly; ids at or above `space.n_terms` are unknown.
    other_rows, other_raw
        A second retriever's lists for the same queries, int32 and float64 [n, other_depth]; None where there is none.
    query_vectors, chunk_vectors
        float32 [n, d] and [n_chunks, d], unit norm or zero; None where the strategy has no vectors.
    document
        int64 [n_chunks] code of each chunk's document, numbered from 0 without gaps; None where it is not known.
    question
        int64 [n] code of the question that a wording belongs to; None where every query stands alone.
    """

    rows: Rows
    raw: FloatArray
    norm: FloatArray
    cosine: bool
    space: TermSpace
    query_terms: Sequence[Sequence[int]]
    other_rows: Rows | None = None
    other_raw: FloatArray | None = None
    query_vectors: Vectors | None = None
    chunk_vectors: Vectors | None = None
    question: IntArray | None = None
    document: IntArray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def known(self) -> "csr_array":
        """Counts of known query terms, float32 [n, n_terms]."""
        return self.space.queries(self.query_terms)
