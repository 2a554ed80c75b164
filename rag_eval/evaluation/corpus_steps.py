"""Corpus stages: snapshot, chunks, index. Each returns its stored artifact."""

import dataclasses
import time
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.corpus.chunking import chunk_documents, chunks_hash
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.evaluation.external_sources import external_identity
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.gold_set import Bm25, External
from rag_eval.records.problems import InputError, Problem
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.retrieval.chunk_table import ChunkTable
from rag_eval.retrieval.identity import embed_model, index_hash
from rag_eval.retrieval.strategies import ReadyStrategy, StrategyIndex
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest


def corpus_snapshot(evaluation: Evaluation) -> Artifact:
    """Load and mask the corpus. Parts: documents, sections, sources, about (corpus_rev, loader, masked, n_documents, unreadable_dates)."""
    return evaluation.once("corpus", lambda: _corpus_snapshot(evaluation))


def _corpus_snapshot(evaluation: Evaluation) -> Artifact:
    spec = evaluation.config.corpus
    reading = spec.model_dump(mode="json", exclude={"chunker", "path"})
    key = evaluation.key("corpus", reading, identify(spec, evaluation.base))

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Reading the corpus"):
            loaded = load_corpus(spec, evaluation.base)
        if loaded.documents.empty:
            raise InputError(Problem("empty_corpus", "the corpus has no document", file=str(evaluation.base), field="corpus"))
        about = {
            "corpus_rev": loaded.corpus_rev,
            "loader": loaded.loader,
            "masked": dict(loaded.masked) if spec.mask_pii else None,
            "n_documents": len(loaded.documents),
            "unreadable_dates": loaded.unreadable_dates,
        }
        return {"documents": loaded.documents, "sections": loaded.sections, "sources": loaded.sources, "about": about}

    return evaluation.memo("corpus", key, make)


def corpus_chunks(evaluation: Evaluation) -> Artifact:
    """Cut the corpus. Parts: chunks, about (chunks_hash, n_chunks)."""
    return evaluation.once("chunks", lambda: _corpus_chunks(evaluation))


def _corpus_chunks(evaluation: Evaluation) -> Artifact:
    corpus = corpus_snapshot(evaluation)
    chunker = evaluation.config.corpus.chunker
    key = evaluation.key("chunks", corpus.key, chunker.model_dump(mode="json"))

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Cutting documents into chunks"):
            chunks = chunk_documents(corpus.frame("documents"), corpus.frame("sections"), chunker)
        if chunks.empty:
            raise InputError(Problem("empty_index", "no document has any text, so there is nothing to retrieve", file=str(evaluation.base), field="corpus"))
        return {"chunks": chunks, "about": {"chunks_hash": chunks_hash(chunks, chunker), "n_chunks": len(chunks), "text_hashes": digest(chunks["text_hash"].tolist())}}

    return evaluation.memo("chunks", key, make)


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
            chunks = corpus_chunks(evaluation)
            table = ChunkTable(chunks.frame("chunks"), chunks.json("about")["chunks_hash"])
            local = [spec for spec in evaluation.config.strategies if not isinstance(spec, External)]
            needs_graph = any(not isinstance(spec, Bm25) and spec.search == "approximate" for spec in local)
            store = chroma_store(evaluation) if needs_graph else None
            index = StrategyIndex(table, evaluation.places, store, evaluation.settings.rerankers, prefix=f"{evaluation.config.name}.")
            self._opened = Opened(table, index, {spec.name: ReadyStrategy(spec, index) for spec in local})
        return self._opened


def planned_identity(evaluation: Evaluation) -> dict[str, dict[str, str]]:
    """Name each strategy's index_hash and embed_model as they follow from the inputs, before anything is indexed."""
    return evaluation.once("identity", lambda: _planned_identity(evaluation))


def _planned_identity(evaluation: Evaluation) -> dict[str, dict[str, str]]:
    chunks = corpus_chunks(evaluation)
    about = chunks.json("about")
    hashes: list[str] | None = None
    planned = {}
    for spec in evaluation.config.strategies:
        if isinstance(spec, External):
            planned[spec.name] = external_identity(evaluation, spec)
            continue
        model = ""
        if not isinstance(spec, Bm25):
            if hashes is None:
                hashes = pd.read_parquet(chunks.path("chunks.parquet"), columns=["text_hash"])["text_hash"].tolist()
            model = embed_model(spec.embedding, hashes, evaluation.base)
        planned[spec.name] = {"index_hash": index_hash(spec, about["chunks_hash"], model), "embed_model": model}
    return planned


def corpus_index(evaluation: Evaluation, opened: IndexOpener) -> Artifact:
    """Embed what is new, bring the vector store up to date, and name every strategy's index.

    Parts: about (analyzer, chunker, per strategy index_hash and embed_model, sizes, embedding counts, what changed in the vector store).
    """
    return evaluation.once("index", lambda: _corpus_index(evaluation, opened))


def _corpus_index(evaluation: Evaluation, opened: IndexOpener) -> Artifact:
    chunks = corpus_chunks(evaluation)
    planned = planned_identity(evaluation)
    key = evaluation.key("index", chunks.key, planned, evaluation.config.name, evaluation.config.seeds)

    def make() -> dict[str, Any]:
        started = time.perf_counter()
        ready = opened()
        table = ready.table
        stored: dict[str, dict[str, Any]] = {}
        strategies = {spec.name: planned[spec.name] for spec in evaluation.config.strategies if isinstance(spec, External)}
        for name, strategy in ready.strategies.items():
            strategies[name] = {"index_hash": strategy.index_hash, "embed_model": strategy.embed_model}
            source = strategy.source
            if source is None or source.model in stored:
                continue
            with evaluation.progress.step(f"Embedding chunks with {source.model}", len(table), "chunks") as advance:
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


def _keep_vectors(evaluation: Evaluation, ready: Opened, strategy: ReadyStrategy, vectors: np.ndarray) -> dict[str, Any]:
    """Sync the collection of one model, and for approximate search build one graph a seed; what this gold set no longer uses goes."""
    index, table = ready.index, ready.table
    if index.chroma is None:
        index.chroma = chroma_store(evaluation)
    model = strategy.embed_model
    name = index.collection_name(model)
    with evaluation.progress.step("Updating the vector store", len(table), "vectors") as advance:
        report = index.chroma.sync(name, table.chunk_ids, vectors, table.doc_ids, advance, text_hashes=table.text_hashes)
    graphs = []
    if any(other.seed_matters and other.embed_model == model for other in ready.strategies.values()):
        for seed in evaluation.config.seeds:
            graph = index.graph_name(model, seed)
            with evaluation.progress.step(f"Building the graph of seed {seed}", len(table), "vectors") as advance:
                started = time.perf_counter()
                built = index.chroma.build(graph, table.chunk_ids, vectors, table.doc_ids, seed=seed, advance=advance)
            graphs.append({"seed": seed, "collection": graph, "built": built, "seconds": time.perf_counter() - started})
    return {"collection": name, **dataclasses.asdict(report), "graphs": graphs, "dimensions": int(vectors.shape[1])}


def _drop_unused(ready: Opened, stored: dict[str, dict[str, Any]]) -> list[str]:
    """Remove collections of earlier fits and chunks of the models in use; other models' collections may belong to another choice of strategies."""
    keep = {entry["collection"] for entry in stored.values()} | {graph["collection"] for entry in stored.values() for graph in entry["graphs"]}
    store = ready.index.chroma
    return [name for model in stored for name in store.drop(ready.index.family(model), keep)] if store is not None else []
