"""Signals of the other wordings of a question: do they lead to the same chunks."""

import numpy as np

from rag_eval.uncertainty.batch import RankedBatch
from rag_eval.uncertainty.signals.evidence import FloatArray


def wordings_overlap(batch: RankedBatch, k: int) -> FloatArray:
    """Mean share of a wording's first k that the first k of another wording of its question has too, [n].

    NaN where a question stands alone, nobody said which wording belongs to which question, or the list is empty.
    """
    n, width = len(batch), min(k, batch.rows.shape[1])
    if batch.question is None or not n or not width:
        return np.full(n, np.nan)
    rows = batch.rows[:, :width].astype(np.int64)
    _, question, wordings = np.unique(batch.question, return_inverse=True, return_counts=True)
    held = rows >= 0
    codes = (question[:, None] * batch.space.n_chunks + rows)[held]
    _, place, times = np.unique(codes, return_inverse=True, return_counts=True)
    others = np.zeros(rows.shape)
    others[held] = times[place] - 1
    length, rest = held.sum(axis=1), wordings[question] - 1
    with np.errstate(invalid="ignore"):
        share: FloatArray = others.sum(axis=1) / np.where((length > 0) & (rest > 0), length * rest, np.nan)
    return share
