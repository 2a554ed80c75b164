"""Confidence in an answer: its groundedness, discounted by the miss rate of its retrieval.

This file holds the stated miss rate (`MissRate`), the confidence values that follow from it, and
the result of an uncertain retrieval. `estimator` estimates the miss rate.
"""

import dataclasses
import datetime as dt
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from rag_eval.citations.payload import payload
from rag_eval.core.arrays import number
from rag_eval.core.types import DISCOUNTING, Answer, ScoredChunk, Status, Target, snippet
from rag_eval.corpus.chunking import spans
from rag_eval.corpus.masking import mask_name, masked_text
from rag_eval.measures.overlap import NamedGold, SharedGold, mean_interval
from rag_eval.uncertainty.claims import RateSource
from rag_eval.uncertainty.confidence_values import (
    Absent,
    Bounded,
    Confidence,
    Derived,
    Deterministic,
    Measured,
    as_json,
    effective,
)
from rag_eval.uncertainty.gaps import Gap
from rag_eval.uncertainty.miss_rate_report import CorpusCoverage, CoverageCount


@dataclasses.dataclass(frozen=True, slots=True)
class MissRate:
    """The stated probability that a retrieval missed, with its status, target, K and gold source.

    `value` is None without an estimate, and the interval is None if unknown. `gold_source` is None
    without outcomes, `measured_at` without a fit. `calibrator` is the id of the calibrator
    or of the prior, or `heuristic_v0`. It was fitted on `n_outcomes`. `discounts` says whether the
    calibrator was better than the base rate, so that answers may be discounted.
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


def retrieval_confidence(miss: MissRate) -> Confidence:
    """Compute 1 - miss rate and name the evidence for the hit rate as its input."""
    if miss.value is None:
        return Absent(reason="insufficient_data")
    hit = 1 - miss.value
    return Derived(
        value=hit, formula="1 - miss_rate", inputs={"hit_rate": _describe_evidence(miss, hit)}
    )


def _describe_evidence(miss: MissRate, hit: float) -> Confidence:
    if miss.status in {"uncalibrated", "stale"}:
        return Absent(reason="uncalibrated")
    counted = f"{miss.n_outcomes} outcomes, {miss.status}"
    if miss.ci_low is None or miss.ci_high is None:
        others = "other wordings of the question among them; no interval is known"
        basis = f"{counted}, {others}"
        return Bounded(low=0.0, high=1.0, basis=basis, citation=miss.calibrator)
    low, high = min(1 - miss.ci_high, hit), max(1 - miss.ci_low, hit)
    if miss.status == "measured" and miss.measured_at is not None:
        return Measured(
            value=hit,
            dataset=f"outcomes ({miss.gold_source}) of {miss.target}@{miss.k}",
            n=miss.n_outcomes,
            ci_low=low,
            ci_high=high,
            measured_at=miss.measured_at,
        )
    if miss.status == "prior":
        counted = (
            "shipped prior coefficients, fitted on collections with one and with many relevant"
            " chunks a question; no outcomes of this strategy"
        )
    return Bounded(low=low, high=high, basis=counted, citation=miss.calibrator)


def groundedness_confidence(groundedness: float | None) -> Confidence:
    """Compute the synthesis confidence of a deterministic answer: the mean groundedness.

    `groundedness` is the mean over the answer's sentences. It is None for an answer without
    sentences, and then the confidence is absent.
    """
    if groundedness is None:
        return Absent(reason="not_applicable")
    counted = Deterministic(
        value=groundedness,
        reason=(
            "counted: idf-weighted share of each sentence's words found in the evidence, "
            "mean over sentences"
        ),
    )
    formula = "mean groundedness of the answer's sentences"
    return Derived(value=groundedness, formula=formula, inputs={"groundedness": counted})


def reported_confidence(reported: float | None, system: str) -> Confidence:
    """Give the synthesis confidence that a model or recorded system reported; absent without it."""
    if reported is None:
        return Absent(reason="insufficient_data")
    basis = "reported by the system that answered, not checked here"
    bounded = Bounded(low=0.0, high=reported, basis=basis, citation=system)
    return Derived(
        value=reported, formula="as reported by the system", inputs={"reported": bounded}
    )


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

    `right_when_missed` is c0, the measured share of right answers among questions whose retrieval
    missed. With c0 the confidence is c (1 - m) + c0 m. Here c is `synthesis`, the confidence in the
    answer given its evidence, and m is the miss rate.
    """
    if miss.value is None or miss.status not in DISCOUNTING or not miss.discounts:
        return Absent(reason="uncalibrated")
    if isinstance(synthesis, Absent):
        return synthesis
    final = final_confidence(synthesis, miss)
    if right_when_missed is None:
        return final
    missed = 1 - effective(final.inputs["retrieval_confidence"])
    return Derived(
        value=min(final.value + right_when_missed.value * missed, 1.0),
        formula=f"{final.formula} + right_when_missed * miss_rate",
        inputs={**final.inputs, "right_when_missed": right_when_missed},
    )


