"""Types of the report of an evaluation, which is written as `retrieval-metrics.json`.

In JSON, a null figure has its reason in `<name>_reason`. The code that makes the figure gives the
reason. Without such a reason, the type of the field gives a default (`Because`).
The JSON Schema is generated from these types: `python -m rag_eval.core.report` writes it.
"""

import dataclasses
import importlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    SerializerFunctionWrapHandler,
    StrictBool,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema

from rag_eval.core.loader import Chunker
from rag_eval.core.parts import Name
from rag_eval.core.rows import format_location
from rag_eval.core.types import BinaryTarget, Deterministic, Level, Measured, Status, parse

SCHEMA_VERSION: Final = 2
SCHEMA_FILE: Final = Path(__file__).parent / "retrieval-metrics.schema.json"

# ---- Records, and why a field of one is null.

NOT_SCORED: Final = "no question was scored"
FEW_EFFECTIVE: Final = 5
"""Number of effective questions under which the gold hardly supports an interval."""
HARDLY_SUPPORTED: Final = "the gold hardly supports an interval"
ONE_QUESTION: Final = "one question gives no interval"
NO_SPREAD: Final = "it is no mean over two or more questions, so it has no interval"
NOT_PAIRED: Final = "no question was scored for both strategies"
NOTHING: Final = "there is no value to compute it from"


@dataclasses.dataclass(frozen=True)
class Because:
    """The default reason of a null field, else NOTHING. An empty reason is not written.

    A bound of an interval names its figure in `figure`, and is not scored if the figure is null.
    """

    reason: str
    figure: str = ""


def _has_null(value: object) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))


class Record(BaseModel):
    """A part of the report. A field with a default is left out of the JSON unless it was set."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, serialize_by_alias=True, allow_inf_nan=False
    )
    why: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    """Field -> the reason why it is null."""

    @model_validator(mode="before")
    @classmethod
    def _take_reasons(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        fields, why = dict(value), dict(value.get("why", {}))
        for name in value:
            field = str(name).removesuffix("_reason")
            if field != name and field in cls.model_fields and name not in cls.model_fields:
                why[field] = fields.pop(name)
        return fields | {"why": why}

    @model_validator(mode="after")
    def _give_reasons(self) -> "Record":
        for name in self.model_fields_set:
            if name not in self.why and _has_null(getattr(self, name)):
                self.why[name] = self._explain_null(name)
        return self

    def _explain_null(self, name: str) -> str:
        for hint in type(self).model_fields[name].metadata:
            if isinstance(hint, Because):
                is_scored = not hint.figure or getattr(self, hint.figure) is not None
                return hint.reason if is_scored else NOT_SCORED
        return NOTHING

    @model_serializer(mode="wrap")
    def _write_reasons(self, write: SerializerFunctionWrapHandler) -> dict[str, object]:
        unset = type(self).model_fields.keys() - self.model_fields_set
        values = {name: value for name, value in write(self).items() if name not in unset}
        return values | {f"{name}_reason": why for name, why in self.why.items() if why}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        resolved["properties"].pop("why", None)
        resolved["patternProperties"] = {"_reason$": {"type": "string", "minLength": 1}}
        return schema

    def dump(self) -> dict[str, Any]:
        """Return the JSON values of this part."""
        return self.model_dump(mode="json")


class Absent(BaseModel):
    """A part that was not measured, with the reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: None = None
    reason: str = Field(min_length=1)

    @model_serializer
    def _write(self) -> dict[str, str | None]:
        return {"value": None, "reason": self.reason}


