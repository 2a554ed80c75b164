"""Which queries belong together: the connected components over shared gold documents, the unit of inference."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def group_ids(
    query_ids: Sequence[str], pair_queries: Sequence[str], pair_documents: Sequence[str]
) -> list[str]:
    """Group of each query: the smallest query id of its connected component.

    Two queries are connected when they share a gold document; a query that shares none is a group of its own.

    Parameters
    ----------
    query_ids
        The n queries, each once.
    pair_queries, pair_documents
        The m (query, gold document) pairs; pairs of other queries are left out.

    Returns
    -------
    list of str
        n group ids, in the order of `query_ids`.

    Examples
    --------
    >>> group_ids(["b", "a", "c"], ["a", "b", "c"], ["x", "x", "y"])
    ['a', 'a', 'c']
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    names = np.asarray(query_ids, dtype=object)
    n = len(names)
    if n == 0:
        return []
    rows = pd.Index(names).get_indexer(pd.Index(np.asarray(pair_queries, dtype=object)))
    known = rows >= 0
    documents, _ = pd.factorize(np.asarray(pair_documents, dtype=object)[known])
    size = n + (int(documents.max()) + 1 if len(documents) else 0)
    graph = coo_matrix(
        (np.ones(len(documents), dtype=np.int8), (rows[known], documents + n)), shape=(size, size)
    )
    _, labels = connected_components(graph, directed=False)
    labels = labels[:n]
    order = np.argsort(names.astype(str), kind="stable")
    first = pd.Series(names[order], dtype=object).groupby(labels[order], sort=False).first()
    return [str(name) for name in first.loc[labels]]
