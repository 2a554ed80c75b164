"""Trust and poisoning in the report, made from the verdicts on all chunks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray, number
from rag_eval.core.config import Trust
from rag_eval.core.errors import quoted
from rag_eval.core.parts import Name
from rag_eval.core.records import Absent, Figure
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.gold.gold_report import BlockedGold
from rag_eval.trust.guard import UnitVerdicts
from rag_eval.trust.trust_report import (
    BlockedRow,
    FilterRow,
    Poisoning,
    RetrievedTrust,
    TrustFacts,
    TrustFilter,
    TrustPart,
    TrustScores,
)

MAX_QUARANTINED, MAX_ID = 50, 200
STATES = ("domain_state", "signature_state", "author_state", "freshness_state")


class JudgedChunks(NamedTuple):
    """EVIDENCE_TRUST of all chunks, the rows that are indexed, and the addresses of documents."""

    trust: pd.DataFrame
    admitted: IntArray
    urls: Mapping[str, str]


def make_trust_part(
    config: Trust,
    facts: TrustFacts,
    chunks: JudgedChunks,
    gold: BlockedGold,
    *,
    retrieved: Mapping[Name, RetrievedTrust],
    cost: TrustFilter | Absent,
) -> TrustPart:
    """Describe trust over all chunks, and the findings of the guard."""
    states = {name: dict(sorted(Counter(chunks.trust[name]).items())) for name in STATES}
    return TrustPart.model_validate(
        {
            "as_of": facts.as_of,
            "notes": facts.notes,
            "configured": {
                "domains": len(config.domains),
                "authors": len(config.authors),
                "keys": len(config.keys),
                "manifest": config.manifest is not None,
                "unlisted": config.unlisted,
            },
            "scores": _trust_scores(chunks.trust),
            "states": states,
            "retrieved": retrieved,
            "filter": cost,
            "poisoning": _poisoning(config, facts, chunks, gold, retrieved),
        }
    )


def _trust_scores(frame: pd.DataFrame) -> TrustScores | Absent:
    """Summarise the trust of all chunks, including quarantined ones."""
    values = frame["trust"].dropna().to_numpy()
    if not len(values):
        return Absent(reason=NOT_CONFIGURED)
    summary = {name: number(getattr(values, name)()) for name in ("mean", "min", "max")}
    return TrustScores.model_validate({"n_chunks": len(values), **summary})


NOT_CONFIGURED = "the gold set names no trusted domains, authors or keys, so trust is not known"


def _poisoning(
    config: Trust,
    facts: TrustFacts,
    chunks: JudgedChunks,
    gold: BlockedGold,
    retrieved: Mapping[Name, RetrievedTrust],
) -> Poisoning:
    """Describe the findings of the guard, with at most fifty relevant documents and chunks."""
    frame, admitted = chunks.trust, chunks.admitted
    blocked = frame[frame["verdict"] == "blocked"]
    left_out = frame[~np.isin(np.arange(len(frame)), admitted)] if config.withheld else blocked
    reasons = Counter(code for codes in frame["reasons"].tolist() for code in codes)
    return Poisoning.model_validate(
        {
            "rules_version": facts.rules_version,
            "quarantine": config.quarantine,
            "n_chunks": len(frame),
            "n_documents": int(frame["doc_id"].nunique()),
            "n_quarantined": len(frame) - len(admitted),
            "n_blocked": len(blocked),
            "n_blocked_documents": int(blocked["doc_id"].nunique()),
            "n_warned": int((frame["verdict"] == "warning").sum()),
            "n_allowed": int((frame["allowed_by"] != "").sum()),
            "reasons": dict(sorted(reasons.items())),
            "manifest": facts.manifest,
            "quarantined": [
                {
                    "chunk_id": row["chunk_id"],
                    "doc_id": quoted(row["doc_id"], MAX_ID),
                    "source_url": quoted(mask_shown_address(chunks.urls[row["doc_id"]]), MAX_ID),
                    "reasons": list(row["reasons"]),
                }
                for row in left_out.head(MAX_QUARANTINED).to_dict("records")
            ],
            "gold": gold.model_copy(
                update={
                    "documents": [
                        document.model_copy(update={"doc_id": quoted(document.doc_id, MAX_ID)})
                        for document in gold.documents[:MAX_QUARANTINED]
                    ]
                }
            ),
            "retrieved": {
                name: sum(getattr(part, name) for part in retrieved.values())
                for name in ("n_retrieved", "n_blocked", "n_warned")
            },
        }
    )


# ---- What a strategy retrieved

MAX_EXAMPLES = 20
"""Most blocked units of a strategy that the report names."""


def average_trust(trust: FloatArray, rows: IntArray) -> FloatArray:
    """Return the mean trust of the units in each row, [n_runs, k], -1 in an empty place."""
    means, with_any = np.full(len(rows), np.nan), (rows >= 0).any(axis=1)
    # An empty place has row -1, which reads the appended last entry.
    means[with_any] = np.nanmean(np.append(trust, np.nan)[rows[with_any]], axis=1)
    return means


def summarise_retrieved(
    units: UnitVerdicts, query_ids: Sequence[str], rows: IntArray, average: Figure
) -> RetrievedTrust:
    """Count the results with each verdict, and list blocked units, the most frequent ones first.

    `rows`, [n_runs, depth], are the units of the results, -1 in an empty place. A run asks one of
    the wordings, whose questions are `query_ids`.
    """
    verdict = np.append(units.verdict, "")[rows]
    run, place = np.nonzero(verdict == "blocked")
    results = pd.DataFrame(
        {"unit": rows[run, place], "variant": run % len(query_ids), "rank": place + 1}
    )
    results["n"] = results.groupby("unit")["unit"].transform("size")
    results = results.drop_duplicates("unit").join(units.names, on="unit")
    results = results.sort_values(["n", "chunk_id"], ascending=[False, True]).head(MAX_EXAMPLES)
    blocked = [
        BlockedRow.model_validate(
            {name: row[name] for name in ("chunk_id", "doc_id", "rank", "n")}
            | {"query_id": query_ids[row["variant"]], "reasons": units.reasons[row["unit"]]}
        )
        for row in results.to_dict("records")
    ]
    return RetrievedTrust(
        avg_trust=average,
        n_retrieved=int((rows >= 0).sum()),
        n_blocked=len(run),
        n_warned=int((verdict == "warning").sum()),
        blocked=blocked,
    )


def make_trust_filter(
    config: Trust,
    trust: FloatArray,
    deltas: Sequence[Mapping[str, object]],
    figures: Sequence[tuple[Figure, Figure]],
) -> TrustFilter:
    """Describe the cost of the trust filter over chunks with some `trust`.

    `deltas` are differences with the filter minus without it; `a` is the strategy. `figures` are
    those with and without it, in the same order.
    """
    threshold = config.threshold or 0.0
    rows = [
        FilterRow.model_validate(
            {key: value for key, value in row.items() if key not in {"a", "b", "p"}}
            | {"strategy": row["a"], "with_filter": within, "without_filter": without}
        )
        for row, (within, without) in zip(deltas, figures, strict=True)
    ]
    return TrustFilter(
        threshold=threshold,
        applied=config.filter,
        n_chunks=len(trust),
        n_below=int((trust < threshold).sum()),
        rows=rows,
    )
