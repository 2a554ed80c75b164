"""The one hashing function, and the canonical JSON that goes into it."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHORT = 32
"""Hex digits of an identifier: 128 bits, no collision to be expected in any corpus."""


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces, UTF-8; NaN and infinity are refused. Equal values give equal bytes.

    Examples
    --------
    >>> canonical_json({"b": 1, "a": [1.5, "ü"]})
    '{"a":[1.5,"ü"],"b":1}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: Any, length: int = SHORT) -> str:
    """Hash of any JSON value: the first `length` hex digits of SHA-256 over its canonical JSON, lone surrogates as they stand."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()[
        :length
    ]


def text_hash(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, 64 hex digits. Lone surrogates are hashed as they stand."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def lines_hash(lines: Iterable[str], length: int = SHORT) -> str:
    """Hash of a sequence of strings, unambiguous at their borders."""
    state = hashlib.sha256()
    for line in lines:
        data = line.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()[:length]
