"""Measure how much evidence changes with the wording, and the figures of it for the report."""

from typing import Annotated, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, StrictBool

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, count_within, number
from rag_eval.core.parts import Name
from rag_eval.core.records import Because, Count, Figure, Record, Share, Unit
from rag_eval.core.types import Level
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.ranking import as_codes, as_rankings, ranks
from rag_eval.measures.run_scores import (
    ALWAYS_K,
    RankedRuns,
    cutoffs_of,
    figure_of,
    interval_fields,
)
from rag_eval.retrieval.embedding.source import EmbeddingSource

# ---- Parts of the report.


class DeltaS(Figure):
    """Semantic distance between questions and retrieved chunks."""

    target: str
    zones: dict[str, Share]
    to_anchor: Figure
    to_decoy: Figure
    anchor_and_decoy_equally_close: Figure


class LambdaReason(Record):
    """Number of questions in a lambda state, with the cause."""

    n: Count
    cause: str


class FlipMatrix(Record):
    """Shares of questions whose hit changes between two wordings."""

    wordings: list[str]
    share: Annotated[list[list[Unit | None]], Because("no question has both wordings")]
    n: list[list[Count]]


class RecallFigure(Figure):
    """Recall and observed miss rate, under one wording or over the questions of a slice."""

    miss: Figure


class StrategyStability(Record):
    """Effects of wording and seed on the results of one strategy."""

    level: Level
    n_queries: Count
    delta_s: DeltaS
    rbo: Figure
    lambda_states: dict[str, Share] = Field(alias="lambda")
    reasons: dict[str, LambdaReason]
    convergent_and_hit: Figure
    hit_changes_with_wording: dict[Annotated[str, Field(pattern=r"^hit_at_[0-9]+$")], Figure]
    flip_matrix: FlipMatrix
    recall_at_10_by_wording: dict[Literal["worst", "mean", "best"], Figure]
    by_wording: dict[str, RecallFigure] = Field(
        default_factory=dict,
        description="recall and misses at 10 results under each wording, the original one first",
    )
    seeds_change_nothing: Annotated[StrictBool | None, Because("one seed was configured")]


class StabilityPart(Record):
    """Stability of every strategy."""

    embedding: str
    strategies: dict[Name, StrategyStability]


# ---- How alike two rankings are.

_BLOCK = 100_000
"""Number of pairs of rankings in memory at a time."""
_RBO_P = 0.9
"""Persistence of the reader: 0.9 puts 86 % of the weight on the top 10."""


def _mean_pairwise_rbo(rankings: ArrayLike, query_of: ArrayLike, n_queries: int) -> FloatArray:
    """Average the rank-biased overlap of all pairs of runs (wordings x seeds) of each query.

    `rankings` is [n, k], the top k of each run, -1 = padding; `query_of` [n] is its query. Returns
    [n_queries], NaN where a query has fewer than two runs.
    """
    lists, query = as_rankings(rankings, "rankings"), as_codes(query_of, "query_of")
    first, second = _pairs(query, n_queries)
    total = np.zeros(n_queries)
    for start in range(0, len(first), _BLOCK):
        left, right = first[start : start + _BLOCK], second[start : start + _BLOCK]
        overlap = _rank_biased_overlap(lists[left], lists[right])
        total += np.bincount(query[left], weights=overlap, minlength=n_queries)
    count = np.bincount(query[first], minlength=n_queries).astype(np.float64)
    count[count == 0] = np.nan
    return np.asarray(total / count)


def _pairs(query: IntArray, n_queries: int) -> tuple[IntArray, IntArray]:
    """Return both members of every unordered pair of runs of the same query."""
    order = np.argsort(query, kind="stable")
    counts = np.bincount(query, minlength=n_queries)
    later = np.repeat(counts, counts) - count_within(counts) - 1  # later runs of the query
    first = np.repeat(np.arange(len(query)), later)
    return order[first], order[first + 1 + count_within(later)]


