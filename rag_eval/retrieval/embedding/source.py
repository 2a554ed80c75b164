"""One embedding of one corpus, with cached vectors; a new text opens the embedder."""

import dataclasses
import functools
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rag_eval.core.arrays import Float32Array
from rag_eval.core.errors import Embedding
from rag_eval.retrieval.embedding.base import Advance, Embedder, no_advance
from rag_eval.retrieval.embedding.lsa import LsaEmbedder, LsaFit, fit, fit_hash
from rag_eval.retrieval.embedding.minilm import MiniLmEmbedder
from rag_eval.retrieval.embedding.vectors_file import FileEmbedder
from rag_eval.retrieval.identity import ChunkTable, embed_model
from rag_eval.storage.artifacts import ArtifactStore, atomic_path, set_aside, write_text
from rag_eval.storage.hashing import canonical_json, digest, lines_hash, text_hash

# ---- Stored vectors by (text hash, model), so that no text is embedded twice.

MAX_SEGMENTS = 32
BLOCK = 8192
"""Number of texts that are embedded between two writes."""


@dataclasses.dataclass
class CacheUse:
    """Number of distinct texts that were needed, and how many of them were not in the cache."""

    needed: int = 0
    embedded: int = 0

    def add(self, other: "CacheUse") -> None:
        """Add another count."""
        self.needed += other.needed
        self.embedded += other.embedded


