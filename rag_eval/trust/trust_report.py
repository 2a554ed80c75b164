"""Trust and poisoning in the report."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, Self

import pandas as pd
from pydantic import Field, PositiveInt, StrictBool

from rag_eval.core.arrays import number
from rag_eval.core.config import Trust
from rag_eval.core.errors import Place, Problem, quoted
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
from rag_eval.corpus.masking import mask_shown_address

NOT_CONFIGURED: Final = (
    "the gold set names no trusted domains, authors or keys, so trust is not known"
)
_MAX_QUARANTINED, _MAX_ID = 50, 200
_STATES = ("domain_state", "signature_state", "author_state", "freshness_state")

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

    @classmethod
    def of(cls, qrels: pd.DataFrame, doc_ids: pd.Series, admitted: pd.Series) -> Self:
        """Find the relevant documents (QRELS) with chunks that are not admitted to the index.

        `doc_ids` [n_chunks] holds the document of each chunk. `admitted` [n_indexed] holds the
        document of each indexed chunk.
        """
        relevant = qrels[qrels["gain"] > 0]
        n_chunks = Counter(doc_ids)
        n_blocked = n_chunks - Counter(admitted)
        touched = relevant[relevant["item_id"].isin(list(n_blocked))]
        documents = [
            BlockedGoldDocument(
                doc_id=doc_id, n_chunks=n_chunks[doc_id], n_blocked=n_blocked[doc_id], n_queries=n
            )
            for doc_id, n in touched.groupby("item_id")["query_id"].nunique().items()
        ]
        return cls(
            n_documents=int(relevant["item_id"].nunique()),
            n_blocked=len(documents),
            n_wholly_blocked=sum(document.n_blocked == document.n_chunks for document in documents),
            n_queries=int(relevant["query_id"].nunique()),
            n_queries_blocked=int(touched["query_id"].nunique()),
            documents=sorted(
                documents, key=lambda document: (-document.n_queries, document.doc_id)
            ),
        )


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


@dataclasses.dataclass(frozen=True)
class TrustFacts:
    """Facts for the report on the guard: the reference day of ages, and the checked inputs."""

    as_of: str
    rules_version: str
    manifest: Manifest | Absent
    notes: list[str]


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

    @classmethod
    def of(  # noqa: PLR0917 - the parts of one summary
        cls,
        config: Trust,
        facts: TrustFacts,
        trust: pd.DataFrame,
        gold: BlockedGold,
        retrieved: dict[str, RetrievedTrust],
        cost: TrustFilter | Absent,
    ) -> "TrustPart":
        """Summarise EVIDENCE_TRUST with the columns `source_url` and `is_indexed`."""
        return cls(
            as_of=facts.as_of,
            notes=facts.notes,
            configured=TrustConfigured(
                domains=len(config.domains),
                authors=len(config.authors),
                keys=len(config.keys),
                manifest=config.manifest is not None,
                unlisted=config.unlisted,
            ),
            scores=_summarise_scores(trust),
            states={name: dict(sorted(Counter(trust[name]).items())) for name in _STATES},
            retrieved=retrieved,
            filter=cost,
            poisoning=_summarise_guard(config, facts, trust, gold, retrieved),
        )


def _summarise_scores(trust: pd.DataFrame) -> TrustScores | Absent:
    """Summarise the trust of all chunks, including quarantined ones."""
    values = trust["trust"].dropna().to_numpy()
    if not len(values):
        return Absent(reason=NOT_CONFIGURED)
    summary = {name: number(getattr(values, name)()) for name in ("mean", "min", "max")}
    return TrustScores.model_validate({"n_chunks": len(values), **summary})


def _summarise_guard(
    config: Trust,
    facts: TrustFacts,
    trust: pd.DataFrame,
    gold: BlockedGold,
    retrieved: Mapping[str, RetrievedTrust],
) -> Poisoning:
    """Describe the findings of the guard, with at most fifty relevant documents and chunks."""
    blocked = trust[trust["verdict"] == "blocked"]
    left_out = trust[~trust["is_indexed"]]
    reasons = Counter(code for codes in trust["reasons"].tolist() for code in codes)
    documents = [
        document.model_copy(update={"doc_id": quoted(document.doc_id, _MAX_ID)})
        for document in gold.documents[:_MAX_QUARANTINED]
    ]
    return Poisoning.model_validate(
        {
            "rules_version": facts.rules_version,
            "quarantine": config.quarantine,
            "n_chunks": len(trust),
            "n_documents": int(trust["doc_id"].nunique()),
            "n_quarantined": len(left_out),
            "n_blocked": len(blocked),
            "n_blocked_documents": int(blocked["doc_id"].nunique()),
            "n_warned": int((trust["verdict"] == "warning").sum()),
            "n_allowed": int((trust["allowed_by"] != "").sum()),
            "reasons": dict(sorted(reasons.items())),
            "manifest": facts.manifest,
            "quarantined": [
                {
                    "chunk_id": row["chunk_id"],
                    "doc_id": quoted(row["doc_id"], _MAX_ID),
                    "source_url": quoted(mask_shown_address(row["source_url"]), _MAX_ID),
                    "reasons": list(row["reasons"]),
                }
                for row in (left_out if config.withheld else blocked)
                .head(_MAX_QUARANTINED)
                .to_dict("records")
            ],
            "gold": gold.model_copy(update={"documents": documents}),
            "retrieved": {
                name: sum(getattr(part, name) for part in retrieved.values())
                for name in ("n_retrieved", "n_blocked", "n_warned")
            },
        }
    )


# ---- Relevant documents that the poisoning guard keeps out of the index

MAX_BLOCKED = 20
"""Largest number of warnings that name a document. One more warning counts the rest."""


def blocked_problems(blocked: BlockedGold) -> list[Problem]:
    """Warn of each blocked document, in the order of `blocked.documents`, and count the rest."""
    more: Place = {"field": "corpus", "severity": "warning"}
    more["accepted"] = "evidence-trust.jsonl says why a chunk is left out; trust allow lets it in"
    messages = [
        f"the poisoning guard leaves out {document.n_blocked} of {document.n_chunks} chunks of"
        f" {quoted(document.doc_id)}, which is relevant to {document.n_queries} of"
        f" {blocked.n_queries} questions"
        for document in blocked.documents[:MAX_BLOCKED]
    ]
    if blocked.n_blocked > MAX_BLOCKED:
        messages.append(
            f"the poisoning guard leaves out chunks of {blocked.n_blocked} of {blocked.n_documents}"
            f" relevant documents; {blocked.n_blocked - MAX_BLOCKED} more are not listed"
        )
    return [Problem("gold_blocked", message, **more) for message in messages]
