"""Commands about trust: allow documents, record and sign the corpus, verify it."""

import datetime as dt
from pathlib import Path

import pandas as pd

from rag_eval.core.errors import InputError, check_decision, quoted
from rag_eval.corpus.loading import resolve
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.pipeline.corpus import CorpusSnapshot
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.runner import Runner
from rag_eval.storage.home import write_bytes, write_text
from rag_eval.trust.signatures import (
    MAX_REASONS,
    Decision,
    accept_manifest,
    compare_manifest,
    last_accepted,
    make_manifest,
    read_manifest,
    read_private_key,
    record_decisions,
    sign,
    signature_beside,
)

_MAX_NAMED = 20
"""Most documents that a message names."""


def _name_some(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(quoted(name, 100) for name in names[:_MAX_NAMED]) + more


def allow_documents(
    evaluation: Evaluation, option: str, value: str, *, who: str, why: str
) -> tuple[list[Decision], Path]:
    """Record that a person allows documents that the last run held back.

    `option` is --document (`value` is an id) or --page (a link, or a document with this link).
    Raises InputError: nothing was judged here yet, no such document is held back, or who or why is
    no text.
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
        message = "the last run held no such document back"
        accepted = _name_some(sorted(set(refused["doc_id"]))) or "nothing: no chunk is held back"
        raise InputError.of("not_blocked", message, field=option, found=value, accepted=accepted)
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


def sign_corpus(runner: Runner, key: Path | None) -> str:
    """Write the manifest of the documents as they are now, signed where keys are configured.

    Its version is one higher than that of the replaced manifest and of all accepted ones. Returns a
    line about the file. Raises InputError if no manifest is configured, or if the private key is
    missing or not one of `trust.keys`.
    """
    evaluation = runner.evaluation
    config, name = evaluation.config.trust, evaluation.config.name
    if config.manifest is None:
        message, accepted = "the gold set names no file to write", "manifest: manifest.json"
        raise InputError.of("nothing_to_sign", message, field="trust", accepted=accepted)
    if key is None and config.keys:
        message = "keys are configured, so no run accepts a file that is not signed"
        accepted = f"the private key of {', '.join(sorted(config.keys))}"
        raise InputError.of("missing_key", message, field="--key", accepted=accepted)
    private = None if key is None else read_private_key(key, config.keys)
    path = resolve(config.manifest, evaluation.base)
    with evaluation.lock:
        sources = runner.get(CorpusSnapshot).sources
        replaced = read_manifest(path, {}).content.version if path.exists() else 0
        _, accepted_last = last_accepted(evaluation.home, name)
        version = 1 + max(replaced, 0 if accepted_last is None else accepted_last.highest)
        data = make_manifest(sources, name, version, dt.datetime.now(dt.UTC))
        # Delete the old signature first, so that it never stands beside the new manifest.
        signature_beside(path).unlink(missing_ok=True)
        write_bytes(path, data)
        if private is not None:
            write_text(signature_beside(path), f"{sign(private, data)}\n")
    return f"{len(sources):,} documents recorded in {path} as version {version}"


def verify_corpus(runner: Runner) -> tuple[list[str], bool]:
    """Check the documents as they are now against the manifest.

    Returns a line for each state of documents, and whether all are as recorded. Raises InputError
    if a file cannot be used, or if the manifest is older than an accepted one.
    """
    evaluation = runner.evaluation
    config = evaluation.config.trust
    with evaluation.lock:
        sources = runner.get(CorpusSnapshot).sources
    if config.manifest is None:
        return ["the gold set names no trust.manifest"], True
    manifest = read_manifest(resolve(config.manifest, evaluation.base), config.keys)
    accept_manifest(evaluation.home, evaluation.config.name, manifest, log=False)
    compared, deleted = compare_manifest(sources, manifest.content.documents)
    states: dict[str, list[str]] = {"deleted": deleted} if deleted else {}
    for doc_id, state in zip(sources["doc_id"], compared, strict=True):
        states.setdefault(state.replace("_", " "), []).append(doc_id)
    lines = [
        f"manifest {state} {len(doc_ids):,}"
        + ("" if state == "same" else f": {_name_some(sorted(doc_ids))}")
        for state, doc_ids in sorted(states.items())
    ]
    return lines, states.keys() <= {"same"}
