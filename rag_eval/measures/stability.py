"""Measure how much evidence changes with the wording, and the figures of it for the report."""

from typing import Annotated, Literal, NamedTuple

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
from rag_eval.retrieval.embedding import EmbeddingSource

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


def mean_pairwise_rbo(rankings: ArrayLike, query_of: ArrayLike, n_queries: int) -> FloatArray:
    """Average the rank-biased overlap of all pairs of runs (wordings x seeds) of each query.

    `rankings` is [n, k], the top k of each run, -1 = padding; `query_of` [n] is its query. Returns
    [n_queries], NaN where a query has fewer than two runs.
    """
    lists, query = as_rankings(rankings, "rankings"), as_codes(query_of, "query_of")
    first, second = _pairs(query, n_queries)
    total = np.zeros(n_queries)
    for start in range(0, len(first), _BLOCK):
        one, two = first[start : start + _BLOCK], second[start : start + _BLOCK]
        overlap = _rank_biased_overlap(lists[one], lists[two])
        total += np.bincount(query[one], weights=overlap, minlength=n_queries)
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


# ---- Measure how much evidence changes with the wording and how far it lies from the question.

STABLE_BELOW, TRANSITIONAL_BELOW, DELTA_S_TARGET = 0.40, 0.60, 0.45
RBO_CONVERGENT, RBO_CHAOTIC = 0.5, 0.2
SAME_DISTANCE = 0.02
"""Largest difference of two delta_s that cannot tell the anchor from the decoy."""

LambdaState = Literal["convergent", "recursive", "divergent", "chaotic", "undefined"]

