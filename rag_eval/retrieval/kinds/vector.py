"""The kind `vector`: dense retrieval."""

from typing import ClassVar, Literal

from rag_eval.core.strategy import PriorKind
from rag_eval.retrieval.dense import DenseStrategy
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.strategies import Request, StrategyIndex


class Vector(DenseStrategy):
    """Cosine of vectors. `exact` compares with every chunk; `approximate` asks Chroma's graph."""

    kind: Literal["vector"]
    vectors_alone: ClassVar[bool] = True
    prior: ClassVar[PriorKind] = "vector"

    def index_hash(self, chunks_hash: str, model: str) -> str:
        """Name the index by search, chunks and model."""
        return self.dense_hash(chunks_hash, model)

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Rank chunks by cosine."""
        return self.rank_by_vectors(index, request)
