"""Trust stage: every chunk's source trust and verdict, and the chunks that are admitted to the index."""

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.chunking import chunks_hash
from rag_eval.corpus.loading import source_bytes
from rag_eval.evaluation.corpus_steps import corpus_chunks, corpus_snapshot
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.trust_inputs import trust_inputs
from rag_eval.records.problems import InputError, Problem
from rag_eval.records.trust import FINDINGS
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest
from rag_eval.trust.allowing import FILE_NAME as ALLOWED_FILE
from rag_eval.trust.allowing import allowed_chunks, still_meant
from rag_eval.trust.domains import judge_domains, lookalike_notes
from rag_eval.trust.floods import floods
from rag_eval.trust.patterns import RuleSet
from rag_eval.trust.scores import source_trust
from rag_eval.trust.screening import across_titles, screen
from rag_eval.trust.signatures import verify
from rag_eval.trust.source_findings import source_findings
from rag_eval.trust.topic_shift import topic_shift
from rag_eval.trust.verdicts import chunk_verdicts, findings_of_chunks, vouched_for


def as_of(evaluation: Evaluation) -> dt.date:
    """Day that ages are counted to."""
    return evaluation.settings.trust_as_of or dt.datetime.now(dt.UTC).date()


def evidence_trust(evaluation: Evaluation) -> Artifact:
    """Judge every chunk of the corpus.

    Parts: trust (EVIDENCE_TRUST, in the order of chunks), findings (FINDINGS by chunk row), about (as_of, rules_version, manifest, counts).

    Raises
    ------
    InputError
        A signatures file, manifest or list of what is allowed that cannot be used.
    """
    return evaluation.once("trust", lambda: _evidence_trust(evaluation))


def _evidence_trust(evaluation: Evaluation) -> Artifact:
    corpus, chunks = corpus_snapshot(evaluation), corpus_chunks(evaluation)
    config, sources, rules = evaluation.config.trust, corpus.frame("sources"), RuleSet.load()
    source_hashes = dict(
        zip(sources["doc_id"].tolist(), sources["source_hash"].tolist(), strict=True)
    )
    (allowed, outdated), inputs = (
        still_meant(allowed_chunks(evaluation.base), source_hashes),
        trust_inputs(evaluation, corpus),
    )
    notes = inputs.notes + (
        [
            f"{len(outdated)} of the decisions in {ALLOWED_FILE} do not count: their documents have other bytes now, or they do not say which they are about"
        ]
        if outdated
        else []
    )
    day = as_of(evaluation)
    dated = bool((sources["date"] != "").any())
    judged = config.model_dump(mode="json", include={"domains", "authors", "keys", "unlisted"})
    key = evaluation.key(
        "trust",
        corpus.key,
        chunks.key,
        judged,
        inputs.identity,
        rules.version,
        sorted(allowed.items()),
        notes,
        day.isoformat() if dated else None,
    )

    def make() -> dict[str, Any]:
        documents, frame = corpus.frame("documents"), chunks.frame("chunks")
        states = None
        if config.keys:
            with evaluation.progress.step("Verifying signatures"):
                states = verify(
                    _unchanged_bytes(evaluation, sources), inputs.signatures, config.keys
                )
        facts = source_trust(sources, config, states, day)
        imitated = lookalike_notes(judge_domains(sources["domain"].tolist(), config.domains))
        about_sources = source_findings(
            sources, facts, config, None if inputs.check is None else inputs.check.states, imitated
        )
        parts = [about_sources, _screened(evaluation, corpus, facts, rules).frame("findings")]
        found = FINDINGS.check(
            pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
        )
        with evaluation.progress.step("Judging chunks"):
            spread = findings_of_chunks(found, pd.Index(documents["doc_id"]), frame)
            joined = across_titles(frame["title"].tolist(), frame["text"].tolist(), rules)
            spread = (
                FINDINGS.check(pd.concat([spread, joined], ignore_index=True))
                if len(joined)
                else spread
            )
            trust = chunk_verdicts(
                frame, facts.assign(doc_id=documents["doc_id"].to_numpy()), spread, allowed
            )
        about = {
            "as_of": day.isoformat(),
            "rules_version": rules.version,
            "manifest": inputs.manifest,
            "n_quarantined": int((trust["verdict"] == "blocked").sum()),
            "notes": notes,
        }
        return {"trust": trust, "findings": spread, "about": about}

    return evaluation.memo("trust", key, make)


