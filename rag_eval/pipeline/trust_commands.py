"""Commands about trust: allow documents, sign the corpus, verify its signatures and manifest."""

import datetime as dt
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rag_eval.core.errors import InputError, check_decision, quoted
from rag_eval.corpus.loading import source_bytes
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.corpus.source import resolve
from rag_eval.pipeline.corpus import CorpusSnapshot
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.runner import Runner
from rag_eval.storage.files import write_bytes, write_text
from rag_eval.trust.allowances import MAX_REASONS, Decision, record_decisions
from rag_eval.trust.signatures import (
    check_acceptable,
    compare_manifest,
    format_signature,
    last_accepted,
    make_manifest,
    name_key,
    read_manifest,
    read_private_key,
    read_signatures,
    sign,
    signature_beside,
    verify,
)

MAX_NAMED = 20
"""Most documents that a message names."""


def _name_some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(quoted(name, 100) for name in names[:MAX_NAMED]) + more


# ---- Allowing


def allow_documents(
    evaluation: Evaluation, option: str, value: str, *, who: str, why: str
) -> tuple[list[Decision], Path]:
    """Record that a person allows the documents that the last run held back.

    `option` is --document (`value` is an id) or --page (a link, or a document with this link).

    Raises
    ------
    InputError
        Nothing was judged here yet, no such document is held back, or who or why is no text.
    """
    who, why = check_decision(who, why)
    recorded = evaluation.find_recorded("evidence_trust")
    if recorded is None:
        message = "nothing was judged here yet, so nothing can be allowed"
        accepted = f"rag-eval run {evaluation.config.name}, and then this command"
        raise InputError.of("not_judged", message, field=option, accepted=accepted)
    trust = recorded.frame("trust", ["doc_id", "verdict", "reasons", "allowed_by"])
    poor = trust["verdict"].isin({"blocked", *evaluation.config.trust.withheld})
    refused = trust[poor & (trust["allowed_by"] == "")]
    corpus = recorded.input("corpus_snapshot")
    documents = corpus.frame("documents", ["doc_id", "source_url"])
    wanted = {value} if option == "--document" else _share_page(documents, value)
    chosen = refused[refused["doc_id"].isin(wanted)]
    if chosen.empty:
        raise InputError.of(
            "not_blocked",
            "the last run held no such document back",
            field=option,
            found=value,
            accepted=_name_some(sorted(set(refused["doc_id"]))) or "nothing: no chunk is held back",
        )
    sources = corpus.frame("sources", ["doc_id", "source_hash"])
    hashes = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    now = dt.datetime.now(dt.UTC)
    decisions = [
        Decision(
            doc_id=doc_id,
            source_hash=hashes[doc_id],
            who=who,
            why=why,
            reasons=tuple(sorted(reasons.explode().unique())[:MAX_REASONS]),
            at=now,
        )
        for doc_id, reasons in chosen.groupby("doc_id", sort=True)["reasons"]
    ]
    return decisions, record_decisions(evaluation.base, decisions)


def _share_page(documents: pd.DataFrame, wanted: str) -> set[str]:
    """List the documents of a page: all whose link is `wanted`, or the link of this document."""
    links = documents["source_url"].str.partition("#")[0]
    link = dict(zip(documents["doc_id"], links, strict=True)).get(wanted) or wanted
    return set(documents.loc[(links == link) | (links.map(mask_shown_address) == link), "doc_id"])


# ---- Signing


def sign_corpus(runner: Runner, key: Path | None) -> list[str]:
    """Write what trust.manifest and trust.signatures name, for the documents as they are now.

    Returns a line about each file. The version of the manifest is one higher than that of the
    replaced manifest and of all accepted ones.

    Raises
    ------
    InputError
        Neither key is configured, or the private key is missing or not one of `trust.keys`.
    """
    evaluation = runner.evaluation
    config, base = evaluation.config.trust, evaluation.base
    if config.manifest is None and config.signatures is None:
        message = "the gold set names no file to write"
        accepted = "manifest: manifest.json, or signatures: signatures.jsonl with keys"
        raise InputError.of("nothing_to_sign", message, field="trust", accepted=accepted)
    if key is None and config.keys:
        message = "keys are configured, so no run accepts a file that is not signed"
        accepted = f"the private key of {', '.join(sorted(config.keys))}"
        raise InputError.of("missing_key", message, field="--key", accepted=accepted)
    private = None if key is None else read_private_key(key)
    name = "" if private is None else name_key(private, config.keys)
    lines = []
    with evaluation.lock:
        if config.signatures is not None and private is not None:
            signed = [
                format_signature(doc_id, name, sign(private, data))
                for doc_id, data in sorted(source_bytes(evaluation.config.corpus, base).items())
            ]
            write_text(path := resolve(config.signatures, base), "".join(signed))
            lines.append(f"{len(signed):,} documents signed in {path}")
        if config.manifest is not None:
            sources = runner.get(CorpusSnapshot).sources
            path = resolve(config.manifest, base)
            replaced = read_manifest(path, {}).content.version if path.exists() else 0
            _, accepted_last = last_accepted(evaluation.home, evaluation.config.name)
            version = 1 + max(replaced, 0 if accepted_last is None else accepted_last.highest)
            now = dt.datetime.now(dt.UTC)
            data = make_manifest(sources, evaluation.config.name, version, now)
            # Delete the old signature first, so that it never stands beside the new manifest.
            signature_beside(path).unlink(missing_ok=True)
            write_bytes(path, data)
            if private is not None:
                write_text(signature_beside(path), f"{sign(private, data)}\n")
            lines.append(f"{len(sources):,} documents recorded in {path} as version {version}")
    return lines


# ---- Verifying


class Verified(NamedTuple):
    """Lines about signatures and manifest, and whether every document is as it should be."""

    lines: list[str]
    holds: bool


def verify_corpus(runner: Runner) -> Verified:
    """Check the documents as they are now against the signatures and the manifest.

    Raises
    ------
    InputError
        A file cannot be used; `manifest_not_newer` for a manifest older than an accepted one.
    """
    evaluation = runner.evaluation
    config, base = evaluation.config.trust, evaluation.base
    lines: list[str] = []
    with evaluation.lock:
        sources = runner.get(CorpusSnapshot).sources
    states: dict[str, list[str]] = {}
    if config.signatures is not None:
        signatures = read_signatures(resolve(config.signatures, base), config.keys)
        documents = source_bytes(evaluation.config.corpus, base)
        for doc_id, signed in verify(documents, signatures, config.keys).items():
            states.setdefault(f"signature {signed}", []).append(doc_id)
    if config.manifest is not None:
        manifest = read_manifest(resolve(config.manifest, base), config.keys)
        check_acceptable(evaluation.home, evaluation.config.name, manifest)
        compared, deleted = compare_manifest(sources, manifest.content.documents)
        for doc_id, compared_state in zip(sources["doc_id"], compared, strict=True):
            states.setdefault(f"manifest {compared_state}".replace("_", " "), []).append(doc_id)
        if deleted:
            states["manifest deleted"] = deleted
    for state, doc_ids in sorted(states.items()):
        good = state in {"signature valid", "manifest same"}
        names = "" if good else f": {_name_some(sorted(doc_ids))}"
        lines.append(f"{state} {len(doc_ids):,}{names}")
    if not lines:
        lines.append("the gold set names neither trust.signatures nor trust.manifest")
    return Verified(lines, states.keys() <= {"signature valid", "manifest same"})
