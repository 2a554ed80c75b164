"""Confidence in a retrieval and in an answer: values of a closed set of types, never bare numbers.

This file holds the types and how they compose, the stated miss rate (`MissRate`) with the
confidence values that follow from it, and the result of an uncertain retrieval.
"""

import dataclasses
import datetime as dt
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    field_serializer,
    field_validator,
    model_validator,
)

from rag_eval.citations.payload import payload
from rag_eval.core.arrays import number
from rag_eval.core.config import ExpansionName
from rag_eval.core.records import Count, Record
from rag_eval.core.types import DISCOUNTING, ScoredChunk, Status, Target, snippet
from rag_eval.corpus.chunking import spans
from rag_eval.corpus.masking import mask_name, masked_text

UnitInterval = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class StrictRecord(BaseModel):
    """A record that converts no value and ignores none."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Deterministic(StrictRecord):
    """A certain confidence: 0, 1 or a counted share, with the reason."""

    type: Literal["deterministic"] = "deterministic"
    value: UnitInterval
    reason: Text


class Measured(StrictRecord):
    """A confidence measured on outcomes, with data set, size, 95 % interval and time."""

    type: Literal["measured"] = "measured"
    value: UnitInterval
    dataset: Text
    n: Annotated[int, Field(ge=1)]
    ci_low: UnitInterval
    ci_high: UnitInterval
    measured_at: dt.datetime

    @model_validator(mode="after")
    def _inside(self) -> "Measured":
        if not self.ci_low <= self.value <= self.ci_high:
            raise ValueError("the interval does not hold the value")
        return self


class Bounded(StrictRecord):
    """A confidence between two known bounds, with their basis."""

    type: Literal["bounded"] = "bounded"
    low: UnitInterval
    high: UnitInterval
    basis: Text
    citation: Text

    @model_validator(mode="after")
    def _ordered(self) -> "Bounded":
        if self.low > self.high:
            raise ValueError("low is over high")
        return self


class Absent(StrictRecord):
    """An unknown confidence, with the reason; its `effective` value is 0."""

    type: Literal["absent"] = "absent"
    reason: Literal["uncalibrated", "insufficient_data", "not_applicable"]


class Derived(StrictRecord):
    """A confidence computed from other confidence values by a named formula."""

    type: Literal["derived"] = "derived"
    value: UnitInterval
    formula: Text
    inputs: Mapping[Text, "Confidence"] = Field(min_length=1)

    @field_validator("inputs", mode="before")
    @classmethod
    def _read_list(cls, value: Any) -> Any:
        """Read the inputs as they are written: a list of `name` and `confidence`."""
        if isinstance(value, dict) and all(isinstance(part, TYPES) for part in value.values()):
            return value
        inputs = TypeAdapter(list[NamedConfidence]).validate_python(value, strict=False)
        by_name = {part.name: part.confidence for part in inputs}
        if len(by_name) < len(inputs):
            raise ValueError("every input has a name of its own")
        return by_name

    @field_serializer("inputs")
    def _write_list(self, value: Mapping[str, "Confidence"]) -> list["NamedConfidence"]:
        return [NamedConfidence(name=name, confidence=part) for name, part in value.items()]


class NamedConfidence(StrictRecord):
    """One input of a derived confidence."""

    name: Text
    confidence: "Confidence"


Confidence = Annotated[
    Deterministic | Derived | Measured | Bounded | Absent, Field(discriminator="type")
]
TYPES: Final = (Deterministic, Derived, Measured, Bounded, Absent)


def parse(value: object) -> Confidence:
    """Read a confidence value from its JSON form; raise ValidationError for any other JSON."""
    return _adapter().validate_python(value, strict=False)


@functools.cache
def _adapter() -> TypeAdapter[Confidence]:
    return TypeAdapter(Confidence)


def as_json(value: Confidence) -> dict[str, JsonValue]:
    """Write a confidence value as a JSON object."""
    written: dict[str, JsonValue] = value.model_dump(mode="json")
    return written


def effective(value: Confidence) -> float:
    """Return the lowest confidence that a value allows: the low end of bounds, 0 for `Absent`.

    Raises TypeError for anything but a confidence value, also for a bare number.
    """
    if not isinstance(value, TYPES):
        raise TypeError(f"found {type(value).__name__}, accepted a confidence value")
    if isinstance(value, Bounded):
        return value.low
    return 0.0 if isinstance(value, Absent) else value.value


def compose(how: Literal["sequence", "all_of", "any_of"], /, **parts: Confidence) -> Derived:
    """Compose confidence values, each by its `effective` value.

    A `sequence` of steps has the minimum, because the weakest step limits all. Independent parts
    that must all hold have the product. If one of them suffices, it is 1 - product(1 - x).
    """
    values = list(map(effective, parts.values()))
    failures = " * ".join(f"(1 - {name})" for name in parts)
    value, formula = {
        "sequence": (min(values, default=0.0), f"min({', '.join(parts)})"),
        "all_of": (math.prod(values), " * ".join(parts)),
        "any_of": (1 - math.prod(1 - x for x in values), f"1 - {failures}"),
    }[how]
    return Derived(value=value, formula=formula, inputs=parts)


# ---- The miss rate of a retrieval, and the confidence values that follow from it.


@dataclasses.dataclass(frozen=True, slots=True)
class MissRate:
    """The stated probability that a retrieval missed, with its status, target, K and gold source.

    `gold_source` is None without outcomes, `measured_at` without a fit. `calibrator` is the id of
    the calibrator or of the prior, or `heuristic_v0`. `discounts` says whether it was better than
    the base rate, so that answers may be discounted.
    """

    value: float | None
    ci_low: float | None
    ci_high: float | None
    status: Status
    target: Target
    k: int
    gold_source: str | None
    calibrator: str
    n_outcomes: int = 0
    measured_at: dt.datetime | None = None
    discounts: bool = False


PRIOR_BASIS: Final = (
    "shipped prior coefficients, fitted on collections with one and with many relevant chunks a"
    " question; no outcomes of this strategy"
)


def retrieval_confidence(miss: MissRate) -> Confidence:
    """Compute 1 - miss rate and name the evidence for the hit rate as its input."""
    if miss.value is None:
        return Absent(reason="insufficient_data")
    hit, basis = 1 - miss.value, f"{miss.n_outcomes} outcomes, {miss.status}"
    low, high = 0.0, 1.0
    if miss.ci_low is not None and miss.ci_high is not None:
        low, high = min(1 - miss.ci_high, hit), max(1 - miss.ci_low, hit)
    evidence: Confidence
    if miss.status in {"uncalibrated", "stale"}:
        evidence = Absent(reason="uncalibrated")
    elif miss.status == "measured" and miss.measured_at and miss.ci_low is not None:
        evidence = Measured(
            value=hit,
            dataset=f"outcomes ({miss.gold_source}) of {miss.target}@{miss.k}",
            n=miss.n_outcomes,
            ci_low=low,
            ci_high=high,
            measured_at=miss.measured_at,
        )
    else:
        basis = PRIOR_BASIS if miss.status == "prior" else basis
        evidence = Bounded(low=low, high=high, basis=basis, citation=miss.calibrator)
    return Derived(value=hit, formula="1 - miss_rate", inputs={"hit_rate": evidence})


def final_confidence(synthesis: Confidence, miss: MissRate) -> Derived:
    """Compute the conservative figure synthesis_confidence * (1 - miss_rate) for every answer.

    Act on `calibrated_confidence` instead: this figure also exists for uncalibrated miss rates.
    """
    retrieval = retrieval_confidence(miss)
    return Derived(
        value=effective(synthesis) * effective(retrieval),
        formula="synthesis_confidence * (1 - miss_rate)",
        inputs={"synthesis_confidence": synthesis, "retrieval_confidence": retrieval},
    )


def calibrated_confidence(
    synthesis: Confidence, miss: MissRate, right_when_missed: Measured | None = None
) -> Confidence:
    """Compute the confidence to act on; it is absent until the miss rate may discount answers.

    It is c (1 - m) + c0 m: c is `synthesis`, m the miss rate, and c0 `right_when_missed`, the
    measured share of right answers among questions whose retrieval missed, if known.
    """
    if miss.value is None or miss.status not in DISCOUNTING or not miss.discounts:
        return Absent(reason="uncalibrated")
    if isinstance(synthesis, Absent):
        return synthesis
    final = final_confidence(synthesis, miss)
    if right_when_missed is None:
        return final
    return Derived(
        value=min(final.value + right_when_missed.value * miss.value, 1.0),
        formula=f"{final.formula} + right_when_missed * miss_rate",
        inputs={**final.inputs, "right_when_missed": right_when_missed},
    )


# ---- The result of an uncertain retrieval.


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

    @classmethod
    def of(
        cls,
        documents: pd.DataFrame,
        indexed: pd.DataFrame,
        n_chunks: int,
        n_vectors: Mapping[str, int],
    ) -> "CorpusCoverage":
        """Count the shares of documents indexed, of text in chunks, and of chunks with vectors.

        `indexed` are the chunks in the index, of `n_chunks` that were cut. `n_vectors` has the
        number of vectors by embedding model.
        """
        n, length = len(indexed), int(documents["text"].str.len().sum())
        n_documents, covered = indexed["doc_id"].nunique(), _count_covered(indexed)
        in_chunks = "characters of the documents that an indexed chunk holds"
        passed = "chunks that the poisoning guard admitted"
        embedded = "chunks whose vectors are in the index"
        return cls(
            documents_indexed=_count_share(
                n_documents, len(documents), "documents with an indexed chunk"
            ),
            text_in_chunks=_count_share(covered, length, in_chunks),
            chunks_admitted=_count_share(n, n_chunks, passed),
            chunks_embedded={
                model: _count_share(count, n, embedded)
                for model, count in sorted(n_vectors.items())
            },
        )


def _count_share(part: int, whole: int, what: str) -> CoverageCount:
    """Describe a counted share."""
    value = min(part / whole, 1.0) if whole else 0.0
    counted = Deterministic(value=value, reason=f"counted: {part} of {whole} {what}")
    return CoverageCount(n=part, of=whole, confidence=counted)


def _count_covered(chunks: pd.DataFrame) -> int:
    """Count the characters in at least one chunk (doc_id, start, end); chunks may overlap."""
    ordered = chunks.sort_values(["doc_id", "start"], kind="stable")
    start, end = (ordered[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    reached = ordered["end"].groupby(ordered["doc_id"]).cummax()
    before = reached.groupby(ordered["doc_id"]).shift(fill_value=0).to_numpy(dtype=np.int64)
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


GapSeverity = Literal["low", "medium", "high"]
SEVERITIES: Final[tuple[GapSeverity, ...]] = get_args(GapSeverity)


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A semantic gap, in the question's own words, and the expansion that may mend it."""

    description: str
    severity: GapSeverity
    mitigation: ExpansionName


