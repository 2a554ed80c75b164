"""Citation payloads as a user's system states them: the keys that are known, with values of bounded size that every store and log can hold.

Belongs here: what of a payload is kept. Whether it is right is `rag_eval.citations.validators`, so that a value of the wrong type stays one.
"""

import re
from collections.abc import Mapping
from typing import Any

from rag_eval.records.citation import PAYLOAD_FIELDS

BESIDE = ("number", "quote", "segment", "reranked", "order", "cited_before_answer")
"""Keys that are understood beside those of the payload; `number` is that of a context, from 1."""
MAX_QUOTE_CHARS = 1_000_000
MAX_SHORT_CHARS = 4000
MAX_ITEMS = 16
MAX_DEPTH = 2
MAX_NUMBER = 2**53

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def stated_payload(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a payload says under the known keys; NUL and lone surrogates become U+FFFD, what is too long, large or deep becomes a short text.

    Examples
    --------
    >>> stated_payload({"doc_id": "a", "tokens": float("inf"), "mine": 1})
    {'doc_id': 'a', 'tokens': 'a number out of range'}
    """
    known = (*PAYLOAD_FIELDS, *BESIDE)
    return {
        name: _kept(values[name], MAX_QUOTE_CHARS if name == "quote" else MAX_SHORT_CHARS)
        for name in known
        if name in values
    }


def _kept(value: object, limit: int = MAX_SHORT_CHARS, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value[:limit])
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return (
            value if abs(value) <= MAX_NUMBER else "a number out of range"
        )  # NaN and infinity too
    if depth == MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {
            _kept(str(name)): _kept(item, depth=depth + 1)
            for name, item in list(value.items())[:MAX_ITEMS]
        }
    return (
        [_kept(item, depth=depth + 1) for item in value[:MAX_ITEMS]]
        if isinstance(value, list)
        else "..."
    )
