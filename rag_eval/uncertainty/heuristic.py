"""`heuristic_v0`: the miss rate as it is guessed without any outcome. Always uncalibrated; kept as the baseline of every comparison.

Belongs here: the formula. What is better than it is `signals` with an estimator on top.
"""

import numpy as np

from rag_eval.uncertainty.batch import FloatArray, RankedBatch

TAIL = (0.3, 0.5)
"""Scores of the tail, from and below."""
NEAR = (0.25, 0.35)
"""Scores near the threshold: within 0.05 of 0.3, under which a chunk is no longer counted into the tail."""
HISTORY = 0.3
"""What stands for the history of similar queries where there is none."""
CEILING = 0.9


def heuristic_v0(batch: RankedBatch, k: int = 10) -> FloatArray:
    """Guess miss rates: min(0.9, 0.3 tail_density + min(near_threshold / 10, 0.3) + 0.3 history + 0.1 complexity).

    Similarities are the cosines of the first k chunks, clipped to [0, 1], or their scores divided by the query's top score.
    tail_density is the share of them in [0.3, 0.5), at most 0.5; near_threshold counts those in [0.25, 0.35); history is 0.3, as there
    is no data; complexity is min(1, distinct content words / 10), content words being the terms of the analyzer. A shorter list is its own
    denominator. An empty list has neither tail nor scores near the threshold, so that the guess is 0.09 + 0.1 complexity: the formula does
    not know that nothing was retrieved, and as it is the baseline it is not mended.

    Parameters
    ----------
    batch
        n ranked lists.
    k
        Chunks that count as retrieved, at least 1.

    Returns
    -------
    array
        float64 [n], in [0.09, 0.64]. A guess, never a confidence.

    Raises
    ------
    ValueError
        k is under 1.
    """
    if k < 1:
        raise ValueError(f"k: found {k}, accepted at least 1")
    held = batch.rows[:, :k] >= 0
    raw = np.where(held, batch.raw[:, :k], 0.0)
    if not batch.cosine:
        top = raw.max(axis=1, keepdims=True, initial=0.0)
        raw = np.divide(raw, top, out=np.zeros_like(raw), where=top > 0)
    similarity = np.clip(raw, 0.0, 1.0)
    count = held.sum(axis=1)
    in_tail = (held & (similarity >= TAIL[0]) & (similarity < TAIL[1])).sum(axis=1)
    near = (held & (similarity >= NEAR[0]) & (similarity < NEAR[1])).sum(axis=1)
    density = np.minimum(in_tail / np.maximum(count, 1), 0.5)
    words = np.fromiter(
        (len(set(terms)) for terms in batch.query_terms), dtype=np.float64, count=len(batch)
    )
    guess: FloatArray = np.minimum(
        CEILING,
        0.3 * density
        + np.minimum(near / 10, 0.3)
        + 0.3 * HISTORY
        + 0.1 * np.minimum(1.0, words / 10),
    )
    return guess
