"""Dense retrieval: exact search, and the kinds `vector` and `hybrid`, which compare vectors.

The last bits of a matrix product depend on the shape of its matrices. Scores of one query differ by
about 1e-7 between a query alone and a batch. Scores of two equal chunks can differ by their place.
The product therefore only selects candidates, with a margin. The score of a candidate is a dot
product of two vectors.
"""

import dataclasses
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, Int32Array
from rag_eval.core.parts import Embedding
from rag_eval.core.strategy import PriorKind
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.lexical import LexicalStrategy
from rag_eval.retrieval.ranking import (
    FUSED_ROUNDING,
    ROUNDING,
    Ranking,
    order,
    ranking,
    scale_min_max,
)
from rag_eval.retrieval.strategies import LocalStrategy, Request, StrategyIndex
from rag_eval.storage.hashing import digest, library_versions

# ---- Exact vector search: a matrix product in blocks.

BLOCK_BYTES = 64 * 2**20
"""Bytes of memory for the scores of one block of queries."""
ERROR = 2 * float(np.finfo(np.float32).eps)
"""Error bound of a cosine from the product, per square root of d; ten times observed errors."""


class ExactSearch:
    """Cosine similarity with every chunk.

    `vectors` is float32 [n_chunks, d] with rows of unit norm, and may be memory-mapped. A chunk
    without any known term has a zero row and is never retrieved.
    """

    def __init__(self, vectors: Float32Array) -> None:
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.n_chunks = len(vectors)
        self._slack = np.float32(2 * ERROR * np.sqrt(self.vectors.shape[1]) + 10.0**-ROUNDING)
        self._blank: BoolArray = ~np.asarray(self.vectors.any(axis=1))

    def search(
        self, queries: Float32Array, depth: int, allowed: BoolArray | None = None
    ) -> Ranking:
        """Rank chunks by cosine; a zero query vector (no known term) retrieves nothing.

        `queries` is float32 [n, d] with rows of unit norm or zero. `allowed`, bool [n_chunks],
        marks the chunks that may be ranked.
        """
        depth = min(depth, self.n_chunks)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        hidden = self._blank if allowed is None else self._blank | ~allowed
        block = max(1, BLOCK_BYTES // (4 * max(1, self.n_chunks)))
        rows = np.full((len(queries), depth), -1, dtype=np.int32)
        scores = np.full((len(queries), depth), -np.inf)
        # Every chunk would be a candidate of a zero query.
        embedded = np.flatnonzero(queries.any(axis=1))
        for start in range(0, len(embedded) if depth else 0, block):
            part = embedded[start : start + block]
            rows[part], scores[part] = self._best(queries[part], hidden, depth)
        candidates = np.zeros(len(queries), dtype=np.int64)
        candidates[embedded] = self.n_chunks - int(hidden.sum())
        return ranking(rows, scores, scale_min_max(scores), candidates)

    def _best(
        self, queries: Float32Array, hidden: BoolArray, depth: int
    ) -> tuple[Int32Array, FloatArray]:
        """Score the chunks that may be among the best `depth`, given the error of the product."""
        products = queries @ self.vectors.T
        if hidden.any():
            products[:, hidden] = -np.inf
        last = self.n_chunks - depth
        # The product of a hidden chunk is -inf, and no hidden chunk may be a candidate.
        floors = np.maximum(
            np.partition(products, last, axis=1)[:, last] - self._slack, np.finfo(np.float32).min
        )
        near = [np.flatnonzero(row >= floor) for row, floor in zip(products, floors, strict=True)]
        rows = np.full((len(queries), max(depth, *map(len, near))), -1, dtype=np.int32)
        cosines = np.full(rows.shape, -np.inf)
        for at, candidates in enumerate(near):
            rows[at, : len(candidates)] = candidates
            vectors = self.vectors.take(candidates, axis=0)
            cosines[at, : len(candidates)] = np.vecdot(vectors, queries[at])
        return order(rows, cosines, depth)


# ---- Shared parts of strategies with vectors: options, identity and search.


class DenseStrategy(LocalStrategy):
    """Base class of the kinds that compare vectors."""

    embedding: Embedding = Embedding(model="all-MiniLM-L6-v2")
    search: Literal["exact", "approximate"] = "exact"
    """Every vector is compared, or Chroma's HNSW graph is searched."""

    @property
    def embeds_with(self) -> Embedding:
        """Embedding of questions and chunks."""
        return self.embedding

    @property
    def seed_matters(self) -> bool:
        """Whether the strategy searches a graph, whose edges depend on the order of insertion."""
        return self.search == "approximate"

    @property
    def store_name(self) -> str:
        """Name of the store of the vectors: `chroma` or `exact`."""
        return "chroma" if self.search == "approximate" else "exact"

    def index_hash(self, chunks_hash: str, model: str) -> str:
        """Name the index of vectors by search, chunks, analyzer, model and library version."""
        is_exact = self.search == "exact"
        name, library = ("exact", "numpy") if is_exact else ("chroma-hnsw", "chromadb")
        version = library_versions()[library]
        return f"{name}:{digest([chunks_hash, ANALYZER, model, version, {'space': 'cosine'}])}"

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Rank chunks by cosine."""
        source = index.source(self.embedding)
        queries = source.query_vectors(request.texts, cached=request.cached)
        if self.search == "approximate":
            return approximate_search(index, self.embedding, queries, request)
        exact = index.engine(f"exact {source.model}", lambda: ExactSearch(source.chunk_vectors()))
        return exact.search(queries, request.depth, request.allowed)


class Vector(DenseStrategy):
    """Cosine of vectors. `exact` compares with every chunk; `approximate` asks Chroma's graph."""

    kind: Literal["vector"]
    vectors_alone: ClassVar[bool] = True
    prior: ClassVar[PriorKind] = "vector"


def approximate_search(
    index: StrategyIndex, embedding: Embedding, queries: Float32Array, request: Request
) -> Ranking:
    """Ask the graph of the request's seed. A missing graph is built first."""
    source, store, table = index.source(embedding), index.chroma, index.table
    name = index.graph_name(source.model, request.seed)

    def build() -> bool:
        vectors = source.chunk_vectors()
        return store.build(name, table.owners, vectors, seed=request.seed)

    index.engine(f"graph {name}", build)
    return store.search(name, queries, request.depth, table.row_of, request.allowed)


# ---- Hybrid: lexical and dense retrieval, fused.

POOL: Final = 1000
"""Least number of chunks that each engine gives to the fusion.

Normalisation and merging need the scores of chunks that one engine ranks low. On the train
questions of SciFact, 1000 in place of 100 raise nDCG@10 of the weighted sum by 0.007, 95 % interval
0.001 to 0.014. Z-scores in place of the shipped normalisation add 0.003, interval -0.002 to 0.009,
and tuned weights add 0.001, so neither is offered.
"""
BATCH: Final = 1000
"""Texts that are fused together: the lists of a batch take 100 MB."""


def _merge(
    first: Ranking, second: Ranking, left: FloatArray, right: FloatArray, depth: int
) -> Ranking:
    """Add the two scores of each chunk, then sort; a list without the chunk adds 0."""
    rows = np.concatenate([first.rows, second.rows], axis=1)
    parts = np.concatenate(
        [np.where(first.has_chunk, left, 0.0), np.where(second.has_chunk, right, 0.0)], axis=1
    )
    key = np.where(rows >= 0, rows, np.iinfo(np.int32).max)
    by_row = np.argsort(key, axis=1, kind="stable")
    rows = np.take_along_axis(rows, by_row, axis=1)
    parts = np.take_along_axis(parts, by_row, axis=1)
    twice = np.zeros(rows.shape, dtype=bool)
    twice[:, 1:] = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)
    parts[:, :-1] += np.where(twice[:, 1:], parts[:, 1:], 0.0)
    fused = np.where(twice | (rows < 0), -np.inf, parts)
    candidates = np.isfinite(fused).sum(axis=1).astype(np.int64)
    rows, fused = order(rows, fused, depth, FUSED_ROUNDING)
    return ranking(rows, fused, np.where(np.isfinite(fused), fused, 0.0), candidates)


