"""A configured strategy made ready to search: engines, fusion and rerank behind one `search`."""

import importlib
import re
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rag_eval.records.configuration_parts import Embedding
from rag_eval.records.gold_set import Bm25, Hybrid, Vector
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.retrieval.chunk_table import ChunkTable
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.source import EmbeddingSource, Places
from rag_eval.retrieval.fusion import reciprocal_rank, weighted
from rag_eval.retrieval.identity import LocalStrategy, index_hash
from rag_eval.retrieval.lexical import Bm25s
from rag_eval.retrieval.okapi import RankBm25
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.rerank import Reranker, by_reranker, mmr
from rag_eval.retrieval.synonyms.expansion import BoundExpansion, Expansion
from rag_eval.storage.hashing import digest

POOL = 100
"""Candidates that normalisation and fusion look at, at least; so the first ten are the same whether ten or a hundred were asked for."""

Allowed = npt.NDArray[np.bool_] | None


class _Dense(Protocol):
    def __call__(
        self, queries: npt.NDArray[np.float32], depth: int, seed: int, allowed: Allowed
    ) -> Ranking: ...


class StrategyIndex:
    """All engines over one chunk table; strategies that share an engine share its index.

    Parameters
    ----------
    table
        The chunks.
    places
        Where embeddings are read and kept.
    chroma
        Gives the vector store when a vector strategy needs it.
    rerankers
        Name -> import path (`module:attribute`) of rerankers that gold sets may name.
    prefix
        What the names of this corpus's collections start with.
    """

    def __init__(
        self,
        table: ChunkTable,
        places: Places,
        chroma: ChromaStore | None = None,
        rerankers: Mapping[str, str] | None = None,
        *,
        prefix: str = "",
    ) -> None:
        self.prefix = prefix
        self.table = table
        self.places = places
        self.chroma = chroma
        self.rerankers = dict(rerankers or {})
        self._lexical: dict[str, Bm25s | RankBm25] = {}
        self._expansions: dict[str, BoundExpansion] = {}
        self._sources: dict[str, EmbeddingSource] = {}
        self._exact: dict[str, ExactSearch] = {}
        self._graphs: set[str] = set()
        self._loaded: dict[str, Reranker] = {}

    def source(self, embedding: Embedding) -> EmbeddingSource:
        """Return the shared embedding source of a configuration."""
        key = embedding.model_dump_json()
        if key not in self._sources:
            self._sources[key] = EmbeddingSource(embedding, self.table, self.places)
        return self._sources[key]

    @property
    def embedded(self) -> int:
        """How many texts were embedded through this index, chunks and queries."""
        return sum(source.use.embedded for source in self._sources.values())

    def rerank_model(self, spec: LocalStrategy) -> str:
        """Name the embedding that a strategy's MMR step compares with; empty where there is none."""
        source = self.rerank_source(spec)
        return source.model if source else ""

    def rerank_source(self, spec: LocalStrategy) -> EmbeddingSource | None:
        """Return the embedding source of an MMR step: its own, else the strategy's, else lsa-256."""
        if spec.rerank is None or spec.rerank.kind != "mmr":
            return None
        own = spec.rerank.embedding or (None if isinstance(spec, Bm25) else spec.embedding)
        return self.source(own or Embedding(model="lsa-256"))

    def lexical(self, spec: Bm25 | Hybrid) -> Bm25s | RankBm25:
        """Return the lexical engine, built when first asked for."""
        key = f"{spec.engine} {spec.k1} {spec.b}"
        if key not in self._lexical:
            engine = Bm25s if spec.engine == "bm25s" else RankBm25
            self._lexical[key] = engine(self.table.terms, self.table.n_terms, k1=spec.k1, b=spec.b)
        return self._lexical[key]

    def by_term(
        self, spec: Bm25 | Hybrid, queries: list[str], depth: int, allowed: Allowed
    ) -> Ranking:
        """Rank chunks by the terms of queries, widened by synonyms where the strategy asks for it."""
        engine, terms = self.lexical(spec), self.table.query_terms(queries)
        if spec.expand is None:
            return engine.search(terms, depth, allowed)
        if not isinstance(engine, Bm25s):
            raise TypeError(
                f"expand: found the engine {spec.engine}, accepted bm25s"
            )  # the configuration refuses it with its place
        return engine.search_expanded(terms, self._expansion(spec.expand), depth, allowed)

    def _expansion(self, name: str) -> BoundExpansion:
        if name not in self._expansions:
            self._expansions[name] = Expansion.load(name).bind(self.table.analyzer)
        return self._expansions[name]

    def dense(self, spec: Vector | Hybrid) -> _Dense:
        """Return the vector search, exact or approximate."""
        source = self.source(spec.embedding)
        if spec.search == "exact":
            if source.model not in self._exact:
                self._exact[source.model] = ExactSearch(source.chunk_vectors())
            engine = self._exact[source.model]
            return lambda queries, depth, seed, allowed: engine.search(queries, depth, allowed)  # noqa: ARG005 - exact search has no seed
        store = self.chroma
        if store is None:
            raise RuntimeError("approximate search needs a vector store")

        def approximate(
            queries: npt.NDArray[np.float32], depth: int, seed: int, allowed: Allowed
        ) -> Ranking:
            name = self.graph_name(source.model, seed)
            if (
                name not in self._graphs
            ):  # left alone where it is finished; a store that was emptied meanwhile gets it again
                store.build(
                    name,
                    self.table.chunk_ids,
                    source.chunk_vectors(),
                    self.table.doc_ids,
                    seed=seed,
                )
                self._graphs.add(name)
            return store.search(name, queries, depth, self.table.row_of, allowed)

        return approximate

    def family(self, model: str) -> str:
        """Name what the collections of one model share, whatever it was fitted on: the prefix and the model without its fit."""
        return f"{self.prefix}{re.sub(r'[^A-Za-z0-9-]+', '-', model.partition('@')[0])}."

    def collection_name(self, model: str) -> str:
        """Name the collection that keeps a model's vectors, whatever the chunks."""
        return f"{self.family(model)}{digest(model)}"

    def graph_name(self, model: str, seed: int) -> str:
        """Name the collection that holds the graph for (chunks, model, seed)."""
        return f"{self.family(model)}{digest([self.table.chunks_hash, model])}-s{seed}"

    def reranker(self, name: str) -> Reranker:
        """Import a reranker that the settings enable."""
        path = self.rerankers.get(name)
        if path is None:
            raise InputError(
                Problem(
                    "unknown_reranker",
                    "the settings enable no reranker of this name",
                    field="rerank.kind",
                    found=name,
                    accepted=", ".join(["mmr", *sorted(self.rerankers)])
                    + " (enable one with RAG_EVAL_RERANKERS)",
                )
            )
        if name not in self._loaded:
            module, attribute = path.split(":")
            try:
                found: Any = getattr(importlib.import_module(module), attribute)
                self._loaded[name] = found() if isinstance(found, type) else found
            except Exception as error:
                raise InputError(
                    Problem(
                        "reranker_unusable",
                        f"the reranker {quoted(name)} cannot be loaded",
                        file="settings",
                        field="rerankers",
                        found=f"{path}: {type(error).__name__}: {error}",
                    )
                ) from error
        return self._loaded[name]