COVERAGE_SIGNAL: Final = "cover_union"
"""Signal of the coverage estimate."""
EXPANSION: Final = (
    "original expanded strategy result_count unique_result_count found_unique_results".split()
)
UNCALIBRATED: Final = Absent(reason="uncalibrated")
NO_INTERVAL: Final = "the estimator of this value has no interval"
NO_GAPS: Final = "the retriever returned its own units, which the corpus does not describe"
Line = dict[str, object]
"""A JSON object."""
READ_CHARS, SUMMARY_CHARS = 600, 120
"""Number of characters of a document in which its first sentence is sought, and of the summary."""


@functools.lru_cache(maxsize=100_000)
def summarize(text: str) -> str:
    """Give the first sentence with an end mark, else a heading, masked and cut."""
    masked = masked_text(text[:READ_CHARS])
    sentences = [masked[start:end] for start, end in spans(masked)] or [""]
    whole = (sentence for sentence in sentences if sentence[-1:] in tuple(".!?。！？"))
    return snippet(next(whole, sentences[0]), SUMMARY_CHARS)


@dataclasses.dataclass(frozen=True)
class UncertainRetrieval:
    """The result of one retrieval, with all that is known about its uncertainty.

    Attributes
    ----------
    documents
        The first K results, best first: `chunk_id`, `doc_id`, `rank`, `score`, `summary`.
    miss_rate
        Probability that the retrieval missed, with target, K, status and source.
    heuristic_v0
        The uncalibrated guess, NaN for a failed retrieval.
    similar_judged
        Similar judged questions behind the history of `heuristic_v0`; 0: the constant 0.3.
    coverage
        Share of the question's words, weighted by rarity, that the first K results hold; NaN for a
        question without words.
    corpus
        Counted coverage of the corpus by the index; the JSON has its share of the text.
    gaps
        Semantic gaps, the severest first; None where the corpus does not describe the results.
    iterations
        The rounds of an iterative strategy.
    harder_share
        Share of the last run's retrievals whose miss rate is at most this one; NaN if unknown.
    chunks
        The documents with text and citation payload; None in the files of a run.
    reason
        Reason why there is no better source of the miss rate; may be empty.
    """

    documents: Sequence[Line]
    miss_rate: MissRate
    heuristic_v0: float
    similar_judged: int
    coverage: float
    corpus: CorpusCoverage
    gaps: Sequence[Gap] | None
    iterations: Sequence[Line] = ()
    harder_share: float = math.nan
    chunks: Sequence[ScoredChunk] | None = None
    reason: str = ""

    @property
    def query_difficulty(self) -> Confidence:
        """Share of the last run's retrievals with a higher miss rate; absent until measured."""
        if self.miss_rate.status != "measured" or math.isnan(self.harder_share):
            return UNCALIBRATED
        return Derived(
            value=1 - self.harder_share,
            formula="share of this run's retrievals with a higher miss rate",
            inputs={"retrieval_confidence": retrieval_confidence(self.miss_rate)},
        )

    def as_json(self) -> Line:
        """Write as a JSON object with masked texts; `citations` has the payloads of `chunks`."""
        miss, confidence = self.miss_rate, retrieval_confidence(self.miss_rate)
        gaps: Line = {"semantic_gaps": None, "semantic_gaps_reason": NO_GAPS}
        if self.gaps is not None:
            gaps = {"semantic_gaps": [_describe_gap(gap) for gap in self.gaps]}
        indexed = self.corpus.text_in_chunks.confidence
        why = "the retrieval failed" if miss.value is None else NO_INTERVAL
        rate: Line = {name: getattr(miss, name) for name in ("target", "k", "status", "calibrator")}
        rate |= {"similar_judged": self.similar_judged, "gold_source": miss.gold_source}
        if not miss.gold_source:
            rate["gold_source_reason"] = "it is based on no outcome"
        for name in ("value", "ci_low", "ci_high"):
            rate |= _nullable(name, getattr(miss, name), why)
        line: Line = {
            "documents": list(self.documents),
            "miss_rate": rate | _nullable("heuristic_v0", self.heuristic_v0, why),
            "query_expansions": [
                {part: step[part] for part in EXPANSION} for step in self.iterations
            ],
            **_nullable("coverage_estimate", self.coverage, "the question has no word to cover"),
            "coverage_signal": COVERAGE_SIGNAL,
            "retrieval_confidence": as_json(confidence),
            "uncertainty": {
                "estimated_recall": as_json(
                    confidence if miss.status == "measured" else UNCALIBRATED
                ),
                "query_difficulty": as_json(self.query_difficulty),
                "corpus_coverage": as_json(
                    Deterministic(value=indexed.value, reason=f"index_metadata, {indexed.reason}")
                ),
                **gaps,
            },
            "iterations": list(self.iterations),
        }
        if self.chunks is not None:
            line["citations"] = [payload(chunk) for chunk in self.chunks]
        return line


def describe_document(chunk_id: str, doc_id: str, rank: int, score: float, text: str) -> Line:
    """Describe one retrieved document of `UncertainRetrieval`; ids and summary are masked."""
    ids = {"chunk_id": mask_name(chunk_id), "doc_id": mask_name(doc_id)}
    return {**ids, "rank": rank, "score": number(score), "summary": summarize(text)}


def _describe_gap(gap: Gap) -> Line:
    return {
        "severity": gap.severity,
        "mitigation": gap.mitigation,
        "description": mask_name(gap.description),
        "miss_likelihood": as_json(UNCALIBRATED),
    }


def _nullable(name: str, value: float | None, reason: str) -> Line:
    """Write a number, or null with its reason."""
    rounded = number(math.nan if value is None else value)
    return {name: rounded} if rounded is not None else {name: None, f"{name}_reason": reason}
