"""Signals of the query alone: how rare its terms are, how many it has, how many the corpus does not know."""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray


def specificity(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n]: `idf_mean` and `idf_max` of the distinct terms, by the idf of an unknown one; `length` ln(1 + terms); `unknown` share of distinct terms.

    NaN for a query without terms, but for `length`.
    """
    n, query = len(evidence.batch), evidence.entries[0]
    count = np.bincount(query, minlength=n)
    nowhere = np.log1p((evidence.postings.space.n_chunks + 0.5) / 0.5)
    top = np.zeros(n)
    np.maximum.at(top, query, evidence.entry_idf)
    strange = np.bincount(query, weights=evidence.entries[1] >= evidence.postings.space.n_terms, minlength=n)
    some = count > 0
    per = np.maximum(count, 1)
    return {
        "idf_mean": np.where(some, evidence.idf_sum / per / nowhere, np.nan),
        "idf_max": np.where(some, top / nowhere, np.nan),
        "length": np.log1p(evidence.length),
        "unknown": np.where(some, strange / per, np.nan),
    }
