"""The rerank step: maximal marginal relevance over the vectors, and the protocol that other rerankers satisfy."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rag_eval.records.problems import quoted
from rag_eval.retrieval.dense import Vectors
from rag_eval.retrieval.ranking import ROUNDING, Ranking, Rows, Scores

BLOCK_BYTES = 64 * 2**20


class Reranker(Protocol):
    """Scores candidates anew. The settings map a name to an import path of such an object."""

    name: str

    def scores(
        self, queries: Sequence[str], texts: Sequence[Sequence[str]]
    ) -> list[Sequence[float]]:
        """Return one score for each text of each query, higher is better."""
        ...


def reorder(first: Ranking, scores: Scores, picked: Rows) -> Ranking:
    """Bring the first places into a new order and keep what stands behind them.

    Parameters
    ----------
    first
        The ranking before.
    scores
        float64 [n, m]: the rerank score of each of the first m places (in the old order), NaN for empty ones.
    picked
        int32 [n, m]: old places in the new order.
    """
    m = picked.shape[1]
    places = np.concatenate(
        [
            picked,
            np.broadcast_to(
                np.arange(m, first.rows.shape[1], dtype=np.int32),
                (len(picked), first.rows.shape[1] - m),
            ),
        ],
        axis=1,
    )
    rerank = np.full(first.rows.shape, np.nan)
    rerank[:, :m] = scores
    rows, k_pos = (np.take_along_axis(part, places, axis=1) for part in (first.rows, first.k_pos))
    raw, norm, judged = (
        np.take_along_axis(part, places, axis=1) for part in (first.raw, first.norm, rerank)
    )
    return Ranking(rows, raw, norm, k_pos, judged, first.candidates)


def mmr(first: Ranking, vectors: Vectors, *, lambda_: float, depth: int) -> Ranking:
    """Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998) over the first `depth` places.

    Next is the candidate with the highest lambda * score_norm - (1 - lambda) * max cosine to those already chosen; ties go to the better k_pos.

    Parameters
    ----------
    first
        Rankings of n queries.
    vectors
        float32 [n_chunks, d], unit norm.
    """
    m = min(depth, first.rows.shape[1])
    scores = np.full((len(first.rows), m), np.nan)
    picked = np.tile(np.arange(m, dtype=np.int32), (len(first.rows), 1))
    block = max(1, BLOCK_BYTES // (4 * max(1, m * (m + vectors.shape[1]))))
    for start in range(0, len(first.rows), block):
        stop = min(start + block, len(first.rows))
        rows = first.rows[start:stop, :m]
        candidate = vectors[np.maximum(rows, 0)]
        alike = np.matmul(candidate, candidate.transpose(0, 2, 1)).astype(np.float64)
        relevance = lambda_ * first.norm[start:stop, :m]
        open_ = rows >= 0
        nearest = np.zeros(rows.shape)
        here = np.arange(stop - start)
        for step in range(m):
            value = np.round(relevance - (1 - lambda_) * nearest, ROUNDING)
            best = np.argmax(np.where(open_, value, -np.inf), axis=1)
            live = open_[here, best]
            picked[start:stop, step] = np.where(live, best, picked[start:stop, step])
            scores[start + here[live], best[live]] = value[here[live], best[live]]
            open_[here[live], best[live]] = False
            nearest = np.maximum(nearest, alike[here, :, best]) if step else alike[here, :, best]
    return reorder(first, scores, picked)


def by_scores(first: Ranking, given: Sequence[Sequence[float]], *, depth: int) -> Ranking:
    """Order the first `depth` places by an outside reranker's scores; ties go to the better k_pos.

    Raises
    ------
    ValueError
        A query has another number of scores than candidates, or a score is not finite.
    """
    m = min(depth, first.rows.shape[1])
    scores = np.full((len(first.rows), m), np.nan)
    counts = first.found[:, :m].sum(axis=1)
    for query, (row, count) in enumerate(zip(given, counts, strict=True)):
        values = np.asarray(row, dtype=np.float64)
        if values.shape != (count,) or not np.isfinite(values).all():
            raise ValueError(
                f"reranker: query {query} has {count} candidates and got scores of shape {values.shape}; accepted: one finite number for each"
            )
        scores[query, :count] = values
    key: npt.NDArray[np.float64] = np.where(np.isnan(scores), np.inf, -scores)
    return reorder(first, scores, np.argsort(key, axis=1, kind="stable").astype(np.int32))


def _finite(scores: Sequence[float], count: int) -> list[float]:
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise ValueError(
            f"scores of shape {values.shape} for {count} candidates; accepted: one finite number for each"
        )
    return [float(value) for value in values]


def by_reranker(
    first: Ranking,
    reranker: Reranker,
    queries: Sequence[str],
    texts: Sequence[Sequence[str]],
    *,
    depth: int,
    strict: bool,
) -> Ranking:
    """Order by an outside reranker, whose errors fail the query that they belong to and no other.

    The whole batch is asked at once; where that fails each query is asked alone, to find those that fail.

    Parameters
    ----------
    first
        Rankings of n queries.
    queries, texts
        The n queries and the texts of their candidates.
    strict
        Raise instead, as a caller of the port expects.
    """
    try:
        return by_scores(first, reranker.scores(queries, texts), depth=depth)
    except Exception:
        if strict:
            raise
    failed = np.zeros(len(queries), dtype=bool)
    failure: str | None = None
    given: list[Sequence[float]] = []
    counts = first.found[:, : min(depth, first.rows.shape[1])].sum(axis=1).tolist()
    for at, (query, candidates) in enumerate(zip(queries, texts, strict=True)):
        try:
            scores = _finite(reranker.scores([query], [candidates])[0], counts[at])
        except Exception as error:  # noqa: BLE001 - whatever foreign code raises is that query's failure, counted and shown
            failed[at] = True
            failure = failure or quoted(f"{type(error).__name__}: {error}")
            scores = [0.0] * counts[at]
        given.append(scores)
    ranked = by_scores(first, given, depth=depth)
    empty = failed[:, None]
    return dataclasses.replace(
        ranked,
        rows=np.where(empty, np.int32(-1), ranked.rows).astype(np.int32),
        k_pos=np.where(empty, np.int32(0), ranked.k_pos).astype(np.int32),
        raw=np.where(empty, 0.0, ranked.raw),
        norm=np.where(empty, 0.0, ranked.norm),
        rerank=np.where(empty, np.nan, ranked.rerank),
        failed=failed,
        failure=failure,
    )
