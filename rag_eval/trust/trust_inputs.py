"""What trust depends on besides the corpus: the manifest, and the documents that people allow.

Decisions of people are lines of an append-only file in the gold set's folder, under review like
the gold.
"""

import datetime as dt
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import ProblemList, quoted
from rag_eval.core.records import Absent
from rag_eval.core.rows import read_rows
from rag_eval.corpus.source import resolve
from rag_eval.storage.home import Home
from rag_eval.trust.signatures import (
    DocumentState,
    accept_manifest,
    compare_manifest,
    read_manifest,
)
from rag_eval.trust.trust_report import Manifest

# ---- Decisions of people

ALLOWED_FILE = "trust-allowed.jsonl"
MAX_REASONS = 100


class Decision(BaseModel):
    """One line: a person allowed a document, with the time and the reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    chunk_id: Literal[""] = ""
    """Always empty: all chunks of the document are allowed."""
    doc_id: str = Field(max_length=1000)
    source_hash: str = Field(default="", pattern=r"^(?:[0-9a-f]{64})?$")
    """SHA-256 of the document's bytes that the person saw; a decision without this hash is void."""
    action: Literal["allow"] = "allow"
    who: str = Field(min_length=1, max_length=200)
    why: str = Field(min_length=1, max_length=2000)
    reasons: tuple[str, ...] = Field(default=(), max_length=MAX_REASONS)
    """Findings of the guard."""
    at: dt.datetime


def read_decisions(folder: Path) -> list[Decision]:
    """Read every decision of a gold set, in order. Raises InputError for an unreadable line."""
    path, problems = folder / ALLOWED_FILE, ProblemList()
    if not path.exists():
        return []
    decisions = [decision for _, decision in read_rows(path, Decision, problems)]
    problems.raise_errors()
    return decisions


def _read_allowed(folder: Path, source_hashes: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return who allows each document, by doc_id, and the number of void decisions.

    `source_hashes` is doc_id -> SHA-256 of the present bytes. A decision is void after any change
    of the document, because the person who allowed it did not see the change.
    """
    last = {decision.doc_id: decision for decision in read_decisions(folder)}
    allowed = {
        doc_id: decision.who
        for doc_id, decision in last.items()
        if bool(decision.source_hash) and source_hashes.get(doc_id) == decision.source_hash
    }
    return allowed, len(last) - len(allowed)


def record_decisions(folder: Path, decisions: Sequence[Decision]) -> Path:
    """Append decisions in one write, flushed to disk: all of them or none.

    Raises InputError if the file cannot be read.
    """
    read_decisions(folder)
    path = folder / ALLOWED_FILE
    ended = not path.exists() or path.read_bytes().endswith(b"\n")
    lines = [json.dumps(line.model_dump(mode="json"), sort_keys=True) + "\n" for line in decisions]
    data = (b"" if ended else b"\n") + "".join(lines).encode()
    with path.open("ab", buffering=0) as stream:
        size = stream.tell()
        if stream.write(data) != len(data):
            stream.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(stream.fileno())
    return path


# ---- All inputs

MAX_GONE: Final = 20
"""Most documents of the manifest that the report names as gone."""


class TrustInputs(NamedTuple):
    """Manifest and decisions of a gold set.

    `states` compares each document with the manifest; None without a manifest. `allowed` is
    doc_id -> person.
    """

    states: Sequence[DocumentState] | None
    manifest: Manifest | Absent
    notes: list[str]
    allowed: dict[str, str]


def read_trust_inputs(
    gold_set: GoldSetConfig, base: Path, home: Home, sources: pd.DataFrame
) -> TrustInputs:
    """Read the files of the gold set that trust depends on.

    Raises InputError if a file cannot be used, or if the signature of the manifest is wrong.
    """
    config, notes = gold_set.trust, list[str]()
    hashes = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    allowed, n_void = _read_allowed(base, hashes)
    if n_void:
        notes.append(
            f"{n_void} of the decisions in {ALLOWED_FILE} do not count: their documents "
            "have other bytes now, or they do not say which they are about"
        )
    if config.manifest is None:
        absent = Absent(reason="no trust.manifest is configured")
        return TrustInputs(None, absent, notes, allowed)
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
    return TrustInputs(states, manifest, notes, allowed)
