"""Rankings as arrays, and their order: `(score desc, section_id asc, snippet_id asc)`.

Chunks are sorted by (section_id, chunk_id), so the row number of a chunk is its tie-break. Scores
are rounded before they are compared, because the last bits of a sum depend on its batch.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import FloatArray, Int32Array
from rag_eval.core.frames import RUN

ROUNDING = 6
"""Decimals of a raw score that count; float32 sums are good to about seven digits."""

FUSED_ROUNDING = 9
"""Decimals of a fused score that count, so that the order of the two summands has no effect."""

_LAST = np.iinfo(np.int64).max
"""Key of an empty place, which sorts behind every chunk."""


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Ranked chunks of n queries, [n, depth] each, best first."""

    rows: Int32Array
    """Chunk rows; -1 in an empty place."""
    raw: FloatArray
    """The engine's own scores; 0 in an empty place."""
    norm: FloatArray
    """Scores in [0, 1] within the query; 0 in an empty place."""
    k_pos: Int32Array
    """Rank, from 1, before reranking and before the guard; 0 in an empty place."""
    rerank: FloatArray
    """Score of the rerank step; NaN for a chunk that the step did not score."""
    candidates: npt.NDArray[np.int64]
    """[n]: number of chunks that the engine scored and could have ranked."""
    failed: npt.NDArray[np.bool_] | None = None
    """[n]: whether the retrieval of the query failed; None if no query failed."""
    failure: str | None = None
    """Message of the first error; None if no query failed."""

    @property
    def has_chunk(self) -> npt.NDArray[np.bool_]:
        """Mark the places that hold a chunk, bool [n, depth]."""
        return np.asarray(self.rows >= 0)

    def map(self, change: Callable[[npt.NDArray[Any], float], npt.NDArray[Any]]) -> "Ranking":
        """Apply `change` to every array; its second argument is the value of an empty place."""
        empty = {"rows": -1, "raw": 0.0, "norm": 0.0, "k_pos": 0, "rerank": np.nan}
        parts: dict[str, Any] = {
            name: change(getattr(self, name), value) for name, value in empty.items()
        }
        return dataclasses.replace(self, **parts)

    def cut(self, depth: int) -> "Ranking":
        """Keep the first `depth` ranks."""
        return self if depth >= self.rows.shape[1] else self.map(lambda part, _: part[:, :depth])

    def blank(self, queries: npt.NDArray[np.bool_]) -> "Ranking":
        """Empty the rankings of the queries of a mask."""
        return self.map(
            lambda part, fill: np.where(queries[:, None], np.asarray(fill, part.dtype), part)
        )

    @classmethod
    def read(cls, frame: pd.DataFrame, seed: int, n: int, depth: int) -> "Ranking":
        """Read one seed of a RUN frame as a ranking of n variants."""
        part = frame[frame["seed"] == seed]
        place = part["variant"].to_numpy(), part["k_final"].to_numpy() - 1

        def read(column: str, empty: float, kind: type = np.float64) -> npt.NDArray[Any]:
            array: npt.NDArray[Any] = np.full((n, depth), empty, dtype=kind)
            array[place] = part[column].to_numpy()
            return array

        raw, norm = (np.nan_to_num(read(name, 0.0)) for name in ("score_raw", "score_norm"))
        return dataclasses.replace(
            ranking(read("chunk", -1, np.int32), raw, norm),
            k_pos=read("k_pos", 0, np.int32),
            rerank=read("rerank_score", np.nan),
        )

    def without(self, pairs: npt.NDArray[np.int64], n_chunks: int) -> "Ranking":
        """Remove chunks from the rankings of single queries; later chunks move up.

        `pairs` are `query * n_chunks + row` of the removed chunks. Scores and k_pos stay.
        """
        codes = np.arange(len(self.rows), dtype=np.int64)[:, None] * n_chunks + self.rows
        gone = np.isin(codes, pairs) & self.has_chunk
        if not gone.any():
            return self
        order = np.argsort(gone | ~self.has_chunk, axis=1, kind="stable")
        return self.map(
            lambda part, fill: np.take_along_axis(
                np.where(gone, np.asarray(fill, part.dtype), part), order, axis=1
            )
        )