def read_miss_rate(row: Mapping[Any, Any], source: RateSource) -> MissRate:
    """Read the miss rate in a row of CLAIMS."""
    value, low, high = (
        None if np.isnan(row[name]) else float(row[name])
        for name in ("miss_rate", "ci_low", "ci_high")
    )
    return MissRate(
        value,
        low,
        high,
        row["status"],
        row["target"],
        int(row["k"]),
        ", ".join(source.gold_sources) or None,
        row["calibrator"],
        source.n_outcomes,
        source.fitted_at,
        source.discounts,
    )


# ---- The confidence values of the answers of a run.

MIN_MISSED = 30
"""A share of right answers needs answers over missed retrievals from at least this many groups."""
AnswerValues = Mapping[str, Confidence]
"""Confidence values of one answer by name."""


@dataclasses.dataclass(frozen=True)
class AnswerWorth:
    """Confidence values of the answers of a run by query id; empty without answers.

    `strategy` gives the evidence of the answers. `right_when_missed` is the share of answers that
    cite gold despite a miss; None for too few answers.
    """

    strategy: str = ""
    by_query: Mapping[str, AnswerValues] = dataclasses.field(default_factory=dict)
    right_when_missed: Measured | None = None


class AnswerGold(NamedTuple):
    """Gold of the questions of answers: group by query id, gold documents, and its hash."""

    group_of: Mapping[str, int]
    named: NamedGold
    hash: str


def weigh_answers(
    strategy: str,
    answers: Sequence[Answer],
    scores: pd.DataFrame,
    claims: pd.DataFrame,
    *,
    source: RateSource,
    missed: Collection[str],
    gold: AnswerGold,
) -> AnswerWorth:
    """Compute the confidence values of every answer.

    `scores` has the measures of the answers by query id. `claims` are those of the original
    wordings, and `missed` the ids of the questions that they missed.
    """
    over = scores[scores.index.isin(missed) & (scores["outcome"] == "answered")]
    over = over[over["n_gold"] > 0]
    by_answer = pd.DataFrame(
        {
            "right": (over["n_correct"].to_numpy() > 0).astype(np.float64),
            "group": [gold.group_of[query] for query in over.index],
            "place": np.arange(len(over)),
        }
    )
    right, right_of_group = None, dict[int, Measured]()
    if by_answer["group"].nunique() >= MIN_MISSED:
        shared = gold.named.of(over.index.tolist())
        share = functools.partial(_share_right, gold=shared, name=gold.hash[:16])
        # With the answers of its own group, the outcome of an answer would decide its confidence.
        right, right_of_group = share(by_answer), leave_groups_out(by_answer, share)
    rows = {row["query_id"]: row for row in claims.to_dict("records")}
    by_query: dict[str, AnswerValues] = {}
    for answer in answers:
        query, answered = answer.query_id, answer.outcome == "answered"
        if answer.mode == "deterministic":
            value = scores["groundedness"][query]
            is_scored = answered and not pd.isna(value)
            synthesis = groundedness_confidence(float(value) if is_scored else None)
        else:
            synthesis = reported_confidence(answer.confidence if answered else None, answer.mode)
        miss = read_miss_rate(rows[query], source)
        of_others = right_of_group.get(gold.group_of[query], right)
        by_query[query] = {
            "synthesis_confidence": synthesis,
            "retrieval_confidence": retrieval_confidence(miss),
            "final_confidence": final_confidence(synthesis, miss),
            "calibrated_confidence": calibrated_confidence(synthesis, miss, of_others),
        }
    return AnswerWorth(strategy, by_query, right)


T = TypeVar("T")


def _share_right(rows: pd.DataFrame, gold: SharedGold, name: str) -> Measured:
    bounds = mean_interval(rows["right"].to_numpy(), gold.take(rows["place"].to_numpy()))
    value, low, high, _ = (float(end[0]) for end in bounds)
    return Measured(
        value=value,
        dataset=f"answers over missed retrievals, gold {name}",
        n=len(rows),
        ci_low=low,
        ci_high=high,
        measured_at=dt.datetime.now(dt.UTC),
    )


