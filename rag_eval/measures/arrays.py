"""Joins between rankings and ragged lists, without a loop over documents.

Belongs here: expanding CSR rows, and finding the rank of given items in given rankings. Not here: any measure.

A ranking is a row of item codes, best first, padded at its end with -1.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
PADDING = -1


def as_codes(codes: ArrayLike, name: str, ndim: int = 1) -> IntArray:
    """Integers of the wanted number of dimensions as int64.

    Raises
    ------
    ValueError
        Another number of dimensions, or values that are not integers.
    """
    array = np.asarray(codes)
    if array.ndim != ndim or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{name}: {array.ndim}-dimensional {array.dtype}; accepted: {ndim}-dimensional integers"
        )
    return array.astype(np.int64, copy=False)


def as_rankings(rankings: ArrayLike, name: str) -> IntArray:
    """Rankings `[n, depth]` as int64, checked to be padded only at their ends.

    Raises
    ------
    ValueError
        Not two-dimensional integers, or padding before an item.
    """
    array = as_codes(rankings, name, ndim=2)
    gaps = (array[:, 1:] >= 0) & (array[:, :-1] < 0)
    if gaps.any():
        raise ValueError(
            f"{name}: row {int(np.argmax(gaps.any(axis=1)))} has padding before an item; accepted: -1 only at the end of a row"
        )
    return array


def as_values(values: ArrayLike) -> FloatArray:
    """Values `[n]` or `[n, m]` as a float array `[n, m]`."""
    array = np.asarray(values, dtype=np.float64)
    return array[:, None] if array.ndim == 1 else array


def expand(indptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Every entry of the CSR rows named, in order.

    Parameters
    ----------
    indptr
        `[n_rows + 1]`; row r holds the entries `indptr[r]` to `indptr[r + 1]`.
    rows
        `[n]` rows wanted; a row may be wanted several times.

    Returns
    -------
    owner, entry
        `[total]` each: the position in `rows` that an entry belongs to, and the position of the entry.
    """
    starts, counts = indptr[rows], indptr[rows + 1] - indptr[rows]
    owner = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) + np.repeat(starts - before, counts)


def ranks(rankings: IntArray, rows: IntArray, items: IntArray) -> IntArray:
    """Rank, from 1, of item `items[i]` in ranking `rows[i]`; 0 where it is absent.

    Parameters
    ----------
    rankings
        `[n, depth]`, -1 = padding.
    rows, items
        `[p]` each.

    Returns
    -------
    array
        `[p]`.

    Raises
    ------
    ValueError
        An item that was asked for stands twice in its ranking: every measure would count it twice.
    """
    n, depth = rankings.shape
    if not len(items) or not rankings.size:
        return np.zeros(len(items), dtype=np.int64)
    width = max(int(rankings.max()), int(items.max())) + 1
    wanted, inverse = np.unique(rows * width + items, return_inverse=True)
    keys = (rankings + np.arange(n)[:, None] * width).ravel()
    # Keys rise from ranking to ranking, so neighbouring searches touch neighbouring memory: faster than sorting the rankings.
    at = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
    found = np.flatnonzero((wanted[at] == keys) & (rankings.ravel() >= 0))
    rank: IntArray = np.zeros(len(wanted), dtype=np.int64)
    rank[at[found]] = found % depth + 1
    if np.count_nonzero(rank) != len(found):
        times = np.bincount(at[found], minlength=len(wanted))
        row, item = divmod(int(wanted[int(np.argmax(times > 1))]), width)
        raise ValueError(
            f"ranking {row} holds item {item} more than once; accepted: each item once"
        )
    result: IntArray = rank[inverse]
    return result


def csr(rows: ArrayLike, n_rows: int, *columns: ArrayLike) -> tuple[IntArray, ...]:
    """Sort long-form integer columns by row and give `(indptr, *columns)`; the order inside a row is kept."""
    codes = as_codes(rows, "rows")
    order = np.argsort(codes, kind="stable")
    indptr: IntArray = np.concatenate(
        [[0], np.cumsum(np.bincount(codes, minlength=n_rows))]
    ).astype(np.int64)
    return (indptr, *(as_codes(column, "columns")[order] for column in columns))
