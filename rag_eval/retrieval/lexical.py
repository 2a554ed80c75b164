"""BM25 through bm25s, method "lucene": the default lexical engine.

score(q, d) = sum over query terms of idf(t) * tf / (tf + k1 * (1 - b + b * |d| / avgdl)), idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)),
which is Lucene's BM25 (Kamphuis et al., ECIR 2020) without its constant factor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.retrieval.ranking import (
    MARGIN,
    Ranking,
    first_of_tied,
    order,
    ranking,
    scale_by_top,
    select,
)
from rag_eval.retrieval.synonyms.expansion import BoundExpansion
from rag_eval.retrieval.synonyms.scoring import ExpandedScores

Terms = Sequence[Sequence[int]]

BLOCK_BYTES = 64_000_000
"""Memory for the scores of the widened queries that are ranked together."""


class Bm25s:
    """A BM25 index over term ids.

    Parameters
    ----------
    documents
        Term ids of each chunk, in chunk order.
    n_terms
        Size of the vocabulary; query terms at or above it are unknown to the corpus.
    k1, b
        BM25's parameters.
    """

    engine = "bm25s"

    def __init__(self, documents: Terms, n_terms: int, *, k1: float, b: float) -> None:
        import bm25s

        self.n_chunks = len(documents)
        self._terms = np.zeros(n_terms, dtype=bool)
        for row in documents:
            self._terms[row] = True
        self._index: Any = None
        if n_terms and self._terms.any():  # bm25s cannot index a corpus without any term
            self._index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
            self._index.index((documents, {str(i): i for i in range(n_terms)}), show_progress=False)
        self._widened: ExpandedScores | None = None

    def search(
        self, queries: Terms, depth: int, allowed: npt.NDArray[np.bool_] | None = None
    ) -> Ranking:
        """Rank chunks that share at least one term with the query.

        Parameters
        ----------
        queries
            Term ids of each query; repeated terms count repeatedly.
        depth
            At most so many chunks a query.
        allowed
            bool [n_chunks]: only these are ranked.
        """
        n_terms = len(self._terms)
        known = [
            [term for term in query if term < n_terms and self._terms[term]] for query in queries
        ]
        width = min(depth + MARGIN, self.n_chunks)
        rows = np.full((len(queries), width), -1, dtype=np.int32)
        scores = np.full((len(queries), width), -np.inf)
        asked = [i for i, query in enumerate(known) if query]
        if asked and self._index is not None:
            mask = None if allowed is None else allowed.astype(np.float32)
            result = self._index.retrieve(
                [known[i] for i in asked],
                k=width,
                n_threads=0,
                show_progress=False,
                weight_mask=mask,
            )
            rows[asked], scores[asked] = (
                result.documents,
                np.where(result.scores > 0, result.scores, -np.inf),
            )
        rows, scores = order(rows, scores, width)
        if width < self.n_chunks and depth < width:
            for query in np.flatnonzero(
                np.isfinite(scores[:, -1]) & (scores[:, depth - 1] == scores[:, -1])
            ):
                full = self.dense(known[query], allowed)
                rows[query, :depth], scores[query, :depth] = first_of_tied(
                    np.where(full > 0, full.astype(np.float64), -np.inf),
                    float(scores[query, depth - 1]),
                    depth,
                )
        rows, scores = rows[:, :depth], scores[:, :depth]
        candidates = (rows >= 0).sum(axis=1).astype(np.int64)
        return ranking(rows, scores, scale_by_top(scores), candidates)

    def dense(
        self, query: Sequence[int], allowed: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.float32]:
        """Score every chunk for one query of known terms, [n_chunks]."""
        scores: npt.NDArray[np.float32] = np.asarray(
            self._index.get_scores_from_ids(list(query)), dtype=np.float32
        )
        return scores if allowed is None else np.where(allowed, scores, np.float32(0))

    def search_expanded(
        self,
        queries: Terms,
        expansion: BoundExpansion,
        depth: int,
        allowed: npt.NDArray[np.bool_] | None = None,
    ) -> Ranking:
        """Rank chunks that share at least one term, or the synonym of one, with the query; see `synonyms.scoring` for the score.

        Parameters
        ----------
        queries
            Term ids of each query; repeated terms count repeatedly.
        expansion
            The synonyms, in the ids of the analyzer that the documents' ids come from.
        depth
            At most so many chunks a query.
        allowed
            bool [n_chunks]: only these are ranked.
        """
        width = min(depth, self.n_chunks)
        rows = np.full((len(queries), width), -1, dtype=np.int32)
        scores = np.full((len(queries), width), -np.inf)
        step = max(1, BLOCK_BYTES // (8 * max(self.n_chunks, 1)))
        for start in range(0, len(queries) if self._index is not None else 0, step):
            block = slice(start, start + step)
            dense = self._expanded.dense(expansion, queries[block])
            ranked = dense > 0 if allowed is None else (dense > 0) & allowed
            rows[block], scores[block] = select(
                np.where(ranked, dense, -np.inf).astype(np.float32), width
            )
        candidates = (rows >= 0).sum(axis=1).astype(np.int64)
        return ranking(rows, scores, scale_by_top(scores), candidates)

    @property
    def _expanded(self) -> ExpandedScores:
        if self._widened is None:
            parts = self._index.scores
            self._widened = ExpandedScores(
                parts["data"], parts["indices"], parts["indptr"], len(self._terms), self.n_chunks
            )
        return self._widened
