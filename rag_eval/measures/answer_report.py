"""Answers and citations in the report."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rag_eval.core.records import (
    NO_SPREAD,
    NOT_SCORED,
    AnswerFigure,
    Because,
    Count,
    Counts,
    Estimate,
    Figure,
    Hash,
    Open,
    Record,
    Text,
    Unit,
)

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


class AnswersPart(Record):
    """Answers to the questions of the gold set."""

    strategy: str
    modes: list[Literal["deterministic", "llm", "recorded"]]
    model: Annotated[str | None, Because("no question is answered by a model")]
    hash: Hash = Field(description="of every answer, citation and piece of evidence")
    n_questions: Count
    attempts: Counts
    outcomes: Counts
    codes: Counts
    abstain_below: Annotated[
        Unit | None, Because("no question is answered in the deterministic mode")
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
    verdict: Literal["partly", "unsupported"]
    passage: str = Field(description="the cited text that supports the sentence best")
    conflict: str = Field(description="what the passage says otherwise; empty for nothing found")
    lacks: str = Field(description="words in a row that the cited text lacks")


class CitationsPart(Record):
    """Citations of the answers, and the first fifty sentences that they do not support."""

    n_citations: Count
    codes: Counts
    measures: list[AnswerFigure]
    n_unsupported: Count
    unsupported: list[UnsupportedSentence]
