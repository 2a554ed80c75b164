"""One embedding of one corpus: opens the right embedder when a text is new, and keeps vectors in the cache."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from rag_eval.records.configuration_parts import Embedding
from rag_eval.retrieval.chunk_table import ChunkTable
from rag_eval.retrieval.embedding.base import Advance, Embedder, TwoSided, Vectors, no_advance
from rag_eval.retrieval.embedding.cache import CacheUse, EmbeddingCache, embed_cached
from rag_eval.retrieval.embedding.lsa import LsaEmbedder, LsaFit, fit, fit_hash
from rag_eval.retrieval.embedding.minilm import MiniLmEmbedder
from rag_eval.retrieval.embedding.vectors_file import FileEmbedder
from rag_eval.retrieval.identity import embed_model
from rag_eval.storage.artifacts import ArtifactStore


@dataclasses.dataclass(frozen=True)
class Places:
    """Where an embedding reads and keeps things.

    Parameters
    ----------
    base
        Folder that relative paths of the configuration start from.
    embeddings
        Root of the embedding cache.
    store
        Artifact store, for fitted models.
    """

    base: Path
    embeddings: Path
    store: ArtifactStore


class _Questions:
    """The question side of a two-sided embedder, as an embedder of its own."""

    def __init__(self, embedder: TwoSided) -> None:
        self._embedder = embedder
        self.model = f"{embedder.model} questions"
        self.dimensions = embedder.dimensions

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Vectors:
        """Embed questions."""
        return self._embedder.embed_queries(texts, advance)


class EmbeddingSource:
    """Vectors of the chunks and of queries under one embedding."""

    def __init__(self, spec: Embedding, table: ChunkTable, places: Places) -> None:
        self.spec = spec
        self.table = table
        self.places = places
        self.model = embed_model(spec, table.text_hashes, places.base)
        self.use = CacheUse()

    @functools.cached_property
    def embedder(self) -> Embedder:
        """The embedder, opened or fitted when first needed."""
        if self.spec.vectors is not None:
            return FileEmbedder(self.places.base / self.spec.vectors)
        model = self.spec.model or ""
        if model.startswith("lsa-"):
            return self._lsa(int(model.removeprefix("lsa-")))
        from rag_eval.retrieval.chroma import ChromaFunctionEmbedder, model_folder

        if model.startswith("chroma:"):
            return ChromaFunctionEmbedder(model.removeprefix("chroma:"), dict(self.spec.config))
        return MiniLmEmbedder(model_folder())

    def _lsa(self, dimensions: int) -> LsaEmbedder:
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

    def chunk_vectors(self, advance: Advance = no_advance) -> Vectors:
        """float32 [n_chunks, d] in chunk order, unit norm."""
        if self._chunks is None:
            self._chunks, use = embed_cached(
                lambda: self.embedder,
                self._cache,
                self.table.texts,
                self.table.text_hashes,
                advance,
            )
            self.use.add(use)
        return self._chunks

    _chunks: Vectors | None = None

    def text_vectors(self, texts: list[str]) -> Vectors:
        """Embed further texts as documents are embedded (sentences of evidence), float32 [n, d]; they are not counted in `use`, which is the index's."""
        return embed_cached(lambda: self.embedder, self._cache, texts)[0]

    @functools.cached_property
    def _asker(self) -> Embedder:
        """The embedder as it embeds questions."""
        embedder = self.embedder
        return _Questions(embedder) if isinstance(embedder, TwoSided) else embedder

    @functools.cached_property
    def _query_cache(self) -> EmbeddingCache:
        """The cache of questions: that of documents, but for models that may embed both differently."""
        two_sided = (self.spec.model or "").startswith("chroma:")
        return (
            EmbeddingCache(self.places.embeddings, f"{self.model} questions")
            if two_sided
            else self._cache
        )

    def can_embed(self, query: str) -> bool:
        """Whether a question can be embedded: any, but for vectors of a file, which knows what it was made for."""
        embedder = self.embedder
        return embedder.knows(query) if isinstance(embedder, FileEmbedder) else True

    def query_vectors(self, queries: list[str], *, cached: bool = True) -> Vectors:
        """Embed queries, float32 [n, d]; `cached=False` computes anew, as a live query would be."""
        if not cached:
            return self._asker.embed(queries)
        vectors, use = embed_cached(lambda: self._asker, self._query_cache, queries)
        self.use.add(use)
        return vectors
