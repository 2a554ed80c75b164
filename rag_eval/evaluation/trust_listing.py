"""What the guard holds back, chunk by chunk, for a person to look at and to decide on."""

import dataclasses
import datetime as dt
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.outgoing import masked_text, shown_address
from rag_eval.evaluation.corpus_steps import corpus_chunks, corpus_snapshot
from rag_eval.evaluation.guard_steps import restated
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.trust_report import records_of
from rag_eval.evaluation.trust_steps import admitted_rows, as_of, evidence_trust
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.locking import home_lock
from rag_eval.trust.allowing import Decision, read_decisions, record_decision
from rag_eval.trust.scores import explain_factors

MAX_WHO, MAX_WHY, MAX_REASONS = 200, 2000, 100
AT_RETRIEVAL = "at retrieval"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Bytes of the command line that are no UTF-8 arrive as these."""


@dataclasses.dataclass(frozen=True)
class HeldBack:
    """Chunks that are blocked, warned about or allowed, blocked ones first; and over how many chunks.

    A chunk that is only left out of results for questions that it restates has the verdict `at retrieval`. Each row has verdict, chunk_id, doc_id, source_url, trust, reasons, allowed_by.
    """

    gold_set: str
    n_chunks: int
    n_blocked: int
    n_warned: int
    rows: list[dict[str, Any]]
    note: str = ""


def held_back(evaluation: Evaluation, *, warnings: bool = False) -> HeldBack:
    """Collect the chunks that the guard blocks, those that a person allowed, and with `warnings` those it warns about."""
    with home_lock(evaluation.settings.home):
        frame, note = _with_restated(evaluation)
        documents = corpus_snapshot(evaluation).frame("documents")
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    blocked, warned = (
        frame["verdict"].isin(["blocked", AT_RETRIEVAL]),
        frame["verdict"] == "warning",
    )
    shown = frame[
        blocked | (frame["allowed_by"] != "") | (warned if warnings else False)
    ].sort_values(["verdict", "doc_id", "chunk_id"], kind="stable")
    rows = [
        {
            **{
                name: row[name] for name in ("verdict", "chunk_id", "doc_id", "trust", "allowed_by")
            },
            "source_url": shown_address(urls[row["doc_id"]]),
            "reasons": list(row["reasons"]),
        }
        for row in records_of(shown)
    ]
    return HeldBack(
        evaluation.config.name, len(frame), int(blocked.sum()), int(warned.sum()), rows, note
    )


def _with_restated(evaluation: Evaluation) -> tuple[pd.DataFrame, str]:
    """EVIDENCE_TRUST of all chunks, with those that are left out at retrieval named as such; and what to say where the questions cannot be read."""
    frame = evidence_trust(evaluation).frame("trust")
    try:
        pairs = restated(evaluation).frame("pairs")
    except InputError as error:  # what is quarantined does not depend on the questions, and a draft gold set has none yet
        return (
            frame,
            f"what restates a question is not listed: the gold set has {len(error.problems)} problems (rag-eval lint {evaluation.config.name})",
        )
    pairs = pairs[pairs["severity"] == "blocked"]
    admitted = np.flatnonzero(admitted_rows(evaluation))
    found: dict[int, set[str]] = {}
    for chunk, rule in zip(pairs["chunk"].tolist(), pairs["rule"].tolist(), strict=True):
        found.setdefault(int(admitted[chunk]), set()).add(f"restates_query.{rule}")
    reasons, verdicts = frame["reasons"].tolist(), frame["verdict"].tolist()
    for row, codes in found.items():
        reasons[row], verdicts[row] = [*sorted(codes), *reasons[row]], AT_RETRIEVAL
    return frame.assign(verdict=verdicts, reasons=pd.Series(reasons, dtype=object)), ""


def _row_of(evaluation: Evaluation, chunk_id: str) -> int:
    ids = evidence_trust(evaluation).frame("trust")["chunk_id"]
    exact = [place for place, name in enumerate(ids.tolist()) if name == chunk_id]
    found = exact or [
        place for place, name in enumerate(ids.tolist()) if chunk_id and name.startswith(chunk_id)
    ]
    if len(found) != 1:
        raise InputError(
            Problem(
                "unknown_chunk",
                f"{len(found)} chunks of {evaluation.config.name} go by this id",
                field="CHUNK_ID",
                found=chunk_id,
                accepted="a chunk_id as rag-eval trust list shows it, or the start of one",
            )
        )
    return found[0]


def _source_hash(evaluation: Evaluation, doc_id: str) -> str:
    sources = corpus_snapshot(evaluation).frame("sources")
    return str(sources.loc[sources["doc_id"] == doc_id, "source_hash"].iloc[0])


def inspect(evaluation: Evaluation, chunk_id: str) -> dict[str, Any]:
    """Everything that is known of one chunk: trust and its factors, findings, decisions, text and link, both with personal data masked.

    Raises
    ------
    InputError
        No chunk, or several, go by this id.
    """
    with home_lock(evaluation.settings.home):
        stored = evidence_trust(evaluation)
        row = _row_of(evaluation, chunk_id)
        chunk = corpus_chunks(evaluation).frame("chunks").iloc[row]
        documents = corpus_snapshot(evaluation).frame("documents")
        owner = records_of(documents[documents["doc_id"] == chunk["doc_id"]])[0]
        facts = records_of(_with_restated(evaluation)[0].iloc[[row]])[0]
    findings = stored.frame("findings")
    start, end = int(chunk["start"]), int(chunk["end"])
    return {
        **facts,
        "reasons": list(facts["reasons"]),
        "factors": explain_factors(facts, as_of(evaluation)),
        "source_url": shown_address(owner["source_url"]),
        "rev": owner["rev"],
        "source_hash": _source_hash(evaluation, facts["doc_id"]),
        "start": start,
        "end": end,
        "text": text
        if len(text := masked_text(owner["text"])[start:end]) == len(chunk["text"])
        else masked_text(chunk["text"]),
        "findings": records_of(findings[findings["row"] == row].drop(columns="row")),
        "decisions": [
            decision
            for decision in read_decisions(evaluation.base)
            if decision.chunk_id == facts["chunk_id"]
        ],
    }


def decide(
    evaluation: Evaluation, chunk_id: str, *, who: str, why: str, revoke: bool, at: dt.datetime
) -> tuple[Decision, Path]:
    """Record that a person allows a blocked chunk, or no longer does.

    Raises
    ------
    InputError
        There is no such chunk, it is not blocked (or, to revoke, not allowed), or who or why is missing.
    """
    for field, value, most in (("--who", who, MAX_WHO), ("--why", why, MAX_WHY)):
        if not value.strip() or len(value) > most or _SURROGATE.search(value):
            raise InputError(
                Problem(
                    "bad_decision",
                    "a decision needs who made it and why",
                    field=field,
                    found=f"{len(value)} characters",
                    accepted=f"1 to {most} characters of text in UTF-8",
                )
            )
    facts = inspect(evaluation, chunk_id)
    allowed = bool(facts["allowed_by"])
    if revoke and not allowed:
        raise InputError(
            Problem(
                "not_allowed",
                "nobody allows this chunk, so there is nothing to take back",
                field="CHUNK_ID",
                found=facts["chunk_id"],
            )
        )
    if not revoke and facts["verdict"] not in {"blocked", AT_RETRIEVAL}:
        state = f"allowed by {facts['allowed_by']}" if allowed else facts["verdict"]
        raise InputError(
            Problem(
                "not_blocked",
                "only a blocked chunk can be allowed",
                field="CHUNK_ID",
                found=f"{facts['chunk_id']}: {state}",
                accepted="a chunk that rag-eval trust list shows as blocked",
            )
        )
    seen = {name: facts[name] for name in ("chunk_id", "doc_id", "source_hash")}
    decision = Decision(
        **seen,
        action="revoke" if revoke else "allow",
        who=who.strip(),
        why=why.strip(),
        reasons=tuple(facts["reasons"][:MAX_REASONS]),
        at=at,
    )
    return decision, record_decision(evaluation.base, decision)