def ranking(
    rows: Int32Array,
    raw: FloatArray,
    norm: FloatArray,
    candidates: npt.NDArray[np.int64] | None = None,
) -> Ranking:
    """Make the ranking of a first retrieval step, without a rerank step.

    The ranked chunks of a query are its candidates, unless the numbers are given.
    """
    has_chunk = rows >= 0
    if candidates is None:
        candidates = has_chunk.sum(axis=1).astype(np.int64)
    k_pos = np.where(has_chunk, np.arange(1, rows.shape[1] + 1), 0).astype(np.int32)
    raw, norm = np.where(has_chunk, raw, 0.0), np.where(has_chunk, norm, 0.0)
    return Ranking(rows, raw, norm, k_pos, np.full(rows.shape, np.nan), candidates)


def order(
    rows: Int32Array, scores: FloatArray, depth: int, decimals: int = ROUNDING
) -> tuple[Int32Array, FloatArray]:
    """Round scores, sort candidates [n, m] into the order of rankings, and keep the first `depth`.

    Score and row are packed into one integer, so that one sort orders by both. Row -1 or score -inf
    marks an empty place; such places come last.
    """
    scale = 10.0**decimals
    empty = (rows < 0) | np.isneginf(scores)
    units = np.rint(np.where(empty, 0.0, scores) * scale)
    bits = max(1, int(rows.max(initial=0)).bit_length())
    if np.abs(units).max(initial=0.0) >= 2.0 ** (62 - bits):  # too large to share 64 bits
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
    scores = np.where(gone, -np.inf, units / scale)
    return np.where(gone, np.int32(-1), rows.astype(np.int32)), scores


def scale_by_top(scores: FloatArray) -> FloatArray:
    """Divide non-negative scores by the best score of the query; an empty place gets 0."""
    top = np.where(np.isfinite(scores), scores, 0.0).max(axis=1, keepdims=True, initial=0.0)
    return np.where(np.isfinite(scores) & (top > 0), scores / np.where(top > 0, top, 1.0), 0.0)


def scale_min_max(scores: FloatArray) -> FloatArray:
    """Scale the scores of a query linearly: the best to 1 and the last to 0; equal scores to 1."""
    finite = np.isfinite(scores)
    low = np.where(finite, scores, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    high = np.where(finite, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    spread = high - low
    flat = ~(spread > 0)
    with np.errstate(invalid="ignore"):
        scaled = np.where(flat, 1.0, (scores - low) / np.where(flat, 1.0, spread))
    return np.where(finite, scaled, 0.0)


# ---- Rankings as stored frames: RUN, and the failed retrievals.


def run_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """Write rankings of all variants by seed in long form: RUN, one row per retrieved chunk."""
    parts = []
    for seed, ranked in rankings.items():
        at = variant, place = np.nonzero(ranked.has_chunk)
        columns = {
            "variant": variant,
            "seed": seed,
            "chunk": ranked.rows[at].astype(np.int64),
            "k_pos": ranked.k_pos[at].astype(np.int64),
            "k_final": place + 1,
            "score_raw": ranked.raw[at],
            "score_norm": ranked.norm[at],
            "rerank_score": ranked.rerank[at],
        }
        parts.append(pd.DataFrame(columns))
    return RUN.check(pd.concat(parts, ignore_index=True))


def failed_frame(rankings: Mapping[int, Ranking]) -> pd.DataFrame:
    """List the retrievals that ended in an error: variant, seed."""
    rows = [
        (row, seed)
        for seed, ranked in rankings.items()
        if ranked.failed is not None
        for row in np.flatnonzero(ranked.failed).tolist()
    ]
    return pd.DataFrame(rows, columns=["variant", "seed"], dtype="int64")
