"""Signals of the semantic gap: how much of the query, weighted by idf, the retrieved chunks hold."""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray
from rag_eval.uncertainty.signals.row_statistics import nth_highest


def coverage(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n], in [0, 1]; NaN for a query without terms.

    `cover_union` by the first K chunks together; `cover_best` by the best single one of them and `cover_rare` the same with idf squared;
    `cover_top` by the first; `cover_crowd` by the K-th best of the pool's ranks (how common such a coverage is; 0 for a list under K).
    Unknown terms count as terms that no chunk holds. An empty list covers nothing.
    """
    idf, total = evidence.idf, evidence.idf_sum
    squared = evidence.per_query(idf**2)
    squares = np.where(squared > 0, squared, np.nan)
    shares = evidence.per_query(evidence.held * idf[:, None]) / total[:, None]
    rare = evidence.per_query(evidence.held * (idf**2)[:, None]) / squares[:, None]
    crowd = nth_highest(evidence.coverage, evidence.k)
    asked = ~np.isnan(total)
    found = {
        "cover_union": evidence.per_query(evidence.held.any(axis=1) * idf) / total,
        "cover_best": shares.max(axis=1, initial=0.0),
        "cover_rare": rare.max(axis=1, initial=0.0),
        "cover_top": shares[:, 0] if shares.shape[1] else np.zeros(evidence.n),
        "cover_crowd": np.where(np.isnan(crowd), 0.0, crowd),
    }
    return {name: np.where(asked, values, np.nan) for name, values in found.items()}
