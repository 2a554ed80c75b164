"""Trust and poisoning in the report."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PositiveInt, StrictBool

from rag_eval.core.parts import Name
from rag_eval.core.records import (
    Absent,
    Count,
    Counts,
    Figure,
    Record,
    RuleCode,
    ShortText,
    StrategyDelta,
    Text,
    Unit,
)
from rag_eval.gold.lint import BlockedGold

# ---- Trust and poisoning.


class TrustConfigured(Record):
    """Trust settings of the gold set."""

    domains: Count
    authors: Count
    keys: Count
    manifest: StrictBool
    unlisted: Literal["allow", "warn", "block"]


class TrustScores(Record):
    """Trust over all chunks, quarantined ones included."""

    n_chunks: Count
    mean: Unit
    min: Unit
    max: Unit


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


class Manifest(Record):
    """Documents compared with the manifest."""

    signature: Literal["signed", "not_configured"]
    version: Count
    created_at: Text
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


class Poisoning(Record):
    """Findings of the guard. evidence-trust.jsonl lists all chunks."""

    rules_version: str
    quarantine: Literal["none", "blocked", "warnings"]
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
    retrieved: RetrievedCounts


class TrustPart(Record):
    """Trust and poisoning."""

    as_of: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    notes: list[str]
    configured: TrustConfigured
    scores: TrustScores | Absent
    states: dict[str, Counts]
    retrieved: dict[Name, RetrievedTrust]
    filter: TrustFilter | Absent
    poisoning: Poisoning


@dataclass(frozen=True)
class TrustFacts:
    """Facts for the report on the guard: the reference day of ages, and the checked inputs."""

    as_of: str
    rules_version: str
    manifest: Manifest | Absent
    notes: list[str]
