"""Stages of retrieval: bring the index up to date, and run every strategy over every wording.

The first stage embeds new chunks and builds the graphs of approximate search. A run is reused only
when equal inputs are known to give equal answers: files are identified by their hash, services and
ports by the version that they state. A run with a failed query is never reused.
"""

import dataclasses
import functools
import time
import weakref
from collections.abc import Mapping

from rag_eval.core.loader import Chunker
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.pipeline.corpus import AdmittedChunks, CorpusSnapshot, GoldVariants
from rag_eval.pipeline.evaluation import Evaluation, chosen_kinds
from rag_eval.pipeline.runner import AGAIN, Result, Stage, Work, json_part
from rag_eval.pipeline.shards import run_on_ray
from rag_eval.pipeline.strategy_runs import (
    RunFacts,
    RunTiming,
    StrategyRun,
    mean_tokens,
    run_external,
    search_wordings,
    time_strategy,
)
from rag_eval.retrieval.embedding.source import ChunkTable, find_lsa_fit, pack_hashes
from rag_eval.retrieval.outside import Outside
from rag_eval.retrieval.ranking import Ranking, failed_frame, run_frame
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.iterative import Iterated
from rag_eval.uncertainty.opened_index import IterativeStrategy, OpenIndex, steering_calibrator

# ---- The opened index, and the identities and modules of its strategies.

_open: "weakref.WeakKeyDictionary[AdmittedChunks, OpenIndex]" = weakref.WeakKeyDictionary()


def open_index(evaluation: Evaluation, admitted: AdmittedChunks) -> OpenIndex:
    """Open the index over these chunks, once per process."""
    if admitted not in _open:
        facts, places = admitted.about, evaluation.places
        table = ChunkTable(admitted.chunks, facts.chunks_hash, places.home, facts.analyzer)
        _open[admitted] = OpenIndex(evaluation.config, evaluation.settings, places, table)
    return _open[admitted]


def count_new_vectors(admitted: AdmittedChunks) -> int:
    """Count the texts that this process embedded through the index; 0 before it is open."""
    return _open[admitted].index.embedded if admitted in _open else 0


def identity_of(evaluation: Evaluation, admitted: AdmittedChunks, spec: Strategy) -> Identity:
    """Derive a strategy's index hash and embedding model from the inputs, before indexing."""
    base = evaluation.config.base_of(spec)

    def find_fit(dimensions: int) -> str:
        if admitted in _open:  # reading a large frame again takes seconds
            chunks = _open[admitted].table.frame
        else:
            chunks = admitted.artifact.frame("chunks", ["text_hash"])
        hashes = pack_hashes(chunks["text_hash"].tolist())
        return find_lsa_fit(evaluation.home, hashes, dimensions, admitted.about.analyzer)

    def read_stated_index() -> Mapping[str, object]:
        outside = Outside.model_validate(spec)
        return {} if spec.files() else evaluation.sources.open(outside).stated

    return spec.identity(
        IdentityInputs(
            folder=evaluation.base,
            settings=evaluation.settings,
            chunks_hash=admitted.about.chunks_hash,
            lsa_fit=find_fit,
            base=None if spec.base_name is None else identity_of(evaluation, admitted, base),
            calibrator_id=functools.partial(
                steering_calibrator, evaluation.home, evaluation.config, spec
            ),
            stated=read_stated_index,
        )
    )


# ---- Stage `corpus_index`.


@dataclasses.dataclass(frozen=True)
class IndexFacts:
    """How the index was made, and the identity of each strategy that is not external."""

    analyzer: str
    chunker: Chunker
    n_chunks: int
    strategies: dict[str, Identity]


@dataclasses.dataclass(frozen=True)
class IndexChanges:
    """Texts that were embedded by model, graphs that were built or dropped, and the duration."""

    embedded: dict[str, int]
    built: list[str]
    dropped: list[str]
    seconds: float


class CorpusIndex(Result):
    """The index over the admitted chunks. Changes in the store are not part of the identity."""

    shown = ("about", "changes")
    about: IndexFacts = json_part()
    changes: IndexChanges = json_part(volatile=True)

    def report_part(self, _: Work) -> dict[str, object]:
        """Give how the index was made, and whether it was there already."""
        made_by = {"analyzer": self.about.analyzer, "chunker": self.about.chunker}
        return {"index": made_by, "reused": {"index": self.artifact.reused}}

    @property
    def n_vectors(self) -> dict[str, int]:
        """Number of vectors by embedding model; a run stops when a chunk's vector is missing."""
        models = {identity.embed_model for identity in self.about.strategies.values()} - {""}
        return dict.fromkeys(models, self.about.n_chunks)

    def id_for(self, strategy: str) -> str:
        """Identify the index of one strategy, so that changes in others do not repeat its run."""
        part = self.about.strategies.get(strategy)
        if not strategy:
            return self.id
        return digest(None if part is None else dataclasses.asdict(part))


