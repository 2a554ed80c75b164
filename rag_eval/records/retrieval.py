"""RetrievalPort, version 1, frozen: what a retriever offers to callers and to the evaluation. A change needs version 2 beside it.

Belongs here: the types of the port. Not here: engines and strategies (`rag_eval.retrieval`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

StrategyKind = Literal["bm25", "vector", "hybrid"]


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """How to retrieve.

    Parameters
    ----------
    top_k
        At most so many chunks; fewer come back where fewer match.
    filters
        `doc_id` or `section_id` -> accepted value or values; applied before ranks are given.
    strategy
        bm25, vector or hybrid; None means the port's default.
    trust_threshold
        Chunks whose trust is below it are left out.
    """

    top_k: int = 10
    filters: Mapping[str, str | Sequence[str]] | None = None
    strategy: StrategyKind | None = None
    trust_threshold: float | None = None

    def __post_init__(self) -> None:
        """Refuse a top_k under 1 and a threshold outside [0, 1]."""
        if self.top_k < 1:
            raise ValueError(f"top_k: found {self.top_k}, accepted 1 or more")
        if self.trust_threshold is not None and not 0 <= self.trust_threshold <= 1:
            raise ValueError(f"trust_threshold: found {self.trust_threshold}, accepted 0 to 1")


@dataclasses.dataclass(frozen=True, slots=True)
class Offsets:
    """A half-open range in the document's text."""

    start: int
    end: int
    unit: Literal["char", "token"] = "char"


@dataclasses.dataclass(frozen=True, slots=True)
class ScoredChunk:
    """One retrieved chunk with its citation payload and its ranks (from 1).

    `score_raw` is the engine's own score, `score_norm` lies in [0, 1] within the query; `k_pos` is the rank before reranking and
    `k_final` after; `rerank_score` is None where no rerank step judged the chunk. `embed_model` is empty for lexical retrieval.
    """

    doc_id: str
    section_id: str
    snippet_id: str
    source_url: str
    offsets: Offsets
    tokens: int
    index_hash: str
    embed_model: str
    analyzer: str
    rev: str
    text: str
    score_raw: float
    score_norm: float
    k_pos: int
    k_final: int
    rerank_score: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalMetadata:
    """How a result came about; `duration` in seconds (a batch's is shared out evenly), `trust_scores` empty where none are known."""

    strategy: str
    duration: float
    total_candidates: int
    trust_scores: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalResult:
    """Chunks, best first, and how they came about."""

    chunks: tuple[ScoredChunk, ...]
    metadata: RetrievalMetadata


@dataclasses.dataclass(frozen=True, slots=True)
class RetrievalStats:
    """What the port serves: sizes and identities; `index_hashes` has one entry a strategy."""

    n_documents: int
    n_chunks: int
    corpus_rev: str
    chunks_hash: str
    index_hashes: Mapping[str, str]
    default_strategy: str


@runtime_checkable
class RetrievalPort(Protocol):
    """What any retriever must offer to be evaluated."""

    version: int

    def retrieve(self, query: str, options: RetrievalOptions) -> RetrievalResult:
        """Retrieve for one query."""
        ...

    def batch_retrieve(
        self, queries: Sequence[str], options: RetrievalOptions
    ) -> list[RetrievalResult]:
        """Retrieve for many queries, results in the order of the queries."""
        ...

    def stats(self) -> RetrievalStats:
        """Describe what is served."""
        ...
