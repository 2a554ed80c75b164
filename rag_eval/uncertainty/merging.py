"""One ranking of what several wordings of a question retrieved, each chunk once: the original's scores, and those of expansions at lower weights.

A weighted sum of normalised scores: a chunk that an expansion confirms rises, one that only an expansion found must score high there to enter the
first ranks. Where a rerank step decided the order, scores do not follow it, and (61 / (60 + rank)) stands for them.
"""

from collections.abc import Sequence

import numpy as np

from rag_eval.retrieval.fusion import FUSED_ROUNDING
from rag_eval.retrieval.ranking import Ranking, Scores, order, ranking
from rag_eval.uncertainty.batch import FloatArray

RANK_CONSTANT = 60.0


def merged(lists: Sequence[Ranking], weights: FloatArray, depth: int) -> Ranking:
    """Fuse lists of the same n questions.

    Parameters
    ----------
    lists
        The original's list first; a question that an expansion left out has an empty row in its list.
    weights
        [n, len(lists)], at least 0, the original's positive.
    depth
        Ranks kept.

    Returns
    -------
    Ranking
        `raw` is the best that any list gave a chunk, `norm` the weighted mean of the lists that were asked, in [0, 1].
    """
    n = len(weights)
    rows = np.concatenate([part.rows for part in lists], axis=1)
    shares = np.concatenate(
        [_scores(part) * weights[:, [at]] for at, part in enumerate(lists)], axis=1
    )
    raws = np.concatenate([part.raw for part in lists], axis=1)
    query, place = np.nonzero(
        (rows >= 0) & (np.repeat(weights, [part.rows.shape[1] for part in lists], axis=1) > 0)
    )
    width = int(rows.max(initial=0)) + 1
    codes, inverse = np.unique(
        query.astype(np.int64) * width + rows[query, place], return_inverse=True
    )
    sums = np.bincount(inverse, shares[query, place], minlength=len(codes))
    top = np.full(len(codes), -np.inf)
    np.maximum.at(top, inverse, raws[query, place])
    owner, chunk = codes // width, codes % width
    counts = np.bincount(owner, minlength=n)
    column = np.arange(len(codes)) - (np.cumsum(counts) - counts)[owner]
    shape = (n, max(int(counts.max(initial=0)), depth))
    union, scores = np.full(shape, -1, dtype=np.int32), np.full(shape, -np.inf)
    union[owner, column], scores[owner, column] = chunk, sums / weights.sum(axis=1)[owner]
    union, scores = order(union, scores, depth, FUSED_ROUNDING)
    found = union >= 0
    raw = np.zeros(union.shape)
    asked = np.repeat(np.arange(n), found.sum(axis=1)).astype(np.int64) * width + union[found]
    raw[found] = top[np.searchsorted(codes, asked)]
    candidates = np.max([part.candidates for part in lists], axis=0).astype(np.int64)
    return ranking(union, raw, np.where(found, scores, 0.0), np.maximum(candidates, counts))


def _scores(part: Ranking) -> Scores:
    """Scores in [0, 1] that follow the list's order."""
    by_rank = (RANK_CONSTANT + 1) / (RANK_CONSTANT + np.arange(1, part.rows.shape[1] + 1))
    reranked = ~np.isnan(part.rerank).all(axis=1, keepdims=True)
    return np.where(part.found, np.where(reranked, by_rank, part.norm), 0.0)
