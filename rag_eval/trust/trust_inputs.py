"""Signatures, manifest and decisions of a gold set, which trust depends on besides the corpus."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pandas as pd

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import quoted
from rag_eval.core.records import Absent
from rag_eval.corpus.source import resolve
from rag_eval.storage.home import Home
from rag_eval.trust.allowances import FILE_NAME as ALLOWED_FILE
from rag_eval.trust.allowances import Allowances, read_allowances
from rag_eval.trust.signatures import (
    DocumentState,
    Signature,
    accept_manifest,
    compare_manifest,
    read_manifest,
    read_signatures,
)
from rag_eval.trust.trust_report import Manifest

MAX_GONE: Final = 20
"""Most documents of the manifest that the report names as gone."""


class TrustInputs(NamedTuple):
    """Signatures by doc_id, manifest and decisions of a gold set.

    `states` compares each document with the manifest; None without a manifest.
    """

    signatures: dict[str, Signature]
    states: Sequence[DocumentState] | None
    manifest: Manifest | Absent
    notes: list[str]
    allowed: Allowances


def read_trust_inputs(
    gold_set: GoldSetConfig, base: Path, home: Home, sources: pd.DataFrame
) -> TrustInputs:
    """Read the files of the gold set that trust depends on.

    Raises InputError if a file cannot be used, or if the signature of the manifest is wrong.
    """
    config, notes = gold_set.trust, list[str]()
    hashes = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    signatures: dict[str, Signature] = {}
    if config.signatures is not None:
        signatures = read_signatures(resolve(config.signatures, base), config.keys)
        if unknown := len(signatures.keys() - hashes.keys()):
            notes.append(f"{unknown} signatures are about documents that the corpus does not have")
    allowed = read_allowances(base, hashes)
    if allowed.n_void:
        notes.append(
            f"{allowed.n_void} of the decisions in {ALLOWED_FILE} do not count: their documents "
            "have other bytes now, or they do not say which they are about"
        )
    if config.manifest is None:
        absent = Absent(reason="no trust.manifest is configured")
        return TrustInputs(signatures, None, absent, notes, allowed)
    stored = read_manifest(resolve(config.manifest, base), config.keys)
    accepted = accept_manifest(home, gold_set.name, stored)
    states, gone = compare_manifest(sources, stored.content.documents)
    manifest = Manifest(
        signature="signed" if config.keys else "not_configured",
        version=accepted.version,
        created_at=accepted.created_at,
        n_same=states.count("same"),
        n_changed=states.count("changed"),
        n_not_in_manifest=states.count("not_in_manifest"),
        n_gone=len(gone),
        gone=[quoted(doc_id, 200) for doc_id in gone[:MAX_GONE]],
    )
    return TrustInputs(signatures, states, manifest, notes, allowed)
