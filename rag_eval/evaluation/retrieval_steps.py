"""Retrieval stage: one strategy over all variants and seeds, and its latency one query at a time."""

import contextlib
import datetime as dt
import time
from typing import Any

import numpy as np

from rag_eval.corpus.analyzer import count_tokens
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.external_steps import external_run
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.guard_steps import guarded, guarded_search, restated
from rag_eval.evaluation.index_steps import IndexOpener, corpus_index
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.iterative_steps import IterativeStrategy
from rag_eval.evaluation.run_frames import failed_frame, run_frame
from rag_eval.evaluation.trust_steps import evidence_trust
from rag_eval.records.gold_set import External, Strategy
from rag_eval.records.retrieval import RetrievalOptions
from rag_eval.retrieval.service import RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy
from rag_eval.storage.artifacts import Artifact

LATENCY_TOP_K = 10
PERCENTILES = (50, 95, 99)


def _latency(evaluation: Evaluation, strategy: ReadyStrategy, texts: list[str]) -> dict[str, Any]:
    """Time single queries through the port, embedding each anew; queries are spread evenly over the gold set."""
    corpus = corpus_snapshot(evaluation)
    service = RetrievalService(
        {strategy.spec.kind: strategy},
        corpus.frame("documents"),
        corpus_rev=corpus.json("about")["corpus_rev"],
        default=strategy.spec.kind,
        seed=evaluation.config.seeds[0],
        **guarded(evaluation),
    )
    places = np.unique(
        np.linspace(0, len(texts) - 1, min(evaluation.settings.latency_queries, len(texts))).astype(
            int
        )
    )
    options = RetrievalOptions(top_k=LATENCY_TOP_K)
    # an outside reranker's error was counted by the batch, and how long it takes is the caller's latency all the same; nothing else may fail here
    foreign: tuple[type[Exception], ...] = (Exception,) if strategy.reranks_outside else ()
    with contextlib.suppress(*foreign):
        service.retrieve(texts[0], options)  # the first call pays for lazy loading
    times = []
    for place in places:
        started = time.perf_counter()
        with contextlib.suppress(*foreign):
            service.retrieve(texts[place], options)
        times.append(1000 * (time.perf_counter() - started))
    percentiles = {f"p{p}": float(np.percentile(times, p)) for p in PERCENTILES}
    return {
        "n": len(times),
        **percentiles,
        "measured_at": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def retrieve(evaluation: Evaluation, opened: IndexOpener, spec: Strategy) -> Artifact:
    """Run one strategy over every variant and seed.

    Parts: run (RUN frame), failed (variants and seeds whose retrieval ended in an error), about (index_hash, embed_model, seeds that were run, latency in ms, seconds, empty results, embedding counts).
    A strategy without any randomness runs once; its result stands for every seed. An external strategy's run has more parts: `external_steps`.
    """
    return evaluation.once(f"run {spec.name}", lambda: _retrieve(evaluation, opened, spec))


def _retrieve(evaluation: Evaluation, opened: IndexOpener, spec: Strategy) -> Artifact:
    config = evaluation.config
    index, gold = corpus_index(evaluation, opened), gold_variants(evaluation)
    identity = index.json("about")["strategies"][spec.name]
    if isinstance(spec, External):
        return external_run(evaluation, spec, identity)
    guard = [
        restated(evaluation).key if config.trust.quarantine else None,
        [config.trust.threshold, evidence_trust(evaluation).key] if config.trust.filter else None,
    ]
    key = evaluation.key(
        "run",
        spec.model_dump(mode="json"),
        identity,
        gold.key,
        config.depth,
        config.seeds,
        evaluation.settings.latency_queries,
        guard,
    )

    def make() -> dict[str, Any]:
        texts = gold.frame("variants")["text"].tolist()
        strategy = opened().strategies[spec.name]
        if strategy.index_hash != identity["index_hash"]:
            raise RuntimeError(
                f"{spec.name}: the opened index is {strategy.index_hash}, not the planned {identity['index_hash']}"
            )
        seeds = list(config.seeds) if strategy.seed_matters else [config.seeds[0]]
        used = 0 if strategy.source is None else strategy.source.use.embedded
        started = time.perf_counter()
        with evaluation.progress.step(
            f"Retrieving with {spec.name}", len(texts) * len(seeds), "wordings"
        ) as advance:
            rankings, dropped, rounds = {}, 0, dict[str, Any]()
            for seed in seeds:
                rankings[seed], gone = guarded_search(
                    evaluation, opened, spec.name, seed, filtered=config.trust.filter
                )
                if isinstance(strategy, IterativeStrategy) and seed == seeds[0]:
                    rounds = strategy.rounds()
                dropped += gone
                advance(len(texts))
        seconds = time.perf_counter() - started
        failed, of_rounds = failed_frame(rankings), rounds.pop("about", {})
        about = {
            **identity,
            "name": spec.name,
            "kind": spec.kind,
            "seeds": seeds,
            "seed_matters": strategy.seed_matters,
            "n_runs": len(texts) * len(seeds),
            "n_empty": int(sum((found.rows[:, 0] < 0).sum() for found in rankings.values()))
            - len(failed),
            "n_failed": len(failed),
            "n_dropped": dropped,
            "first_failure": next(
                (found.failure for found in rankings.values() if found.failure), None
            ),
            "rerank_model": opened().index.rerank_model(strategy.spec),
            "latency_ms": _latency(evaluation, strategy, texts),
            "query_tokens": float(np.mean([count_tokens(text) for text in texts])),
            "embedded_queries": 0
            if strategy.source is None
            else strategy.source.use.embedded - used,
            "seconds": seconds,
            **of_rounds,
        }
        return {"run": run_frame(rankings), "failed": failed, "about": about, **rounds}

    return evaluation.memo("run", key, make)
