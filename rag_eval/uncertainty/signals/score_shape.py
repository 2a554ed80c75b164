"""Signals of the scores alone: how steeply they fall, and whether the cut stands at a gap. All are ratios to the first score.

Ratios mean the same under every engine, whatever its scale.
"""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray
from rag_eval.uncertainty.signals.row_statistics import deviation, mean

DEPTH = 100
"""Ranks that stand for the rest of the corpus."""
FIRST = 10


def score_shape(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n]; NaN where the first score is not over 0.

    `tail_ratio` s_K / s_1 (s_K the last of a shorter list); `score_sd` SD of the first ten; `wig` mean of the first K minus that of the first
    hundred (Zhou and Croft, SIGIR 2007, with the list in the place of the corpus); `nqc` SD of the first hundred (Shtok et al., TOIS 2012);
    `cut_gap` (s_K - s_K+1) / s_1, NaN where there is no rank K + 1. All scores are divided by s_1.
    """
    batch, k = evidence.batch, evidence.k
    depth = min(max(DEPTH, k + 1), batch.rows.shape[1])
    if not depth:
        return dict.fromkeys(
            ("tail_ratio", "score_sd", "wig", "nqc", "cut_gap"), np.full(evidence.n, np.nan)
        )
    held = batch.rows[:, :depth] >= 0
    raw = np.where(held, batch.raw[:, :depth], np.nan)
    first = np.where(raw[:, 0] > 0, raw[:, 0], np.nan)
    scaled = raw / first[:, None]
    last = np.maximum(np.minimum(held.sum(axis=1), k) - 1, 0)
    return {
        "tail_ratio": np.take_along_axis(scaled, last[:, None], axis=1)[:, 0],
        "score_sd": deviation(scaled[:, :FIRST]),
        "wig": mean(scaled[:, :k]) - mean(scaled[:, :DEPTH]),
        "nqc": deviation(scaled[:, :DEPTH]),
        "cut_gap": scaled[:, k - 1] - scaled[:, k] if depth > k else np.full(evidence.n, np.nan),
    }
