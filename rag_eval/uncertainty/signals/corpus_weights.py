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
        length = np.bincount(chunk, weights=counts.data, minlength=space.n_chunks)
        self.share: csr_array = _like(
            counts, counts.data / length[chunk] if len(chunk) else counts.data
        )
        """[n_chunks, n_terms] share of a chunk's terms that are this one."""
        weighted = (1 + np.log(counts.data)) * space.idf[counts.indices]
        norm = np.sqrt(np.bincount(chunk, weights=weighted**2, minlength=space.n_chunks))
        self.unit: csr_array = _like(counts, weighted / norm[chunk] if len(chunk) else weighted)
        """[n_chunks, n_terms] (1 + ln tf) idf, rows of unit norm or zero."""
        total = np.bincount(counts.indices, weights=counts.data, minlength=space.n_terms)
        self.probability: FloatArray = total / max(float(total.sum()), 1.0)
        """[n_terms] share of all terms of the corpus."""
        mean_length = max(float(length.mean()) if space.n_chunks else 0.0, 1e-9)
        self.slow: npt.NDArray[np.float32] = (
            K1 * (1 - B + B * np.append(length, mean_length) / mean_length)
        ).astype(np.float32)
        """[n_chunks + 1], the last for a chunk of -1: k1 (1 - b + b length / mean length): BM25's weight of a term is tf / (tf + slow)."""
        self._starts: Ints = by_term.indptr.astype(np.int64)
        self._chunks = by_term.indices
        self._counts: npt.NDArray[np.uint16] = np.minimum(
            by_term.data, np.iinfo(np.uint16).max
        ).astype(np.uint16)

    def frequencies(self, terms: Ints, chunks: npt.NDArray[np.int32]) -> npt.NDArray[np.uint16]:
        """How often chunks hold terms of the corpus.

        The postings of the distinct terms are spread over a dense table, in which the look-ups then cost next to nothing.

        Parameters
        ----------
        terms
            [m] term ids.
        chunks
            int32 [m, j] chunk rows to look each of them up in.

        Returns
        -------
        array
            uint16 [m, j], 65,535 standing for more too; 0 for a chunk of -1.
        """
        distinct, row = np.unique(terms, return_inverse=True)
        sizes = self._starts[distinct + 1] - self._starts[distinct]
        from_ = np.arange(sizes.sum()) + np.repeat(
            self._starts[distinct] - np.cumsum(sizes) + sizes, sizes
        )
        width = self.n_chunks + 1  # the last column takes the chunks of -1
        table = np.zeros(len(distinct) * width, dtype=np.uint16)
        table[np.repeat(np.arange(len(distinct)) * width, sizes) + self._chunks[from_]] = (
            self._counts[from_]
        )
        found: npt.NDArray[np.uint16] = table[
            (row * width)[:, None] + np.where(chunks < 0, self.n_chunks, chunks)
        ]
        return found


def _like(matrix: Any, data: npt.NDArray[Any]) -> Any:
    """Return the same places with other values, float32."""
    from scipy.sparse import csr_array

    return csr_array((data.astype(np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


_PREPARED: weakref.WeakKeyDictionary[TermSpace, CorpusWeights] = weakref.WeakKeyDictionary()


def corpus_weights(space: TermSpace) -> CorpusWeights:
    """Prepare a corpus, once as long as its space lives: a live query must not pay for it."""
    found = _PREPARED.get(space)
    if found is None:
        found = _PREPARED[space] = CorpusWeights(space)
    return found