def _rank_biased_overlap(left: IntArray, right: IntArray) -> FloatArray:
    """Return the extrapolated rank-biased overlap of each row of `left` [n, k] with `right`.

    RBO_EXT for lists of unequal length: Webber, Moffat & Zobel (2010), TOIS 28(4), equation 32.
    Identical lists give 1, disjoint lists 0. Two empty lists are identical; an empty and a filled
    list are disjoint. A list and its own beginning give 1, because the unseen rest counts as equal.
    """
    p, (n, depth) = _RBO_P, left.shape
    if not n or not depth:
        return np.ones(n)
    row, column = np.nonzero(left >= 0)
    other = ranks(right, row, left[row, column])
    seen_at = np.maximum(column, other - 1)[other > 0]
    counts = np.bincount(row[other > 0] * depth + seen_at, minlength=n * depth)
    shared = counts.reshape(n, depth).cumsum(axis=1)

    lengths = np.stack([np.count_nonzero(left >= 0, axis=1), np.count_nonzero(right >= 0, axis=1)])
    short, long = lengths.min(axis=0), lengths.max(axis=0)
    s, longest = np.maximum(short, 1)[:, None], np.maximum(long, 1)[:, None]
    d = np.arange(1, depth + 1)
    shared_at_s = np.take_along_axis(shared, s - 1, axis=1)
    shared_at_l = np.take_along_axis(shared, longest - 1, axis=1)
    seen = np.where(d <= longest, shared / d, 0.0)
    assumed = np.where((d > s) & (d <= longest), shared_at_s * (d - s) / (s * d), 0.0)
    body = (1 - p) / p * ((seen + assumed) * p**d).sum(axis=1, keepdims=True)
    tail = ((shared_at_l - shared_at_s) / longest + shared_at_s / s) * p**longest
    overlap = np.clip(body + tail, 0.0, 1.0)[:, 0]
    return np.where(short > 0, overlap, np.where(long == 0, 1.0, 0.0))


# ---- How far the evidence lies from the question, and what changes the hit.

STABLE_BELOW, TRANSITIONAL_BELOW, DELTA_S_TARGET = 0.40, 0.60, 0.45
RBO_CONVERGENT, RBO_CHAOTIC = 0.5, 0.2
SAME_DISTANCE = 0.02
"""Largest difference of two delta_s that cannot tell the anchor from the decoy."""
ZONES = ("stable", "transitional", "risk", "undefined")
STATES = ("convergent", "recursive", "divergent", "chaotic", "undefined")
NO_SECOND_RUN = (
    "no question has a second wording, and none was run under a second seed, so convergence "
    "is not known"
)
STATE_OF_REASON: dict[str, str] = {
    "same_hits_same_order": "convergent",
    "seeds_change_hit": "recursive",
    "wordings_change_hit": "divergent",
    "order_drifts": "divergent",
    "seeds_and_wordings_change_hit": "chaotic",
    "lists_disagree": "chaotic",
    "one_run": "undefined",
}
CAUSES: dict[str, str] = {
    "same_hits_same_order": "Every wording and seed brings the same evidence. If the question is "
    "always missed, look at whether its evidence is indexed at all.",
    "seeds_change_hit": "The same wording hits or misses depending on the seed: approximate "
    "search, or ties broken by chance. Look at ann_recall_at_k against exact search, the index's "
    "search effort, and tie-breaking.",
    "wordings_change_hit": "Some wordings find the evidence and others do not: vocabulary "
    "mismatch. Look at the terms the missing wordings share with no gold document; try hybrid "
    "retrieval or query expansion.",
    "order_drifts": "The hit does not change but the lists agree only in part: many chunks of "
    "near-equal score. Look at duplicates, chunk size, and a rerank step.",
    "seeds_and_wordings_change_hit": "Both the seed and the wording decide whether the evidence "
    "is found. Look at the recall of the index first (ann_recall_at_k), then at the wordings.",
    "lists_disagree": "The lists of the wordings and seeds have almost nothing in common. Look at "
    "whether the question is too short or ambiguous, and whether the embedding fits this language "
    "and corpus.",
    "one_run": "Only one run of this question: nothing to compare. Add paraphrases or seeds.",
}
"""Likely cause of each reason, and what to look at."""


