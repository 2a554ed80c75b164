"""Signals of the semantic gap: how much of the query, weighted by idf, the retrieved chunks hold."""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray, highest


def coverage(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n], in [0, 1]; NaN for a query without terms.

    `cover_union` by the first K together, `cover_best` by the best single chunk of them, `cover_top` by the first, `cover_rarest` the share
    of the first K that hold the query's rarest term. Unknown terms count as terms that no chunk holds. An empty list covers nothing.
    """
    frequencies, n = evidence.top_frequencies, len(evidence.batch)
    shares = evidence.coverage(frequencies)
    asked = evidence.idf_sum > 0
    nothing = np.where(asked, 0.0, np.nan)
    if not frequencies.shape[1]:
        return dict.fromkeys(("cover_union", "cover_best", "cover_top", "cover_rarest"), nothing)
    held = frequencies > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        union = evidence.per_query(held.any(axis=1) * evidence.entry_idf) / evidence.idf_sum
    query = evidence.entries[0]
    order = np.lexsort((-evidence.entry_idf, query))
    first = order[np.searchsorted(query, np.arange(n)).clip(max=max(len(query) - 1, 0))] if len(query) else np.zeros(0, dtype=np.int64)
    rarest = np.where(asked, held[first].mean(axis=1), np.nan) if len(query) else nothing
    return {"cover_union": union, "cover_best": highest(shares), "cover_top": shares[:, 0], "cover_rarest": rarest}
