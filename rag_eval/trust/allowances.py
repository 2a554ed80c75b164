"""What people allow: an append-only file in the gold set's folder, under review like the gold."""

import datetime as dt
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.core.errors import ProblemList
from rag_eval.core.rows import read_rows

FILE_NAME = "trust-allowed.jsonl"
ALLOWED = "allowed"
"""Reason code of a chunk that a person allowed."""
MAX_REASONS = 100


class Decision(BaseModel):
    """One line: a person allowed a document, with the time and the reason.

    Lines of earlier versions name a chunk, and may revoke what was allowed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    chunk_id: str = Field(default="", max_length=200)
    """The only chunk that the decision is about; empty for all chunks of the document."""
    doc_id: str = Field(max_length=1000)
    source_hash: str = Field(default="", pattern=r"^(?:[0-9a-f]{64})?$")
    """SHA-256 of the document's bytes that the person saw; a decision without this hash is void."""
    action: Literal["allow", "revoke"] = "allow"
    who: str = Field(min_length=1, max_length=200)
    why: str = Field(min_length=1, max_length=2000)
    reasons: tuple[str, ...] = Field(default=(), max_length=MAX_REASONS)
    """Findings of the guard."""
    at: dt.datetime


class Allowances(NamedTuple):
    """Who allows each document and each single chunk now, and the number of void decisions."""

    documents: dict[str, str]
    chunks: dict[str, str]
    n_void: int

    def who_allows(self, chunk_id: str, doc_id: str) -> str:
        """Return the person who allows a chunk; empty if nobody does."""
        return self.chunks.get(chunk_id) or self.documents.get(doc_id, "")


def read_decisions(folder: Path) -> list[Decision]:
    """Read every decision of a gold set, in order. Raises InputError for an unreadable line."""
    path, problems = folder / FILE_NAME, ProblemList()
    if not path.exists():
        return []
    decisions = [decision for _, decision in read_rows(path, Decision, problems)]
    problems.raise_errors()
    return decisions


def read_allowances(folder: Path, source_hashes: Mapping[str, str]) -> Allowances:
    """Read what is allowed now; the last decision about a document or chunk counts.

    `source_hashes` is doc_id -> SHA-256 of the present bytes. A decision is void after any change
    of the document, because the person who allowed it did not see the change.
    """
    decisions = read_decisions(folder)
    last = {(decision.doc_id, decision.chunk_id): decision for decision in decisions}
    allowed = [decision for decision in last.values() if decision.action == "allow"]
    valid = [
        decision
        for decision in allowed
        if bool(decision.source_hash) and source_hashes.get(decision.doc_id) == decision.source_hash
    ]
    return Allowances(
        {decision.doc_id: decision.who for decision in valid if not decision.chunk_id},
        {decision.chunk_id: decision.who for decision in valid if decision.chunk_id},
        len(allowed) - len(valid),
    )


def record_decisions(folder: Path, decisions: Sequence[Decision]) -> Path:
    """Append decisions in one write, flushed to disk: all of them or none.

    Raises InputError if the file cannot be read.
    """
    read_decisions(folder)
    path = folder / FILE_NAME
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