class Hybrid(LexicalStrategy, DenseStrategy):
    """Weighted sum of scores normalised within the query, or reciprocal rank fusion."""

    kind: Literal["hybrid"]
    fusion: Literal["weighted", "rrf"] = "weighted"
    """Weighted sum of scaled scores, or reciprocal rank fusion."""
    alpha: float = Field(default=0.5, ge=0, le=1, description="weight of BM25")
    beta: float = Field(default=0.5, ge=0, le=1, description="weight of the vectors")
    rrf_k: int = Field(default=60, ge=1, le=10_000)
    """Constant that is added to each rank in `rrf`."""
    prior: ClassVar[PriorKind] = "hybrid"

    @model_validator(mode="after")
    def _has_a_weight(self) -> Self:
        if self.alpha + self.beta == 0:
            raise ValueError("alpha and beta must not both be 0")
        return self

    def index_hash(self, chunks_hash: str, model: str) -> str:
        """Name both indexes and the fusion."""
        weights = {"alpha": self.alpha, "beta": self.beta}
        constants = {"rrf_k": self.rrf_k} if self.fusion == "rrf" else weights
        fusion = {"fusion": self.fusion, **constants, "pool": POOL}
        lexical = LexicalStrategy.index_hash(self, chunks_hash, model)
        dense = DenseStrategy.index_hash(self, chunks_hash, model)
        return f"hybrid:{digest([lexical, dense, fusion])}"

    def first_lists(self, index: StrategyIndex, request: Request) -> dict[str, Ranking]:
        """Return the rankings of both engines, as deep as the fusion reads them."""
        deep = dataclasses.replace(request, depth=max(request.depth, POOL))
        by_vector = DenseStrategy.rank(self, index, deep)
        return {"lexical": LexicalStrategy.rank(self, index, deep), "vector": by_vector}

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Fuse the rankings of both engines."""
        starts = range(0, max(1, len(request.texts)), BATCH)
        batches = [request.texts[start : start + BATCH] for start in starts]
        parts = [self._fuse(index, request, texts) for texts in batches]
        names = ("rows", "raw", "norm", "k_pos", "rerank", "candidates")
        whole: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in names
        }
        return dataclasses.replace(parts[0], **whole)

    def _fuse(self, index: StrategyIndex, request: Request, texts: list[str]) -> Ranking:
        lists = self.first_lists(index, dataclasses.replace(request, texts=texts))
        return self.fuse(lists["lexical"], lists["vector"], request.depth)

    def fuse(self, lexical: Ranking, vector: Ranking, depth: int) -> Ranking:
        """Fuse rankings of the same queries; the scores are in [0, 1].

        `weighted` adds normalised scores, `rrf` adds 1 / (rrf_k + rank), scaled to at most 1.
        """
        if self.fusion == "rrf":
            top = 2.0 / (self.rrf_k + 1)
            left, right = (
                1.0 / (self.rrf_k + np.maximum(part.k_pos, 1)) / top for part in (lexical, vector)
            )
        else:
            total = self.alpha + self.beta
            left, right = lexical.norm * (self.alpha / total), vector.norm * (self.beta / total)
        return _merge(lexical, vector, left, right, depth)
