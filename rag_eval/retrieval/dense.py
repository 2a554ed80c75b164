"""Exact vector search: a matrix product in blocks, the reference that every approximate search is measured against.

The last bits of a matrix product depend on its shape: one query alone and the same query in a batch differ by some 1e-7, and two equal chunks can
differ by their place. So the product only chooses candidates, with a margin; their scores are dot products of the two vectors alone.
"""

import numpy as np
import numpy.typing as npt

from rag_eval.retrieval.ranking import (
    MARGIN,
    ROUNDING,
    Ranking,
    Rows,
    Scores,
    order,
    ranking,
    scale_min_max,
)

BLOCK_BYTES = 32 * 2**20
"""Memory for one block of scores."""

ERROR = 2 * float(np.finfo(np.float32).eps)
"""What a cosine from the product may be off, for each square root of a dimension: over ten times what was seen."""

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
        self._slack = np.float32(2 * ERROR * np.sqrt(self.vectors.shape[1]) + 10.0**-ROUNDING)
        self._blank = ~self.vectors.any(axis=1)

    def search(
        self, queries: Vectors, depth: int, allowed: npt.NDArray[np.bool_] | None = None
    ) -> Ranking:
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
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        hidden = self._blank if allowed is None else self._blank | ~allowed
        block = max(1, BLOCK_BYTES // (4 * max(1, self.n_chunks)))
        rows = np.full((len(queries), depth), -1, dtype=np.int32)
        scores = np.full((len(queries), depth), -np.inf)
        product = np.empty((min(block, len(queries)), self.n_chunks), dtype=np.float32)
        for start in range(0, len(queries) if depth else 0, block):
            part = queries[start : start + block]
            near = np.matmul(part, self.vectors.T, out=product[: len(part)])
            if hidden.any():
                near[:, hidden] = -np.inf
            rows[start : start + block], scores[start : start + block] = self._best(
                part, near, depth
            )
        blank = ~queries.any(axis=1)
        rows[blank], scores[blank] = -1, -np.inf
        candidates = np.where(blank, 0, self.n_chunks - int(hidden.sum())).astype(np.int64)
        return ranking(rows, scores, scale_min_max(scores), candidates)

    def _best(self, queries: Vectors, near: Vectors, depth: int) -> tuple[Rows, Scores]:
        """Score one by one whatever the product puts within reach of the best `depth`: see the module's docstring."""
        width = min(depth + MARGIN, self.n_chunks)
        floor = (
            np.partition(near, self.n_chunks - depth, axis=1)[:, self.n_chunks - depth]
            - self._slack
        )
        within = (
            near >= np.maximum(floor, np.finfo(np.float32).min)[:, None]
        )  # never a hidden chunk, whose product is -inf
        candidates = np.full((len(queries), width), -1, dtype=np.int32)
        cosines = np.full((len(queries), width), -np.inf)
        gathered = np.empty((width, self.vectors.shape[1]), dtype=np.float32)
        crowded = {}
        for query, vector in enumerate(queries):
            chosen = within[query].nonzero()[0]
            count = len(chosen)
            if count > width:  # rare: more than MARGIN chunks as good as the last
                crowded[query] = chosen
                continue
            candidates[query, :count] = chosen
            cosines[query, :count] = np.vecdot(
                self.vectors.take(chosen, axis=0, out=gathered[:count], mode="clip"), vector
            )
        rows, cosines = order(candidates, cosines, depth)
        for query, chosen in crowded.items():
            found = order(
                chosen[None, :].astype(np.int32),
                np.vecdot(self.vectors[chosen], queries[query])[None, :].astype(np.float64),
                depth,
            )
            rows[query], cosines[query] = found[0][0], found[1][0]
        return rows, cosines
