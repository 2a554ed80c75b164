"""Figures of stability for the report: distances, agreement of wordings and seeds."""

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray
from rag_eval.core.records import Figure, Share, number
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.run_scores import (
    ALWAYS_K,
    AnyRuns,
    cutoffs_of,
    figure_of,
    interval_fields,
    wording_of,
)
from rag_eval.measures.stability import (
    CAUSES,
    DELTA_S_TARGET,
    SAME_DISTANCE,
    delta_s,
    flip_matrix,
    lambda_states,
    mean_pairwise_rbo,
    wording_range,
    zones,
)
from rag_eval.measures.strategy_report import DeltaS, StrategyStability
from rag_eval.retrieval.embedding.source import EmbeddingSource

NO_SECOND_RUN = (
    "no question has a second wording, and none was run under a second seed, so convergence "
    "is not known"
)
ZONES = ("stable", "transitional", "risk", "undefined")
STATES = ("convergent", "recursive", "divergent", "chaotic", "undefined")


def measure_distances(
    runs: AnyRuns, name: str, source: EmbeddingSource
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


def _top_chunks(runs: AnyRuns, name: str) -> tuple[np.ndarray, str | None]:
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


def _evidence_vectors(runs: AnyRuns, chunks: np.ndarray) -> tuple[FloatArray, FloatArray]:
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
    runs: AnyRuns, name: str, distances: DeltaS
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
                "wordings": wording_of(gold)[1],
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
                for at, wording in enumerate(wording_of(gold)[1])
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


def _figure(values: FloatArray, runs: AnyRuns, label: str, reason: str | None = None) -> Figure:
    """Aggregate one value per query."""
    records = aggregate([label], values[:, None], runs.gold.shared)
    return figure_of(records[0], reason)
