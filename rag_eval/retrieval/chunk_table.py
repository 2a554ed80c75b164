"""The chunks as engines see them: indexed texts, term ids and rows, made once and shared by all strategies of an evaluation."""

import functools

import pandas as pd

from rag_eval.corpus.analyzer import Analyzer


class ChunkTable:
    """The chunks of one corpus revision under one chunker, in their one order (section_id, chunk_id).

    Parameters
    ----------
    chunks
        CHUNKS frame.
    chunks_hash
        Its identity.

    Raises
    ------
    ValueError
        The chunks stand in another order or an id stands twice: ties would be broken wrongly without a word.
    """

    def __init__(self, chunks: pd.DataFrame, chunks_hash: str) -> None:
        self.frame = chunks
        self.chunks_hash = chunks_hash
        self.chunk_ids: list[str] = chunks["chunk_id"].tolist()
        self.doc_ids: list[str] = chunks["doc_id"].tolist()
        keys = list(zip(chunks["section_id"].tolist(), self.chunk_ids, strict=True))
        wrong = next((i for i in range(1, len(keys)) if keys[i - 1] >= keys[i]), None)
        if wrong is not None:
            raise ValueError(
                f"chunks: row {wrong} {keys[wrong]} does not follow {keys[wrong - 1]}; accepted: sorted by (section_id, chunk_id), each once"
            )
        if len(set(self.chunk_ids)) != len(keys):
            raise ValueError("chunks: a chunk_id stands twice")
        self.text_hashes: list[str] = chunks["text_hash"].tolist()
        self.analyzer = Analyzer()

    def __len__(self) -> int:
        return len(self.chunk_ids)

    @functools.cached_property
    def texts(self) -> list[str]:
        """What is indexed of each chunk: title and text."""
        return [
            f"{title} {text}".strip()
            for title, text in zip(
                self.frame["title"].tolist(), self.frame["text"].tolist(), strict=True
            )
        ]

    @functools.cached_property
    def terms(self) -> list[list[int]]:
        """Term ids of each chunk; the analyzer's vocabulary grows no further for the corpus after this."""
        return self.analyzer.index(self.texts)

    @functools.cached_property
    def n_terms(self) -> int:
        """Size of the corpus vocabulary."""
        return 1 + max((max(row) for row in self.terms if row), default=-1)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """Corpus terms by id."""
        count = self.n_terms
        return list(self.analyzer.vocabulary)[:count]

    def query_terms(self, queries: list[str]) -> list[list[int]]:
        """Term ids of queries; ids at or above `n_terms` are unknown to the corpus."""
        _ = self.n_terms  # the corpus learns its terms first
        return self.analyzer.index(queries)

    @functools.cached_property
    def row_of(self) -> dict[str, int]:
        """Chunk id -> row."""
        return {chunk: row for row, chunk in enumerate(self.chunk_ids)}
