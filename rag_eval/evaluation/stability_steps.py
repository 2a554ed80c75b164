"""Stability stage: whether a question finds the same evidence, close to itself, however it is put."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.evaluation.embeddings import stability_embedding
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, interval_of, number
from rag_eval.evaluation.scoring import ALWAYS_K, wording_names
from rag_eval.measures.aggregate import aggregate, within_query
from rag_eval.measures.overlap import mean_pairwise_rbo
from rag_eval.measures.stability import (
    DELTA_S_TARGET,
    LAMBDA_REASONS,
    delta_s,
    equally_close,
    lambda_states,
    zones,
)
from rag_eval.measures.variation import flip_matrix, variance_shares, wording_range
from rag_eval.records.gold_set import External
from rag_eval.retrieval.embedding.source import EmbeddingSource
from rag_eval.storage.artifacts import Artifact

FloatArray = npt.NDArray[np.float64]
NO_SECOND_RUN = "no question has a second wording, and none was run under a second seed: whether one is convergent is not known"
ZONES = ("stable", "transitional", "risk", "undefined")
STATES = ("convergent", "recursive", "divergent", "chaotic", "undefined")


def _shares(values: np.ndarray, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "share": number(float(np.mean(values == name))) if len(values) else None,
            "n": int(np.sum(values == name)),
        }
        for name in names
    }


def _interval(values: FloatArray, runs: Runs, label: str) -> dict[str, Any]:
    """Aggregate one value a query into value, interval and denominators."""
    return interval_of(aggregate([label], values[:, None], runs.gold.groups, BOOTSTRAP_SEED)[0])


def _distances(runs: Runs, name: str, source: EmbeddingSource) -> tuple[dict[str, Any], FloatArray]:
    """delta_s to the question, to the gold evidence and to the decoy; returns the figures and the distance of each run to its question."""
    gold, scores = runs.gold, runs.scores(name)
    top, reason = _top_chunks(runs, name)
    chunks = source.chunk_vectors()
    questions = source.query_vectors(gold.variants["text"].tolist())
    distance = delta_s(questions[scores.variant], chunks, top)
    owner = gold.query_of[scores.variant]
    anchor, decoy = _evidence_vectors(runs, chunks)
    to_anchor, to_decoy = (
        np.where(np.asarray(part.any(axis=1))[owner], delta_s(part[owner], chunks, top), np.nan)
        for part in (anchor, decoy)
    )
    both = np.where(
        np.isnan(to_anchor) | np.isnan(to_decoy), np.nan, equally_close(to_anchor, to_decoy)
    )
    values = np.stack([distance, to_anchor, to_decoy, both], axis=1)
    names = ["delta_s", "to_anchor", "to_decoy", "anchor_and_decoy_equally_close"]
    failed_value = [1.0, 1.0, 1.0, 0.0]
    failed = scores.failed if reason is None else np.zeros(len(owner), dtype=bool)
    lacks = [~part.any(axis=1) for part in (anchor, decoy)]
    ineligible = np.stack(
        [np.zeros(len(gold.queries), dtype=bool), *lacks, lacks[0] | lacks[1]], axis=1
    )  # a failed retrieval is not far from what is not there
    found = aggregate(
        names,
        values,
        gold.groups,
        BOOTSTRAP_SEED,
        query_of=owner,
        failed=failed,
        failed_value=failed_value,
        ineligible=ineligible,
    )
    question, *others = (
        interval_of(record) | ({} if reason is None else {"value_reason": reason})
        for record in found
    )
    within = within_query(np.where(failed, 1.0, distance), owner, len(gold.queries))[:, 0]
    figures = {
        **question,
        "target": f"<= {DELTA_S_TARGET}",
        "zones": _shares(zones(within), ZONES),
        **dict(zip(names[1:], others, strict=True)),
    }
    return figures, distance


def _top_chunks(runs: Runs, name: str) -> tuple[np.ndarray, str | None]:
    """Chunk rows of the top places of each run; all empty, with the reason, where not everything that was retrieved is a chunk of ours."""
    rows = runs.rows(name)
    top = np.concatenate([rows[seed][:, :ALWAYS_K] for seed in sorted(rows)])
    if not isinstance(runs.spec(name), External):
        return top, None
    chunk_of = runs.units(name)["chunk"].to_numpy()
    others = int((chunk_of < 0).sum())
    if others or not len(chunk_of):
        reason = (
            f"{others} of {len(chunk_of)} retrieved units are no chunks of this corpus, whose vectors are compared"
            if others
            else "nothing was retrieved"
        )
        return np.full(top.shape, -1, dtype=np.int64), reason
    return np.where(top >= 0, chunk_of[top], -1), None


def _evidence_vectors(runs: Runs, chunks: np.ndarray) -> tuple[FloatArray, FloatArray]:
    """Mean vector of the chunks that carry each query's gold spans, and of its decoy; zero rows where it has none."""
    gold, frame = runs.gold, runs.chunks
    n = len(gold.queries)
    anchor, decoy = (np.zeros((n, chunks.shape[1])) for _ in range(2))
    spans = np.repeat(
        np.arange(len(gold.spans.carrier_indptr) - 1), np.diff(gold.spans.carrier_indptr)
    )
    query_of_span = np.repeat(np.arange(n), np.diff(gold.spans.indptr))
    np.add.at(anchor, query_of_span[spans], chunks[gold.spans.carriers])
    decoys = gold_variants(runs.evaluation).frame("decoys")
    query_index = pd.Index(gold.queries["query_id"])
    for query_id, doc_id, section_id in zip(
        decoys["query_id"], decoys["doc_id"], decoys["section_id"], strict=True
    ):
        there = (frame["section_id"] == section_id) if section_id else (frame["doc_id"] == doc_id)
        decoy[query_index.get_loc(query_id)] += chunks[there.to_numpy()].sum(axis=0)
    return anchor, decoy


