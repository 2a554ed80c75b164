"""Which term of a corpus is wider than which: x subsumes y where x stands in most chunks that have y, but not the other way round.

P(x | y) >= 0.8 and P(y | x) < P(x | y) over chunks (Sanderson & Croft, SIGIR 1999).
"""

from typing import TYPE_CHECKING

import numpy as np

from rag_eval.uncertainty.expansion.context import IntArray
from rag_eval.uncertainty.expansion.words import CorpusWords

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOSTLY = 0.8
LEAST_CHUNKS = 3
"""A term in fewer chunks keeps the company of too many terms by chance."""
LIFT = 2.0
"""How many times more often than by chance a wider term must stand with the narrower one."""
BLOCK = 1024


def wider(words: CorpusWords, terms: IntArray) -> "csr_array":
    """Cosines of `terms` [m] with the addable terms that subsume them, float64 [m, n_terms]."""
    return _related(words, terms, upwards=True)


def narrower(words: CorpusWords, terms: IntArray) -> "csr_array":
    """Cosines of `terms` [m] with the addable terms that they subsume, float64 [m, n_terms]."""
    return _related(words, terms, upwards=False)


def _related(words: CorpusWords, terms: IntArray, *, upwards: bool) -> "csr_array":
    from scipy.sparse import csr_array, vstack

    space = words.space
    present = space.counts.copy()
    present.data = np.ones_like(present.data)
    by_term = space.by_term[terms]
    by_term.data = np.ones_like(by_term.data)
    parts = [csr_array((0, space.n_terms), dtype=np.float64)]
    for start in range(0, len(terms), BLOCK):
        together = (by_term[start : start + BLOCK] @ present).tocoo()
        mine, other = terms[start + together.row], together.col.astype(np.int64)
        of_mine, of_other = (
            together.data / space.frequency[mine],
            together.data / space.frequency[other],
        )
        high, low, narrow = (of_mine, of_other, mine) if upwards else (of_other, of_mine, other)
        wide = other if upwards else mine
        kept = (
            (high >= MOSTLY)
            & (low < high)
            & (mine != other)
            & words.addable[other]
            & (space.frequency[narrow] >= LEAST_CHUNKS)
        )
        kept &= high * space.n_chunks >= LIFT * space.frequency[wide]
        cosines = np.einsum(
            "ij,ij->i", words.term_vectors[mine[kept]], words.term_vectors[other[kept]]
        ).astype(np.float64)
        parts.append(
            csr_array(
                (np.maximum(cosines, 0.0), (together.row[kept], together.col[kept])),
                shape=(len(terms[start : start + BLOCK]), space.n_terms),
            )
        )
    return vstack(parts, format="csr")
