"""The unit of inference: queries that share a gold item belong together.

Belongs here: connected components over queries and what ties them. Not here: anything that uses the groups.
"""

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import IntArray, as_codes


def connected_components(
    query_codes: ArrayLike, item_codes: ArrayLike, n_queries: int | None = None
) -> IntArray:
    """Group of each query: two queries share a group when a chain of shared items joins them.

    Parameters
    ----------
    query_codes, item_codes
        `[n_pairs]` each: query q is tied to item i (pass relevant gold only; not-relevant judgements tie nothing).
    n_queries
        Number of queries; default: the highest code + 1. A query without items is its own group.

    Returns
    -------
    array
        `[n_queries]` group codes, numbered from 0 by the first query of each group.

    Examples
    --------
    >>> connected_components([0, 1, 1, 2, 3], [7, 7, 8, 8, 9]).tolist()
    [0, 0, 0, 1]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components as components

    query, item = as_codes(query_codes, "query_codes"), as_codes(item_codes, "item_codes")
    if len(query) != len(item):
        raise ValueError(f"{len(query)} query codes but {len(item)} item codes")
    total = int(query.max(initial=-1)) + 1 if n_queries is None else n_queries
    if not total:
        return np.zeros(0, dtype=np.int64)
    _, node = np.unique(item, return_inverse=True)
    size = total + int(node.max(initial=-1)) + 1
    graph = coo_array(
        (np.ones(len(query), dtype=np.int8), (query, total + node)), shape=(size, size)
    ).tocsr()
    labels = components(graph, directed=False)[1][:total]
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    number: IntArray = np.argsort(np.argsort(first))[inverse].astype(np.int64)
    return number
