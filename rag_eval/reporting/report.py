"""The whole report of an evaluation, which is written as `retrieval-metrics.json`.

The rooms below own the types of its parts. The JSON Schema is generated from the types:
`python -m rag_eval.reporting.report` writes it.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PositiveInt, StrictBool, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from rag_eval.core.loader import Chunker
from rag_eval.core.parts import Name
from rag_eval.core.records import (
    NOT_SCORED,
    Absent,
    Because,
    ComparedPair,
    Count,
    Counts,
    Hash,
    Record,
    RunId,
    ShortText,
    Timestamp,
    Unit,
)
from rag_eval.core.rows import format_location
from rag_eval.core.types import Level, Status
from rag_eval.gates.gate import GatePart, PreviousPart
from rag_eval.gold.gold_report import GoldPart
from rag_eval.measures.answers import AnswersPart, CitationsPart, RagasFigure
from rag_eval.measures.slices import SlicesPart
from rag_eval.measures.strategy_report import StabilityPart, StrategyPart
from rag_eval.trust.trust_report import TrustPart
from rag_eval.uncertainty.miss_rate_report import CalibrationPart, MissesPart, UncertaintyPart

SCHEMA_VERSION: Final = 2
SCHEMA_FILE: Final = Path(__file__).parent / "retrieval-metrics.schema.json"


# ---- What was evaluated.


class Evaluated(Record):
    """How the gold set was evaluated."""

    k: list[PositiveInt] = Field(min_length=1)
    depth: Count
    level: Level
    primary: Name
    partial: StrictBool = Field(
        default=False, description="whether only some strategies, or other vectors, were run"
    )
    known: StrictBool = Field(
        default=True, description="whether the gold set is one of the folder of gold sets"
    )


class IndexPart(Record):
    """The corpus and its index."""

    hash: str
    rev: str
    corpus_rev: str
    chunks_hash: Hash
    analyzer: str
    chunker: Chunker
    embed_model: str
    n_documents: Count
    n_chunks: Count
    loader: str
    masked: Annotated[Counts | None, Because("masking is off for this corpus")]
    strategies: dict[Name, dict[Literal["index_hash", "embed_model"], str]]


class Code(Record):
    """Versions of the code and of the libraries."""

    version: str = Field(description="hash of the sources that computed")
    libraries: dict[str, str]


class Embeddings(Record):
    """Numbers of texts that needed a vector and that were embedded."""

    models: list[str]
    needed: Count
    embedded: Count


class Reused(Record):
    """Results that were reused from an earlier run."""

    index: StrictBool
    runs: dict[Name, StrictBool]


# ---- Questions to look at first.


class FoundCount(Record):
    """Retrievals of a question with gold in the top 10, of all wordings and seeds."""

    strategy: Name
    n_found: Count
    n_runs: PositiveInt


class LookFirst(Record):
    """A question that the primary strategy misses under most of its wordings.

    `other` is the strategy that finds the gold most often. `miss_rate` and `status` are the claim
    of the primary strategy for the original wording.
    """

    query_id: str
    text: ShortText
    primary: FoundCount
    other: Annotated[FoundCount | None, Because("no other strategy finds the gold")]
    miss_rate: Annotated[Unit | None, Because("the strategy states no miss rate")]
    status: Status
    lost: Annotated[ShortText | None, Because("the original wording finds the gold")] = Field(
        description="sentence on the step that lost the gold of the original wording"
    )


# ---- The whole report.


class Report(Record):
    """The report of an evaluation.

    A figure that could not be computed is null and has its reason beside it, under <name>_reason.
    A draft, whose hash is not known yet, lacks previous and look_first.
    """

    schema_version: Literal[2]
    version: str
    run_id: RunId
    timestamp: Timestamp
    content_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="over everything but itself, run_id, times, latencies, cache and reuse figures"
    )
    strategy: Name
    recallAt10: Annotated[Unit | None, Because(NOT_SCORED)]  # noqa: N815 - a name of the contract
    mrr: Annotated[Unit | None, Because(NOT_SCORED)]
    groundedness: Unit | None
    faithfulness: Unit | None
    avgTrustScore: Unit | None  # noqa: N815 - a name of the contract
    poisonedBlocked: Count = Field(  # noqa: N815 - a name of the contract
        description="Distinct chunks that the guard kept from callers; 0 where quarantine is off."
    )
    cacheHitRate: Unit | None  # noqa: N815 - a name of the contract
    code: Code
    features: dict[Annotated[str, Field(pattern=r"^FEATURE_[A-Z_]+$")], StrictBool]
    evaluation: Evaluated
    gold: GoldPart
    index: IndexPart
    strategies: list[StrategyPart] = Field(min_length=1)
    comparisons: list[ComparedPair]
    stability: StabilityPart
    slices: SlicesPart
    answers: AnswersPart | Absent
    citations: CitationsPart | Absent
    trust: TrustPart
    uncertainty: UncertaintyPart
    calibration: CalibrationPart
    gates: list[GatePart]
    embeddings: Embeddings
    reused: Reused
    misses: dict[Name, MissesPart]
    previous: PreviousPart | None = None
    ragas: list[RagasFigure] | None = Field(
        default=None, description="by the primary strategy, where the gold set asks for ragas"
    )
    look_first: list[LookFirst] | None = Field(
        None, description="missed questions of different groups, the worst first"
    )

    @property
    def primary(self) -> StrategyPart:
        """Strategy of the headline figures."""
        return next(entry for entry in self.strategies if entry.name == self.strategy)


def first_fault(report: Mapping[str, Any]) -> tuple[str, str] | None:
    """Check the JSON values of a report; return the place and text of the first fault, or None."""
    try:
        Report.model_validate_json(json.dumps(report), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = format_location(first["loc"])
        return place, first["msg"]
    return None


class _Untitled(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False


def make_schema() -> JsonSchemaValue:
    """Generate the JSON Schema of the report."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Report.model_json_schema(schema_generator=_Untitled),
        "title": "retrieval-metrics.json",
    }


if __name__ == "__main__":
    # The names in the schema hold the name of the module, which is __main__ here.
    generated = importlib.import_module("rag_eval.reporting.report").make_schema()
    SCHEMA_FILE.write_text(json.dumps(generated, indent=1, sort_keys=True) + "\n", "utf-8")
