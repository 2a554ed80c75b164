"""The guess without outcomes: the specified formula over the scores of a retrieval."""

import numpy as np

from rag_eval.core.arrays import FloatArray
from rag_eval.uncertainty.signals import RankedBatch

TAIL, NEAR = (0.3, 0.5), (0.25, 0.35)
"""Ranges [from, to) of scores in the tail, and of scores near the tail's lower bound 0.3."""
HISTORY, CEILING = 0.3, 0.9
"""Constant in place of the missing history of similar queries, and the highest guess."""


def heuristic_v0(batch: RankedBatch, k: int = 10) -> FloatArray:
    """Guess miss rates [n] in [0.09, 0.64] without outcomes, as the baseline of comparisons.

    min(0.9, 0.3 tail_density + min(near_threshold / 10, 0.3) + 0.3 history + 0.1 complexity).
    Similarities are the cosines of the first k chunks, clipped to [0, 1], or their scores divided
    by the query's top score. tail_density is the share of them in [0.3, 0.5), at most 0.5.
    near_threshold counts similarities in [0.25, 0.35). history is 0.3, because there are no data.
    complexity is min(1, distinct terms / 10). The share in a list shorter than k is over the list.
    An empty list gets a low guess. The formula stays unchanged, because it is the baseline. The
    guess is never a confidence.
    """
    held = batch.rows[:, :k] >= 0
    raw = np.where(held, batch.raw[:, :k], 0.0)
    if not batch.cosine:
        top = raw.max(axis=1, keepdims=True, initial=0.0)
        raw = np.divide(raw, top, out=np.zeros_like(raw), where=top > 0)
    similarity = np.clip(raw, 0.0, 1.0)
    in_tail = (held & (similarity >= TAIL[0]) & (similarity < TAIL[1])).sum(axis=1)
    near = (held & (similarity >= NEAR[0]) & (similarity < NEAR[1])).sum(axis=1)
    density = np.minimum(in_tail / np.maximum(held.sum(axis=1), 1), 0.5)
    words = np.array([len(set(terms)) for terms in batch.query_terms], dtype=np.float64)
    guess: FloatArray = np.minimum(
        CEILING,
        0.3 * density
        + np.minimum(near / 10, 0.3)
        + 0.3 * HISTORY
        + 0.1 * np.minimum(1.0, words / 10),
    )
    return guess
