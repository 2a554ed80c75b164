"""The kind `bm25`: lexical retrieval."""

from typing import ClassVar, Literal

from rag_eval.core.strategy import PriorKind, Retriever
from rag_eval.retrieval.lexical import LexicalStrategy
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.strategies import Request, StrategyIndex


class Bm25(LexicalStrategy):
    """BM25. `bm25s` computes it as Lucene does; `rank-bm25` is that package's Okapi variant."""

    kind: Literal["bm25"]
    second: ClassVar[Retriever] = "vector"
    prior: ClassVar[PriorKind] = "bm25"

    def index_hash(self, chunks_hash: str, model: str) -> str:  # noqa: ARG002 - no vectors
        """Name the index by engine, chunks, analyzer and parameters."""
        return self.lexical_hash(chunks_hash)

    def rank(self, index: StrategyIndex, request: Request) -> Ranking:
        """Rank chunks by their terms."""
        return self.rank_by_terms(index, request)

    @property
    def store_name(self) -> str:
        """Name the library that holds the postings."""
        return self.engine

    def question_price(self, per_1k_tokens: float) -> float:  # noqa: ARG002 - none is embedded
        """Return 0, because this kind embeds no question."""
        return 0.0
