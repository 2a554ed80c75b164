"""Replies of chat endpoints on disk: one small JSON file for each request, named by the request's hash.

Belongs here: what makes two requests equal, and reading and writing of replies. A killed run finds its replies here again.
Not here: who asks (`rag_eval.answers.chat`).
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rag_eval.records.answers import Reply
from rag_eval.storage.atomic import sweep, write_text
from rag_eval.storage.hashing import canonical_json, digest

VERSION = 1
MAX_ENTRY_BYTES = 64_000_000
_ABANDONED_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply with what it cost when it was made.

    Parameters
    ----------
    text, finish_reason
        As the endpoint gave them.
    tokens_in, tokens_out
        As charged; 0 where the endpoint did not say.
    usage_missing
        Whether the endpoint gave no usable count of tokens.
    """

    text: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    usage_missing: bool

    def free(self) -> Reply:
        """The reply to whoever asks again: it costs no tokens and no time."""
        return Reply(
            text=self.text, tokens_in=0, tokens_out=0, finish_reason=self.finish_reason, cached=True
        )


def request_key(address: str, payload: Mapping[str, Any]) -> str:
    """Name of a request: 64 hex digits over the endpoint's host, port and path and over everything that is sent; no key, no user name.

    Parameters
    ----------
    address
        `host:port/path` of the endpoint: another server may answer otherwise under the same model name.
    payload
        The request's JSON object: model, messages, temperature, max_tokens, seed.
    """
    return digest({"version": VERSION, "address": address, "request": dict(payload)}, length=64)


class ChatCache:
    """Replies in one folder, usually `<home>/chat`. Safe for several threads and processes: an entry is whole or not there.

    Parameters
    ----------
    folder
        Made when the first reply is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        sweep(folder, "*", older_than_s=_ABANDONED_S)

    def path(self, key: str) -> Path:
        """Where the reply to a request lies."""
        return self.folder / key[:2] / f"{key}.json"

    def read(self, key: str) -> StoredReply | None:
        """The reply to a request; None where there is none, or where its file is damaged, foreign or oversized."""
        path = self.path(key)
        try:
            if path.stat().st_size > MAX_ENTRY_BYTES:
                return None
            return _entry(json.loads(path.read_bytes()), key)
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, key: str, reply: StoredReply) -> None:
        """Keep a reply. Lone surrogates were taken out when it was read."""
        fields = dataclasses.asdict(reply)
        write_text(
            self.path(key),
            canonical_json({"key": key, "checksum": _checksum(key, fields), "reply": fields})
            + "\n",
        )


def _checksum(key: str, fields: Mapping[str, Any]) -> str:
    return digest({"version": VERSION, "key": key, "reply": dict(fields)}, length=64)


def _entry(value: object, key: str) -> StoredReply | None:
    """The checksum also covers the types: only what was written with them has it."""
    if not isinstance(value, dict) or not isinstance(fields := value.get("reply"), dict):
        return None
    entry = cast("dict[str, Any]", fields)
    if set(entry) != {field.name for field in dataclasses.fields(StoredReply)} or value.get(
        "checksum"
    ) != _checksum(key, entry):
        return None
    return StoredReply(**entry)