STATE_OF_REASON: dict[str, LambdaState] = {
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


def delta_s(query_vectors: ArrayLike, chunk_vectors: ArrayLike, top: ArrayLike) -> FloatArray:
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


def zones(distance: ArrayLike) -> NDArray[np.str_]:
    """Name the zone of each `delta_s`: `stable`, `transitional`, `risk`, or `undefined` for NaN."""
    values = np.asarray(distance, dtype=np.float64)
    conditions = [np.isnan(values), values < STABLE_BELOW, values < TRANSITIONAL_BELOW]
    return np.select(conditions, ["undefined", "stable", "transitional"], default="risk")


class LambdaStates(NamedTuple):
    """State of each query, [n_queries] each."""

    state: NDArray[np.str_]
    reason: NDArray[np.str_]
    """Keys of `STATE_OF_REASON`."""
    convergent_and_hit: BoolArray
    """Whether a query is convergent and every run found the evidence; gates count this."""


def lambda_states(hits: ArrayLike, mean_rbo: ArrayLike) -> LambdaStates:
    """Classify each query over its wordings and seeds; the first rule that holds gives the state.

    `hits`, [n_queries, n_wordings, n_seeds], is 0/1, NaN where a query has no such run. `mean_rbo`,
    [n_queries], is the mean pairwise rank-biased overlap of the runs' top k.
    """
    pattern, overlap = _cube(hits), np.asarray(mean_rbo, dtype=np.float64)
    runs = np.count_nonzero(~np.isnan(pattern), axis=(1, 2))
    seeds = _varies(pattern, (2,)).any(axis=1)
    wordings = _varies(pattern, (1,)).any(axis=1)
    # Of two runs with different wordings and seeds, the wording is the likelier cause.
    wordings |= _varies(pattern, (1, 2)) & ~seeds
    rules = {
        "one_run": runs <= 1,
        "seeds_and_wordings_change_hit": seeds & wordings,
        "lists_disagree": overlap < RBO_CHAOTIC,
        "seeds_change_hit": seeds,
        "wordings_change_hit": wordings,
        "order_drifts": overlap < RBO_CONVERGENT,
    }
    reason = np.select(list(rules.values()), list(rules), default="same_hits_same_order")
    state = np.array([STATE_OF_REASON[name] for name in reason.tolist()], dtype=np.str_)
    always = (np.where(np.isnan(pattern), 1.0, pattern) > 0).all(axis=(1, 2))
    return LambdaStates(state, reason, (state == "convergent") & always)


def _varies(values: FloatArray, axis: tuple[int, ...]) -> BoolArray:
    """Tell whether the values without NaN differ along the axes."""
    missing = np.isnan(values)
    highest = np.where(missing, -np.inf, values).max(axis=axis, initial=-np.inf)
    lowest = np.where(missing, np.inf, values).min(axis=axis, initial=np.inf)
    varies: BoolArray = highest > lowest
    return varies


# ---- Which wordings change a hit, and how much they cost.


def flip_matrix(hits: ArrayLike) -> tuple[FloatArray, IntArray]:
    """Compare the hits of wordings i and j under the same seed.

    `hits`, [n_queries, n_wordings, n_seeds], is 0/1, NaN where missing. Returns two matrices
    [n_wordings, n_wordings]. The first has the share of questions whose hit differs; a question
    counts by the share of differing seeds. The second has the number of questions with both
    wordings.
    """
    cube = _cube(hits)
    left, right = cube[:, :, None], cube[:, None]
    both = ~np.isnan(left) & ~np.isnan(right)
    seeds = both.sum(axis=3)
    differs = (both & (left != right)).sum(axis=3)
    n = np.count_nonzero(seeds, axis=0)
    total = (differs / np.maximum(seeds, 1)).sum(axis=0)
    return np.divide(total, n, out=np.full(n.shape, np.nan), where=n > 0), n


def wording_range(values: ArrayLike) -> dict[str, FloatArray]:
    """Take the worst, mean and best wording of [n_queries, n_wordings, n_seeds] values.

    Seeds are averaged inside the wording first. A question without runs has NaN.
    """
    cube = _cube(values)
    per_cell = np.count_nonzero(~np.isnan(cube), axis=2)
    cell = np.nan_to_num(cube).sum(axis=2) / np.maximum(per_cell, 1)
    has_runs = per_cell > 0
    n = np.count_nonzero(has_runs, axis=1)
    ranges = {
        "worst": np.where(has_runs, cell, np.inf).min(axis=1, initial=np.inf),
        "mean": np.where(has_runs, cell, 0.0).sum(axis=1) / np.maximum(n, 1),
        "best": np.where(has_runs, cell, -np.inf).max(axis=1, initial=-np.inf),
    }
    return {name: np.where(n == 0, np.nan, part) for name, part in ranges.items()}


def _cube(values: ArrayLike) -> FloatArray:
    cube = np.asarray(values, dtype=np.float64)
    if cube.ndim != 3:  # noqa: PLR2004 - the axes of the message
        raise ValueError(
            f"values has shape {cube.shape}; accepted: [n_queries, n_wordings, n_seeds]"
        )
    return cube


NO_SECOND_RUN = (
    "no question has a second wording, and none was run under a second seed, so convergence "
    "is not known"
)
ZONES = ("stable", "transitional", "risk", "undefined")
STATES = ("convergent", "recursive", "divergent", "chaotic", "undefined")


def measure_distances(
    runs: RankedRuns, name: str, source: EmbeddingSource
) -> tuple[DeltaS, FloatArray]:
    """Measure delta_s to the question, to the gold evidence and to the decoy.

    Returns the figures, and the distance of each run to its question.
    """
    gold, scores = runs.gold, runs.scores(name)
    top, reason = _top_chunks(runs, name)
    chunks = source.chunk_vectors()
    questions = source.query_vectors(gold.variants["text"].tolist())
    distance = delta_s(questions[scores.variant], chunks, top)
    owner = gold.query_of[scores.variant]
    targets = _evidence_vectors(runs, chunks)
    lacks = [np.asarray(~part.any(axis=1)) for part in targets]
    to_anchor, to_decoy = (
        np.where(lack[owner], np.nan, delta_s(part[owner], chunks, top))
        for part, lack in zip(targets, lacks, strict=True)
    )
    between = np.abs(to_anchor - to_decoy)
    close = np.where(np.isnan(between), np.nan, between <= SAME_DISTANCE)
    failed = scores.failed if reason is None else np.zeros(len(owner), dtype=bool)
    names = ["delta_s", "to_anchor", "to_decoy", "anchor_and_decoy_equally_close"]
    records = aggregate(
        names,
        np.stack([distance, to_anchor, to_decoy, close], axis=1),
        gold.shared,
        query_of=owner,
        failed=failed,
        failed_value=[1.0, 1.0, 1.0, 0.0],
        # A failed retrieval has no distance to evidence or a decoy that the question lacks.
        ineligible=np.stack([np.zeros_like(lacks[0]), *lacks, lacks[0] | lacks[1]], axis=1),
    )
    within = within_query(np.where(failed, 1.0, distance), owner, len(gold.queries))[:, 0]
    others = zip(names[1:], (figure_of(record, reason) for record in records[1:]), strict=True)
    figures = DeltaS.model_validate(
        {
            **interval_fields(records[0]),
            "why": {} if reason is None else {"value": reason},
            "target": f"<= {DELTA_S_TARGET}",
            "zones": _shares(zones(within), ZONES),
            **dict(others),
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


def measure_wordings(
    runs: RankedRuns, name: str, distances: DeltaS
) -> tuple[StrategyStability, list[str]]:
    """Measure how much the wording and the seed matter.

    The second value is the lambda state of each question, empty for questions without gold.
    """
    gold, level, scores = runs.gold, runs.config.level, runs.scores(name)
    ran = slice(None) if scores.ran is None else np.flatnonzero(scores.ran)
    hits, recall = (scores.cube(level, f"{label}@{ALWAYS_K}", gold) for label in ("Success", "R"))
    eligible = ~np.isnan(hits).all(axis=(1, 2))
    owner = gold.query_of[scores.variant][ran]
    overlap = mean_pairwise_rbo(scores.top[ran], owner, len(gold.queries))
    states = lambda_states(hits[eligible], overlap[eligible])
    together = np.full(len(gold.queries), np.nan)
    together[eligible] = np.where(states.state == "undefined", np.nan, states.convergent_and_hit)
    unknown = NO_SECOND_RUN if eligible.any() and np.isnan(together).all() else None
    flips = {}
    for k in cutoffs_of(runs.config.k):
        cube = scores.cube(level, f"Success@{k}", gold)
        several = (~np.isnan(cube)).any(axis=2).sum(axis=1) > 1
        changes = np.full(len(cube), np.nan)
        low, high = (take(cube[several], axis=(1, 2)) for take in (np.nanmin, np.nanmax))
        changes[several] = high != low
        flips[f"hit_at_{k}"] = _figure(changes, runs, f"hit@{k} changes")
    flip_share, flip_n = flip_matrix(hits)
    first, *others = runs.rows(name).values()
    state = np.full(len(gold.queries), "", dtype=object)
    state[eligible] = states.state
    figures = StrategyStability.model_validate(
        {
            "level": level,
            "n_queries": int(eligible.sum()),
            "delta_s": distances,
            "rbo": _figure(np.where(eligible, overlap, np.nan), runs, "rbo"),
            "lambda": _shares(states.state, STATES),
            "reasons": {
                reason: {"n": int(np.sum(states.reason == reason)), "cause": cause}
                for reason, cause in CAUSES.items()
                if (states.reason == reason).any()
            },
            "convergent_and_hit": _figure(together, runs, "convergent and hit", unknown),
            "hit_changes_with_wording": flips,
            "flip_matrix": {
                "wordings": gold.wordings[1],
                "share": [[number(x) for x in row] for row in flip_share.tolist()],
                "n": flip_n.tolist(),
            },
            "recall_at_10_by_wording": {
                part: _figure(values, runs, part) for part, values in wording_range(recall).items()
            },
            "by_wording": {
                wording: {
                    **_figure(_mean_over_seeds(recall[:, at]), runs, wording).dump(),
                    "miss": _figure(1 - _mean_over_seeds(hits[:, at]), runs, wording),
                }
                for at, wording in enumerate(gold.wordings[1])
            },
            "seeds_change_nothing": None
            if len(runs.config.seeds) == 1
            else all(np.array_equal(first, other) for other in others),
        }
    )
    return figures, [str(one) for one in state]


def _mean_over_seeds(values: FloatArray) -> FloatArray:
    """Average [n_queries, n_seeds] over the seeds; NaN for a question that was not run."""
    n = np.count_nonzero(~np.isnan(values), axis=1)
    return np.where(n, np.nansum(values, axis=1) / np.maximum(n, 1), np.nan)


def _shares(values: np.ndarray, names: tuple[str, ...]) -> dict[str, Share]:
    counts = {name: int(np.sum(values == name)) for name in names}
    return {
        name: Share(share=number(n / len(values)) if len(values) else None, n=n)
        for name, n in counts.items()
    }


def _figure(values: FloatArray, runs: RankedRuns, label: str, reason: str | None = None) -> Figure:
    """Aggregate one value per query."""
    records = aggregate([label], values[:, None], runs.gold.shared)
    return figure_of(records[0], reason)