def _identify_index(work: Work, admitted_chunks: AdmittedChunks) -> dict[str, list[str]]:
    """Identify the sources of every strategy's rankings.

    The error for a missing input of a strategy comes here, before any indexing.
    """
    parts = {}
    for spec in work.config.strategies:
        identity = identity_of(work.evaluation, admitted_chunks, spec)
        if spec.runs_here:
            parts[spec.name] = [identity.index_hash, identity.embed_model]
    return parts


@Stage(
    "corpus_index",
    "corpus",
    stores=("embeddings", "vectors"),
    reads=("name", "seeds", "strategies"),
    outside=_identify_index,
    chosen=chosen_kinds,
)
def build_index(work: Work, admitted_chunks: AdmittedChunks) -> CorpusIndex:
    """Embed new chunks, build the graphs of approximate search, and identify every index."""
    started = time.perf_counter()
    opened = open_index(work.evaluation, admitted_chunks)
    strategies, n_chunks = opened.strategies, len(opened.table)
    embedded: dict[str, int] = {}
    for strategy in strategies.values():
        source = strategy.source
        if source is not None and source.model not in embedded:
            if work.settings.ray is not None:
                source.spread = functools.partial(run_on_ray, work.settings.ray)
            label = f"Embedding chunks with {source.model}"
            with work.progress.step(label, n_chunks, "chunks") as advance:
                source.chunk_vectors(advance)
            embedded[source.model] = source.n_embedded
    facts = IndexFacts(
        analyzer=admitted_chunks.about.analyzer,
        chunker=work.config.corpus.chunker,
        n_chunks=n_chunks,
        strategies={name: strategy.identity for name, strategy in strategies.items()},
    )
    graphs = opened.index.update_graphs(
        [strategy.spec for strategy in strategies.values()], work.config.seeds, work.progress.step
    )
    work.made_from += sorted(opened.table.made_from)
    seconds = time.perf_counter() - started
    return CorpusIndex(about=facts, changes=IndexChanges(embedded, *graphs, seconds))


# ---- Stage: run one strategy.


def _identify_run(
    work: Work, admitted_chunks: AdmittedChunks, gold_variants: GoldVariants, **_: Result
) -> object:
    """Identify index and model, or an outside service by its version; AGAIN without a version."""
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
        *("strategy", "depth", "ignore_identical_ids", "seeds", "trust.filter"),
        *("trust.quarantine", "uncertainty.k"),
    ),
    outside=_identify_run,
    each_strategy=True,
    chosen=chosen_kinds,
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
        index_hash = identity_of(work.evaluation, admitted_chunks, spec).index_hash
        return run_external(work, index_hash, corpus_snapshot, admitted_chunks, gold_variants)
    texts, opened = gold_variants.texts, open_index(work.evaluation, admitted_chunks)
    strategy = opened.ready(spec, gold_variants.variants)
    iterative = strategy if isinstance(strategy, IterativeStrategy) else None
    base = strategy if iterative is None else iterative.base
    if base.index_hash != corpus_index.about.strategies[base.name].index_hash:
        raise RuntimeError(f"{base.name}: the opened index is not the index of the stage")
    seeds = list(config.seeds) if spec.seed_matters else [config.seeds[0]]
    allowed = admitted_chunks.passes if config.trust.filter else None
    ignored = gold_variants.own_documents(config, admitted_chunks.chunks["doc_id"])
    started, n_runs = time.perf_counter(), len(texts) * len(seeds)
    rankings = dict[int, Ranking]()
    last: Iterated | None = None
    with work.progress.step(f"Retrieving with {spec.name}", n_runs, "wordings") as advance:
        for seed in seeds:
            rankings[seed] = search_wordings(
                config, strategy, texts, seed, allowed=allowed, ignored=ignored
            )
            if iterative is not None and seed == seeds[0]:
                last = iterative.last
            advance(len(texts))
    seconds, failed = time.perf_counter() - started, failed_frame(rankings)
    n_without = int(sum((ranked.rows[:, 0] < 0).sum() for ranked in rankings.values()))
    failures = [ranked.failure for ranked in rankings.values() if ranked.failure]
    facts = RunFacts(
        index_hash=strategy.index_hash,
        embed_model=strategy.embed_model,
        name=spec.name,
        kind=spec.kind,
        seeds=seeds,
        seed_matters=spec.seed_matters,
        n_runs=n_runs,
        n_empty=n_without - len(failed),
        n_failed=len(failed),
        first_failure=failures[0] if failures else None,
        rerank_model=opened.index.rerank_model(strategy.spec),
        query_tokens=mean_tokens(texts),
        steered_by="" if iterative is None else iterative.steered_by,
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
