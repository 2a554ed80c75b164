"""How alike two rankings are.

Belongs here: rank-biased overlap, its mean over the runs of a question, the share of items that two lists have in common, and the recall of an
approximate index against exact search.
"""

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import FloatArray, IntArray, as_codes, as_rankings, ranks

_BLOCK = 100_000  # pairs of rankings at a time: bounds the memory


def rank_biased_overlap(a: ArrayLike, b: ArrayLike, p: float = 0.9) -> FloatArray:
    """Extrapolated rank-biased overlap of each row of `a` with the same row of `b`.

    Parameters
    ----------
    a, b
        `[n, k]` each: item codes, best first, -1 = padding, no item twice in a row.
    p
        Persistence in (0, 1): how far down the reader goes; 0.9 puts 86 % of the weight on the top 10.

    Returns
    -------
    array
        `[n]` in [0, 1]: identical lists 1, disjoint lists 0. Two empty lists are identical, an empty and a filled one disjoint.
        A list and its own beginning score 1: what was not seen is taken to agree as far as what was seen.

    References
    ----------
    Webber, Moffat & Zobel (2010), A similarity measure for indefinite rankings, TOIS 28(4): RBO_EXT, equation 32 for lists of
    unequal length.
    """
    if not 0 < p < 1:
        raise ValueError(f"p is {p}; accepted: between 0 and 1, both excluded")
    left, right = as_rankings(a, "a"), as_rankings(b, "b")
    if len(left) != len(right):
        raise ValueError(f"a has {len(left)} rankings, b has {len(right)}")
    n, depth = len(left), max(left.shape[1], right.shape[1])
    if not n or not depth:
        return np.ones(n)
    row, column = np.nonzero(left >= 0)
    other = ranks(right, row, left[row, column])
    seen_at = np.maximum(column, other - 1)[other > 0]
    shared = (
        np.bincount(row[other > 0] * depth + seen_at, minlength=n * depth)
        .reshape(n, depth)
        .cumsum(axis=1)
    )

    lengths = np.stack([np.count_nonzero(left >= 0, axis=1), np.count_nonzero(right >= 0, axis=1)])
    short, long = lengths.min(axis=0), lengths.max(axis=0)
    some = short > 0
    s, longest = np.maximum(short, 1)[:, None], np.maximum(long, 1)[:, None]
    d = np.arange(1, depth + 1)
    shared_at_s = np.take_along_axis(shared, s - 1, axis=1)
    shared_at_l = np.take_along_axis(shared, longest - 1, axis=1)
    seen = np.where(d <= longest, shared / d, 0.0)
    assumed = np.where((d > s) & (d <= longest), shared_at_s * (d - s) / (s * d), 0.0)
    body = (1 - p) / p * ((seen + assumed) * p**d).sum(axis=1, keepdims=True)
    tail = ((shared_at_l - shared_at_s) / longest + shared_at_s / s) * p**longest
    overlap: FloatArray = np.where(
        some, np.clip(body + tail, 0.0, 1.0)[:, 0], np.where(long == 0, 1.0, 0.0)
    )
    return overlap


def mean_pairwise_rbo(
    rankings: ArrayLike, query_of: ArrayLike, n_queries: int, p: float = 0.9
) -> FloatArray:
    """Mean rank-biased overlap over all pairs of runs (wordings x seeds) of each query.

    Parameters
    ----------
    rankings
        `[n, k]` top k of each run, -1 = padding.
    query_of
        `[n]` query code of each run.
    n_queries
        Number of queries.
    p
        Persistence.

    Returns
    -------
    array
        `[n_queries]`; NaN where a query has fewer than two runs.
    """
    lists, query = as_rankings(rankings, "rankings"), as_codes(query_of, "query_of")
    first, second = _pairs(query, n_queries)
    total = np.zeros(n_queries)
    for start in range(0, len(first), _BLOCK):
        one, two = first[start : start + _BLOCK], second[start : start + _BLOCK]
        total += np.bincount(
            query[one], weights=rank_biased_overlap(lists[one], lists[two], p), minlength=n_queries
        )
    count = np.bincount(query[first], minlength=n_queries).astype(np.float64)
    count[count == 0] = np.nan
    mean: FloatArray = total / count
    return mean


def _pairs(query: IntArray, n_queries: int) -> tuple[IntArray, IntArray]:
    """Both members of every unordered pair of runs of the same query."""
    order = np.argsort(query, kind="stable")
    counts = np.bincount(query, minlength=n_queries)
    within = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
    later = np.repeat(counts, counts) - within - 1  # runs of the same query after this one
    first = np.repeat(np.arange(len(query)), later)
    second = first + 1 + np.arange(len(first)) - np.repeat(np.cumsum(later) - later, later)
    return order[first], order[second]


def ann_recall(approximate: ArrayLike, exact: ArrayLike, k: int) -> FloatArray:
    """Share of the exact top k that the approximate top k holds (`ann_recall_at_k`).

    Parameters
    ----------
    approximate, exact
        `[n, depth]` each: item codes, best first, -1 = padding.
    k
        Cutoff. Where exact search has fewer than k items, that number is the denominator.

    Returns
    -------
    array
        `[n]`; NaN where exact search found nothing.
    """
    found, true = as_rankings(approximate, "approximate")[:, :k], as_rankings(exact, "exact")[:, :k]
    if len(found) != len(true):
        raise ValueError(f"{len(found)} approximate rankings, {len(true)} exact ones")
    row, column = np.nonzero(true >= 0)
    hits = np.bincount(row[ranks(found, row, true[row, column]) > 0], minlength=len(true))
    size = np.bincount(row, minlength=len(true)).astype(np.float64)
    size[size == 0] = np.nan
    share: FloatArray = hits / size
    return share


def shared_share(a: ArrayLike, b: ArrayLike) -> FloatArray:
    """Share of the items that two lists have in common, whatever their order (`overlap@k` of lists cut at k).

    Parameters
    ----------
    a, b
        `[n, k]` each: item codes, -1 = padding.

    Returns
    -------
    array
        `[n]` number of shared items by the length of the longer list; NaN where both are empty.

    Examples
    --------
    >>> shared_share([[3, 1, 2]], [[2, 9, -1]]).round(3).tolist()
    [0.333]
    """
    left, right = as_rankings(a, "a"), as_rankings(b, "b")
    if len(left) != len(right):
        raise ValueError(f"a has {len(left)} rankings, b has {len(right)}")
    row, column = np.nonzero(left >= 0)
    shared = np.bincount(row[ranks(right, row, left[row, column]) > 0], minlength=len(left))
    size = np.maximum(
        np.count_nonzero(left >= 0, axis=1), np.count_nonzero(right >= 0, axis=1)
    ).astype(np.float64)
    size[size == 0] = np.nan
    share: FloatArray = shared / size
    return share
