"""Dense retrieval, kind `vector`: exact search, and what the kinds that compare vectors share.

The last bits of a matrix product depend on the shape of its matrices. Scores of one query differ by
about 1e-7 between a query alone and a batch. Scores of two equal chunks can differ by their place.
The product therefore only selects candidates, with a margin. The score of a candidate is a dot
product of two vectors.
"""

from typing import ClassVar, Literal

import numpy as np

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, Int32Array
from rag_eval.core.parts import Embedding
from rag_eval.core.strategy import PriorKind
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.ranking import ROUNDING, Ranking, order, ranking, scale_min_max
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
        near = [
            np.flatnonzero(product >= floor)
            for product, floor in zip(products, floors, strict=True)
        ]
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

    def dense_hash(self, chunks_hash: str, model: str) -> str:
        """Name the index of vectors by search, chunks, analyzer, model and library version."""
        name, library = {"exact": ("exact", "numpy"), "approximate": ("chroma-hnsw", "chromadb")}[
            self.search
        ]
        version = library_versions()[library]
        return f"{name}:{digest([chunks_hash, ANALYZER, model, version, {'space': 'cosine'}])}"

    def rank_by_vectors(self, index: StrategyIndex, request: Request) -> Ranking:
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

    def index_hash(self, chunks_hash: str, model: str) -> str:
        """Name the index by search, chunks and model."""
        return self.dense_hash(chunks_hash, model)

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Rank chunks by cosine."""
        return self.rank_by_vectors(index, request)


def approximate_search(
    index: StrategyIndex, embedding: Embedding, queries: Float32Array, request: Request
) -> Ranking:
    """Ask the graph of the request's seed. A missing graph is built first."""
    source, store, table = index.source(embedding), index.chroma, index.table
    if store is None:
        raise RuntimeError("approximate search needs a vector store")
    name = index.graph_name(source.model, request.seed)

    def build() -> bool:
        vectors = source.chunk_vectors()
        return store.build(name, table.owners, vectors, seed=request.seed)

    index.engine(f"graph {name}", build)
    return store.search(name, queries, request.depth, table.row_of, request.allowed)
