"""Whether a question finds the same evidence, close to itself, however it is put.

Belongs here: semantic distance `delta_s` with its zones, and the `lambda` state of a query. Not here: how much of the variation
comes from where (`variation`).
"""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rag_eval.measures.arrays import BoolArray, FloatArray, as_codes

STABLE_BELOW, TRANSITIONAL_BELOW, DELTA_S_TARGET = 0.40, 0.60, 0.45
RBO_CONVERGENT, RBO_CHAOTIC = 0.5, 0.2
SAME_DISTANCE = 0.02  # two delta_s closer than this cannot tell the anchor from the decoy

LambdaState = Literal["convergent", "recursive", "divergent", "chaotic", "undefined"]

# reason -> (state, likely cause and what to look at)
LAMBDA_REASONS: dict[str, tuple[LambdaState, str]] = {
    "same_hits_same_order": ("convergent", "Every wording and seed brings the same evidence. If the question is always missed, look at whether its evidence is indexed at all."),
    "seeds_change_hit": ("recursive", "The same wording hits or misses depending on the seed: approximate search, or ties broken by chance. Look at ann_recall_at_k against exact search, the index's search effort, and tie-breaking."),
    "wordings_change_hit": ("divergent", "Some wordings find the evidence and others do not: vocabulary mismatch. Look at the terms the missing wordings share with no gold document; try hybrid retrieval or query expansion."),
    "order_drifts": ("divergent", "The hit does not change but the lists agree only in part: many chunks of near-equal score. Look at duplicates, chunk size, and a rerank step."),
    "seeds_and_wordings_change_hit": ("chaotic", "Both the seed and the wording decide whether the evidence is found. Look at the recall of the index first (ann_recall_at_k), then at the wordings."),
    "lists_disagree": ("chaotic", "The lists of the wordings and seeds have almost nothing in common. Look at whether the question is too short or ambiguous, and whether the embedding fits this language and corpus."),
    "one_run": ("undefined", "Only one run of this question: nothing to compare. Add paraphrases or seeds."),
}  # fmt: skip


def delta_s(query_vectors: ArrayLike, chunk_vectors: ArrayLike, top: ArrayLike) -> FloatArray:
    """Semantic distance between a text and what was retrieved: 1 - cosine with the mean vector of the top chunks.

    Parameters
    ----------
    query_vectors
        `[n, d]`: the vector of each question; or of its anchor, or of its decoy section, for the distance to those.
    chunk_vectors
        `[n_chunks, d]`, of the same embedding.
    top
        `[n, k]` chunk codes retrieved, -1 = padding.

    Returns
    -------
    array
        `[n]` clipped to [0, 1]; NaN where nothing was retrieved. A zero vector (a text without any known term) points nowhere, so its
        distance is 1.
    """
    from scipy.sparse import csr_array

    query = np.asarray(query_vectors, dtype=np.float64)
    chunks, codes = np.asarray(chunk_vectors, dtype=np.float64), as_codes(top, "top", ndim=2)
    if query.shape != (len(codes), chunks.shape[1]):
        raise ValueError(
            f"query_vectors has shape {query.shape}; accepted: {(len(codes), chunks.shape[1])}, one row a ranking and the width of chunk_vectors"
        )
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(codes >= 0, axis=1))])
    chosen = codes[codes >= 0]
    total = (
        csr_array((np.ones(len(chosen)), chosen, indptr), shape=(len(codes), len(chunks))) @ chunks
    )  # the sum points where the mean does
    scale = np.linalg.norm(query, axis=1) * np.linalg.norm(total, axis=1)
    cosine = np.divide(
        (query * total).sum(axis=1), scale, out=np.zeros(len(codes)), where=scale > 0
    )
    distance: FloatArray = np.clip(1.0 - cosine, 0.0, 1.0)
    distance[np.diff(indptr) == 0] = np.nan
    return distance


def zones(distance: ArrayLike) -> NDArray[np.str_]:
    """Zone of each `delta_s`: `stable` under 0.40, `transitional` under 0.60, else `risk`; `undefined` for NaN."""
    values = np.asarray(distance, dtype=np.float64)
    conditions = [np.isnan(values), values < STABLE_BELOW, values < TRANSITIONAL_BELOW]
    return np.select(conditions, ["undefined", "stable", "transitional"], default="risk")


