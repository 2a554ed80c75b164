"""The kind `hybrid`: lexical and dense retrieval, fused."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from rag_eval.core.strategy import PriorKind
from rag_eval.retrieval.dense import DenseStrategy
from rag_eval.retrieval.lexical import LexicalStrategy
from rag_eval.retrieval.ranking import Ranking, reciprocal_rank, weighted
from rag_eval.retrieval.strategies import Request, StrategyIndex
from rag_eval.storage.hashing import digest


class Hybrid(LexicalStrategy, DenseStrategy):
    """Weighted sum of scores normalised within the query, or reciprocal rank fusion."""

    kind: Literal["hybrid"]
    fusion: Literal["weighted", "rrf"] = "weighted"
    alpha: float = Field(default=0.5, ge=0, le=1, description="weight of BM25")
    beta: float = Field(default=0.5, ge=0, le=1, description="weight of the vectors")
    rrf_k: int = Field(default=60, ge=1, le=10_000)
    prior: ClassVar[PriorKind] = "hybrid"

    @model_validator(mode="after")
    def _has_a_weight(self) -> Self:
        if self.alpha + self.beta == 0:
            raise ValueError("alpha and beta must not both be 0")
        return self

    def index_hash(self, chunks_hash: str, model: str) -> str:
        """Name both indexes and the fusion."""
        fusion: dict[str, float | str] = {"fusion": self.fusion}
        if self.fusion == "rrf":
            fusion["rrf_k"] = self.rrf_k
        else:
            fusion |= {"alpha": self.alpha, "beta": self.beta}
        parts = [self.lexical_hash(chunks_hash), self.dense_hash(chunks_hash, model), fusion]
        return f"hybrid:{digest(parts)}"

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Fuse the rankings of both engines."""
        by_vector = self.rank_by_vectors(index, request)
        by_term = self.rank_by_terms(index, request)
        if self.fusion == "rrf":
            return reciprocal_rank(by_term, by_vector, k=self.rrf_k, depth=request.depth)
        return weighted(by_term, by_vector, alpha=self.alpha, beta=self.beta, depth=request.depth)
