"""The chunks of a corpus and their embedding, with cached vectors; new texts are embedded."""

import dataclasses
import functools
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from rag_eval.core.arrays import Float32Array
from rag_eval.core.errors import Embedding
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.retrieval.embedding.embedders import (
    Advance,
    Embedder,
    FileEmbedder,
    LsaEmbedder,
    LsaFit,
    MiniLmEmbedder,
    fit_lsa,
    lsa_hash,
    no_advance,
)
from rag_eval.storage.artifacts import ArtifactStore, atomic_path
from rag_eval.storage.hashing import canonical_json, digest, file_hash, lines_hash, text_hash
from rag_eval.storage.home import Home

# ---- The chunks as engines see them, and the name of an embedding model.


class ChunkTable:
    """The chunks of one corpus revision under one chunker.

    `chunks` are in the order (section_id, chunk_id), because row numbers break ties.
    """

    def __init__(self, chunks: pd.DataFrame, chunks_hash: str) -> None:
        self.frame = chunks
        self.chunks_hash = chunks_hash
        self.chunk_ids: list[str] = chunks["chunk_id"].tolist()
        self.doc_ids: list[str] = chunks["doc_id"].tolist()
        self.text_hashes: list[str] = chunks["text_hash"].tolist()
        self.analyzer = Analyzer()

    def __len__(self) -> int:
        return len(self.chunk_ids)

    @functools.cached_property
    def texts(self) -> list[str]:
        """Indexed text of each chunk: title and text."""
        titles, texts = (self.frame[name].tolist() for name in ("title", "text"))
        return [f"{title} {text}".strip() for title, text in zip(titles, texts, strict=True)]

    @functools.cached_property
    def terms(self) -> list[list[int]]:
        """Term ids of each chunk. The first use builds the vocabulary of the corpus."""
        return self.analyzer.index(self.texts)

    @functools.cached_property
    def n_terms(self) -> int:
        """Number of terms in the corpus vocabulary."""
        return 1 + max((max(row) for row in self.terms if row), default=-1)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """Corpus terms by id."""
        return list(self.analyzer.vocabulary)[: self.n_terms]

    def query_terms(self, queries: list[str]) -> list[list[int]]:
        """Return the term ids of queries; the corpus lacks terms with ids at or above `n_terms`."""
        _ = self.n_terms  # gives the terms of the corpus the lowest ids
        return self.analyzer.index(queries)

    @functools.cached_property
    def row_of(self) -> dict[str, int]:
        """Row of each chunk id."""
        return {chunk: row for row, chunk in enumerate(self.chunk_ids)}


def embed_model(embedding: Embedding, text_hashes: list[str], base: Path) -> str:
    """Name the model and everything that changes its vectors, without loading it.

    A fitted model is fitted on the texts of `text_hashes`. Relative paths start from `base`.
    """
    if embedding.vectors is not None:
        path = base / embedding.vectors
        return f"vectors-file@{file_hash(path)[:16]}" if path.is_file() else "vectors-file@missing"
    model = embedding.model or ""
    if model.startswith("lsa-"):
        return f"{model}@{lsa_hash(text_hashes, int(model.removeprefix('lsa-')))}"
    if model.startswith("chroma:"):
        return f"{model}@{digest(dict(embedding.config), 16)}"
    return model


# ---- Stored vectors by (text hash, model), so that no text is embedded twice.

EMBEDDINGS, MODEL_FILE = "embeddings", "model.json"
BLOCK = 8192
"""Number of texts that are embedded between two writes."""


@dataclasses.dataclass
class CacheUse:
    """Number of distinct texts that were needed, and how many of them were not in the cache."""

    needed: int = 0
    embedded: int = 0