def same_rankings(by_seed: Iterable[np.ndarray]) -> bool:
    """Whether every wording's whole ranking is the same under every seed."""
    first, *others = by_seed
    return all(np.array_equal(first, other) for other in others)


def _wordings(runs: Runs, name: str) -> tuple[dict[str, Any], list[str]]:
    """How much the wording and the seed matter: lambda states, variance shares, flips, best and worst wording; and the state of each question, empty where it has no gold."""
    gold, level, scores = runs.gold, runs.evaluation.config.level, runs.scores(name)
    cutoffs = sorted({*runs.evaluation.config.k, ALWAYS_K})
    ran = slice(None) if scores.ran is None else np.flatnonzero(scores.ran)
    owner = gold.query_of[scores.variant][ran]
    hits = scores.cube(level, f"Success@{ALWAYS_K}", gold)
    eligible = ~np.isnan(hits).all(axis=(1, 2))
    overlap = mean_pairwise_rbo(scores.top[ran], owner, len(gold.queries))
    states = lambda_states(hits[eligible], overlap[eligible])
    shares = variance_shares(scores.cube(level, f"R@{ALWAYS_K}", gold))
    together = np.full(len(gold.queries), np.nan)
    together[eligible] = np.where(states.state == "undefined", np.nan, states.convergent_and_hit)
    flips = {}
    for k in cutoffs:
        cube = scores.cube(level, f"Success@{k}", gold)
        known = ~np.isnan(cube)
        changes = np.full(len(cube), np.nan)
        several = known.any(axis=2).sum(axis=1) > 1
        changes[several] = np.nanmax(cube[several], axis=(1, 2)) != np.nanmin(
            cube[several], axis=(1, 2)
        )
        flips[f"hit_at_{k}"] = _interval(changes, runs, f"hit@{k} changes")
    convergent = _interval(together, runs, "convergent and hit")
    if convergent["value"] is None and eligible.any():
        convergent["value_reason"] = NO_SECOND_RUN
    matrix = flip_matrix(hits)
    spread = wording_range(scores.cube(level, f"R@{ALWAYS_K}", gold))
    state = np.full(len(gold.queries), "", dtype=object)
    state[eligible] = states.state
    figures = {
        "level": level,
        "rbo": _interval(np.where(eligible, overlap, np.nan), runs, "rbo"),
        "lambda": _shares(states.state, STATES),
        "reasons": {
            reason: {"n": int(np.sum(states.reason == reason)), "cause": cause}
            for reason, (_, cause) in LAMBDA_REASONS.items()
            if (states.reason == reason).any()
        },
        "n_queries": int(eligible.sum()),
        "convergent_and_hit": convergent,
        "variance_shares": {
            "query": number(shares.query),
            "paraphrase": number(shares.paraphrase),
            "seed": number(shares.seed),
        },
        "hit_changes_with_wording": flips,
        "flip_matrix": {
            "wordings": wording_names(gold),
            "share": [[number(float(x)) for x in row] for row in matrix.share],
            "n": matrix.n.tolist(),
        },
        "recall_at_10_by_wording": {
            name: _interval(getattr(spread, name), runs, name) for name in ("worst", "mean", "best")
        },
        "seeds_change_nothing": None
        if len(runs.evaluation.config.seeds) == 1
        else same_rankings(runs.rows(name).values()),
    }
    return figures, [str(one) for one in state]


def stability_measures(runs: Runs) -> Artifact:
    """Measure stability of every strategy.

    Parts: per_run (frame: strategy, query, wording, seed, delta_s), per_query (frame: strategy, query, lambda_state), about (embedding; figures by strategy).
    """
    return runs.evaluation.once("stability", lambda: _stability_measures(runs))


def _stability_measures(runs: Runs) -> Artifact:
    evaluation = runs.evaluation
    key = evaluation.key(
        "stability",
        gold_variants(evaluation).key,
        runs.keys,
        stability_embedding(evaluation).model_dump(mode="json"),
        evaluation.config.k,
        evaluation.config.level,
        evaluation.config.seeds,
    )

    def make() -> dict[str, Any]:
        source = runs.opened().index.source(stability_embedding(evaluation))
        figures, parts, lambdas = {}, [], []
        with evaluation.progress.step(
            "Measuring stability", len(runs.names), "strategies"
        ) as advance:
            for name in runs.names:
                scores, variants = runs.scores(name), runs.gold.variants
                distances, per_run = _distances(runs, name, source)
                wordings, states = _wordings(runs, name)
                figures[name] = {"delta_s": distances, **wordings}
                lambdas.append(
                    pd.DataFrame(
                        {
                            "strategy": name,
                            "query_id": runs.gold.queries["query_id"].to_numpy(),
                            "lambda_state": states,
                        }
                    )
                )
                parts.append(
                    pd.DataFrame(
                        {
                            "strategy": name,
                            "query_id": variants["query_id"].to_numpy()[scores.variant],
                            "paraphrase_id": variants["paraphrase_id"].to_numpy()[scores.variant],
                            "seed": scores.seed,
                            "delta_s": per_run,
                        }
                    )
                )
                advance(1)
        return {
            "per_run": pd.concat(parts, ignore_index=True),
            "per_query": pd.concat(lambdas, ignore_index=True),
            "about": {"embedding": source.model, "strategies": figures},
        }

    return evaluation.memo("stability", key, make)
