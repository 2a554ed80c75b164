"""Rankings as arrays, and the one order: `(score desc, section_id asc, snippet_id asc)`.

Chunks stand sorted by (section_id, chunk_id), so the row number of a chunk is its tie-break and no string is compared while ranking.
Scores are rounded before they are compared, because the last bits of a sum depend on how it was batched.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

ROUNDING = 6
"""Decimals of a raw score that count; float32 sums are good to about seven digits."""

MARGIN = 16
"""Extra candidates fetched beyond the depth, so that ties at the cut are rarely cut apart."""

Rows = npt.NDArray[np.int32]
Scores = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Ranked chunks of n queries.

    Parameters
    ----------
    rows
        int32 [n, depth]: chunk rows, best first, -1 where nothing more was retrieved.
    raw
        float64 [n, depth]: the engine's own scores (0 where rows is -1).
    norm
        float64 [n, depth]: scores in [0, 1] within the query (0 where rows is -1).
    k_pos
        int32 [n, depth]: rank before reranking, from 1 (0 where rows is -1).
    rerank
        float64 [n, depth]: score of the rerank step, NaN where none judged the chunk.
    candidates
        int64 [n]: how many chunks had a score to be ranked.
    """

    rows: Rows
    raw: Scores
    norm: Scores
    k_pos: Rows
    rerank: Scores
    candidates: npt.NDArray[np.int64]

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """Where a chunk stands, [n, depth]."""
        return np.asarray(self.rows >= 0)

    def cut(self, depth: int) -> "Ranking":
        """Keep the first `depth` ranks."""
        if depth >= self.rows.shape[1]:
            return self
        return Ranking(self.rows[:, :depth], self.raw[:, :depth], self.norm[:, :depth], self.k_pos[:, :depth], self.rerank[:, :depth], self.candidates)


def ranking(rows: Rows, raw: Scores, norm: Scores, candidates: npt.NDArray[np.int64]) -> Ranking:
    """Make the ranking of a first retrieval step: k_pos counts from 1 and nothing was reranked."""
    found = rows >= 0
    k_pos = np.where(found, np.arange(1, rows.shape[1] + 1, dtype=np.int32), np.int32(0)).astype(np.int32)
    return Ranking(rows, np.where(found, raw, 0.0), np.where(found, norm, 0.0), k_pos, np.full(rows.shape, np.nan), candidates)


def order(rows: Rows, scores: Scores, depth: int) -> tuple[Rows, Scores]:
    """Sort each query's candidates into the one order and keep the first `depth`.

    Parameters
    ----------
    rows, scores
        [n, m] candidates, in any order; rows -1 or score -inf mark an empty place.

    Returns
    -------
    rows, scores : [n, min(depth, m)]
        Empty places last, as row -1 and score -inf.
    """
    empty = (rows < 0) | np.isneginf(scores)
    key = np.where(empty, np.iinfo(np.int32).max, rows)
    by_row = np.argsort(key, axis=1, kind="stable")
    scores = np.take_along_axis(np.where(empty, -np.inf, scores), by_row, axis=1)
    by_score = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    final = np.take_along_axis(by_row, by_score, axis=1)
    sorted_scores = np.take_along_axis(scores, by_score, axis=1)
    sorted_rows = np.take_along_axis(rows, final, axis=1).astype(np.int32)
    return np.where(np.isneginf(sorted_scores), np.int32(-1), sorted_rows).astype(np.int32), sorted_scores


def select(dense: npt.NDArray[np.float32], depth: int) -> tuple[Rows, Scores]:
    """Top `depth` of dense scores [n, n_chunks] in the one order; a score of -inf is never selected.

    A partition finds a few more candidates than asked for; only where a tie reaches beyond them is the whole row sorted.
    """
    n_chunks = dense.shape[1]
    width = min(depth + MARGIN, n_chunks)
    if width < n_chunks:
        candidates = np.argpartition(dense, n_chunks - width, axis=1)[:, n_chunks - width :].astype(np.int32)
    else:
        candidates = np.broadcast_to(np.arange(n_chunks, dtype=np.int32), dense.shape)
    picked: Scores = np.take_along_axis(dense, candidates, axis=1).astype(np.float64)
    scores = np.round(picked, ROUNDING, out=picked)
    rows, sorted_scores = order(candidates, scores, width)
    if width < n_chunks and depth < width:
        tied = np.flatnonzero(np.isfinite(sorted_scores[:, -1]) & (sorted_scores[:, depth - 1] == sorted_scores[:, -1]))
        for query in tied:  # rare: more than MARGIN chunks share the score at the cut
            full = np.round(dense[query].astype(np.float64), ROUNDING)[None, :]
            full_rows, full_scores = order(np.arange(n_chunks, dtype=np.int32)[None, :], full, width)
            rows[query], sorted_scores[query] = full_rows[0], full_scores[0]
    return rows[:, :depth], sorted_scores[:, :depth]


def scale_by_top(scores: Scores) -> Scores:
    """Non-negative scores divided by the query's best: the floor 0 is what a chunk without any match would get."""
    top = np.where(np.isfinite(scores), scores, 0.0).max(axis=1, keepdims=True, initial=0.0)
    return np.where(np.isfinite(scores) & (top > 0), scores / np.where(top > 0, top, 1.0), 0.0)


def scale_min_max(scores: Scores) -> Scores:
    """Map a query's scores linearly so that its best is 1 and its last candidate 0; all equal gives 1."""
    finite = np.isfinite(scores)
    low = np.where(finite, scores, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    high = np.where(finite, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    spread = high - low
    flat = ~(spread > 0)
    with np.errstate(invalid="ignore"):
        scaled = np.where(flat, 1.0, (scores - low) / np.where(flat, 1.0, spread))
    return np.where(finite, scaled, 0.0)