def _read_segment(path: Path) -> tuple[list[str], Float32Array]:
    """Read the keys and the vectors of a segment; the archive compares its own checksums."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        keys, vectors = archive["keys"].astype(str).tolist(), archive["vectors"]
    if vectors.ndim != 2 or len(keys) != len(vectors):  # noqa: PLR2004 - rows and columns
        raise ValueError(f"{len(keys)} texts, vectors {vectors.shape}")
    return keys, vectors


class EmbeddingCache:
    """The vectors of one model in a home.

    Its folder has immutable segments, which are written atomically. Concurrent writers add segments
    and lose nothing. A damaged segment is set aside, and its texts are embedded again.
    """

    def __init__(self, home: Home, model: str) -> None:
        self.home = home
        self.folder = f"{EMBEDDINGS}/{digest(model)}"
        """Name of the folder in the home."""
        self._rows: dict[str, int] = {}
        self._vectors: list[Float32Array] = []
        if not home.has(f"{self.folder}/{MODEL_FILE}"):
            home.write(f"{self.folder}/{MODEL_FILE}", canonical_json({"model": model}).encode())
        for name in home.names(self.folder):
            if not name.endswith(".npz"):
                continue
            try:
                self._remember(*_read_segment(home.fetch(name)))
            except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as bad:
                home.set_aside(name, f"{type(bad).__name__}: {bad}")

    def _remember(self, keys: Sequence[str], vectors: Float32Array) -> None:
        total = sum(map(len, self._vectors))
        self._rows.update(zip(keys, range(total, total + len(keys)), strict=True))
        self._vectors.append(vectors)

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
        name = f"{self.folder}/segment-{lines_hash(keys)}.npz"
        path = self.home.folder / name
        with atomic_path(path) as partial, partial.open("wb") as stream:
            np.savez(stream, keys=np.array(keys, dtype="S64"), vectors=vectors)
        if self.home.is_remote:
            self.home.put(name, path)
        self._remember(keys, vectors)


def embed_cached(
    embed: Callable[[list[str], Advance], Float32Array],
    cache: EmbeddingCache,
    texts: Sequence[str],
    hashes: Sequence[str] | None = None,
    *,
    advance: Advance = no_advance,
    use: CacheUse | None = None,
) -> Float32Array:
    """Return float32 [n, d] vectors of texts, and embed each distinct new text once.

    `hashes` are the text hashes, if the caller has them. `use` counts the texts.
    """
    keys = list(hashes) if hashes is not None else [text_hash(text) for text in texts]
    distinct = dict(zip(keys, texts, strict=True))
    new = {key: text for key, text in distinct.items() if key not in cache}
    fresh = list(new)
    for start in range(0, len(fresh), BLOCK):  # A killed run loses one block of work.
        block = fresh[start : start + BLOCK]
        cache.add(block, embed([new[key] for key in block], advance))
    advance(len(texts) - len(new))
    if use is not None:
        use.needed += len(distinct)
        use.embedded += len(new)
    return cache.vectors(keys) if keys else np.zeros((0, 1), dtype=np.float32)


# ---- The vectors of one corpus.


@dataclasses.dataclass(frozen=True)
class Places:
    """Places that an embedding uses."""

    base: Path
    """Folder that relative paths of the configuration start from."""
    home: Home
    """Home of cached vectors, of fitted models, and of models that were made from packages."""


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
        return MiniLmEmbedder(model_folder(self.places.home.folder / "models"))

    def _fit(self, dimensions: int) -> LsaEmbedder:
        identity = lsa_hash(self.table.text_hashes, dimensions)

        def learn() -> dict[str, object]:
            fitted = fit_lsa(self.table.terms, self.table.vocabulary, dimensions)
            return {"terms": list(fitted.terms), "idf": fitted.idf, "components": fitted.components}

        stored = ArtifactStore(self.places.home).memo("lsa", identity, learn)
        return LsaEmbedder(
            LsaFit(tuple(stored.json("terms")), stored.array("idf"), stored.array("components")),
            identity,
            dimensions,
        )

    @functools.cached_property
    def _cache(self) -> EmbeddingCache:
        return EmbeddingCache(self.places.home, self.model)

    @functools.cached_property
    def _query_cache(self) -> EmbeddingCache:
        """The cache of questions. A Chroma function may embed them differently from documents."""
        if not (self.spec.model or "").startswith("chroma:"):
            return self._cache
        return EmbeddingCache(self.places.home, f"{self.model} questions")

    def _embed(self, texts: list[str], advance: Advance) -> Float32Array:
        return self.embedder.embed(texts, advance)

    def _embed_queries(self, texts: list[str], advance: Advance = no_advance) -> Float32Array:
        embed = getattr(self.embedder, "embed_queries", self.embedder.embed)
        vectors: Float32Array = embed(texts, advance)
        return vectors

    def chunk_vectors(self, advance: Advance = no_advance) -> Float32Array:
        """Embed all chunks, float32 [n_chunks, d] in chunk order, rows of unit norm or zero."""
        if self._chunks is None:
            texts, hashes = self.table.texts, self.table.text_hashes
            self._chunks = embed_cached(
                self._embed, self._cache, texts, hashes, advance=advance, use=self.use
            )
        return self._chunks

    def text_vectors(self, texts: list[str]) -> Float32Array:
        """Embed further texts as documents, float32 [n, d]; `use` does not count them."""
        return embed_cached(self._embed, self._cache, texts)

    def can_embed(self, query: str) -> bool:
        """Check whether a question can be embedded. A file of vectors only has its own texts."""
        embedder = self.embedder
        return not isinstance(embedder, FileEmbedder) or embedder.knows(query)

    def query_vectors(self, queries: list[str], *, cached: bool = True) -> Float32Array:
        """Embed queries, float32 [n, d]. `cached=False` embeds again, as for a live query."""
        if not cached:
            return self._embed_queries(queries)
        return embed_cached(self._embed_queries, self._query_cache, queries, use=self.use)
