"""Strategies in the report: their rankings and stability."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, StrictBool

from rag_eval.core.parts import Name
from rag_eval.core.records import (
    Because,
    Count,
    Figure,
    IndexHash,
    Measure,
    Open,
    Record,
    RuleCode,
    Share,
    Text,
    Unit,
)
from rag_eval.core.types import Level

# ---- Strategies.


class Seeds(Record):
    """The seeds, and whether they change the results of the strategy."""

    configured: list[Count] = Field(min_length=1)
    matter: StrictBool


class Latency(Record):
    """Times of single queries in milliseconds."""

    n: Count
    p50: float | None
    p95: float | None
    p99: float | None
    measured_at: str | None


class ExternalSource(Record):
    """Source and contents of the rankings of an external strategy."""

    kind: Literal["http", "import", "run_file", "recorded", "opensearch", "qdrant", "pgvector"]
    version: Annotated[str | None, Field(description="as the source states it")]
    wordings: Literal["all", "original"]
    n_units: Count = Field(description="distinct items that it returned")
    n_own_chunks: Count = Field(description="of these, chunks of this corpus")
    n_placed: Count = Field(description="of these, with a known place in a document")
    n_unknown: Count = Field(description="of these, of documents that the corpus lacks")


class LevelState(Record):
    """Whether results of an external strategy can be judged at a level; if not, the reason."""

    measured: StrictBool
    reason: Text | None = None


class AnnRecall(Record):
    """Share of the exact neighbours that the index returns, by seed."""

    by_seed: dict[str, dict[Annotated[str, Field(pattern=r"^ann_recall_at_[0-9]+$")], Figure]]


class StrategyPart(Record):
    """One strategy's figures. The last four fields are of external strategies only."""

    name: Name
    kind: str
    index_hash: IndexHash
    embed_model: str
    configuration: Open = Field(
        description="the strategy as gold_set.yaml configures it, but for paths"
    )
    rerank: Annotated[str | None, Because("")]
    seeds: Seeds
    n_runs: Count
    n_empty: Count = Field(description="runs that retrieved nothing")
    n_failed: Count = Field(description="retrievals that gave an error and score 0")
    first_failure: Annotated[str | None, Because("no retrieval failed")]
    measures: list[Measure] = Field(min_length=1)
    ann_recall: Annotated[AnnRecall | None, Because("this strategy searches exactly")]
    latency_ms: Latency
    cost_per_1k: Annotated[float | None, Because("the cost of retrieval is not known")]
    source: ExternalSource | None = None
    failures: dict[RuleCode, PositiveInt] | None = Field(
        None, description="failed retrievals by code"
    )
    levels: dict[Level, LevelState] | None = None
    notes: list[Text] | None = Field(
        None, description="notes on how to read the figures of an external strategy"
    )

    def measure(self, name: str, level: Level) -> Measure:
        """Return a measure by its name or its label."""
        return next(
            found
            for found in self.measures
            if name in {found.name, found.label} and found.level == level
        )


# ---- Stability.


class DeltaS(Figure):
    """Semantic distance between questions and retrieved chunks."""

    target: str
    zones: dict[str, Share]
    to_anchor: Figure
    to_decoy: Figure
    anchor_and_decoy_equally_close: Figure


class LambdaReason(Record):
    """Number of questions in a lambda state, with the cause."""

    n: Count
    cause: str


class FlipMatrix(Record):
    """Shares of questions whose hit changes between two wordings."""

    wordings: list[str]
    share: Annotated[list[list[Unit | None]], Because("no question has both wordings")]
    n: list[list[Count]]


class RecallFigure(Figure):
    """Recall and observed miss rate, under one wording or over the questions of a slice."""

    miss: Figure


class StrategyStability(Record):
    """Effects of wording and seed on the results of one strategy."""

    level: Level
    n_queries: Count
    delta_s: DeltaS
    rbo: Figure
    lambda_states: dict[str, Share] = Field(alias="lambda")
    reasons: dict[str, LambdaReason]
    convergent_and_hit: Figure
    hit_changes_with_wording: dict[Annotated[str, Field(pattern=r"^hit_at_[0-9]+$")], Figure]
    flip_matrix: FlipMatrix
    recall_at_10_by_wording: dict[Literal["worst", "mean", "best"], Figure]
    by_wording: dict[str, RecallFigure] = Field(
        default_factory=dict,
        description="recall and misses at 10 results under each wording, the original one first",
    )
    seeds_change_nothing: Annotated[StrictBool | None, Because("one seed was configured")]


class StabilityPart(Record):
    """Stability of every strategy."""

    embedding: str
    strategies: dict[Name, StrategyStability]