def leave_groups_out(rows: pd.DataFrame, share: Callable[[pd.DataFrame], T]) -> dict[int, T]:
    """Compute a value for each group of `rows` (right, group) from the rows of other groups.

    Groups of a single row share the computation with those of an equal one.
    """
    totals = rows.groupby("group")["right"].agg(["sum", "count"])
    kind_of = {
        group: ("alone", right) if count == 1 else ("group", group)
        for group, right, count in totals.itertuples()
    }
    example = {kind: group for group, kind in kind_of.items()}
    by_kind = {kind: share(rows[rows["group"] != group]) for kind, group in example.items()}
    return {group: by_kind[kind] for group, kind in kind_of.items()}


# ---- Retrievable share of the corpus: counted from the index, not estimated.


def count_share(part: int, whole: int, what: str) -> CoverageCount:
    """Describe a counted share."""
    value = min(part / whole, 1.0) if whole else 0.0
    counted = Deterministic(value=value, reason=f"counted: {part} of {whole} {what}")
    return CoverageCount(n=part, of=whole, confidence=counted)


def count_covered(chunks: pd.DataFrame) -> int:
    """Count the characters in at least one chunk (doc_id, start, end); chunks may overlap."""
    ordered = chunks.sort_values(["doc_id", "start"], kind="stable")
    start, end = (ordered[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    reached = ordered["end"].groupby(ordered["doc_id"]).cummax()
    before = reached.groupby(ordered["doc_id"]).shift(fill_value=0).to_numpy(dtype=np.int64)
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


# ---- The result of an uncertain retrieval.

COVERAGE_SIGNAL: Final = "cover_union"
"""Signal of the coverage estimate: share of the question's words, weighted by rarity, in the top K.
"""
EXPANSION: Final = (
    "original",
    "expanded",
    "strategy",
    "result_count",
    "unique_result_count",
    "found_unique_results",
)
UNCALIBRATED: Final = Absent(reason="uncalibrated")
NO_INTERVAL: Final = "the estimator of this value has no interval"
NO_GAPS: Final = "the retriever returned its own units, which the corpus does not describe"
Line = dict[str, object]
"""A JSON object."""
END_MARKS: Final = tuple(".!?。！？")
READ_CHARS, SUMMARY_CHARS = 600, 120
"""Number of characters of a document in which its first sentence is sought, and of the summary."""


@functools.lru_cache(maxsize=100_000)
def summarize(text: str) -> str:
    """Give the first sentence of a text, masked and cut.

    A heading has no end mark, so it is taken only if no sentence has an end mark.
    """
    masked = masked_text(text[:READ_CHARS])
    sentences = [masked[start:end] for start, end in spans(masked)] or [""]
    whole = (sentence for sentence in sentences if sentence[-1:] in END_MARKS)
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
            value=min(max(1 - self.harder_share, 0.0), 1.0),
            formula="share of this run's retrievals with a higher miss rate",
            inputs={"retrieval_confidence": retrieval_confidence(self.miss_rate)},
        )

    def as_json(self) -> Line:
        """Write as a JSON object with masked texts; `citations` has the payloads of `chunks`."""
        confidence = retrieval_confidence(self.miss_rate)
        measured = self.miss_rate.status == "measured"
        gaps: Line = {"semantic_gaps": None, "semantic_gaps_reason": NO_GAPS}
        if self.gaps is not None:
            gaps = {"semantic_gaps": [_describe_gap(gap) for gap in self.gaps]}
        indexed = self.corpus.text_in_chunks.confidence
        line: Line = {
            "documents": list(self.documents),
            "miss_rate": self._describe_miss_rate(),
            "query_expansions": [
                {part: step[part] for part in EXPANSION} for step in self.iterations
            ],
            **_nullable("coverage_estimate", self.coverage, "the question has no word to cover"),
            "coverage_signal": COVERAGE_SIGNAL,
            "retrieval_confidence": as_json(confidence),
            "uncertainty": {
                "estimated_recall": as_json(confidence if measured else UNCALIBRATED),
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

    def _describe_miss_rate(self) -> Line:
        """Describe the miss rate in JSON values, with a reason for each null."""
        miss = self.miss_rate
        why = "the retrieval failed" if miss.value is None else NO_INTERVAL
        fields: Line = {}
        for name, value in (
            ("value", miss.value),
            ("ci_low", miss.ci_low),
            ("ci_high", miss.ci_high),
            ("heuristic_v0", self.heuristic_v0),
        ):
            fields |= _nullable(name, math.nan if value is None else value, why)
        fields |= {name: getattr(miss, name) for name in ("target", "k", "status", "calibrator")}
        fields |= {"similar_judged": self.similar_judged, "gold_source": miss.gold_source}
        if not miss.gold_source:
            fields["gold_source_reason"] = "it is based on no outcome"
        return fields


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


def _nullable(name: str, value: float, reason: str) -> Line:
    """Write a number, or null with its reason."""
    rounded = number(value)
    return {name: rounded} if rounded is not None else {name: None, f"{name}_reason": reason}