def _delta_s(query_vectors: ArrayLike, chunk_vectors: ArrayLike, top: ArrayLike) -> FloatArray:
    """Compute 1 - cosine of texts with the mean of the top retrieved chunks, [n] in [0, 1].

    `query_vectors` [n, d] are those of questions, anchors or decoys, `chunk_vectors` [n_chunks, d]
    of the same embedding, `top` [n, k] the retrieved chunks, -1 = padding. NaN without a retrieved
    chunk. A zero vector (a text without any known term) has distance 1.
    """
    from scipy.sparse import csr_array

    query = np.asarray(query_vectors, dtype=np.float64)
    chunks, codes = np.asarray(chunk_vectors, dtype=np.float64), as_codes(top, "top", ndim=2)
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(codes >= 0, axis=1))])
    chosen = codes[codes >= 0]
    shape = len(codes), len(chunks)
    # The cosine needs no mean, because sum and mean of the vectors have one direction.
    total = csr_array((np.ones(len(chosen)), chosen, indptr), shape=shape) @ chunks
    scale = np.linalg.norm(query, axis=1) * np.linalg.norm(total, axis=1)
    cosine = np.divide(
        (query * total).sum(axis=1), scale, out=np.zeros(len(codes)), where=scale > 0
    )
    distance: FloatArray = np.clip(1.0 - cosine, 0.0, 1.0)
    distance[np.diff(indptr) == 0] = np.nan
    return distance


def _zones(distance: FloatArray) -> NDArray[np.str_]:
    """Name the zone of each `delta_s`: `stable`, `transitional`, `risk`, or `undefined` for NaN."""
    conditions = [np.isnan(distance), distance < STABLE_BELOW, distance < TRANSITIONAL_BELOW]
    return np.select(conditions, ["undefined", "stable", "transitional"], default="risk")


def _lambda_reasons(hits: FloatArray, mean_rbo: FloatArray) -> NDArray[np.str_]:
    """Classify each query over its wordings and seeds by a key of `STATE_OF_REASON`.

    The first rule that holds counts. `hits`, [n_queries, n_wordings, n_seeds], is 0/1, NaN where a
    query has no such run. `mean_rbo`, [n_queries], is the mean pairwise rank-biased overlap of the
    runs' top k.
    """
    runs = np.count_nonzero(~np.isnan(hits), axis=(1, 2))
    seeds, wordings = _varies(hits, (2,)).any(axis=1), _varies(hits, (1,)).any(axis=1)
    # Of two runs with different wordings and seeds, the wording is the likelier cause.
    wordings |= _varies(hits, (1, 2)) & ~seeds
    rules = {
        "one_run": runs <= 1,
        "seeds_and_wordings_change_hit": seeds & wordings,
        "lists_disagree": mean_rbo < RBO_CHAOTIC,
        "seeds_change_hit": seeds,
        "wordings_change_hit": wordings,
        "order_drifts": mean_rbo < RBO_CONVERGENT,
    }
    return np.select(list(rules.values()), list(rules), default="same_hits_same_order")


def _convergent_and_hit(states: np.ndarray, hits: FloatArray) -> FloatArray:
    """Tell whether a query is convergent and every run found the evidence; gates count this."""
    is_hit = (np.isnan(hits) | (hits > 0)).all(axis=(1, 2)) & (states == "convergent")
    return np.where(np.isin(states, ["", "undefined"]), np.nan, is_hit)


def _varies(values: FloatArray, axis: tuple[int, ...]) -> BoolArray:
    """Tell whether the values without NaN differ along the axes."""
    varies: BoolArray = np.fmax.reduce(values, axis=axis) > np.fmin.reduce(values, axis=axis)
    return varies


def _flip_matrix(hits: FloatArray) -> tuple[FloatArray, IntArray]:
    """Compare the hits of wordings i and j under the same seed, [n_wordings, n_wordings] each.

    The first matrix has the share of questions whose hit differs; a question counts by the share of
    differing seeds. The second has the number of questions with both wordings.
    """
    left, right = hits[:, :, None], hits[:, None]
    both = ~np.isnan(left) & ~np.isnan(right)
    seeds = both.sum(axis=3)
    differs = (both & (left != right)).sum(axis=3)
    n = np.count_nonzero(seeds, axis=0)
    total = (differs / np.maximum(seeds, 1)).sum(axis=0)
    return np.divide(total, n, out=np.full(n.shape, np.nan), where=n > 0), n


