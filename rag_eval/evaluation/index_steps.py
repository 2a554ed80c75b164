"""Index stage: embeddings and vector store brought up to date over the admitted chunks, and every strategy's identity."""

import dataclasses
import time
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.evaluation.external_sources import external_identity
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.iterative_steps import iterative_hash, iterative_strategy
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.gold_set import Bm25, External, Hybrid, Iterative, Vector
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.retrieval.chunk_table import ChunkTable
from rag_eval.retrieval.identity import embed_model, index_hash
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex
from rag_eval.storage.artifacts import Artifact


@dataclasses.dataclass(frozen=True)
class Opened:
    """The index opened for searching: the chunks and one ready strategy a name, external ones aside."""

    table: ChunkTable
    index: StrategyIndex
    strategies: dict[str, ReadyStrategy]


def chroma_store(evaluation: Evaluation) -> ChromaStore:
    """Open the vector store: the server of the settings, or the embedded one of the home."""
    return ChromaStore(evaluation.settings.home / "chroma", evaluation.settings.chroma_url)


class IndexOpener:
    """Opens the index once for all stages of one process; opening costs nothing until a stage searches."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._opened: Opened | None = None

    @property
    def embedded(self) -> int:
        """How many texts were embedded through this index so far; nothing where it was never opened."""
        return 0 if self._opened is None else self._opened.index.embedded

    def __call__(self) -> Opened:
        """Return the opened index."""
        if self._opened is None:
            evaluation = self._evaluation
            chunks = admitted_chunks(evaluation)
            table = ChunkTable(chunks.frame("chunks"), chunks.json("about")["chunks_hash"])
            local = [
                spec
                for spec in evaluation.config.strategies
                if not isinstance(spec, External | Iterative)
            ]
            needs_graph = any(
                not isinstance(spec, Bm25) and spec.search == "approximate" for spec in local
            )
            store = chroma_store(evaluation) if needs_graph else None
            index = StrategyIndex(
                table,
                evaluation.places,
                store,
                evaluation.settings.rerankers,
                prefix=f"{evaluation.config.name}.",
            )
            ready = Opened(table, index, {spec.name: ReadyStrategy(spec, index) for spec in local})
            ready.strategies.update(
                {
                    spec.name: iterative_strategy(evaluation, ready, spec)
                    for spec in evaluation.config.strategies
                    if isinstance(spec, Iterative)
                }
            )
            self._opened = ready
        return self._opened


def planned_identity(evaluation: Evaluation) -> dict[str, dict[str, str]]:
    """Name each strategy's index_hash and embed_model as they follow from the inputs, before anything is indexed."""
    return evaluation.once("identity", lambda: _planned_identity(evaluation))


def _planned_identity(evaluation: Evaluation) -> dict[str, dict[str, str]]:
    chunks = admitted_chunks(evaluation)
    about = chunks.json("about")
    hashes: list[str] | None = None
    planned = {}
    for spec in evaluation.config.strategies:
        if isinstance(spec, External):
            planned[spec.name] = external_identity(evaluation, spec)
            continue
        base = evaluation.config.base_of(spec)
        model = ""
        if isinstance(base, Vector | Hybrid):
            if hashes is None:
                hashes = pd.read_parquet(chunks.path("chunks.parquet"), columns=["text_hash"])[
                    "text_hash"
                ].tolist()
            model = embed_model(base.embedding, hashes, evaluation.base)
        if isinstance(base, External):
            raise TypeError(
                f"{spec.name}: an iterative strategy needs a base that runs here, found {base.name}"
            )  # the configuration refuses it with its place
        found = index_hash(base, about["chunks_hash"], model)
        planned[spec.name] = {
            "index_hash": iterative_hash(evaluation, spec, base, found)
            if isinstance(spec, Iterative)
            else found,
            "embed_model": model,
        }
    return planned


def corpus_index(evaluation: Evaluation, opened: IndexOpener) -> Artifact:
    """Embed what is new, bring the vector store up to date, and name every strategy's index.

    Parts: about (analyzer, chunker, per strategy index_hash and embed_model, sizes, embedding counts, what changed in the vector store).
    """
    return evaluation.once("index", lambda: _corpus_index(evaluation, opened))


def _corpus_index(evaluation: Evaluation, opened: IndexOpener) -> Artifact:
    chunks = admitted_chunks(evaluation)
    planned = planned_identity(evaluation)
    key = evaluation.key(
        "index", chunks.key, planned, evaluation.config.name, evaluation.config.seeds
    )

    def make() -> dict[str, Any]:
        started = time.perf_counter()
        ready = opened()
        table = ready.table
        stored: dict[str, dict[str, Any]] = {}
        strategies = {
            spec.name: planned[spec.name]
            for spec in evaluation.config.strategies
            if isinstance(spec, External)
        }
        for name, strategy in ready.strategies.items():
            strategies[name] = {
                "index_hash": strategy.index_hash,
                "embed_model": strategy.embed_model,
            }
            source = strategy.source
            if source is None or source.model in stored:
                continue
            with evaluation.progress.step(
                f"Embedding chunks with {source.model}", len(table), "chunks"
            ) as advance:
                vectors = source.chunk_vectors(advance)
            stored[source.model] = _keep_vectors(evaluation, ready, strategy, np.asarray(vectors))
            stored[source.model]["embedded"] = source.use.embedded
        return {
            "about": {
                "analyzer": ANALYZER,
                "chunker": evaluation.config.corpus.chunker.model_dump(mode="json"),
                "n_chunks": len(table),
                "strategies": strategies,
                "vectors": stored,
                "dropped": _drop_unused(ready, stored),
                "seconds": time.perf_counter() - started,
            }
        }

    return evaluation.memo("index", key, make)


def _keep_vectors(
    evaluation: Evaluation, ready: Opened, strategy: ReadyStrategy, vectors: np.ndarray
) -> dict[str, Any]:
    """Sync the collection of one model, and for approximate search build one graph a seed; what this gold set no longer uses goes."""
    index, table = ready.index, ready.table
    if index.chroma is None:
        index.chroma = chroma_store(evaluation)
    model = strategy.embed_model
    name = index.collection_name(model)
    with evaluation.progress.step("Updating the vector store", len(table), "vectors") as advance:
        report = index.chroma.sync(
            name, table.chunk_ids, vectors, table.doc_ids, advance, text_hashes=table.text_hashes
        )
    graphs = []
    if any(
        other.seed_matters and other.embed_model == model for other in ready.strategies.values()
    ):
        for seed in evaluation.config.seeds:
            graph = index.graph_name(model, seed)
            with evaluation.progress.step(
                f"Building the graph of seed {seed}", len(table), "vectors"
            ) as advance:
                started = time.perf_counter()
                built = index.chroma.build(
                    graph, table.chunk_ids, vectors, table.doc_ids, seed=seed, advance=advance
                )
            graphs.append(
                {
                    "seed": seed,
                    "collection": graph,
                    "built": built,
                    "seconds": time.perf_counter() - started,
                }
            )
    return {
        "collection": name,
        **dataclasses.asdict(report),
        "graphs": graphs,
        "dimensions": int(vectors.shape[1]),
    }


def _drop_unused(ready: Opened, stored: dict[str, dict[str, Any]]) -> list[str]:
    """Remove collections of earlier fits and chunks of the models in use; other models' collections may belong to another choice of strategies."""
    keep = {entry["collection"] for entry in stored.values()} | {
        graph["collection"] for entry in stored.values() for graph in entry["graphs"]
    }
    store = ready.index.chroma
    return (
        [name for model in stored for name in store.drop(ready.index.family(model), keep)]
        if store is not None
        else []
    )
