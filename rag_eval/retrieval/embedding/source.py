"""One embedding of one corpus, with cached vectors; a new text opens the embedder."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

from rag_eval.core.arrays import Float32Array
from rag_eval.core.errors import Embedding
from rag_eval.retrieval.embedding.base import Advance, Embedder, no_advance
from rag_eval.retrieval.embedding.cache import CacheUse, EmbeddingCache, embed_cached
from rag_eval.retrieval.embedding.lsa import LsaEmbedder, LsaFit, fit, fit_hash
from rag_eval.retrieval.embedding.minilm import MiniLmEmbedder
from rag_eval.retrieval.embedding.vectors_file import FileEmbedder
from rag_eval.retrieval.identity import ChunkTable, embed_model
from rag_eval.storage.artifacts import ArtifactStore


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
