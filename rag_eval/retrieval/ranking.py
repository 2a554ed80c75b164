"""Rankings as arrays, and the one order: `(score desc, section_id asc, snippet_id asc)`.

Chunks stand sorted by (section_id, chunk_id), so the row number of a chunk is its tie-break and no string is compared while ranking.
Scores are rounded before they are compared, because the last bits of a sum depend on how it was batched.
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

ROUNDING = 6
"""Decimals of a raw score that count; float32 sums are good to about seven digits."""

MARGIN = 16
"""Extra candidates fetched beyond the depth, so that ties at the cut are rarely cut apart."""

_LAST = np.iinfo(np.int64).max
"""Key of an empty place: it sorts behind every chunk."""

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
        int32 [n, depth]: rank before reranking and before the guard took chunks out, from 1 (0 where rows is -1).
    rerank
        float64 [n, depth]: score of the rerank step, NaN where none judged the chunk.
    failed
        bool [n]: queries whose retrieval ended in an error; their places are empty. None stands for no failure.
    failure
        The first error.
    candidates
        int64 [n]: how many chunks the engine scored and could have ranked; an engine that fetches only its best counts those it fetched.
    """

    rows: Rows
    raw: Scores
    norm: Scores
    k_pos: Rows
    rerank: Scores
    candidates: npt.NDArray[np.int64]
    failed: npt.NDArray[np.bool_] | None = None
    failure: str | None = None

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """Where a chunk stands, [n, depth]."""
        return np.asarray(self.rows >= 0)

    def cut(self, depth: int) -> "Ranking":
        """Keep the first `depth` ranks."""
        if depth >= self.rows.shape[1]:
            return self
        parts = {
            name: getattr(self, name)[:, :depth]
            for name in ("rows", "raw", "norm", "k_pos", "rerank")
        }
        return dataclasses.replace(self, **parts)

    def without(self, pairs: npt.NDArray[np.int64], n_chunks: int) -> "Ranking":
        """Take chunks out of the rankings of single queries; what stood behind moves up; scores and k_pos stay as they are.

        Parameters
        ----------
        pairs
            `query * n_chunks + row` of each pair that goes, in any order.
        n_chunks
            Number of chunks.
        """
        if not len(pairs):
            return self
        codes = np.arange(len(self.rows), dtype=np.int64)[:, None] * n_chunks + self.rows
        gone = np.isin(codes, pairs) & self.found
        if not gone.any():
            return self
        order = np.argsort(gone | ~self.found, axis=1, kind="stable")
        empty: dict[str, float] = {
            "rows": -1,
            "raw": 0.0,
            "norm": 0.0,
            "k_pos": 0,
            "rerank": np.nan,
        }
        parts: dict[str, Any] = {
            name: np.take_along_axis(
                np.where(
                    gone, np.asarray(fill, dtype=getattr(self, name).dtype), getattr(self, name)
                ),
                order,
                axis=1,
            )
            for name, fill in empty.items()
        }
        return dataclasses.replace(self, **parts)


def ranking(rows: Rows, raw: Scores, norm: Scores, candidates: npt.NDArray[np.int64]) -> Ranking:
    """Make the ranking of a first retrieval step: k_pos counts from 1 and nothing was reranked."""
    found = rows >= 0
    k_pos = np.where(found, np.arange(1, rows.shape[1] + 1, dtype=np.int32), np.int32(0)).astype(
        np.int32
    )
    return Ranking(
        rows,
        np.where(found, raw, 0.0),
        np.where(found, norm, 0.0),
        k_pos,
        np.full(rows.shape, np.nan),
        candidates,
    )


def order(rows: Rows, scores: Scores, depth: int, decimals: int = ROUNDING) -> tuple[Rows, Scores]:
    """Round scores, sort each query's candidates into the one order and keep the first `depth`.

    Score and row are packed into one integer, so that one sort settles both.

    Parameters
    ----------
    rows, scores
        [n, m] candidates, in any order; rows -1 or score -inf mark an empty place.
    decimals
        Decimals of a score that count.

    Returns
    -------
    rows, scores : [n, min(depth, m)]
        Empty places last, as row -1 and score -inf.
    """
    scale = 10.0**decimals
    empty = (rows < 0) | np.isneginf(scores)
    units = np.rint(np.where(empty, 0.0, scores) * scale)
    bits = max(1, int(rows.max(initial=0)).bit_length())
    if np.abs(units).max(initial=0.0) >= 2.0 ** (
        62 - bits
    ):  # scores too large to share 64 bits with a row
        by_score = np.lexsort((rows, -units, empty), axis=1)[:, :depth]
        gone, rows, units = (
            np.take_along_axis(part, by_score, axis=1) for part in (empty, rows, units)
        )
    else:
        key = (-units).astype(np.int64) << bits | np.maximum(rows, 0)
        key[empty] = _LAST
        key.sort(axis=1)
        key = key[:, :depth]
        gone, rows, units = key == _LAST, key & (1 << bits) - 1, -(key >> bits)
    return np.where(gone, np.int32(-1), rows.astype(np.int32)), np.where(
        gone, -np.inf, units / scale
    )


def select(dense: npt.NDArray[np.float32], depth: int) -> tuple[Rows, Scores]:
    """Top `depth` of dense scores [n, n_chunks] in the one order; a score of -inf is never selected.

    A partition finds a few more candidates than asked for; only where a tie reaches beyond them is the whole row looked at.
    """
    n_chunks = dense.shape[1]
    width = min(depth + MARGIN, n_chunks)
    if width == n_chunks:
        return order(
            np.broadcast_to(np.arange(n_chunks, dtype=np.int32), dense.shape),
            dense.astype(np.float64),
            depth,
        )
    candidates = np.argpartition(dense, n_chunks - width, axis=1)[:, n_chunks - width :].astype(
        np.int32
    )
    rows, scores = order(
        candidates, np.take_along_axis(dense, candidates, axis=1).astype(np.float64), width
    )
    for query in np.flatnonzero(
        np.isfinite(scores[:, -1]) & (scores[:, depth - 1] == scores[:, -1])
    ):
        rows[query, :depth], scores[query, :depth] = first_of_tied(
            dense[query].astype(np.float64), float(scores[query, depth - 1]), depth
        )
    return rows[:, :depth], scores[:, :depth]


def first_of_tied(dense: Scores, cut: float, depth: int) -> tuple[Rows, Scores]:
    """Top `depth` of one query's scores [n_chunks] when many chunks share the score `cut` at the end: all above it, then the first rows at it."""
    rounded = np.round(dense, ROUNDING)
    above = np.flatnonzero(rounded > cut)
    chosen = np.concatenate([above, np.flatnonzero(rounded == cut)[: depth - len(above)]]).astype(
        np.int32
    )
    rows, scores = order(chosen[None, :], rounded[None, chosen], depth)
    return rows[0], scores[0]


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