def _read_segment(path: Path) -> tuple[list[str], Float32Array]:
    """Read the keys and the vectors of a segment; the archive compares its own checksums."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        keys, vectors = archive["keys"].astype(str).tolist(), archive["vectors"]
    if vectors.ndim != 2 or len(keys) != len(vectors):  # noqa: PLR2004 - rows and columns
        raise ValueError(f"{len(keys)} texts, vectors {vectors.shape}")
    return keys, vectors


class EmbeddingCache:
    """The vectors of one model below `root`.

    Its folder has immutable segments, which are written atomically. Concurrent writers add segments
    and lose nothing. Opening the cache merges many small segments.
    """

    def __init__(self, root: Path, model: str) -> None:
        self.folder = root / digest(model)
        self._rows: dict[str, int] = {}
        self._vectors: list[Float32Array] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "model.json").is_file():
            write_text(self.folder / "model.json", canonical_json({"model": model}))
        segments = self._load()
        if len(segments) > MAX_SEGMENTS:
            keys = list(self._rows)
            merged = self._write(keys, self.vectors(keys))
            # A segment with every key already has the name of the merged segment.
            for segment in set(segments) - {merged}:
                segment.unlink(missing_ok=True)

    def _load(self) -> list[Path]:
        while True:
            self._rows, self._vectors = {}, []
            segments = sorted(self.folder.glob("segment-*.npz"))
            try:
                for segment in segments:
                    self._remember(*_read_segment(segment))
            except FileNotFoundError:  # Another process has merged the segment.
                continue
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as bad:
                set_aside(segment, f"{type(bad).__name__}: {bad}")  # embeds its texts again
                continue
            return segments

    def _remember(self, keys: Sequence[str], vectors: Float32Array) -> None:
        total = sum(map(len, self._vectors))
        self._rows.update(zip(keys, range(total, total + len(keys)), strict=True))
        self._vectors.append(vectors)

    def _write(self, keys: Sequence[str], vectors: Float32Array) -> Path:
        path = self.folder / f"segment-{lines_hash(keys)}.npz"
        with atomic_path(path) as partial, partial.open("wb") as stream:
            np.savez(stream, keys=np.array(keys, dtype="S64"), vectors=vectors)
        return path

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def vectors(self, keys: Sequence[str]) -> Float32Array:
        """Return the vectors of known text hashes, float32 [n, d], in the order of `keys`."""
        if len(self._vectors) > 1:
            self._vectors = [np.concatenate(self._vectors)]
        rows = np.fromiter((self._rows[key] for key in keys), dtype=np.int64, count=len(keys))
        return self._vectors[0][rows]

    def add(self, keys: Sequence[str], vectors: Float32Array) -> None:
        """Store vectors under new text hashes."""
        self._write(keys, vectors)
        self._remember(keys, vectors)


def embed_cached(
    embed: Callable[[list[str], Advance], Float32Array],
    cache: EmbeddingCache,
    texts: Sequence[str],
    hashes: Sequence[str] | None = None,
    advance: Advance = no_advance,
) -> tuple[Float32Array, CacheUse]:
    """Return float32 [n, d] vectors of texts, and embed each distinct new text once.

    `hashes` are the text hashes, if the caller has them.
    """
    keys = list(hashes) if hashes is not None else [text_hash(text) for text in texts]
    distinct = dict(zip(keys, texts, strict=True))
    new = {key: text for key, text in distinct.items() if key not in cache}
    fresh = list(new)
    for start in range(0, len(fresh), BLOCK):  # A killed run loses one block of work.
        block = fresh[start : start + BLOCK]
        cache.add(block, embed([new[key] for key in block], advance))
    advance(len(texts) - len(new))
    vectors = cache.vectors(keys) if keys else np.zeros((0, 1), dtype=np.float32)
    return vectors, CacheUse(len(distinct), len(new))


# ---- The vectors of one corpus.


@dataclasses.dataclass(frozen=True)
class Places:
    """Places on disk that an embedding uses."""

    base: Path
    """Folder that relative paths of the configuration start from."""
    embeddings: Path
    """Root of the embedding cache."""
    store: ArtifactStore
    """Store of fitted models."""


class EmbeddingSource:
    """Vectors of the chunks and of queries under one embedding."""

    def __init__(self, spec: Embedding, table: ChunkTable, places: Places) -> None:
        self.spec = spec
        self.table = table
        self.places = places
        self.model = embed_model(spec, table.text_hashes, places.base)
        self.use = CacheUse()
        self._chunks: Float32Array | None = None

    @functools.cached_property
    def embedder(self) -> Embedder:
        """The embedder, opened or fitted when first needed."""
        if self.spec.vectors is not None:
            return FileEmbedder(self.places.base / self.spec.vectors)
        model = self.spec.model or ""
        if model.startswith("lsa-"):
            return self._fit(int(model.removeprefix("lsa-")))
        from rag_eval.retrieval.dense import ChromaFunctionEmbedder, model_folder

        if model.startswith("chroma:"):
            return ChromaFunctionEmbedder(model.removeprefix("chroma:"), self.spec.config)
        return MiniLmEmbedder(model_folder())

    def _fit(self, dimensions: int) -> LsaEmbedder:
        identity = fit_hash(self.table.text_hashes, dimensions)

        def learn() -> dict[str, object]:
            fitted = fit(self.table.terms, self.table.vocabulary, dimensions)
            return {"terms": list(fitted.terms), "idf": fitted.idf, "components": fitted.components}

        stored = self.places.store.memo("lsa", identity, learn)
        return LsaEmbedder(
            LsaFit(tuple(stored.json("terms")), stored.array("idf"), stored.array("components")),
            identity,
            dimensions,
        )

    @functools.cached_property
    def _cache(self) -> EmbeddingCache:
        return EmbeddingCache(self.places.embeddings, self.model)

    @functools.cached_property
    def _query_cache(self) -> EmbeddingCache:
        """The cache of questions. A Chroma function may embed them differently from documents."""
        if not (self.spec.model or "").startswith("chroma:"):
            return self._cache
        return EmbeddingCache(self.places.embeddings, f"{self.model} questions")

    def _embed(self, texts: list[str], advance: Advance) -> Float32Array:
        return self.embedder.embed(texts, advance)

    def _embed_queries(self, texts: list[str], advance: Advance = no_advance) -> Float32Array:
        embed: Callable[[list[str], Advance], Float32Array] = getattr(
            self.embedder, "embed_queries", self.embedder.embed
        )
        return embed(texts, advance)

    def chunk_vectors(self, advance: Advance = no_advance) -> Float32Array:
        """Embed all chunks, float32 [n_chunks, d] in chunk order, rows of unit norm or zero."""
        if self._chunks is None:
            table = self.table
            self._chunks, use = embed_cached(
                self._embed, self._cache, table.texts, table.text_hashes, advance
            )
            self.use.add(use)
        return self._chunks

    def text_vectors(self, texts: list[str]) -> Float32Array:
        """Embed further texts as documents, float32 [n, d]; `use` does not count them."""
        return embed_cached(self._embed, self._cache, texts)[0]

    def can_embed(self, query: str) -> bool:
        """Check whether a question can be embedded. A file of vectors only has its own texts."""
        embedder = self.embedder
        return not isinstance(embedder, FileEmbedder) or embedder.knows(query)

    def query_vectors(self, queries: list[str], *, cached: bool = True) -> Float32Array:
        """Embed queries, float32 [n, d]. `cached=False` embeds again, as for a live query."""
        if not cached:
            return self._embed_queries(queries)
        vectors, use = embed_cached(self._embed_queries, self._query_cache, queries)
        self.use.add(use)
        return vectors