def equally_close(
    to_anchor: ArrayLike, to_decoy: ArrayLike, tolerance: float = SAME_DISTANCE
) -> BoolArray:
    """Whether what was retrieved is as close to the decoy as to the anchor, within `tolerance`; False where either is NaN."""
    gap = np.abs(np.asarray(to_anchor, dtype=np.float64) - np.asarray(to_decoy, dtype=np.float64))
    close: BoolArray = gap <= tolerance
    return close


@dataclasses.dataclass(frozen=True, slots=True)
class LambdaStates:
    """State of each query, `[n_queries]` each.

    Parameters
    ----------
    state
        `convergent`, `recursive`, `divergent`, `chaotic` or `undefined`.
    reason
        Key of `LAMBDA_REASONS`, which holds the likely cause and what to look at.
    convergent_and_hit
        Convergent, and the evidence was found in every run: what gates count.
    """

    state: NDArray[np.str_]
    reason: NDArray[np.str_]
    convergent_and_hit: BoolArray

    @property
    def causes(self) -> list[str]:
        """Likely cause and what to look at, one text a query."""
        return [LAMBDA_REASONS[reason][1] for reason in self.reason.tolist()]


def lambda_states(hits: ArrayLike, mean_rbo: ArrayLike) -> LambdaStates:
    """State of each query over its wordings and seeds.

    Parameters
    ----------
    hits
        `[n_queries, n_wordings, n_seeds]`, bool or 0/1; NaN where a query has no such run.
    mean_rbo
        `[n_queries]` mean pairwise rank-biased overlap of the runs' top k (`overlap.mean_pairwise_rbo`).

    Returns
    -------
    LambdaStates
        In this order: chaotic when both seeds and wordings change the hit or the overlap is under 0.2; recursive when seeds change it
        under the same wording; divergent when wordings change it under the same seed, or the overlap is under 0.5; else convergent.
        Fewer than two runs are undefined.

    Raises
    ------
    ValueError
        Wrong shapes, or a query with two runs or more but no overlap.
    """
    pattern, overlap = np.asarray(hits, dtype=np.float64), np.asarray(mean_rbo, dtype=np.float64)
    if pattern.ndim != 3 or overlap.shape != pattern.shape[:1]:  # noqa: PLR2004 - the three axes of the signature
        raise ValueError(
            f"hits has shape {pattern.shape} and mean_rbo {overlap.shape}; accepted: [n_queries, n_wordings, n_seeds] and [n_queries]"
        )
    runs = np.count_nonzero(~np.isnan(pattern), axis=(1, 2))
    if np.isnan(overlap[runs > 1]).any():
        raise ValueError(
            "mean_rbo is NaN for a query with two runs or more; accepted: the mean over its pairs of runs"
        )
    seeds = _varies(pattern, (2,)).any(axis=1)
    wordings = _varies(pattern, (1,)).any(axis=1)
    # Two runs that share neither wording nor seed: the wording is the likelier cause.
    wordings |= _varies(pattern, (1, 2)) & ~seeds
    conditions = [
        runs <= 1,
        seeds & wordings,
        overlap < RBO_CHAOTIC,
        seeds,
        wordings,
        overlap < RBO_CONVERGENT,
    ]
    reasons = [
        "one_run",
        "seeds_and_wordings_change_hit",
        "lists_disagree",
        "seeds_change_hit",
        "wordings_change_hit",
        "order_drifts",
    ]
    reason = np.select(conditions, reasons, default="same_hits_same_order")
    state = np.array([LAMBDA_REASONS[name][0] for name in reason.tolist()], dtype=np.str_)
    always = (np.where(np.isnan(pattern), 1.0, pattern) > 0).all(axis=(1, 2))
    return LambdaStates(state, reason, (state == "convergent") & always)


def _varies(values: FloatArray, axis: tuple[int, ...]) -> BoolArray:
    """Whether the values present differ along the axes."""
    missing = np.isnan(values)
    varies: BoolArray = np.where(missing, -np.inf, values).max(
        axis=axis, initial=-np.inf
    ) > np.where(missing, np.inf, values).min(axis=axis, initial=np.inf)
    return varies
