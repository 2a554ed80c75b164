"""Signals of the other wordings of a question: do they lead to the same chunks, and does this wording have what they agree on.

They look over the whole batch, because the wordings of a question may stand far apart.
"""

import numpy as np

from rag_eval.uncertainty.batch import FloatArray, IntArray, RankedBatch
from rag_eval.uncertainty.signals.row_statistics import highest

POOL = 100
"""Ranks of each wording's list that give a consensus."""
NAMES = ("wordings_overlap", "consensus_best", "consensus_crowd", "consensus_missed")


def wordings(batch: RankedBatch, k: int) -> dict[str, FloatArray]:
    """Signals by name, each [n].

    `wordings_overlap` mean share of a wording's first K that the first K of another wording of its question has too. The consensus score of a
    chunk is its mean normalised score over the wordings of the question, 0 where it is not in the first hundred of one: `consensus_best` the
    best of a question, `consensus_crowd` the K-th best (0 where there are fewer), `consensus_missed` the best minus the best among this
    wording's first K. NaN where a question stands alone, nobody said which wording belongs to which question, or the list is empty.
    """
    n = len(batch)
    nothing = dict.fromkeys(NAMES, np.full(n, np.nan))
    if batch.question is None or not n or not batch.rows.shape[1]:
        return nothing
    _, question, count = np.unique(batch.question, return_inverse=True, return_counts=True)
    rows = batch.rows[:, : max(POOL, k)].astype(np.int64)
    codes = question[:, None] * batch.space.n_chunks + rows
    usable = (rows[:, 0] >= 0) & (count[question] > 1)
    found = {
        "wordings_overlap": _overlap(rows[:, :k] >= 0, codes[:, :k], count[question] - 1)
    } | _consensus(batch, k, question, count, codes[:, :POOL])
    return {name: np.where(usable, values, np.nan) for name, values in found.items()}


def _overlap(held: np.ndarray, codes: IntArray, rest: IntArray) -> FloatArray:
    """Share of each list's chunks that another list has, averaged over the `rest` of the question's lists."""
    others = np.zeros(codes.shape)
    _, place, times = np.unique(codes[held], return_inverse=True, return_counts=True)
    others[held] = times[place] - 1
    share: FloatArray = others.sum(axis=1) / np.maximum(held.sum(axis=1) * rest, 1)
    return share


def _consensus(
    batch: RankedBatch, k: int, question: IntArray, count: IntArray, codes: IntArray
) -> dict[str, FloatArray]:
    """Consensus scores of every (question, chunk) pair, sorted within the question, best first."""
    held = batch.rows[:, : codes.shape[1]] >= 0
    pair, place = np.unique(codes[held], return_inverse=True)
    owner = pair // max(batch.space.n_chunks, 1)
    score = (
        np.bincount(place, weights=batch.norm[:, : codes.shape[1]][held], minlength=len(pair))
        / count[owner]
    )
    ordered, starts = (
        score[np.lexsort((-score, owner))],
        np.searchsorted(owner, np.arange(len(count) + 1)),
    )
    start, end = starts[question], starts[question + 1]
    padded = np.append(ordered, np.zeros(k))
    best = padded[start]
    own = np.full(codes.shape, np.nan)
    own[held] = score[place]
    return {
        "consensus_best": best,
        "consensus_crowd": np.where(
            end - start >= k, padded[np.minimum(start + k - 1, len(padded) - 1)], 0.0
        ),
        "consensus_missed": best - highest(own[:, :k]),
    }
