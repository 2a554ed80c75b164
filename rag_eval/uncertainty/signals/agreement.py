"""Signals of two retrievers side by side: do their lists agree."""

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray, Rows

PERSISTENCE = 0.9
RANKS = 100
"""Ranks that overlap and rank-biased overlap look at, at most: those behind weigh under 0.00003 in the latter."""

NAMES = ("overlap", "rbo", "other_first", "first_in_other", "same_first")


def agreement(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n]; NaN where there is no second list, or one of the two is empty.

    `overlap` chunks that the first K of both share, by K; `rbo` rank-biased overlap of the first K (Webber et al., TOIS 2010, p = 0.9, by its
    maximum); `other_first` ln of the rank of the other's first chunk in this list and `first_in_other` the reverse, depth + 1 where it is not
    there; `same_first` 1 where both begin with the same chunk. K is at most a hundred here.
    """
    rows, other = evidence.batch.rows, evidence.batch.other_rows
    if other is None or not rows.shape[1] or not other.shape[1]:
        return dict.fromkeys(NAMES, np.full(evidence.n, np.nan))
    width = min(evidence.k, RANKS)
    together = _agreeing(rows[:, :width], other[:, :width], width)
    weight = PERSISTENCE ** np.arange(width)
    signals = {
        "overlap": together[:, -1] / width,
        "rbo": (together / np.arange(1, width + 1)) @ (weight / weight.sum()),
        "other_first": np.log(_rank(rows, other[:, 0])),
        "first_in_other": np.log(_rank(other, rows[:, 0])),
        "same_first": (rows[:, 0] == other[:, 0]).astype(np.float64),
    }
    both = (rows[:, 0] >= 0) & (other[:, 0] >= 0)
    return {name: np.where(both, values, np.nan) for name, values in signals.items()}


def _agreeing(first: Rows, second: Rows, width: int) -> FloatArray:
    """How many chunks the first d of both share, for every d up to `width`: [n, width]."""
    query, left, right = np.nonzero(
        (first[:, :, None] == second[:, None, :]) & (first >= 0)[:, :, None]
    )
    found = np.bincount(
        query * width + np.maximum(left, right), minlength=len(first) * width
    ).reshape(-1, width)
    agreeing: FloatArray = np.cumsum(found, axis=1).astype(np.float64)
    return agreeing


def _rank(rows: Rows, chunk: npt.NDArray[np.int32]) -> FloatArray:
    """Rank of a chunk in each list, from 1; depth + 1 where it is not there."""
    same = rows == chunk[:, None]
    rank: FloatArray = np.where(same.any(axis=1), same.argmax(axis=1) + 1.0, rows.shape[1] + 1.0)
    return rank
