"""The poisoning guard as a caller of the port meets it: what restates the query is left out of the result."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.retrieval.ranking import Ranking
from rag_eval.trust.restating import restates

SPARE = 20
"""Chunks searched beyond what was asked for, to take the places of those that are left out."""


class QueryGuard:
    """Looks at the candidates of each query only, so that a live query pays for some dozens of chunks and not for the corpus.

    Parameters
    ----------
    chunks
        CHUNKS frame of the index.
    domains
        Domain of each chunk's source.
    vouched
        bool [n_chunks]; None where the gold set names nobody to trust.
    exempt
        bool [n_chunks]: chunks that a person allowed.
    """

    def __init__(self, chunks: pd.DataFrame, domains: Sequence[str], vouched: npt.NDArray[np.bool_] | None, exempt: npt.NDArray[np.bool_]) -> None:
        self._columns = {name: chunks[name].to_numpy(dtype=object) for name in ("text", "title", "doc_id")}
        self._domains = np.array(list(domains), dtype=object)
        self._vouched = vouched
        self._exempt = exempt

    def apply(self, queries: Sequence[str], found: Ranking) -> Ranking:
        """Take out of each query's ranking what restates it."""
        rows = np.unique(found.rows[found.found])
        if not len(rows) or (self._vouched is not None and self._vouched[rows].all()):
            return found
        parts = {name: column[rows].tolist() for name, column in self._columns.items()}
        pairs = restates(
            list(queries), parts["text"], titles=parts["title"], doc_ids=parts["doc_id"], sources=self._domains[rows].tolist(), vouched=None if self._vouched is None else self._vouched[rows]
        ).pairs
        pairs = pairs[pairs["severity"] == "blocked"]
        chunk = rows[pairs["chunk"].to_numpy(dtype=np.int64)]
        codes = pairs["query"].to_numpy(dtype=np.int64) * len(self._domains) + chunk
        return found.without(codes[~self._exempt[chunk]], len(self._domains))
