"""The retrieval stage: run one strategy over every wording and seed, and time single queries.

A run is reused only when equal inputs are known to give equal answers. Files are identified by
their hash, services and ports by the version that they state. A run with a failed query is never
reused.
"""

import time

from rag_eval.core.frames import RUN
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.index import CorpusIndex
from rag_eval.pipeline.open_strategies import chosen_kinds, identity_of, open_index
from rag_eval.pipeline.runner import AGAIN, Result, Stage, Work
from rag_eval.pipeline.runs import (
    RunFacts,
    RunTiming,
    StrategyRun,
    mean_tokens,
    run_external,
    search_wordings,
    time_strategy,
)
from rag_eval.retrieval.outside import Outside
from rag_eval.retrieval.ranking import Ranking, failed_frame, run_frame
from rag_eval.uncertainty.iterative import Iterated
from rag_eval.uncertainty.opened_index import IterativeStrategy


def _identify_run(
    work: Work, admitted_chunks: AdmittedChunks, gold_variants: GoldVariants, **_: Result
) -> object:
    """Identify the causes of a run besides its inputs.

    Returns the index hash with the embedding model, or with the version of an outside service. The
    index hash covers the calibrator that steers rounds. A service without a version gives AGAIN.
    """
    spec = work.config.strategy(work.strategy)
    identity = identity_of(work.evaluation, admitted_chunks, spec)
    if not spec.own_units or spec.files():
        return [identity.index_hash, identity.embed_model]
    source = work.evaluation.sources.open(Outside.model_validate(spec))
    version = source.ask_version(gold_variants.texts[0])
    return [identity.index_hash, version] if version else AGAIN


@Stage(
    "run",
    "retrieval",
    stores=("embeddings", "calibrators", "sources"),
    reads=(
        "strategy",
        "depth",
        "ignore_identical_ids",
        "seeds",
        "trust.filter",
        "trust.quarantine",
        "uncertainty.k",
    ),
    outside=_identify_run,
    each_strategy=True,
    chosen=chosen_kinds,
    columns=RUN,
)
def retrieve(
    work: Work,
    *,
    corpus_snapshot: CorpusSnapshot,
    admitted_chunks: AdmittedChunks,
    gold_variants: GoldVariants,
    corpus_index: CorpusIndex,
) -> StrategyRun:
    """Run the strategy over every wording and seed.

    A strategy without randomness runs once, and the result counts for every seed.
    """
    spec, config = work.config.strategy(work.strategy), work.config
    if spec.own_units:
        return run_external(work, corpus_snapshot, admitted_chunks, gold_variants)
    texts, opened = gold_variants.texts, open_index(work.evaluation, admitted_chunks)
    strategy = opened.ready(spec, gold_variants.variants)
    base = strategy.base if isinstance(strategy, IterativeStrategy) else strategy
    if base.index_hash != corpus_index.about.strategies[base.name].index_hash:
        raise RuntimeError(f"{base.name}: the opened index is not the index of the stage")
    seeds = list(config.seeds) if spec.seed_matters else [config.seeds[0]]
    allowed = admitted_chunks.passes if config.trust.filter else None
    ignored = gold_variants.own_documents(config, admitted_chunks.chunks["doc_id"])
    started = time.perf_counter()
    rankings = dict[int, Ranking]()
    last: Iterated | None = None
    with work.progress.step(
        f"Retrieving with {spec.name}", len(texts) * len(seeds), "wordings"
    ) as advance:
        for seed in seeds:
            rankings[seed] = search_wordings(
                config, strategy, texts, seed, allowed=allowed, ignored=ignored
            )
            if isinstance(strategy, IterativeStrategy) and seed == seeds[0]:
                last = strategy.last
            advance(len(texts))
    seconds, failed = time.perf_counter() - started, failed_frame(rankings)
    steered_by = strategy.steered_by if isinstance(strategy, IterativeStrategy) else ""
    facts = RunFacts(
        index_hash=strategy.index_hash,
        embed_model=strategy.embed_model,
        name=spec.name,
        kind=spec.kind,
        seeds=seeds,
        seed_matters=spec.seed_matters,
        n_runs=len(texts) * len(seeds),
        n_empty=int(sum((ranked.rows[:, 0] < 0).sum() for ranked in rankings.values()))
        - len(failed),
        n_failed=len(failed),
        first_failure=next(
            (ranked.failure for ranked in rankings.values() if ranked.failure), None
        ),
        rerank_model=opened.index.rerank_model(strategy.spec),
        query_tokens=mean_tokens(texts),
        steered_by=steered_by,
        iterative=None if last is None else last.facts,
    )
    latency = time_strategy(work, strategy, texts, admitted_chunks)
    work.made_from += sorted(opened.table.made_from)
    return StrategyRun(
        run=run_frame(rankings),
        failed=failed,
        expansions=None if last is None else last.steps,
        rounds=None if last is None else last.rounds,
        about=facts,
        timing=RunTiming(latency, seconds),
    )
