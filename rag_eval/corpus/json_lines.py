"""Lines of untrusted .jsonl files -> objects: bounded in size, decoded strictly.

Belongs here: bytes -> lines -> JSON objects. What the objects mean is each loader's own.
"""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

_BOM = b"\xef\xbb\xbf"

Fault = tuple[str, str]
"""Problem code and sentence."""


class _RefusedError(ValueError):
    """A JSON value that the standard library takes and we do not."""


def lines(stream: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Line number from 1 and the line; None for a line beyond `limit` bytes, which is never held in memory as a whole."""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            while (rest := stream.readline(limit)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line.removeprefix(_BOM) if number == 1 else line


def _no_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        raise _RefusedError("a key stands twice in one object")
    return row


def object_of(line: bytes | None, *, strict: bool = False) -> dict[str, Any] | Fault:
    """Return the object of a line, or problem code and sentence (`too_long`, `not_utf8`, `bad_json`).

    Parameters
    ----------
    line
        One line, None where it was too long.
    strict
        Whether NaN, infinity and keys that stand twice are refused.
    """
    if line is None:
        return "too_long", "the line is too long"
    try:
        text = line.decode("utf-8")
        row = (
            json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
            if strict
            else json.loads(text)
        )
    except UnicodeDecodeError:
        return "not_utf8", "the line is not in UTF-8"
    except (ValueError, RecursionError) as error:
        return "bad_json", f"the line is not JSON: {str(error)[:200]}"
    return row if isinstance(row, dict) else ("bad_json", "the line is not a JSON object")