class ReadyStrategy:
    """One strategy over one index: texts in, ranking out."""

    def __init__(self, spec: LocalStrategy, index: StrategyIndex) -> None:
        self.spec = spec
        self.name = spec.name
        self.index = index
        self.source = None if isinstance(spec, Bm25) else index.source(spec.embedding)
        self.embed_model = self.source.model if self.source else ""
        self.index_hash = index_hash(spec, index.table.chunks_hash, self.embed_model)
        self.seed_matters = not isinstance(spec, Bm25) and spec.search == "approximate"
        self.reranks_outside = spec.rerank is not None and spec.rerank.kind != "mmr"

    def search(
        self,
        queries: list[str],
        depth: int,
        seed: int = 0,
        *,
        allowed: Allowed = None,
        cached: bool = True,
        strict: bool = True,
    ) -> Ranking:
        """Rank chunks for each query.

        Parameters
        ----------
        queries
            Any texts; one without a known term retrieves nothing.
        depth
            At most so many chunks a query.
        seed
            Chooses the graph of an approximate index; exact engines do not use it.
        allowed
            bool [n_chunks]: only these are ranked.
        cached
            Whether query vectors may come from the cache; False measures what a live query costs.
        strict
            Whether an outside reranker's error is raised; else its query counts as failed.
        """
        pool = max(depth, POOL, self.spec.rerank.depth if self.spec.rerank else 0)
        found = self._rank(queries, pool, seed, allowed, cached=cached)
        return self._rerank(queries, found, strict=strict).cut(depth)

    def _rank(
        self, queries: list[str], pool: int, seed: int, allowed: Allowed, *, cached: bool
    ) -> Ranking:
        spec = self.spec
        if isinstance(spec, Bm25):
            return self.index.by_term(spec, queries, pool, allowed)
        dense = self.index.dense(spec)
        vectors = self.index.source(spec.embedding).query_vectors(queries, cached=cached)
        by_vector = dense(vectors, pool, seed, allowed)
        if isinstance(spec, Vector):
            return by_vector
        by_term = self.index.by_term(spec, queries, pool, allowed)
        if spec.fusion == "rrf":
            return reciprocal_rank(by_term, by_vector, k=spec.rrf_k, depth=pool)
        return weighted(by_term, by_vector, alpha=spec.alpha, beta=spec.beta, depth=pool)

    def _rerank(self, queries: list[str], found: Ranking, *, strict: bool) -> Ranking:
        step = self.spec.rerank
        if step is None:
            return found
        source = self.index.rerank_source(self.spec)
        if source is not None:
            return mmr(found, source.chunk_vectors(), lambda_=step.lambda_, depth=step.depth)
        texts = self.index.table.texts
        candidates = [
            [texts[row] for row in rows if row >= 0]
            for rows in found.rows[:, : step.depth].tolist()
        ]
        return by_reranker(
            found,
            self.index.reranker(step.kind),
            queries,
            candidates,
            depth=step.depth,
            strict=strict,
        )
