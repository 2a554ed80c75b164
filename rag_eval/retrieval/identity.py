"""The chunks as engines see them, and the name of an embedding model."""

import functools
from pathlib import Path

import pandas as pd

from rag_eval.core.errors import Embedding
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.retrieval.embedding.lsa import fit_hash
from rag_eval.storage.hashing import digest, file_hash


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
        return f"{model}@{fit_hash(text_hashes, int(model.removeprefix('lsa-')))}"
    if model.startswith("chroma:"):
        return f"{model}@{digest(dict(embedding.config), 16)}"
    return model
