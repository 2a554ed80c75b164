"""Dense retrieval: exact search, and what the kinds that compare vectors share.

The last bits of a matrix product depend on the shape of its matrices. Scores of one query differ by
about 1e-7 between a query alone and a batch. Scores of two equal chunks can differ by their place.
The product therefore only selects candidates, with a margin. The score of a candidate is a dot
product of two vectors.
"""

from typing import Literal

import numpy as np

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, Int32Array, IntArray
from rag_eval.core.parts import Embedding
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.ranking import ROUNDING, Ranking, order, ranking, scale_min_max
from rag_eval.retrieval.strategies import LocalStrategy, Request, StrategyIndex
from rag_eval.storage.hashing import digest, library_versions

# ---- Exact vector search: a matrix product in blocks.

BLOCK_BYTES = 32 * 2**20
"""Bytes of memory for one block of scores."""
BLOCK_CHUNKS = 32_768
"""Most chunks of a block. More queries share a block of fewer chunks, which is faster."""
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
        marks the chunks that may be ranked. The memory is bounded by a block of queries and chunks.
        """
        depth = min(depth, self.n_chunks)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        hidden = self._blank if allowed is None else self._blank | ~allowed
        block = max(1, BLOCK_BYTES // (4 * max(1, min(self.n_chunks, BLOCK_CHUNKS))))
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
        near = _Candidates(len(queries), depth, self._slack)
        product = np.empty((len(queries), min(self.n_chunks, BLOCK_CHUNKS)), dtype=np.float32)
        for start in range(0, self.n_chunks, BLOCK_CHUNKS):
            vectors = self.vectors[start : start + BLOCK_CHUNKS]
            values = np.matmul(queries, vectors.T, out=product[:, : len(vectors)])
            if (gone := hidden[start : start + BLOCK_CHUNKS]).any():
                values[:, gone] = -np.inf
            near.add(values, start)
        query, row = near.by_query()
        counts = np.bincount(query, minlength=len(queries))
        rows = np.full((len(queries), max(depth, int(counts.max()))), -1, dtype=np.int32)
        cosines = np.full(rows.shape, -np.inf)
        ends = np.cumsum(counts)
        for at, (count, end) in enumerate(zip(counts.tolist(), ends.tolist(), strict=True)):
            rows[at, :count] = row[end - count : end]
            candidates = self.vectors.take(rows[at, :count], axis=0)
            cosines[at, :count] = np.vecdot(candidates, queries[at])
        return order(rows, cosines, depth)


class _Candidates:
    """The chunks whose products may be among the best `depth` of each query, over blocks."""

    def __init__(self, n_queries: int, depth: int, slack: np.float32) -> None:
        self._depth, self._slack = depth, slack
        # The product of a hidden chunk is -inf, and no hidden chunk may be a candidate.
        self._floor = np.full(n_queries, np.finfo(np.float32).min, dtype=np.float32)
        self._query, self._row = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self._value = np.zeros(0, dtype=np.float32)

    def add(self, values: Float32Array, start: int) -> None:
        """Add a block of products [n_queries, n]; its first chunk has the row `start`."""
        width = values.shape[1]
        if not start and width > self._depth:
            # A first floor keeps most of the first block out. Later blocks pass few products.
            last = width - self._depth
            lowest = np.partition(values, last, axis=1)[:, last] - self._slack
            self._floor = np.maximum(self._floor, lowest)
        flat = np.flatnonzero(values >= self._floor[:, None])
        query, place = np.divmod(flat, width)
        self._query = np.concatenate([self._query, query])
        self._row = np.concatenate([self._row, start + place])
        self._value = np.concatenate([self._value, values[query, place]])
        if start:
            self._prune()

    def _prune(self) -> None:
        """Raise the floors to the products of the last places, and drop what lies below."""
        by_value = np.lexsort((-self._value, self._query))
        counts = np.bincount(self._query, minlength=len(self._floor))
        starts = np.cumsum(counts) - counts
        full = np.flatnonzero(counts >= self._depth)
        lowest = self._value[by_value[starts[full] + self._depth - 1]] - self._slack
        self._floor[full] = np.maximum(self._floor[full], lowest)
        above_floor = self._value >= self._floor[self._query]
        self._query, self._row = self._query[above_floor], self._row[above_floor]
        self._value = self._value[above_floor]

    def by_query(self) -> tuple[IntArray, IntArray]:
        """Return queries and rows of the candidates, by query and row."""
        order_of_queries = np.argsort(self._query, kind="stable")  # the blocks came by row
        return self._query[order_of_queries], self._row[order_of_queries]


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
