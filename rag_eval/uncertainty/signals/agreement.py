"""Signals of two retrievers side by side: do their lists agree, and what does each think of the other's chunks."""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray, Rows, highest, mean

PERSISTENCE = 0.9
RANKS = 100
"""Ranks that rank-biased overlap looks at, at most: those behind weigh under 0.00003."""

NAMES = ("overlap", "rbo", "other_first", "first_in_other")
CROSS = ("lexical_top", "lexical_mean", "lexical_other", "cosine_top", "cosine_mean", "cosine_other")


def agreement(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n]; NaN where there is no second list or it or the first is empty.

    `overlap` share of the first K that both have; `rbo` rank-biased overlap of the first K (Webber et al., TOIS 2010, p = 0.9, by its
    maximum); `other_first` ln of the rank of the other's first chunk in this list and `first_in_other` the reverse, depth + 1 where it is not there.
    """
    top, other = evidence.top, evidence.other_top
    batch = evidence.batch
    if other is None or batch.other_rows is None or not top.shape[1] or not other.shape[1]:
        return dict.fromkeys(NAMES, np.full(len(batch), np.nan))
    both = (top[:, 0] >= 0) & (other[:, 0] >= 0)
    width = min(evidence.k, RANKS)
    together = _agreeing(top[:, :width], other[:, :width], width)
    weight = PERSISTENCE ** np.arange(width)
    rbo = (together / np.arange(1, width + 1)) @ (weight / weight.sum())
    signals = {
        "overlap": together[:, -1] / width,
        "rbo": rbo,
        "other_first": np.log(_rank(batch.rows, other[:, 0])),
        "first_in_other": np.log(_rank(batch.other_rows, top[:, 0])),
    }
    return {name: np.where(both, values, np.nan) for name, values in signals.items()}


def _agreeing(first: Rows, second: Rows, width: int) -> FloatArray:
    """How many chunks the first d of both share, for every d up to `width`: [n, width]."""
    query, left, right = np.nonzero((first[:, :, None] == second[:, None, :]) & (first >= 0)[:, :, None])
    n = len(first)
    found = np.bincount(query * width + np.maximum(left, right), minlength=n * width).reshape(n, width)
    return np.cumsum(found, axis=1).astype(np.float64)


def _rank(rows: Rows, chunk: np.ndarray) -> FloatArray:
    """Rank of a chunk in each list, depth + 1 where it is not there."""
    same = rows == chunk[:, None]
    return np.where(same.any(axis=1), same.argmax(axis=1) + 1.0, rows.shape[1] + 1.0)


def cross_scores(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n]: lexical score and cosine of the first chunk, of the first K, and the best of the other list's first K.

    They do not depend on the engine, so that they mean the same under every strategy. NaN where there is no chunk, term, vector or second list.
    """
    nothing = np.full(len(evidence.batch), np.nan)
    if not evidence.top.shape[1]:
        return dict.fromkeys(CROSS, nothing)
    lexical, cosine = evidence.lexical(evidence.top, evidence.top_frequencies), evidence.cosine(evidence.top)
    found = {"lexical_top": lexical[:, 0], "lexical_mean": mean(lexical), "lexical_other": nothing, "cosine_top": cosine[:, 0], "cosine_mean": mean(cosine), "cosine_other": nothing}
    if evidence.other_top is not None and evidence.other_frequencies is not None:
        found["lexical_other"] = highest(evidence.lexical(evidence.other_top, evidence.other_frequencies))
        found["cosine_other"] = highest(evidence.cosine(evidence.other_top))
    return found
