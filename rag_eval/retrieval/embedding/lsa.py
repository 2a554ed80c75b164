"""Latent semantic analysis: TF-IDF and a truncated SVD fitted on the corpus. Needs no download.

Source: Deerwester et al., JASIS 1990. tf is 1 + ln(tf), and idf is smoothed as in scikit-learn.
Vectors are projections onto the right singular vectors.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import Float32Array
from rag_eval.corpus.analyzer import ANALYZER, Analyzer, count_matrix
from rag_eval.retrieval.embedding.base import Advance, no_advance, unit
from rag_eval.storage.hashing import digest, library_versions

SVD_SEED = 0
SVD_ITERATIONS = 5
BLOCK = 8192


def fit_hash(text_hashes: Sequence[str], dimensions: int) -> str:
    """Hash the inputs of a fit: texts in order, analyzer, dimensions, seed and library version."""
    return digest(
        [list(text_hashes), ANALYZER, dimensions, library_versions()["scikit-learn"], SVD_SEED], 16
    )


@dataclasses.dataclass(frozen=True)
class LsaFit:
    """Result of a fit. Column j of the TF-IDF matrix is `terms[j]`."""

    terms: tuple[str, ...]
    idf: npt.NDArray[np.float64]
    components: Float32Array
    """[d, n_terms]; d is the least of wanted size, number of texts and number of terms."""


def fit(documents: Sequence[Sequence[int]], terms: Sequence[str], dimensions: int) -> LsaFit:
    """Fit on the term ids of each text; `terms` are the terms by id."""
    from scipy.sparse import csr_array, csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.utils.extmath import randomized_svd, svd_flip

    counts = csr_array(count_matrix(documents, len(terms)), shape=(len(documents), len(terms)))
    if counts.nnz == 0:  # only stop words: all vectors are zero and retrieve nothing
        blank = np.zeros((1, len(terms)), dtype=np.float32)
        return LsaFit(tuple(terms), np.ones(len(terms)), blank)
    transformer = TfidfTransformer(sublinear_tf=True)
    weights = csr_matrix(transformer.fit_transform(csr_matrix(counts)), dtype=np.float32)
    size = min(dimensions, *weights.shape)
    # Repeats TruncatedSVD, which refuses a single term and divides 0 by 0 on a single text.
    left, _, right = randomized_svd(
        weights, size, n_iter=SVD_ITERATIONS, random_state=SVD_SEED, flip_sign=False
    )
    components = svd_flip(left, right, u_based_decision=False)[1]
    return LsaFit(
        tuple(terms),
        np.asarray(transformer.idf_, dtype=np.float64),
        np.ascontiguousarray(components, dtype=np.float32),
    )


class LsaEmbedder:
    """Embeds texts with a fit. Its model name holds the `fit_hash` and the wanted dimensions."""

    def __init__(self, fitted: LsaFit, fit_id: str, dimensions: int) -> None:
        self.model = f"lsa-{dimensions}@{fit_id}"
        self.dimensions = len(fitted.components)
        self._fit = fitted
        # A product with a transposed view would copy the view for every query.
        self._projection = np.ascontiguousarray(fitted.components.T)
        self._analyzer = Analyzer()
        self._analyzer.vocabulary.update({term: i for i, term in enumerate(fitted.terms)})

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Project texts; words outside the corpus are ignored."""
        return self.embed_terms(self._analyzer.index(texts), advance)

    def embed_terms(
        self, documents: Sequence[Sequence[int]], advance: Advance = no_advance
    ) -> Float32Array:
        """Project term ids in blocks, float32 [n, dimensions]."""
        from scipy.sparse import csr_array

        n_terms = len(self._fit.terms)
        vectors = np.zeros((len(documents), self.dimensions), dtype=np.float32)
        for start in range(0, len(documents), BLOCK):
            part = documents[start : start + BLOCK]
            data, indices, indptr = count_matrix(part, n_terms)
            weights = (1.0 + np.log(data)) * self._fit.idf[indices]
            lengths = np.sqrt(
                np.add.reduceat(np.append(weights**2, 0.0), np.minimum(indptr[:-1], len(weights)))
            )
            weights /= np.repeat(np.where(lengths > 0, lengths, 1.0), np.diff(indptr))
            matrix = csr_array(
                (weights.astype(np.float32), indices, indptr), shape=(len(part), n_terms)
            )
            vectors[start : start + BLOCK] = unit(matrix @ self._projection)
            advance(len(part))
        return vectors
