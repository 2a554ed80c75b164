"""Signals of the query alone: how rare its terms are, how many it has, how many the corpus does not know, how generic it is."""

import numpy as np

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray


def specificity(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n]; NaN for a query without terms, but for `length`, and for `generic` without a vector.

    `idf_mean` and `idf_max` of the distinct terms, by the idf of an unknown one; `length` ln(1 + terms); `unknown` share of distinct terms
    that the corpus does not know; `generic` cosine of the query and the mean of the chunk vectors.
    """
    query, corpus = evidence.entries[0], evidence.corpus
    count = np.bincount(query, minlength=evidence.n)
    some, per = count > 0, np.maximum(count, 1)
    top = np.zeros(evidence.n)
    np.maximum.at(top, query, evidence.idf)
    strange = np.bincount(query, weights=~evidence.known, minlength=evidence.n)
    return {
        "idf_mean": evidence.idf_sum / per / corpus.nowhere,
        "idf_max": np.where(some, top / corpus.nowhere, np.nan),
        "length": np.log1p(evidence.length),
        "unknown": np.where(some, strange / per, np.nan),
        "generic": _generic(evidence),
    }


def _generic(evidence: Evidence) -> FloatArray:
    queries, centre = evidence.batch.query_vectors, evidence.centre
    if queries is None or centre is None or not centre.any():
        return np.full(evidence.n, np.nan)
    cosine = (queries @ (centre / np.linalg.norm(centre))).astype(np.float64)
    return np.where(queries.any(axis=1), cosine, np.nan)
