"""The poisoning guard as a caller of the port meets it: what restates the query is left out of the result."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.retrieval.ranking import Ranking
from rag_eval.trust.plain_text import readings
from rag_eval.trust.restated_readings import restated_pairs

SPARE = 20
"""Chunks searched beyond what was asked for, to take the places of those that are left out; where they do not suffice, the search goes deeper."""


STEM = 4
"""First letters that stand for a word's stem: endings differ, restatements do not."""

_WORD = re.compile(r"\w+")


def stems(text: str) -> frozenset[str]:
    """First letters of the words of a text."""
    return frozenset(word[:STEM] for word in _WORD.findall(text.lower()))


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

    def __init__(
        self,
        chunks: pd.DataFrame,
        domains: Sequence[str],
        vouched: npt.NDArray[np.bool_] | None,
        exempt: npt.NDArray[np.bool_],
    ) -> None:
        self._columns = {
            name: chunks[name].to_numpy(dtype=object) for name in ("text", "title", "doc_id")
        }
        self._domains = np.array(list(domains), dtype=object)
        self._vouched = vouched
        self._exempt = exempt
        self._stems: dict[int, frozenset[str]] = {}

    def _near(self, queries: Sequence[str], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Keep the chunks that hold half of some query's words, by their first letters: none of the others can restate it, and comparing words in order costs more."""
        asked = [stems(query) for query in queries]
        kept = []
        for row in rows.tolist():
            if row not in self._stems:
                self._stems[row] = stems(
                    " ".join(
                        [
                            *readings(self._columns["title"][row]),
                            *readings(self._columns["text"][row]),
                        ]
                    )
                )
            held = self._stems[row]
            kept.append(any(2 * len(words & held) >= len(words) for words in asked))
        near: npt.NDArray[np.int32] = rows[np.array(kept, dtype=bool)]
        return near

    def apply(self, queries: Sequence[str], found: Ranking) -> Ranking:
        """Take out of each query's ranking what restates it."""
        rows = self._near(queries, np.unique(found.rows[found.found]))
        if not len(rows) or (self._vouched is not None and self._vouched[rows].all()):
            return found
        parts = {name: column[rows].tolist() for name, column in self._columns.items()}
        pairs = restated_pairs(
            list(queries),
            parts["text"],
            titles=parts["title"],
            doc_ids=parts["doc_id"],
            sources=self._domains[rows].tolist(),
            vouched=None if self._vouched is None else self._vouched[rows],
        )
        pairs = pairs[pairs["severity"] == "blocked"]
        chunk = rows[pairs["chunk"].to_numpy(dtype=np.int64)]
        codes = pairs["query"].to_numpy(dtype=np.int64) * len(self._domains) + chunk
        return found.without(codes[~self._exempt[chunk]], len(self._domains))
