"""Terms of documents and of their sentences in one vocabulary, weighed by how rare they are in the corpus, and a small latent space.

Belongs here: the matrices that topic shift is measured on. They are sparse, or blocks; nothing grows with documents x documents.
Latent space: a truncated SVD of TF-IDF (Deerwester et al., JASIS 1990), fitted on at most FITTED documents.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.corpus.analyzer import Analyzer, count_matrix
from rag_eval.trust.prose import sentences_of
from rag_eval.trust.sentence_form import CLOSED_CLASS, Form, form_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FITTED, DIMENSIONS, SEED, ITERATIONS = 2_048, 100, 0, 3


@dataclasses.dataclass(frozen=True)
class Space:
    """Documents [n], sentences [m] and what they are made of.

    Parameters
    ----------
    documents, sentences
        CSR matrices of term counts, [n, terms] and [m, terms]; closed-class words are left out.
    document_of, starts, ends
        [m]: the document of each sentence, rising, and its characters there.
    forms
        [m, 4] 0 or 1: asks, orders, addresses, introduces code.
    idf
        [terms]: ln((1 + n) / (1 + document frequency)) + 1.
    projection
        float32 [terms, dimensions]: the latent space, times idf.
    """

    documents: Any
    sentences: Any
    document_of: Ints
    starts: Ints
    ends: Ints
    forms: Floats
    idf: Floats
    projection: npt.NDArray[np.float32]


def _matrix(rows: Sequence[Sequence[int]], n_terms: int, closed: npt.NDArray[np.bool_]) -> Any:
    from scipy.sparse import csr_array

    counts = csr_array(count_matrix(rows, n_terms), shape=(len(rows), n_terms))
    counts.data[closed[counts.indices]] = 0.0
    counts.eliminate_zeros()
    return counts


def _projection(documents: Any, idf: Floats) -> npt.NDArray[np.float32]:
    from scipy.sparse import csr_matrix, diags_array
    from sklearn.utils.extmath import randomized_svd

    n, n_terms = documents.shape
    step = -(-n // FITTED)
    sample = documents[::step]
    weights = csr_matrix(sample @ diags_array(idf), dtype=np.float32)
    lengths = np.sqrt(np.asarray(weights.multiply(weights).sum(axis=1)).ravel())
    weights = csr_matrix(diags_array(1.0 / np.maximum(lengths, 1e-9)) @ weights, dtype=np.float32)
    size = min(DIMENSIONS, *weights.shape)
    if weights.nnz == 0 or size < 1:
        return np.zeros((n_terms, 1), dtype=np.float32)
    right = randomized_svd(weights, size, n_iter=ITERATIONS, random_state=SEED)[2]
    return np.ascontiguousarray((right * idf).T, dtype=np.float32)


def space_of(texts: Sequence[str]) -> Space:
    """Read the documents."""
    found = [sentences_of(text) for text in texts]
    spans = [
        (text[its.start : its.end], its)
        for text, those in zip(texts, found, strict=True)
        for its in those
    ]
    forms = np.array(
        [(*form_of(sentence), its.introduces_code) for sentence, its in spans], dtype=np.float64
    ).reshape(-1, len(Form._fields) + 1)
    analyzer = Analyzer()
    closed_ids = {i for row in analyzer.index([" ".join(sorted(CLOSED_CLASS))]) for i in row}
    of_documents, of_sentences = (
        analyzer.index(texts),
        analyzer.index([sentence for sentence, _ in spans]),
    )
    n_terms = len(analyzer.vocabulary)
    closed = np.zeros(n_terms, dtype=np.bool_)
    closed[list(closed_ids)] = True
    documents, rows = _matrix(of_documents, n_terms, closed), _matrix(of_sentences, n_terms, closed)
    frequency = np.bincount(documents.indices, minlength=n_terms)
    idf = np.log((1.0 + len(texts)) / (1.0 + frequency)) + 1.0
    return Space(
        documents,
        rows,
        np.repeat(np.arange(len(texts)), [len(those) for those in found]).astype(np.int64),
        np.array([its.start for _, its in spans], dtype=np.int64),
        np.array([its.end for _, its in spans], dtype=np.int64),
        forms,
        idf,
        _projection(documents, idf),
    )