def _unchanged_bytes(evaluation: Evaluation, sources: pd.DataFrame) -> dict[str, bytes]:
    """Bytes of the documents read again for their signatures; they must be those that the snapshot was made of."""
    import hashlib

    read = source_bytes(evaluation.config.corpus, evaluation.base)
    for doc_id, expected in zip(
        sources["doc_id"].tolist(), sources["source_hash"].tolist(), strict=True
    ):
        if hashlib.sha256(read.get(doc_id, b"")).hexdigest() != expected:
            raise InputError(
                Problem(
                    "corpus_changed",
                    "the document changed while the corpus was read; run again",
                    file=str(evaluation.base),
                    field="doc_id",
                    found=doc_id,
                )
            )
    return read


def _screened(
    evaluation: Evaluation, corpus: Artifact, facts: pd.DataFrame, rules: RuleSet
) -> Artifact:
    """Screen the texts, apart from what is said of their sources: neither a day nor what a person allows makes this again. Part: findings (FINDINGS by document row)."""
    vouched = vouched_for(facts["domain_state"].tolist(), facts["signature_state"].tolist())
    key = evaluation.key(
        "screened", corpus.key, rules.version, None if vouched is None else vouched.tolist()
    )

    def make() -> dict[str, Any]:
        documents = corpus.frame("documents")
        texts, domains = documents["text"].tolist(), facts["domain"].tolist()
        with evaluation.progress.step("Screening the corpus", len(texts), "documents") as advance:
            parts = [
                screen(texts, rules),
                screen(documents["title"].tolist(), rules).assign(start=-1, end=-1),
            ]
            advance(len(texts))
        with evaluation.progress.step("Looking for topic shifts and floods"):
            parts += [topic_shift(texts, domains), floods(texts, domains, vouched=vouched)]
        return {
            "findings": FINDINGS.check(
                pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
            )
        }

    return evaluation.memo("screened", key, make)


def admitted_chunks(evaluation: Evaluation) -> Artifact:
    """Chunks that may be indexed: all but the quarantined ones, in the same order. Parts: chunks, about (chunks_hash, n_chunks).

    Raises
    ------
    InputError
        Nothing is left to index.
    """
    return evaluation.once("admitted", lambda: _admitted_chunks(evaluation))


def _admitted_chunks(evaluation: Evaluation) -> Artifact:
    chunks, trust = corpus_chunks(evaluation), evidence_trust(evaluation)
    if not evaluation.config.trust.quarantine or not trust.json("about")["n_quarantined"]:
        return chunks
    admitted = admitted_rows(evaluation)

    def make() -> dict[str, Any]:
        kept = chunks.frame("chunks")[admitted].reset_index(drop=True)
        if kept.empty:
            raise InputError(
                Problem(
                    "empty_index",
                    "every chunk is quarantined, so there is nothing to retrieve",
                    file=str(evaluation.base),
                    field="corpus",
                    accepted=f"rag-eval trust list shows why; what is harmless is allowed in {ALLOWED_FILE}",
                )
            )
        return {
            "chunks": kept,
            "about": {
                "chunks_hash": chunks_hash(kept, evaluation.config.corpus.chunker),
                "n_chunks": len(kept),
                "text_hashes": digest(kept["text_hash"].tolist()),
            },
        }

    # a stage of the same name as all chunks: kept runs name the chunks that were indexed by it, whether or not some were held back
    # the key names what is held back and not why: documents that grew a day older are no reason to index anew
    return evaluation.memo(
        "chunks", evaluation.key("admitted", chunks.key, np.flatnonzero(~admitted).tolist()), make
    )


def admitted_rows(evaluation: Evaluation) -> np.ndarray:
    """Which chunks are admitted, bool [n_chunks]."""
    verdict = evidence_trust(evaluation).frame("trust")["verdict"].to_numpy()
    return (
        np.asarray(verdict != "blocked")
        if evaluation.config.trust.quarantine
        else np.ones(len(verdict), dtype=bool)
    )


def admitted_trust(evaluation: Evaluation) -> pd.DataFrame:
    """EVIDENCE_TRUST of the admitted chunks, in their order."""
    return evaluation.once(
        "admitted trust",
        lambda: (
            evidence_trust(evaluation)
            .frame("trust")[admitted_rows(evaluation)]
            .reset_index(drop=True)
        ),
    )
