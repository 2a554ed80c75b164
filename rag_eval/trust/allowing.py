"""What people allowed although the guard blocks it: an append-only file in the gold set's folder, so that it is reviewed like the gold set itself.

A decision is about a chunk of a document with certain bytes: it counts while the document still has them, so a changed document is judged anew.
A later line supersedes an earlier one of its chunk.
"""

import datetime as dt
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_eval.records.problems import InputError, Problem, quoted

FILE_NAME = "trust-allowed.jsonl"
MAX_LINE = 65_536
"""Bytes of a line: a decision as long as it may be in letters that JSON escapes with twelve bytes each fits."""
ACCEPTED = '{"chunk_id": "...", "doc_id": "...", "source_hash": "...", "action": "allow" | "revoke", "who": "...", "why": "...", "at": "..."}'


class Decision(BaseModel):
    """One line: who allowed (or no longer allows) which chunk, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    chunk_id: str = Field(min_length=1, max_length=200)
    doc_id: str = Field(max_length=1000)
    source_hash: str = Field(
        default="",
        pattern=r"^(?:[0-9a-f]{64})?$",
        description="sha256 of the document's bytes that were looked at; without it a decision does not count",
    )
    action: Literal["allow", "revoke"]
    who: str = Field(min_length=1, max_length=200)
    why: str = Field(min_length=1, max_length=2000)
    reasons: tuple[str, ...] = Field(
        default=(), max_length=100, description="what the guard had found"
    )
    at: dt.datetime


def _bounded(data: bytes, file: str, line: int | None) -> None:
    if len(data) > MAX_LINE:
        raise InputError(
            Problem(
                "line_too_long",
                "the line is too long",
                file=file,
                line=line,
                found=f"{len(data)} bytes",
                accepted=f"at most {MAX_LINE} bytes",
            )
        )


def _parse(data: bytes, file: str, line: int) -> Decision:
    problem: tuple[str, str] | None = None
    _bounded(data, file, line)
    try:
        return Decision.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        problem = ".".join(map(str, first["loc"])) or "line", first["msg"]
    raise InputError(
        Problem(
            "bad_decision",
            problem[1],
            file=file,
            line=line,
            field=problem[0],
            found=quoted(data.decode("utf-8", "replace"), 100),
            accepted=ACCEPTED,
        )
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if path.is_file():
        for line, data in enumerate(path.read_bytes().split(b"\n"), 1):
            if data.strip():
                yield line, data


def read_decisions(folder: Path) -> list[Decision]:
    """Every decision of a gold set, in the order in which they were made.

    Raises
    ------
    InputError
        A line cannot be read: what is allowed must never be guessed.
    """
    path = folder / FILE_NAME
    return [_parse(data, str(path), line) for line, data in _lines(path)]


def allowed_chunks(folder: Path) -> dict[str, Decision]:
    """chunk_id -> the decision that allows it and was not taken back; whether it still counts is `still_meant`."""
    allowed: dict[str, Decision] = {}
    for decision in read_decisions(folder):
        if decision.action == "allow":
            allowed[decision.chunk_id] = decision
        else:
            allowed.pop(decision.chunk_id, None)
    return allowed


def still_meant(
    allowed: Mapping[str, Decision], source_hashes: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Tell the decisions about the documents as they are from those about other bytes.

    A chunk's text can stay while the title, address or author of its document change: who allowed the one did not see the other.

    Parameters
    ----------
    allowed
        What `allowed_chunks` gives.
    source_hashes
        doc_id -> sha256 of the document's present bytes, hex.

    Returns
    -------
    dict, list
        chunk_id -> who allows it; and the chunk_ids, sorted, whose document is gone or another one, or whose decision does not say which bytes it is about.
    """
    counts = {
        chunk_id: bool(one.source_hash) and source_hashes.get(one.doc_id) == one.source_hash
        for chunk_id, one in allowed.items()
    }
    return {
        chunk_id: allowed[chunk_id].who for chunk_id, counted in counts.items() if counted
    }, sorted(chunk_id for chunk_id, counted in counts.items() if not counted)


def record_decision(folder: Path, decision: Decision) -> Path:
    """Append a decision in one write, flushed to disk; a line that an earlier process left unfinished is ended first.

    Raises
    ------
    InputError
        The file as it stands cannot be read, or could not be read any more with this line.
    """
    read_decisions(folder)
    path = folder / FILE_NAME
    line = json.dumps(decision.model_dump(mode="json"), sort_keys=True, ensure_ascii=True).encode()
    _bounded(line, str(path), None)
    data = line + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        broken = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, b"\n" + data if broken else data)
        os.fsync(handle)
    finally:
        os.close(handle)
    return path
