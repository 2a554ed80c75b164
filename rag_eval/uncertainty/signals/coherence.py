"""Signals of the retrieved chunks among themselves: do they speak of one thing."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rag_eval.uncertainty.signals.evidence import Evidence, FloatArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FIRST = 10


def coherence(evidence: Evidence) -> dict[str, FloatArray]:
    """Signals by name, each [n].

    `coherence` mean cosine of all pairs of the first ten chunks, of their vectors or, where there are none, of their tf-idf terms; NaN under
    two chunks. `clarity` Kullback-Leibler divergence, in nats, of the terms of the first ten, each chunk alike, from those of the corpus
    (Cronen-Townsend et al., SIGIR 2002, with the list in the place of the query model); NaN where there is no term.
    """
    rows = evidence.batch.rows[:, :FIRST]
    held = rows >= 0
    count = held.sum(axis=1)
    chosen = _chosen(rows, held, evidence.corpus.n_chunks)
    vectors = evidence.batch.chunk_vectors
    if vectors is None:
        summed = chosen @ evidence.corpus.unit
        norm = np.bincount(
            _queries(summed), weights=summed.data.astype(np.float64) ** 2, minlength=evidence.n
        )
        single = np.bincount(
            _queries(chosen),
            weights=np.diff(evidence.corpus.unit.indptr)[chosen.indices] > 0,
            minlength=evidence.n,
        )
    else:
        total = chosen @ vectors
        norm = np.vecdot(total, total).astype(np.float64)
        single = np.bincount(
            _queries(chosen),
            weights=np.vecdot(vectors, vectors)[chosen.indices] if len(vectors) else None,
            minlength=evidence.n,
        )
    pairs = np.where(count > 1, count * (count - 1), 1)
    return {
        "coherence": np.where(count > 1, (norm - single) / pairs, np.nan),
        "clarity": _clarity(evidence, chosen),
    }


def _chosen(rows: npt.NDArray[np.int32], held: npt.NDArray[np.bool_], n_chunks: int) -> "csr_array":
    from scipy.sparse import csr_array

    starts = np.concatenate([[0], np.cumsum(held.sum(axis=1))])
    return csr_array(
        (np.ones(int(held.sum()), dtype=np.float32), rows[held], starts),
        shape=(len(rows), n_chunks),
    )


def _queries(matrix: "csr_array") -> npt.NDArray[np.int64]:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _clarity(evidence: Evidence, chosen: "csr_array") -> FloatArray:
    mixed = chosen @ evidence.corpus.share
    query = _queries(mixed)
    total = np.bincount(query, weights=mixed.data, minlength=evidence.n)
    share = mixed.data / total[query]
    divergence = np.bincount(
        query,
        weights=share * np.log(share / evidence.corpus.probability[mixed.indices]),
        minlength=evidence.n,
    )
    return np.where(total > 0, divergence, np.nan)
