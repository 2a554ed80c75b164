"""BM25 through rank-bm25 (`BM25Okapi`): the slow, well-known engine, selectable for comparison with published work that used it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rag_eval.retrieval.ranking import Ranking, ranking, scale_by_top, select

Terms = Sequence[Sequence[int]]
_EPSILON = 0.25
_SMALLEST_K1 = 1e-9
"""The library divides 0 by 0 at k1 = 0 for every term that a chunk lacks, and so loses the chunk; this k1 gives the same scores to nine digits."""


class RankBm25:
    """A `rank_bm25.BM25Okapi` index over term ids; one Python loop a query is that library's nature.

    Its idf ln((N - df + 0.5) / (df + 0.5)) is negative for terms in more than half of the chunks; the library lifts those to 0.25 times the
    mean idf. Only chunks with a positive score are ranked.
    """

    engine = "rank-bm25"

    def __init__(self, documents: Terms, n_terms: int, *, k1: float, b: float) -> None:
        from rank_bm25 import BM25Okapi

        self.n_chunks = len(documents)
        self.n_terms = n_terms
        self._index = (
            BM25Okapi(
                [list(row) for row in documents], k1=max(k1, _SMALLEST_K1), b=b, epsilon=_EPSILON
            )
            if any(documents)
            else None
        )

    def search(
        self, queries: Terms, depth: int, allowed: npt.NDArray[np.bool_] | None = None
    ) -> Ranking:
        """Rank chunks with a positive score; parameters as for `Bm25s.search`."""
        depth = min(depth, self.n_chunks)
        rows = np.full((len(queries), depth), -1, dtype=np.int32)
        scores = np.full((len(queries), depth), -np.inf)
        for i, query in enumerate(queries):
            if self._index is None or not query:
                continue
            with np.errstate(
                invalid="ignore"
            ):  # at b = 1 a chunk without terms gives 0 / 0, and is not ranked
                dense = np.asarray(self._index.get_scores(list(query)), dtype=np.float32)
            dense = np.where((dense > 0) & (True if allowed is None else allowed), dense, -np.inf)
            found, score = select(dense[None, :], depth)
            rows[i], scores[i] = found[0], score[0]
        return ranking(rows, scores, scale_by_top(scores), (rows >= 0).sum(axis=1).astype(np.int64))