def _mean_over_last(values: FloatArray) -> FloatArray:
    """Average over the last axis; NaN without a value."""
    n = np.count_nonzero(~np.isnan(values), axis=-1)
    return np.where(n, np.nansum(values, axis=-1) / np.maximum(n, 1), np.nan)


# ---- The figures of a strategy.


def measure_wordings(
    runs: RankedRuns, name: str, source: EmbeddingSource
) -> tuple[StrategyStability, FloatArray, list[str]]:
    """Measure how much the wording and the seed matter, and how far the evidence lies.

    Returns the figures, the distance of each run to its question, and the lambda state of each
    question, empty for questions without gold.
    """
    gold, level, scores = runs.gold, runs.config.level, runs.scores(name)
    distances, distance = _measure_distances(runs, name, source)
    ran = slice(None) if scores.ran is None else np.flatnonzero(scores.ran)
    hits, recall = (scores.cube(level, f"{label}@{ALWAYS_K}", gold) for label in ("Success", "R"))
    owner = gold.query_of[scores.variant][ran]
    overlap = _mean_pairwise_rbo(scores.top[ran], owner, len(gold.queries))
    eligible = ~np.isnan(hits).all(axis=(1, 2))
    reasons = _lambda_reasons(hits[eligible], overlap[eligible])
    states = np.full(len(gold.queries), "", dtype=object)
    states[eligible] = [STATE_OF_REASON[reason] for reason in reasons.tolist()]
    together = _convergent_and_hit(states, hits)
    unknown = NO_SECOND_RUN if eligible.any() and np.isnan(together).all() else None
    cubes = {k: scores.cube(level, f"Success@{k}", gold) for k in cutoffs_of(runs.config.k)}
    flip_share, flip_n = _flip_matrix(hits)
    by_wording, missed = _mean_over_last(recall), 1 - _mean_over_last(hits)
    ranges = {
        "worst": np.fmin.reduce(by_wording, axis=1),
        "mean": _mean_over_last(by_wording),
        "best": np.fmax.reduce(by_wording, axis=1),
    }
    first, *others = runs.rows(name).values()

    def figure(values: FloatArray, reason: str | None = None) -> Figure:
        """Aggregate one value per query."""
        return figure_of(aggregate([""], values[:, None], gold.shared)[0], reason)

    def changes(cube: FloatArray) -> FloatArray:
        """Tell whether the hit of a question with several wordings changes."""
        several = (~np.isnan(cube)).any(axis=2).sum(axis=1) > 1
        return np.where(several, _varies(cube, (1, 2)), np.nan)

    figures = StrategyStability.model_validate(
        {
            "level": level,
            "n_queries": int(eligible.sum()),
            "delta_s": distances,
            "rbo": figure(np.where(eligible, overlap, np.nan)),
            "lambda": _shares(states[eligible], STATES),
            "reasons": {
                reason: {"n": int(np.sum(reasons == reason)), "cause": cause}
                for reason, cause in CAUSES.items()
                if (reasons == reason).any()
            },
            "convergent_and_hit": figure(together, unknown),
            "hit_changes_with_wording": {
                f"hit_at_{k}": figure(changes(cube)) for k, cube in cubes.items()
            },
            "flip_matrix": {
                "wordings": gold.wordings[1],
                "share": [[number(x) for x in row] for row in flip_share.tolist()],
                "n": flip_n.tolist(),
            },
            "recall_at_10_by_wording": {part: figure(row) for part, row in ranges.items()},
            "by_wording": {
                wording: {**figure(by_wording[:, at]).dump(), "miss": figure(missed[:, at])}
                for at, wording in enumerate(gold.wordings[1])
            },
            "seeds_change_nothing": None
            if len(runs.config.seeds) == 1
            else all(np.array_equal(first, other) for other in others),
        }
    )
    return figures, distance, [str(state) for state in states]


