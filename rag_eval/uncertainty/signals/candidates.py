"""Signals of the pool that two retrievers found together: is there something better below the cut than above it.

The pool is the first 3 K, and at least 30, of both lists, each chunk once, scored by both engines: BM25 by the query's summed idf, and cosine where there are
vectors. These scores do not depend on the strategy's own, so that the signals mean the same under all of them.
"""

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray, Rows
from rag_eval.uncertainty.signals.row_statistics import highest, nth_highest, standardised


def candidates(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n]; NaN where there is nothing to score or to compare.

    `lexical_other` and `cosine_other` best score among the first K of the other list; `lexical_crowd` K-th best lexical score of the pool;
    `beyond_lexical`, `beyond_cosine`, `beyond_fused` best score of the pool outside the first K minus the best inside; `fused_gap` best minus
    second best fused score. Fused: the sum of both scores, each standardised over the pool; the one there is where the other is missing.
    """
    rows, other = evidence.rows, evidence.other
    again = _again(rows, other, evidence.corpus.n_chunks)
    lexical, cosine = (
        np.concatenate([own, np.where(again, np.nan, theirs)], axis=1)
        for own, theirs in zip(evidence.listed, evidence.other_listed, strict=True)
    )
    parts = np.stack([standardised(lexical), standardised(cosine)])
    fused = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    k, cut = evidence.k, min(evidence.k, rows.shape[1])
    return {
        "lexical_other": highest(evidence.other_listed[0][:, :k]),
        "cosine_other": highest(evidence.other_listed[1][:, :k]),
        "lexical_crowd": nth_highest(lexical, k),
        "beyond_lexical": highest(lexical[:, cut:]) - highest(lexical[:, :cut]),
        "beyond_cosine": highest(cosine[:, cut:]) - highest(cosine[:, :cut]),
        "beyond_fused": highest(fused[:, cut:]) - highest(fused[:, :cut]),
        "fused_gap": nth_highest(fused, 1) - nth_highest(fused, 2),
    }


def _again(rows: Rows, other: Rows, n_chunks: int) -> npt.NDArray[np.bool_]:
    """Which places of the second list name a chunk of the first, or none."""
    seen = np.zeros(
        (len(rows), n_chunks + 1), dtype=bool
    )  # the last column takes the empty places, which are -1
    np.put_along_axis(seen, rows.astype(np.int64), values=True, axis=1)
    seen[:, -1] = True
    found: npt.NDArray[np.bool_] = np.take_along_axis(seen, other.astype(np.int64), axis=1)
    return found
