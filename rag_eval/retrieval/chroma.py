"""Everything that touches chromadb: the persistent vector store, Chroma's embedding functions, and the model file it downloads.

Exact search does not ask Chroma for answers, but every vector strategy keeps its vectors here, where other programs can use them.
Approximate search asks Chroma's HNSW graph. Chroma builds a graph in parallel and without a seed, so two builds in one insertion order can
differ slightly; a graph that was built is kept and gives the same answers every time.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.retrieval.chroma_residue import clear_unused
from rag_eval.retrieval.embedding.base import Advance, Vectors, no_advance, unit
from rag_eval.retrieval.ranking import Ranking, order, ranking, scale_min_max
from rag_eval.storage.credentials import shown_service
from rag_eval.storage.hashing import digest

BATCH = 2000
EMBED_BATCH = 64


def model_folder() -> Path:
    """Folder of the all-MiniLM-L6-v2 ONNX model; Chroma's own code downloads it where it is missing and the network allows.

    Raises
    ------
    InputError
        It is missing and cannot be downloaded.
    """
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    folder: Path = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    if not (folder / "model.onnx").is_file():
        try:
            ONNXMiniLM_L6_V2()._download_model_if_not_exists()  # noqa: SLF001 - the one function that downloads it; embedding a text would run it too
        except Exception as error:
            raise InputError(
                Problem(
                    "model_unavailable",
                    "the model all-MiniLM-L6-v2 is not on this machine and could not be downloaded",
                    file=str(folder),
                    found=f"{type(error).__name__}: {error}",
                    accepted="a network that reaches Chroma's model store, the model's files in that folder, or the built-in model lsa-256",
                )
            ) from error
    return folder


class ChromaFunctionEmbedder:
    """Any embedding function that Chroma knows by name, built from its own configuration.

    Parameters
    ----------
    name
        A key of Chroma's `known_embedding_functions`.
    config
        Its configuration; keys to services are named there as environment variables, never written down.
    """

    def __init__(self, name: str, config: dict[str, Any]) -> None:
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
            self._function: Any = known_embedding_functions[name].build_from_config(config)
        except Exception as error:
            raise InputError(
                Problem(
                    "embedding_function_unusable",
                    f"Chroma's embedding function {name!r} cannot be built from its config",
                    field="embedding.config",
                    found=f"{type(error).__name__}: {error}",
                )
            ) from error
        self.model = f"chroma:{name}@{digest(config, 16)}"
        self.dimensions = 0

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Vectors:
        """Embed in batches; rows are scaled to unit norm."""
        return self._embed(self._function, texts, advance)

    def embed_queries(self, texts: Sequence[str], advance: Advance = no_advance) -> Vectors:
        """Embed in batches as the model embeds questions, which for some is not how it embeds documents."""
        return self._embed(self._function.embed_query, texts, advance)

    def _embed(
        self, function: Callable[[list[str]], Any], texts: Sequence[str], advance: Advance
    ) -> Vectors:
        parts = []
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
        vectors = (
            unit(np.concatenate(parts))
            if parts
            else np.zeros((0, self.dimensions), dtype=np.float32)
        )
        self.dimensions = int(vectors.shape[1])
        return vectors


@dataclasses.dataclass(frozen=True)
class SyncReport:
    """What a sync changed in a collection."""

    added: int
    removed: int
    kept: int


class ChromaStore:
    """Collections in an embedded database below `folder`, or on a server.

    Parameters
    ----------
    folder
        Where the embedded database lives.
    url
        `http(s)://host:port` of a Chroma server instead.
    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        import chromadb
        from chromadb.config import Settings

        settings = Settings(anonymized_telemetry=False)
        self._folder = folder if url is None else None
        if url is None:
            folder.mkdir(parents=True, exist_ok=True)
            clear_unused(folder)  # what a killed run left
            self._client: Any = chromadb.PersistentClient(path=str(folder), settings=settings)
        else:
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
        with self._cleared():
            self._client.close()

    @contextlib.contextmanager
    def _cleared(self) -> Iterator[None]:
        """Leave nothing of this process's memory in the files that Chroma writes meanwhile."""
        try:
            yield
        finally:
            if self._folder is not None:
                clear_unused(self._folder)

    def collections(self) -> list[str]:
        """Names of all collections, sorted."""
        return sorted(collection.name for collection in self._client.list_collections())

    def ids(self, name: str) -> set[str]:
        """Ids in a collection."""
        return set(
            self._client.get_collection(name, embedding_function=None).get(include=[])["ids"]
        )

    def sync(
        self,
        name: str,
        ids: Sequence[str],
        vectors: Vectors,
        doc_ids: Sequence[str],
        advance: Advance = no_advance,
        *,
        text_hashes: Sequence[str] | None = None,
    ) -> SyncReport:
        """Make a collection hold exactly these chunks: what is new or was indexed under another text is written, what is gone is removed.

        Parameters
        ----------
        name
            Collection; one embedding model each.
        ids, vectors, doc_ids
            Chunk ids (unique), float32 [n, d] and documents, in insertion order.
        text_hashes
            Hash of each indexed text. A chunk id says nothing of the title that is indexed with it; without the hashes a known id is kept.
        """
        with self._cleared():
            collection = self._client.get_or_create_collection(
                name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
            )
            marks = list(text_hashes) if text_hashes is not None else [""] * len(ids)
            stored = collection.get(include=["metadatas"])
            known = {
                chunk: str((about or {}).get("text_hash", ""))
                for chunk, about in zip(stored["ids"], stored["metadatas"], strict=True)
            }
            current = {
                chunk for chunk, mark in zip(ids, marks, strict=True) if known.get(chunk) == mark
            }
            gone = sorted(set(known) - set(ids))
            for start in range(0, len(gone), BATCH):
                collection.delete(ids=gone[start : start + BATCH])
            new = [i for i, chunk in enumerate(ids) if chunk not in current]
            for start in range(0, len(new), BATCH):
                batch = new[start : start + BATCH]
                collection.upsert(
                    ids=[ids[i] for i in batch],
                    embeddings=vectors[batch],
                    metadatas=[{"doc_id": doc_ids[i], "text_hash": marks[i]} for i in batch],
                )
                advance(len(batch))
        return SyncReport(len(new), len(gone), len(current))

    def build(
        self,
        name: str,
        ids: Sequence[str],
        vectors: Vectors,
        doc_ids: Sequence[str],
        *,
        seed: int,
        advance: Advance = no_advance,
    ) -> bool:
        """Build a graph in the insertion order that the seed gives; a finished one is left alone, a half-built one is built anew.

        A zero vector (a chunk without any known term) stays out: it is never retrieved, as in exact search.

        Returns
        -------
        bool
            Whether it had to be built.
        """
        known = np.flatnonzero(vectors.any(axis=1))
        if name in self.collections():
            collection = self._client.get_collection(name, embedding_function=None)
            if (collection.metadata or {}).get("complete") and collection.count() == len(known):
                return False
            self._client.delete_collection(name)
        places = np.random.default_rng(seed).permutation(known)
        self.sync(
            name, [ids[i] for i in places], vectors[places], [doc_ids[i] for i in places], advance
        )
        self._client.get_collection(name, embedding_function=None).modify(
            metadata={"complete": True, "seed": seed}
        )
        return True

    def drop(self, prefix: str, keep: set[str]) -> list[str]:
        """Remove the collections that start with `prefix` and are not in `keep`; returns their names."""
        gone = [name for name in self.collections() if name.startswith(prefix) and name not in keep]
        for name in gone:
            self._client.delete_collection(name)
        return gone

    def search(
        self,
        name: str,
        queries: Vectors,
        depth: int,
        row_of: dict[str, int],
        allowed: npt.NDArray[np.bool_] | None = None,
    ) -> Ranking:
        """Ask a collection's graph for the nearest chunks.

        Parameters
        ----------
        queries
            float32 [n, d]; a zero row retrieves nothing.
        row_of
            Chunk id -> chunk row.
        allowed
            bool [n_chunks]: only these are ranked.
        """
        depth = min(depth, len(row_of))
        rows = np.full((len(queries), depth), -1, dtype=np.int32)
        scores = np.full((len(queries), depth), -np.inf)
        asked = np.flatnonzero(queries.any(axis=1))
        collection = self._client.get_collection(name, embedding_function=None)
        with self._cleared():
            only = (
                None
                if allowed is None
                else [chunk for chunk, row in row_of.items() if allowed[row]]
            )
            if (
                only
            ):  # an id that the graph lacks, as a zero vector's, would be an internal error there
                only = collection.get(ids=only, include=[])["ids"]
            if only is None or only:
                for start in range(0, len(asked), BATCH):
                    batch = asked[start : start + BATCH]
                    found = collection.query(
                        query_embeddings=queries[batch],
                        n_results=depth,
                        ids=only,
                        include=["distances"],
                    )
                    for query, chunk_ids, distances in zip(
                        batch, found["ids"], found["distances"], strict=True
                    ):
                        rows[query, : len(chunk_ids)] = [row_of[chunk] for chunk in chunk_ids]
                        scores[query, : len(chunk_ids)] = 1.0 - np.asarray(
                            distances, dtype=np.float64
                        )
        rows, scores = order(rows, scores, depth)
        return ranking(
            rows, scores, scale_min_max(scores), (rows >= 0).sum(axis=1).astype(np.int64)
        )