def _measure_distances(
    runs: RankedRuns, name: str, source: EmbeddingSource
) -> tuple[DeltaS, FloatArray]:
    """Measure delta_s to the question, to the gold evidence and to the decoy.

    Returns the figures, and the distance of each run to its question.
    """
    gold, scores = runs.gold, runs.scores(name)
    top, reason = _top_chunks(runs, name)
    chunks = source.chunk_vectors()
    questions = source.query_vectors(gold.variants["text"].tolist())
    distance = _delta_s(questions[scores.variant], chunks, top)
    owner = gold.query_of[scores.variant]
    targets = _evidence_vectors(runs, chunks)
    lacks = [np.asarray(~part.any(axis=1)) for part in targets]
    to_anchor, to_decoy = (
        np.where(lack[owner], np.nan, _delta_s(part[owner], chunks, top))
        for part, lack in zip(targets, lacks, strict=True)
    )
    between = np.abs(to_anchor - to_decoy)
    close = np.where(np.isnan(between), np.nan, between <= SAME_DISTANCE)
    failed = scores.failed if reason is None else np.zeros(len(owner), dtype=bool)
    first, *others = aggregate(
        ["delta_s", "to_anchor", "to_decoy", "anchor_and_decoy_equally_close"],
        np.stack([distance, to_anchor, to_decoy, close], axis=1),
        gold.shared,
        query_of=owner,
        failed=failed,
        failed_value=[1.0, 1.0, 1.0, 0.0],
        # A failed retrieval has no distance to evidence or a decoy that the question lacks.
        ineligible=np.stack([np.zeros_like(lacks[0]), *lacks, lacks[0] | lacks[1]], axis=1),
    )
    within = within_query(np.where(failed, 1.0, distance), owner, len(gold.queries))[:, 0]
    figures = DeltaS.model_validate(
        {
            **interval_fields(first),
            "why": {} if reason is None else {"value": reason},
            "target": f"<= {DELTA_S_TARGET}",
            "zones": _shares(_zones(within), ZONES),
            **{record.label: figure_of(record, reason) for record in others},
        }
    )
    return figures, distance


def _top_chunks(runs: RankedRuns, name: str) -> tuple[np.ndarray, str | None]:
    """Return the chunk rows of the top places of each run.

    When a retrieved unit is not a chunk of the corpus, all places are empty and a reason is given.
    """
    rows = runs.rows(name)
    top = np.concatenate([rows[seed][:, :ALWAYS_K] for seed in sorted(rows)])
    if not runs.spec(name).own_units:
        return top, None
    chunk_of = runs.units(name)["chunk"].to_numpy()
    others, reason = int((chunk_of < 0).sum()), "nothing was retrieved"
    if others:
        reason = (
            f"{others} of {len(chunk_of)} retrieved units are no chunks of this corpus,"
            " whose vectors are compared"
        )
    if others or not len(chunk_of):
        return np.full(top.shape, -1, dtype=np.int64), reason
    return np.where(top >= 0, chunk_of[top], -1), None


def _evidence_vectors(runs: RankedRuns, chunks: np.ndarray) -> tuple[FloatArray, FloatArray]:
    """Average the vectors of the chunks with each query's gold spans, and of its decoy.

    Queries without spans or without a decoy have zero rows.
    """
    gold, frame = runs.gold, runs.chunks
    n = len(gold.queries)
    anchor, decoy = (np.zeros((n, chunks.shape[1])) for _ in range(2))
    spans = np.repeat(
        np.arange(len(gold.spans.carrier_indptr) - 1), np.diff(gold.spans.carrier_indptr)
    )
    query_of_span = np.repeat(np.arange(n), np.diff(gold.spans.indptr))
    np.add.at(anchor, query_of_span[spans], chunks[gold.spans.carriers])
    decoys = runs.gold_variants.decoys
    query_index = pd.Index(gold.queries["query_id"])
    for query_id, doc_id, section_id in zip(
        decoys["query_id"], decoys["doc_id"], decoys["section_id"], strict=True
    ):
        there = (frame["section_id"] == section_id) if section_id else (frame["doc_id"] == doc_id)
        decoy[query_index.get_loc(query_id)] += chunks[there.to_numpy()].sum(axis=0)
    return anchor, decoy


def _shares(values: np.ndarray, names: tuple[str, ...]) -> dict[str, Share]:
    counts = {name: int(np.sum(values == name)) for name in names}
    return {
        name: Share(share=number(n / len(values)) if len(values) else None, n=n)
        for name, n in counts.items()
    }
