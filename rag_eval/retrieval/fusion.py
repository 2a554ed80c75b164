"""Hybrid fusion of two rankings: a weighted sum of normalised scores, or reciprocal rank fusion. Vectorised over the batch.

Weighted: (alpha * lexical + beta * vector) / (alpha + beta) on scores in [0, 1]; a chunk that one list lacks gets 0 from it.
RRF: sum of 1 / (k + rank) over the lists (Cormack, Clarke, Buettcher, SIGIR 2009), divided by its maximum 2 / (k + 1) for the normalised score.
"""

import numpy as np

from rag_eval.retrieval.ranking import Ranking, Scores, order, ranking

FUSED_ROUNDING = 9
"""Decimals of a fused score that count: a sum of two products must not depend on which came first."""


def _merge(first: Ranking, second: Ranking, left: Scores, right: Scores, depth: int) -> Ranking:
    """Add what both lists give a chunk, then sort: the union of two lists of m places has at most 2 m chunks."""
    rows = np.concatenate([first.rows, second.rows], axis=1)
    parts = np.concatenate(
        [np.where(first.found, left, 0.0), np.where(second.found, right, 0.0)], axis=1
    )
    key = np.where(rows >= 0, rows, np.iinfo(np.int32).max)
    by_row = np.argsort(key, axis=1, kind="stable")
    rows = np.take_along_axis(rows, by_row, axis=1)
    parts = np.take_along_axis(parts, by_row, axis=1)
    twice = np.zeros(rows.shape, dtype=bool)
    twice[:, 1:] = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)
    parts[:, :-1] += np.where(twice[:, 1:], parts[:, 1:], 0.0)
    fused = np.where(twice | (rows < 0), -np.inf, parts)
    candidates = np.isfinite(fused).sum(axis=1).astype(np.int64)
    rows, fused = order(rows, fused, depth, FUSED_ROUNDING)
    return ranking(rows, fused, np.where(np.isfinite(fused), fused, 0.0), candidates)


def weighted(
    lexical: Ranking, vector: Ranking, *, alpha: float, beta: float, depth: int
) -> Ranking:
    """Fuse by normalised scores.

    Parameters
    ----------
    lexical, vector
        Rankings of the same n queries, as deep as the candidate pool shall be.
    alpha, beta
        Weights; their sum divides, so that scores stay in [0, 1].
    depth
        Ranks kept.
    """
    total = alpha + beta
    return _merge(
        lexical, vector, lexical.norm * (alpha / total), vector.norm * (beta / total), depth
    )


def reciprocal_rank(lexical: Ranking, vector: Ranking, *, k: int, depth: int) -> Ranking:
    """Fuse by ranks; parameters as for `weighted`."""
    top = 2.0 / (k + 1)
    left, right = (1.0 / (k + np.maximum(part.k_pos, 1)) / top for part in (lexical, vector))
    return _merge(lexical, vector, left, right, depth)
