"""What people allow: an append-only file in the gold set's folder, under review like the gold."""

import datetime as dt
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from rag_eval.core.errors import ProblemList
from rag_eval.core.rows import read_rows

FILE_NAME = "trust-allowed.jsonl"
ALLOWED = "allowed"
"""Reason code of a chunk that a person allowed."""


class Decision(BaseModel):
    """One line: a person allowed or revoked a chunk, with the time and the reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    chunk_id: str = Field(min_length=1, max_length=200)
    doc_id: str = Field(max_length=1000)
    source_hash: str = Field(default="", pattern=r"^(?:[0-9a-f]{64})?$")
    """SHA-256 of the document's bytes that the person saw; a decision without this hash is void."""
    action: Literal["allow", "revoke"]
    who: str = Field(min_length=1, max_length=200)
    why: str = Field(min_length=1, max_length=2000)
    reasons: tuple[str, ...] = Field(default=(), max_length=100)
    """Findings of the guard."""
    at: dt.datetime


def read_decisions(folder: Path) -> list[Decision]:
    """Read every decision of a gold set, in order. Raises InputError for an unreadable line."""
    path, problems = folder / FILE_NAME, ProblemList()
    if not path.exists():
        return []
    decisions = [decision for _, decision in read_rows(path, Decision, problems)]
    problems.raise_errors()
    return decisions


def allowed_chunks(folder: Path, source_hashes: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return chunk_id -> who allows the chunk now, and the number of void decisions.

    `source_hashes` is doc_id -> SHA-256 of the present bytes. A decision is void after any change
    of the document, because the person who allowed the chunk did not see the change.
    """
    last = {one.chunk_id: one for one in read_decisions(folder)}
    allowed = [one for one in last.values() if one.action == "allow"]
    valid = {
        one.chunk_id: one.who
        for one in allowed
        if bool(one.source_hash) and source_hashes.get(one.doc_id) == one.source_hash
    }
    return valid, len(allowed) - len(valid)


def record_decisions(folder: Path, decisions: Sequence[Decision]) -> Path:
    """Append decisions in one write, flushed to disk: all of them or none.

    Raises InputError if the file cannot be read.
    """
    read_decisions(folder)
    path = folder / FILE_NAME
    ended = not path.exists() or path.read_bytes().endswith(b"\n")
    lines = [json.dumps(one.model_dump(mode="json"), sort_keys=True) + "\n" for one in decisions]
    data = (b"" if ended else b"\n") + "".join(lines).encode()
    with path.open("ab", buffering=0) as stream:
        size = stream.tell()
        if stream.write(data) != len(data):
            stream.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(stream.fileno())
    return path
