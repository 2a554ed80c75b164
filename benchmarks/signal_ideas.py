"""Ideas for further signals of a judged retrieval; benchmarks/signals.py measures what each adds.

Every function in IDEAS takes a `Judged` and returns its signals, [n, m].
"""

import functools

import numpy as np
from miss_rate_data import Judged, collection

from rag_eval.core.arrays import FloatArray, IntArray
from rag_eval.corpus.chunking import spans
from rag_eval.uncertainty.signals import Evidence, TermSpace

K = 10


def best_chunk(data: Judged) -> FloatArray:
    """Best lexical score and cosine of the first K, and their gaps to the second best."""
    evidence = Evidence(data.batch, K, None)
    best = [np.sort(-part[:, :K], axis=1) for part in (evidence.lexical(), evidence.cosine())]
    return np.column_stack([column for p in best for column in (-p[:, 0], p[:, 1] - p[:, 0])])


def all_chunks(data: Judged) -> FloatArray:
    """Cosines with all chunks: best z-score, kurtosis, log number near the best, mean of 100."""
    near = (data.batch.query_vectors @ data.batch.chunk_vectors.T).astype(np.float64)
    z = (near - near.mean(axis=1, keepdims=True)) / near.std(axis=1, keepdims=True)
    close = (near >= 0.9 * near.max(axis=1, keepdims=True)).sum(axis=1)
    mean = np.sort(near, axis=1)[:, -100:].mean(axis=1)
    return np.column_stack([z.max(axis=1), (z**4).mean(axis=1), np.log(np.maximum(close, 1)), mean])


@functools.cache
def _neighbours(name: str, model: str) -> FloatArray:
    """Log count of chunks that have a chunk among their ten nearest; mean cosine of its own ten."""
    vectors = collection(name).vectors(model)[1]
    near = vectors @ vectors.T
    np.fill_diagonal(near, -1)
    ten = np.argpartition(near, -10, axis=1)[:, -10:]
    hub = np.log1p(np.bincount(ten.ravel(), minlength=len(near)))
    return np.column_stack([hub, np.take_along_axis(near, ten, axis=1).mean(axis=1)])


def neighbourhood(data: Judged) -> FloatArray:
    """Hubness and density of the first chunk, and their means over the first K."""
    values = _neighbours(data.collection.name, data.model)[data.batch.rows[:, :K]]
    return np.hstack([values[:, 0], values.mean(axis=1)])


def feedback(data: Judged) -> FloatArray:
    """Cosine of the question with the mean of the first three chunks, and that mean's length."""
    mean = data.batch.chunk_vectors[data.batch.rows[:, :3]].mean(axis=1)
    length = np.linalg.norm(mean, axis=1)
    near = np.vecdot(mean, data.batch.query_vectors) / np.maximum(length, 1e-9)
    return np.column_stack([near, length])


def second_list(data: Judged) -> FloatArray:
    """Log rank of each list's first chunk in the other, and the fall of the second's scores."""
    rows, other = data.batch.rows, data.batch.other_rows
    same = [rows == other[:, :1], other == rows[:, :1]]
    rank = [np.where(part.any(axis=1), part.argmax(axis=1) + 1.0, 101.0) for part in same]
    raw = np.where(other >= 0, data.batch.other_raw, np.nan)
    scaled = raw / np.where(raw[:, :1] > 0, raw[:, :1], np.nan)
    return np.column_stack(
        [*np.log(rank), scaled[:, K - 1], scaled[:, 1], np.nanstd(scaled, axis=1)]
    )


@functools.cache
def _sentences(name: str) -> tuple[TermSpace, IntArray]:
    """Terms of all sentences, and the first sentence of each chunk, [n_chunks + 1]."""
    its = collection(name)
    cut = [[text[a:b] for a, b in spans(text)] or [text] for text in its.texts]
    terms = its.analyzer.index([sentence for part in cut for sentence in part])
    known = [[term for term in row if term < its.n_terms] for row in terms]
    return TermSpace(known, its.n_terms), np.cumsum([0, *map(len, cut)])


def sentences(data: Judged) -> FloatArray:
    """Share of the question's idf in the best sentence of the first K, and the gap to the next."""
    space, starts = _sentences(data.collection.name)
    result = np.full((len(data.batch), 2), np.nan)
    for row, terms, chunks in zip(result, data.batch.query_terms, data.batch.rows, strict=True):
        asked = np.zeros(space.n_terms)
        known = [term for term in terms if term < space.n_terms]
        asked[known] = data.batch.space.idf[known]
        held = [(space.counts[starts[c] : starts[c + 1]] > 0) @ asked for c in chunks[:K] if c >= 0]
        best = sorted((part.max() for part in held), reverse=True)
        if len(best) > 1 and asked.any():
            row[:] = np.array([best[0], best[0] - best[1]]) / asked.sum()
    return result


def rule_wordings(data: Judged) -> FloatArray:
    """Overlap with BM25's lists for wordings by rule: the rarer half, all but the rarest word."""
    space, found = data.batch.space, []
    ranked = [
        sorted({t for t in terms if t < space.n_terms}, key=lambda term: -space.idf[term])
        for terms in data.batch.query_terms
    ]
    for cut in ([row[: (len(row) + 1) // 2] for row in ranked], [row[1:] or row for row in ranked]):
        rows = data.collection.bm25.search(cut, K).rows
        found.append((rows[:, :, None] == data.batch.rows[:, None, :K]).any(axis=2).mean(axis=1))
    return np.column_stack(found)


IDEAS = (best_chunk, sentences, all_chunks, neighbourhood, feedback, second_list, rule_wordings)
