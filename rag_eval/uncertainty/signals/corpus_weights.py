"""What the signals need of a corpus, prepared once for each: term weights by chunk, look-up of a term in a chunk, the language model.

Belongs here: figures of chunks and terms, whatever the query.
"""

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.batch import TermSpace

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FloatArray = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

K1, B = 0.9, 0.4
"""BM25's parameters, as the project's default; the lexical score of a pair does not follow a strategy's own."""


class CorpusWeights:
    """Term weights of a corpus; holds no reference to the space it was made of.

    Parameters
    ----------
    space
        Terms of the corpus.
    """

    def __init__(self, space: TermSpace) -> None:
        counts, by_term = space.counts, space.by_term
        self.n_chunks, self.n_terms = space.n_chunks, space.n_terms
        self.idf: FloatArray = space.idf
        self.nowhere = float(np.log1p((space.n_chunks + 0.5) / 0.5))
        """Idf of a term that no chunk holds: what an unknown term weighs."""
        chunk = np.repeat(np.arange(space.n_chunks, dtype=np.int64), np.diff(counts.indptr))
        self._keys: Ints = chunk * max(space.n_terms, 1) + counts.indices
        length = np.bincount(chunk, weights=counts.data, minlength=space.n_chunks)
        self.share: csr_array = _like(counts, counts.data / length[chunk] if len(chunk) else counts.data)
        """[n_chunks, n_terms] share of a chunk's terms that are this one."""
        weighted = (1 + np.log(counts.data)) * space.idf[counts.indices]
        norm = np.sqrt(np.bincount(chunk, weights=weighted**2, minlength=space.n_chunks))
        self.unit: csr_array = _like(counts, weighted / norm[chunk] if len(chunk) else weighted)
        """[n_chunks, n_terms] (1 + ln tf) idf, rows of unit norm or zero."""
        total = np.bincount(counts.indices, weights=counts.data, minlength=space.n_terms)
        self.probability: FloatArray = total / max(float(total.sum()), 1.0)
        """[n_terms] share of all terms of the corpus."""
        mean_length = max(float(length.mean()) if space.n_chunks else 0.0, 1e-9)
        slow = K1 * (1 - B + B * length / mean_length)
        self.by_term: csr_array = _like(by_term, by_term.data / (by_term.data + slow[by_term.indices]) + 1j)
        """complex64 [n_terms, n_chunks]: tf / (tf + k1 (1 - b + b length / mean length)), in [0, 1), and as the imaginary part 1.

        Two weights in one matrix, because one sparse product then gives both sums in the time of one.
        """

    def holds(self, chunk: Ints, term: Ints) -> npt.NDArray[np.bool_]:
        """Whether chunk i holds term i; never so for a chunk of -1 or an unknown term. Shapes of both alike."""
        if not len(self._keys):
            return np.zeros(chunk.shape, dtype=bool)
        key = np.where((chunk < 0) | (term >= self.n_terms), -1, chunk * self.n_terms + term)
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        found: npt.NDArray[np.bool_] = self._keys[at] == key
        return found


def _like(matrix: Any, data: npt.NDArray[Any]) -> Any:
    """Return the same places with other values, in single precision."""
    from scipy.sparse import csr_array

    return csr_array((data.astype(np.complex64 if np.iscomplexobj(data) else np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


_PREPARED: weakref.WeakKeyDictionary[TermSpace, CorpusWeights] = weakref.WeakKeyDictionary()


def corpus_weights(space: TermSpace) -> CorpusWeights:
    """Prepare a corpus, once as long as its space lives: a live query must not pay for it."""
    found = _PREPARED.get(space)
    if found is None:
        found = _PREPARED[space] = CorpusWeights(space)
    return found
