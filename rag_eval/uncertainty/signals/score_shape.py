"""Signals of the scores alone: how steeply they fall, and whether the cut stands at a gap. All are ratios to the first score."""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray, deviation, mean

DEPTH = 100
"""Ranks that stand for the rest of the corpus."""
FIRST = 10


def score_shape(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n].

    `tail_ratio` s_K / s_1 (s_K the last of a shorter list); `top_gap` (s_1 - s_2) / s_1; `score_sd` SD of the first ten; `wig` mean of the
    first K over that of the first hundred (Zhou and Croft, SIGIR 2007, with the list in the place of the corpus); `nqc` SD of the first
    hundred (Shtok et al., TOIS 2012); `cut_gap` (s_K - s_K+1) / s_1, NaN where there is no rank K + 1. Scores are divided by s_1; NaN where
    it is not over 0.
    """
    batch, k = evidence.batch, evidence.k
    held = batch.rows[:, : max(DEPTH, k + 1)] >= 0
    raw = np.where(held, batch.raw[:, : held.shape[1]], np.nan)
    n = len(raw)
    nothing = np.full(n, np.nan)
    first = raw[:, 0] if raw.shape[1] else nothing
    with np.errstate(invalid="ignore"):
        scaled = raw / np.where(first > 0, first, np.nan)[:, None]
    count = held.sum(axis=1)
    at_cut = np.where(count > 0, _at(scaled, np.minimum(count, k) - 1), np.nan)
    return {
        "tail_ratio": at_cut,
        "top_gap": 1 - scaled[:, 1] if scaled.shape[1] > 1 else nothing,
        "score_sd": deviation(scaled[:, :FIRST]),
        "wig": mean(scaled[:, :k]) - mean(scaled[:, :DEPTH]),
        "nqc": deviation(scaled[:, :DEPTH]),
        "cut_gap": _at(scaled, np.full(n, k - 1)) - _at(scaled, np.full(n, k)),
    }


def _at(scaled: FloatArray, place: np.ndarray) -> FloatArray:
    inside = (place >= 0) & (place < scaled.shape[1])
    if not scaled.shape[1]:
        return np.full(len(scaled), np.nan)
    return np.where(inside, np.take_along_axis(scaled, np.where(inside, place, 0)[:, None], axis=1)[:, 0], np.nan)
