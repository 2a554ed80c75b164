"""Documents that are unlike all others of their source.

Belongs here: the two numbers that say so, per group of documents, and their robust scale. Linear in the documents: nobody is compared with
everybody, but with the counts of the group and with a fixed number of its documents.
"""

import itertools
from typing import Any

import numpy as np

from rag_eval.trust.shift_space import Floats, Ints, Space

COMPARED = 512
"""Documents of a group, evenly spaced, among which the nearest are looked for."""
NEAREST = 3
LEAST_TERMS = 15
LEAST_SPREAD = 0.15
"""Groups that people wrote spread by 0.29 to 0.49; pages of one template spread by almost nothing, and a word more must not make one a stranger."""
BLOCK = 4_096
_MAD = 1.4826  # the median absolute deviation times this estimates a normal's standard deviation


def _robust(values: Floats) -> Floats:
    """Deviations from the median in robust standard deviations, of which each is at least LEAST_SPREAD."""
    centre = np.median(values)
    spread = _MAD * np.median(np.abs(values - centre))
    return np.asarray((values - centre) / max(spread, LEAST_SPREAD), dtype=np.float64)


def _rarity(counts: Any, rows: Ints) -> Floats:
    """How rare a document's terms are among the group's other documents: mean of ln(n / (df - 1)), weighed by 1 + ln(tf)."""
    n, n_terms = counts.shape
    others = np.bincount(counts.indices, minlength=n_terms)[counts.indices] - 1
    tf = 1.0 + np.log(counts.data)
    return np.bincount(rows, tf * np.log(n / np.maximum(others, 0.5)), n) / np.maximum(
        np.bincount(rows, tf, n), 1e-9
    )


def _nearness(counts: Any, rows: Ints, idf: Floats) -> Floats:
    """Logarithm of the mean cosine to the nearest of the documents compared with, itself left out."""
    from scipy.sparse import csr_array

    n = counts.shape[0]
    weights = (1.0 + np.log(counts.data)) * idf[counts.indices]
    lengths = np.sqrt(np.bincount(rows, weights**2, n))
    unit = csr_array(
        (weights / np.maximum(lengths, 1e-9)[rows], counts.indices, counts.indptr),
        shape=counts.shape,
    )
    step = -(-n // COMPARED)
    compared = np.arange(0, n, step)
    columns = unit[compared].T.tocsr()
    result = np.zeros(n)
    for low in range(0, n, BLOCK):
        similar = (unit[low : low + BLOCK] @ columns).toarray()
        own = np.flatnonzero((compared >= low) & (compared < low + BLOCK))
        similar[compared[own] - low, own] = 0.0
        nearest = np.partition(similar, -NEAREST, axis=1)[:, -NEAREST:]
        result[low : low + BLOCK] = np.log(np.maximum(nearest.mean(axis=1), 1e-3))
    return result


def unlikeness(space: Space, group_of: Ints, least: int) -> Floats:
    """How unlike the rest of its group each document is, in robust standard deviations [n]; 0 in groups smaller than `least`.

    The mean of two deviations: how much rarer its words are in the group's other documents, and how much farther its nearest are, than
    the group's median. Documents of fewer than LEAST_TERMS distinct terms are 0.
    """
    counts = space.documents
    result = np.zeros(counts.shape[0])
    order = np.argsort(group_of, kind="stable")
    edges = np.flatnonzero(np.diff(group_of[order], prepend=-1, append=-1))
    for low, high in itertools.pairwise(edges.tolist()):
        members = order[low:high]
        if len(members) < max(least, NEAREST + 1):
            continue
        part = counts[members]
        rows = np.repeat(np.arange(len(members), dtype=np.int64), np.diff(part.indptr))
        far = (_robust(_rarity(part, rows)) - _robust(_nearness(part, rows, space.idf))) / 2.0
        result[members] = np.where(np.diff(part.indptr) >= LEAST_TERMS, far, 0.0)
    return result
