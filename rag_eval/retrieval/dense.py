"""Exact vector search: a matrix product in blocks, the reference that every approximate search is measured against."""

import numpy as np
import numpy.typing as npt

from rag_eval.retrieval.ranking import Ranking, ranking, scale_min_max, select

BLOCK_BYTES = 64 * 2**20
"""Memory for one block of scores."""

Vectors = npt.NDArray[np.float32]


class ExactSearch:
    """Cosine similarity with every chunk.

    Parameters
    ----------
    vectors
        float32 [n_chunks, d], rows of unit norm, or zero for a chunk without any known term (never retrieved).
    """

    engine = "exact"

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.n_chunks = len(vectors)
        self._blank = ~self.vectors.any(axis=1)

    def search(self, queries: Vectors, depth: int, allowed: npt.NDArray[np.bool_] | None = None) -> Ranking:
        """Rank chunks by cosine; a zero query vector (no known term) retrieves nothing.

        Parameters
        ----------
        queries
            float32 [n, d], rows of unit norm or zero.
        depth
            At most so many chunks a query.
        allowed
            bool [n_chunks]: only these are ranked.
        """
        depth = min(depth, self.n_chunks)
        hidden = self._blank if allowed is None else self._blank | ~allowed
        block = max(1, BLOCK_BYTES // (4 * max(1, self.n_chunks)))
        rows = np.full((len(queries), depth), -1, dtype=np.int32)
        scores = np.full((len(queries), depth), -np.inf)
        hide = bool(hidden.any())
        for start in range(0, len(queries), block):
            product = queries[start : start + block] @ self.vectors.T
            if hide:
                product[:, hidden] = -np.inf
            rows[start : start + block], scores[start : start + block] = select(product, depth)
        blank = ~np.asarray(queries).any(axis=1)
        rows[blank], scores[blank] = -1, -np.inf
        candidates = np.where(blank, 0, self.n_chunks - int(hidden.sum())).astype(np.int64)
        return ranking(rows, scores, scale_min_max(scores), candidates)
