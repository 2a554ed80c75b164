"""Folds of judged retrievals: whole groups stay together, because what was learned from a group must not be tested on it.

Belongs here: which row is in which fold. Random folds are here for one use only, to show how much they would flatter.
"""

import heapq

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.labelled import IntArray


def grouped_folds(group: npt.ArrayLike, n_folds: int, rng: np.random.Generator) -> IntArray:
    """Deal whole groups into folds of nearly equal size.

    Groups are taken largest first (equal ones in random order), each into the smallest fold so far.

    Parameters
    ----------
    group
        int [n] group code of each row.
    n_folds
        Number of folds, 1 or more; with fewer groups only as many folds as groups are used.
    rng
        Decides among equal groups.

    Returns
    -------
    array
        int [n] fold codes from 0; every code below the number of folds in use occurs.

    Examples
    --------
    >>> grouped_folds([5, 5, 5, 8, 8, 9], 2, np.random.default_rng(0)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    _check(n_folds)
    _, code = np.unique(np.asarray(group, dtype=np.int64), return_inverse=True)
    sizes = np.bincount(code)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    heap = [(0, fold) for fold in range(n_folds)]
    fold_of = np.zeros(len(sizes), dtype=np.int64)
    for at, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        held, fold = heap[0]
        fold_of[at] = fold
        heapq.heapreplace(heap, (held + size, fold))
    return fold_of[code]


def random_folds(n: int, n_folds: int, rng: np.random.Generator) -> IntArray:
    """Deal single rows into folds of equal size, splitting groups: only to measure the leakage that grouped folds avoid.

    Returns
    -------
    array
        int [n] fold codes from 0.
    """
    _check(n_folds)
    return rng.permutation(np.arange(n, dtype=np.int64) % n_folds)


def _check(n_folds: int) -> None:
    if n_folds < 1:
        raise ValueError(f"found {n_folds} folds, accepted 1 or more")