Count = NonNegativeInt
Counts = dict[str, Count]
Size = Annotated[float, Field(ge=0)]
"""A number of questions that need not be whole."""
Unit = Annotated[float, Field(ge=0, le=1)]
Signed = Annotated[float, Field(ge=-1, le=1)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
IndexHash = Annotated[str, Field(pattern=r"^[a-z0-9-]+:[0-9a-f]{32}$")]
RunId = Annotated[str, Field(pattern=r"^[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}$")]
Timestamp = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$")]
RuleCode = Annotated[str, Field(pattern=r"^[a-z_]+(\.[A-Za-z0-9_]+)*$")]
Text = Annotated[str, Field(min_length=1)]
ShortText = Annotated[str, Field(max_length=1000)]
Open = dict[str, JsonValue]
"""A part that has no type."""
PValue = Annotated[Unit | None, Because(NOT_PAIRED)]

# ---- Figures.


def number(value: float) -> float | None:
    """Convert a figure to a number for JSON.

    NaN and infinity become null. Other figures keep twelve significant digits, so that equal inputs
    give equal bytes.
    """
    return float(f"{value:.12g}") if math.isfinite(value) else None


Triple = tuple[float | None, float | None, float | None]


class Estimate(Record):
    """A value with its 95 % interval."""

    value: Annotated[float | None, Because(NOT_SCORED)]
    ci_low: Annotated[float | None, Because(ONE_QUESTION, "value")]
    ci_high: Annotated[float | None, Because(ONE_QUESTION, "value")]

    @property
    def triple(self) -> Triple:
        """Value, lower and upper bound."""
        return self.value, self.ci_low, self.ci_high


class Figure(Estimate):
    """Mean over questions with its 95 % interval.

    `n_effective` is the number of independent questions that the scored questions are worth.
    """

    n_attempted: Count
    n_scored: Count
    n_ineligible: Count
    n_effective: Size


class Interval(Record):
    """A figure of a calibration with its 95 % interval."""

    value: Annotated[float | None, Because(NOT_SCORED)]
    low: float | None
    high: float | None

    @property
    def triple(self) -> Triple:
        """Value, lower and upper bound."""
        return self.value, self.low, self.high


class CountedInterval(Interval):
    """A figure of a calibration over n questions, worth `n_effective` independent ones."""

    n: Count
    n_effective: Size


class Share(Record):
    """A share of runs or questions, with their number."""

    share: Annotated[Unit | None, Because("there is no run")]
    n: Count


class Measure(Figure):
    """One measure of one strategy at one level."""

    label: str = Field(description="the field's name, as ir-measures writes it")
    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    level: Level
    value: Annotated[Unit | None, Because(NOT_SCORED)]
    n_failed: Count
    judged_at_k: Annotated[
        Unit | None,
        Because("the measure has no cutoff k, or no question was scored"),
    ]
    value_if_unjudged_relevant: Annotated[
        Unit | None,
        Because(NOT_SCORED),
        Field(description="P@k if every unjudged item were relevant"),
    ] = None


class AnswerFigure(Figure):
    """A measure of answers or citations.

    n_units is its own denominator: citations or spans for ratios, else questions.
    """

    name: str
    n_failed: Count
    n_units: Count
    target: str | None = None


class PairedDelta(Record):
    """Paired difference on the same questions, with its 95 % interval."""

    delta: Annotated[Signed | None, Because(NOT_PAIRED)]
    ci_low: Annotated[float | None, Because(ONE_QUESTION, "delta")]
    ci_high: Annotated[float | None, Because(ONE_QUESTION, "delta")]
    n_better: Count
    n_worse: Count
    n_tied: Count
    n_effective: Size

    @property
    def triple(self) -> Triple:
        """Difference, lower and upper bound."""
        return self.delta, self.ci_low, self.ci_high


class StrategyDelta(PairedDelta):
    """Paired difference between strategies; p is adjusted by Holm over all rows."""

    measure: str
    level: Level
    p_adjusted: PValue
    minimum_detectable: Annotated[float | None, Because("fewer than two questions, or more than 1")]


class ComparedPair(StrategyDelta):
    """Paired difference a - b."""

    a: str
    b: str
    p: PValue
    n_wordings: Count | None = Field(
        None, description="wordings compared, where one of the two was not run on all"
    )


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


class LintWarning(Record):
    """A warning of lint; file is relative to the gold set."""

    code: str
    message: str
    file: str | None = None
    line: Count | None = None
    field: str | None = None
    found: str | None = None
    accepted: str | None = None
    severity: Literal["warning"]


class GoldFacts(Record):
    """The gold set without its seeds.

    `n_answerable_unknown` counts the questions of recorded outputs that nobody judged.
    """

    name: Name
    version: str
    hash: Hash
    n_queries: Count
    n_answerable: Count
    n_answerable_unknown: Count
    n_judged: Count
    n_paraphrases: Count
    n_groups: Count
    n_groups_answerable: Count
    n_spans: Count
    warnings: list[LintWarning]


class GoldPart(GoldFacts):
    """The gold set."""

    seeds: list[Count]


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


# ---- Stability, slices, overlap.


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


class SliceFigure(Figure):
    """Recall and observed miss rate over the questions of a slice, or under one wording."""

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
    by_wording: dict[str, SliceFigure] = Field(
        default_factory=dict,
        description="recall and misses at 10 results under each wording, the original one first",
    )
    seeds_change_nothing: Annotated[StrictBool | None, Because("one seed was configured")]


class StabilityPart(Record):
    """Stability of every strategy."""

    embedding: str
    strategies: dict[Name, StrategyStability]


class SlicePart(Record):
    """A part of the questions."""

    kind: Literal["tag", "length", "answerability"]
    name: ShortText
    about: str = Field(max_length=1200)
    n_queries: Count
    n_groups: Count
    abstention: Figure | Absent | None = None
    strategies: dict[Name, SliceFigure]


class SlicesPart(Record):
    """Recall and misses by answerability, by length, and by the most frequent tags."""

    measure: Literal["R@10"]
    target: Literal["miss_any"]
    k: PositiveInt
    level: Level
    n_tags: Count
    by: list[SlicePart]


# ---- Answers and citations.


class GapFlag(Record):
    """An answer that leaves the retrieved evidence unused."""

    query_id: str
    reason: str
    answer: str


class RetrievalGap(Record):
    """Answers that leave the retrieved evidence unused."""

    code: Literal["FK019"]
    severity: Literal["warning"]
    n_checked: Count
    n_flagged: Count
    flagged: list[GapFlag]


class Faithfulness(Estimate):
    """Faithfulness by RAGAS on a sample. Without a measurement, only value is set."""

    model_config = ConfigDict(extra="allow")
    ci_low: Annotated[float | None, Because(NO_SPREAD, "value")] = None
    ci_high: Annotated[float | None, Because(NO_SPREAD, "value")] = None


class VerifierPart(Record):
    """The model that scored the answer sentences instead of their words."""

    name: Text = Field(description="its name in the settings")
    model: Text
    identity: Hash = Field(description="of everything that decides its scores")
    failures: Counts = Field(description="sentences without a verdict, by reason")


class AbstentionPart(Record):
    """Threshold under which the deterministic mode does not answer, and the origin of its signal.

    From gold, the weights that judge each half were learned on the other half of the questions.
    """

    source: Literal["gold", "shipped", "setting"]
    reason: Text
    threshold: Unit
    n_answerable: list[Count] = Field(description="of each half, by hash of the question's group")
    n_unanswerable: list[Count]
    weights: list[dict[str, float]] = Field(description="of the signal of each half, if learned")


class AnswersPart(Record):
    """Answers to the questions of the gold set."""

    strategy: str
    modes: list[Literal["deterministic", "llm", "recorded"]]
    embedding: Annotated[str | None, Because("no question is answered in the deterministic mode")]
    model: Annotated[str | None, Because("no question is answered by a model")]
    hash: Hash = Field(description="of every answer, citation and piece of evidence")
    n_questions: Count
    attempts: Counts
    outcomes: Counts
    codes: Counts
    abstention: Annotated[
        AbstentionPart | None, Because("no question is answered in the deterministic mode")
    ]
    measures: list[AnswerFigure]
    gap: RetrievalGap
    faithfulness: Faithfulness
    usage: Open
    findings: Counts = Field(
        default_factory=dict, description="of postprocessors, as plug-in.kind -> n"
    )
    verifier: VerifierPart | None = None
    verifier_usage: Open | None = None


class RagasFigure(Figure):
    """A measure of ragas beside our measure of the same questions or answers."""

    name: Literal["id_based_context_recall", "id_based_context_precision", "quoted_spans_alignment"]
    ours: Text = Field(description="our measure")
    ours_value: Annotated[Unit | None, Because(NOT_SCORED)]
    difference: Text


class UnsupportedSentence(Record):
    """A sentence of an answer that its citations do not support."""

    query_id: str
    sentence: str
    citations: list[str] = Field(description="cite tokens; a fabricated citation as it was given")
    score: Unit
    passage: str = Field(description="the cited text that supports the sentence best")
    conflict: str = Field(description="what the passage says otherwise; empty for nothing found")


class CitationsPart(Record):
    """Citations of the answers, and the first fifty sentences that they do not support."""

    n_citations: Count
    codes: Counts
    measures: list[AnswerFigure]
    n_unsupported: Count
    unsupported: list[UnsupportedSentence]


# ---- Trust and poisoning.


class TrustConfigured(Record):
    """Trust settings of the gold set."""

    domains: Count
    authors: Count
    keys: Count
    manifest: StrictBool
    unlisted: Literal["allow", "warn", "block"]
    unsigned: Literal["allow", "warn", "block"]


class TrustFactor(Record):
    """A factor of trust over all chunks.

    `n` chunks of `of` earn its points, or have a date. Without configuration or without dates the
    factor has no evidence, and `reason` says why.
    """

    factor: Literal["domain", "signature", "author", "freshness"]
    points: Text = Field(description="its part of the formula")
    status: Literal["measured", "insufficient_evidence"]
    n: Count
    of: Count
    reason: Text | None = None


class HistogramBin(Record):
    """Chunks whose trust lies between two limits."""

    low: Unit = Field(alias="from")
    to: Unit
    n: Count


class TrustScores(Record):
    """Trust over all chunks, quarantined ones included."""

    n_chunks: Count
    mean: Unit
    min: Unit
    max: Unit
    histogram: list[HistogramBin]


class BlockedRow(Record):
    """A retrieved blocked chunk: its first question and rank, and how often it was retrieved."""

    chunk_id: ShortText
    doc_id: ShortText
    query_id: str
    rank: PositiveInt
    reasons: list[RuleCode]
    n: Count


class RetrievedTrust(Record):
    """Trust of the retrieved chunks, over every wording and seed, to the configured depth.

    avg_trust is over the first ten chunks.
    """

    avg_trust: Figure
    n_retrieved: Count
    n_blocked: Count
    n_warned: Count = Field(description="results with a warning, of `n_retrieved`")
    blocked: list[BlockedRow]


class FilterRow(StrategyDelta):
    """Paired difference of a strategy with the trust filter minus without it."""

    strategy: Name
    with_filter: Figure
    without_filter: Figure


class TrustFilter(Record):
    """Cost of the trust filter."""

    threshold: Unit
    applied: StrictBool
    n_chunks: Count
    n_below: Count
    rows: list[FilterRow]


class BlockedGoldDocument(Record):
    """A relevant document with blocked chunks."""

    doc_id: str
    n_chunks: Count
    n_blocked: Count
    n_queries: Count


class BlockedGold(Record):
    """Relevant documents with chunks that the guard keeps out of the index, and their questions.

    A document counts as blocked with one blocked chunk, and as wholly blocked if all chunks are
    blocked. Documents of most questions come first; the report names fifty. All counts are zero
    where quarantine is off.
    """

    n_documents: Count
    n_blocked: Count
    n_wholly_blocked: Count
    n_queries: Count
    n_queries_blocked: Count
    documents: list[BlockedGoldDocument]


class Manifest(Record):
    """Documents compared with the manifest."""

    signature: Literal["signed", "not_configured"]
    version: Count
    created_at: Text
    accepted_by: ShortText = Field(
        description="the person who accepted this version; empty if a run did, as it was newer"
    )
    n_same: Count
    n_changed: Count
    n_not_in_manifest: Count
    n_gone: Count = Field(description="recorded documents that the corpus no longer has")
    gone: list[ShortText] = Field(description="up to 20 of them")


class QuarantinedChunk(Record):
    """A chunk that is not indexed; without quarantine, a blocked chunk."""

    chunk_id: ShortText
    doc_id: ShortText
    source_url: ShortText
    reasons: list[RuleCode]


class RetrievedCounts(Record):
    """Results of all strategies, over every wording and seed, to the configured depth."""

    n_retrieved: Count
    n_blocked: Count
    n_warned: Count


class AtRetrieval(Record):
    """Chunks that are left out for the questions that they restate."""

    n_blocked_pairs: Count
    n_blocked_chunks: Count
    n_warned_pairs: Count
    dropped: dict[Name, Count]


class Poisoning(Record):
    """Findings of the guard. evidence-trust.jsonl lists all chunks."""

    rules_version: str
    quarantine: Literal["none", "blocked", "warnings"]
    about_injection: StrictBool
    n_chunks: Count
    n_documents: Count
    n_quarantined: Count = Field(description="chunks that are not indexed, of `n_chunks`")
    n_blocked: Count
    n_blocked_documents: Count
    n_warned: Count
    n_allowed: Count
    reasons: Counts
    manifest: Manifest | Absent
    quarantined: list[QuarantinedChunk]
    gold: BlockedGold
    at_retrieval: AtRetrieval
    retrieved: RetrievedCounts


class TrustPart(Record):
    """Trust and poisoning."""

    as_of: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    notes: list[str]
    configured: TrustConfigured
    scores: TrustScores | Absent
    states: dict[str, Counts]
    formula: Text | None = None
    factors: list[TrustFactor] | None = None
    retrieved: dict[Name, RetrievedTrust]
    filter: TrustFilter | Absent
    poisoning: Poisoning


# ---- Miss rates and their calibration.


class CoverageCount(Record):
    """A count of a total, with its confidence."""

    n: Count
    of: Count
    confidence: Annotated[Deterministic, BeforeValidator(parse)]


class CorpusCoverage(Record):
    """Parts of the corpus that retrieval can return."""

    documents_indexed: CoverageCount
    text_in_chunks: CoverageCount
    chunks_admitted: CoverageCount
    chunks_embedded: dict[str, CoverageCount]


class AddedOutcomes(Record):
    """Outcomes of this run."""

    n_claims: Count
    n_judged: Count
    n_missed: Count
    added: Count
    already_there: Count


class StrategyMissRates(Record):
    """Miss rates of one strategy, as observed and as stated by this run."""

    fingerprint: Text
    status: Status
    calibrator: Text
    reason: Text | None = None
    n_claims: Count
    n_absent: Count
    observed: dict[Literal["miss_any", "miss_some", "miss_frac"], Figure]
    stated: Figure | Absent
    outcomes: AddedOutcomes


class ScoreBin(Record):
    """Questions by the raw score of their first result, with their miss rate at ten results."""

    low: float
    high: float
    missed: Figure


class MissesPart(Record):
    """Questions without gold in the first ten, as first put, by the step that lost the gold.

    `n_twins` counts the questions for which an identical text under another id was in the first
    ten. Questions whose retrieval failed are counted apart.
    """

    n_judged: Count
    n_failed: Count
    n_missed: Count
    lost: dict[Literal["retrieval", "fusion", "guard", "rerank", "cutoff"], Count]
    n_twins: Count
    by_score: list[ScoreBin]


class AnswerConfidences(Record):
    """Mean confidence in the answers."""

    n: Count
    synthesis_confidence: Figure
    final_confidence: Figure
    calibrated_confidence: Figure
    right_when_missed: Annotated[Measured, BeforeValidator(parse)] | None


class IterativeAccount(Record):
    """Hits that the rounds of an iterative strategy recovered and lost."""

    base: Text
    basis: str = Field(pattern=r"^(calibrated|heuristic_v0(@[1-9][0-9]*)?)$")
    min_recall: Unit | None
    k: Count
    verdict: Text
    recall_before: Unit | None
    recall_after: Unit | None
    stops: Counts
    not_viable: Counts
    suggestions_failed: Counts
    accounts: list[Open] = Field(min_length=1)


class ObservedMisses(Figure):
    """Observed miss rate of one strategy, for one target and K."""

    strategy: Name
    target: BinaryTarget
    k: PositiveInt


class MissPair(PairedDelta):
    """Paired difference a - b of observed misses, for one target and K.

    p is adjusted by Holm over all pairs, targets and K.
    """

    a: Name
    b: Name
    target: BinaryTarget
    k: PositiveInt
    p: PValue
    p_adjusted: PValue
    minimum_detectable: Annotated[float | None, Because("fewer than two questions, or more than 1")]


class UncertaintyPart(Record):
    """Miss rates. `cutoffs` and `pairs` are observed, for both targets at every K."""

    target: BinaryTarget
    k: PositiveInt
    level: Level
    gold_source: Text
    strategies: dict[Name, StrategyMissRates]
    corpus_coverage: CorpusCoverage
    answers: AnswerConfidences | Absent
    iterative: dict[Name, IterativeAccount]
    cutoffs: list[ObservedMisses]
    pairs: list[MissPair]


class OutcomeCounts(Record):
    """Numbers of outcomes and groups behind a calibration."""

    outcomes: Count
    groups: Count
    groups_with_misses: Count
    groups_with_hits: Count


CurveKey = Literal["predicted", "observed", "band_low", "band_high"]


class CalibrationError(Record):
    """Expected calibration error, beside its values under calibrated predictions."""

    value: float | None
    null_median: float | None
    null_95: float | None
    null_limit: float | None
    p: Annotated[float | None, Because(NOT_PAIRED)]
    inside: StrictBool


class Validation(Record):
    """Quality of predictions on groups outside the fit."""

    n: Count
    groups: Count
    misses: Count
    groups_with_misses: Count
    groups_with_hits: Count
    repeats: Count
    checked_together: Count
    simulations: Count
    miss_rate: Interval
    brier: Interval
    log_loss: Interval
    skill: Interval
    auroc: Interval
    intercept: Interval
    slope: Interval
    observed_expected: Interval
    reliability: dict[CurveKey, list[Unit]]
    ece: CalibrationError
    dependence: float | None = Field(description="of simulated outcomes inside groups")
    histogram: list[Count] = Field(description="predictions in bins of 0.05")


class ConformalK(Record):
    """Number of results to read so that a share of new questions has gold among them.

    `coverage` is the covered share of held-out questions over `splits` splits. Questions whose K
    lies beyond the depth are not covered; `share_unattainable` is their share. `within_depth` is
    the share of questions with gold anywhere in the list.
    """

    method: Literal["fixed"]
    level: Unit
    attainable: StrictBool
    k: Annotated[Count | None, Because("no K within the lists reaches the level")]
    depth: Count
    n: Count
    n_groups: Count
    splits: Count
    coverage: CountedInterval
    share_unattainable: float | None
    within_depth: float | None
    text: str


class Condition(Record):
    """A condition of a status."""

    name: Text
    met: StrictBool
    found: str
    needed: str
    status: Status


class Standing(Record):
    """The status that the outcomes support, with its conditions."""

    status: Status
    discounts: StrictBool
    conditions: list[Condition]


class Promotion(Record):
    """A change of the status."""

    old_status: Status
    new_status: Status
    at: Text


class StrategyCalibration(Record):
    """Calibration of the miss rates of one strategy."""

    fingerprint: Text
    status: Status
    calibrator: str | None
    counts: OutcomeCounts
    validation: Validation | None
    heuristic_v0: Validation | None
    conformal: list[ConformalK] = Field(description="empty without questions with gold")
    estimator: Open | None
    standing: Standing
    refused: Annotated[str | None, Because("no outcome was refused")]
    promotion: Annotated[Promotion | None, Because("the status did not change")]
    n_without_signals: Count = Field(description="outcomes without signals; they are not fitted")

    @property
    def unmet_conditions(self) -> list[Condition]:
        """Unmet conditions of a higher status. Conditions of a stale status come first."""
        unmet = [condition for condition in self.standing.conditions if not condition.met]
        if self.status == "stale":
            unmet.sort(key=lambda condition: condition.status != "stale")
        return unmet

    def k_for(self, level: float) -> ConformalK | None:
        """Return the conformal K of a level, None without questions with gold."""
        return next((rule for rule in self.conformal if rule.level == level), None)


class PoweredEstimate(Record):
    """Mean estimated from labels and predictions, over production traffic.

    The `labels` figures come from the labels alone, by the same formula. `power` is the weight of
    the predictions, 0 to 1. `extra_labels` is the share of further labelled groups that would
    narrow the interval as much as the predictions do. A group with at least one label counts as
    labelled. Intervals are null if labelled groups are too few.
    """

    value: Annotated[float | None, Because(NOT_SCORED)]
    low: float | None
    high: float | None
    labels_value: float | None
    labels_low: float | None
    labels_high: float | None
    power: float
    extra_labels: float
    n_labelled: Count
    n_unlabelled: Count
    n_groups_labelled: Count
    n_groups_unlabelled: Count


class ComparedStrategy(Record):
    """Figures of one strategy on the questions that have outcomes of all strategies."""

    name: Name
    observed: CountedInterval
    raw: CountedInterval | None
    calibrated: CountedInterval
    brier: CountedInterval
    skill: CountedInterval
    powered: Annotated[PoweredEstimate | None, Because("there is no production traffic")]


MissMeasure = Literal["observed", "raw", "calibrated", "brier", "skill"]
"""Names of the compared figures.

`observed` is the miss rate in outcomes. `raw` and `calibrated` are mean estimated miss rates.
`brier` and `skill` are the Brier score and skill of the calibrated miss rate.
"""


class MissDifference(Record):
    """Difference a - b under one measure, on the queries that both strategies have.

    `delta` has a 95 % interval, and `p` is two-sided; both count the gold that queries share, for a
    skill by the influence of each query. `p_holm` is adjusted by Holm over all pairs, separately
    for each measure. `n_better`, `n_worse` and `n_tied` count queries, null for measures without a
    value per query. `detectable` is the smallest true difference found with 80 % power at two-sided
    5 %. It is null if unknown or larger than any possible difference.
    """

    a: Name
    b: Name
    measure: MissMeasure
    delta: CountedInterval
    p: PValue
    p_holm: Unit | None
    n_better: Count | None
    n_worse: Count | None
    n_tied: Count | None
    detectable: float | None


class MissComparison(Record):
    """Strategies compared by their misses."""

    n: Count
    strategies: list[ComparedStrategy]
    differences: list[MissDifference]


class CalibrationPart(Record):
    """Calibration of the miss rates."""

    target: BinaryTarget
    k: PositiveInt
    strategies: dict[Name, StrategyCalibration]
    comparison: MissComparison | None


# ---- Gates, drift from the baseline, history.


GateStatus = Literal["pass", "fail", "insufficient_evidence", "not_applicable"]
"""Status of a gate. A gate that does not apply to a run is neither met nor failed."""


class GatePart(Record):
    """The judgement of one gate, with its evidence."""

    id: str
    gate: str
    severity: Literal["P0", "P1", "P2"]
    required: StrictBool
    status: GateStatus
    reason_code: str = Field(pattern=r"^[a-z_]+$")
    evidence: Open

    @property
    def is_fine(self) -> bool:
        """Whether the gate passed or does not apply."""
        return self.status in {"pass", "not_applicable"}


def count_gates(gates: Iterable[tuple[bool, str]]) -> str:
    """Count the gates that are met among those that apply; each is (whether required, status).

    Examples
    --------
    >>> count_gates([(True, "pass"), (False, "fail"), (False, "insufficient_evidence")])
    'required 1 of 1 met, advisory 0 of 2 met (1 without enough evidence)'
    """
    counted, parts = list(gates), []
    for word, required in (("required", True), ("advisory", False)):
        states = [
            status for kind, status in counted if kind == required and status != "not_applicable"
        ]
        if states:
            unknown = states.count("insufficient_evidence")
            more = f" ({unknown} without enough evidence)" if unknown else ""
            parts.append(f"{word} {states.count('pass')} of {len(states)} met{more}")
    return ", ".join(parts)


class NamedPart(Record):
    """A number of documents or questions, with the first names in alphabetical order."""

    n: Count
    names: list[ShortText] = Field(max_length=1000)


ChangeCode = Literal[
    "gold_changed",
    "chunks_changed",
    "index_changed",
    "configuration_changed",
    "strategies_changed",
    "code_changed",
]
Changes = dict[ChangeCode, ShortText]
"""Changed inputs of a run since another run, as code -> sentence."""


class DriftPart(Record):
    """Changes since the accepted baseline. `chunks_hash` and `n_documents` are the baseline's."""

    run_id: ShortText
    accepted_at: ShortText
    comparable: StrictBool
    changes: Changes
    chunks_hash: Hash
    n_documents: Count
    documents: dict[Literal["new", "changed", "removed"], NamedPart]
    targets_changed: NamedPart = Field(description="questions with another text of a target")


class StrategyInputs(Record):
    """Inputs of the figures of a strategy: its index and a hash of its configuration."""

    index_hash: IndexHash
    configuration: Hash


class RunInputs(Record):
    """Inputs of the figures of a run.

    `settings` is a hash of levels, cutoffs, seeds and of the definition of a miss.
    """

    gold_hash: Hash
    chunks_hash: Hash
    settings: Hash
    code: Hash
    strategies: Mapping[Name, StrategyInputs]


class PastFigure(Estimate):
    """A figure of a kept run."""

    n_scored: Count


class PastStrategy(StrategyInputs):
    """A strategy in a kept run."""

    recall: PastFigure
    mrr: PastFigure
    miss_any: PastFigure
    skill: Interval | None
    status: Status
    latency_p95_ms: float | None


class PastRun(RunInputs):
    """A kept run; `changes` are its changed inputs since the run before it."""

    gold_set: Name
    run_id: RunId
    content_hash: Hash
    timestamp: Timestamp
    index_hash: IndexHash
    analyzer: ShortText
    rev: ShortText
    n_groups: Count
    level: Level
    primary: Name
    strategies: Mapping[Name, PastStrategy]
    gates: dict[GateStatus, Count]
    comparable: Annotated[StrictBool | None, Because("the history holds no earlier run")]
    changes: Changes

    @property
    def recall(self) -> PastFigure:
        """R@10 of the primary strategy at the headline level."""
        return self.strategies[self.primary].recall


class UnreadableRun(Record):
    """A kept run that cannot be read."""

    run_id: ShortText
    reason: Annotated[str, Field(min_length=1, max_length=1000)]


class HistoryPart(Record):
    """Kept runs of the gold set, oldest first; this run is the last."""

    runs: list[PastRun] = Field(min_length=1, max_length=60)
    n_left_out: Count
    n_unreadable: Count
    unreadable: list[UnreadableRun] = Field(max_length=20)


class NightDelta(PairedDelta):
    """Difference between two nights, over the questions that both scored."""

    strategy: Name
    measure: Literal["R@10", "RR", "nDCG@10"]
    before: Unit | None
    after: Unit | None


class PreviousPart(Record):
    """The last kept run of the gold set before this one."""

    run_id: RunId
    timestamp: Timestamp
    comparable: StrictBool
    changes: Changes
    deltas: list[NightDelta] | None


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
    A draft, whose hash is not known yet, lacks history, previous and look_first.
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
    answers: AnswersPart | Absent
    citations: CitationsPart | Absent
    trust: TrustPart
    uncertainty: UncertaintyPart
    calibration: CalibrationPart
    drift: DriftPart | Absent
    gates: list[GatePart]
    embeddings: Embeddings
    reused: Reused
    slices: SlicesPart
    misses: dict[Name, MissesPart]
    history: HistoryPart | None = None
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
    generated = importlib.import_module("rag_eval.core.report").make_schema()
    SCHEMA_FILE.write_text(json.dumps(generated, indent=1, sort_keys=True) + "\n", "utf-8")
