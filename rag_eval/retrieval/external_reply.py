"""A reply of an external retriever -> items, or the code of what is wrong with it. Nothing in a reply is trusted.

Belongs here: the shape of a reply, whoever sent it. Bytes come from `external_http`, objects of a port from `external_port`.
"""

import json
import math
import numbers
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rag_eval.records.problems import quoted
from rag_eval.retrieval.external import MAX_ID_CHARS, Item, QueryError, Retrieved

ID_KEYS = ("id", "chunk_id", "snippet_id")
_UNSAFE = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, lone surrogates, line and paragraph separators: an id with one could forge a line of a log or a run file."""
_MAX_OFFSET = 2**53


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_bytes(data: bytes, top_k: int) -> Retrieved:
    """Read a reply's body.

    Raises
    ------
    QueryError
        `malformed_reply`, or what `parse_reply` finds.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise QueryError("malformed_reply", "the reply is not UTF-8") from error
    except RecursionError as error:
        raise QueryError("malformed_reply", "the JSON of the reply is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, NaN and infinity, integers of too many digits
        raise QueryError(
            "malformed_reply", f"the reply is not JSON: {quoted(str(error))}"
        ) from error
    return parse_reply(value, top_k)


def parse_reply(value: Any, top_k: int) -> Retrieved:
    """Read `{"chunks": [{"id" | "doc_id", "text", "score", ...}, ...]}`, best first; what stands behind the first `top_k` is cut.

    Of each chunk are read `id` (or `chunk_id`, `snippet_id`), `doc_id`, `section_id`, `text`, `score`, and the place as
    `offsets: {start, end}` or `start` and `end`; other keys are left alone. Of the reply itself `version` is read.

    Raises
    ------
    QueryError
        `wrong_shape`, `missing_id`, `bad_id`, `duplicate_id`, `bad_score`, `bad_text`, `bad_offsets`. One chunk at fault fails the
        query: a ranking with a hole would be scored as if the source had ranked so.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("chunks"), list):
        raise QueryError(
            "wrong_shape", f'found {_kind(value)}, accepted an object with a list "chunks"'
        )
    items = tuple(
        parse_item(chunk, place) for place, chunk in enumerate(value["chunks"][:top_k], start=1)
    )
    check_distinct(items)
    version = value.get("version")
    return Retrieved(items, version[:200] if isinstance(version, str) else "")


def check_distinct(items: Sequence[Item]) -> None:
    """Refuse a reply that names one thing twice. A document may stand several times by `doc_id`, with other texts or other places."""
    seen: set[object] = set()
    for place, item in enumerate(items, start=1):
        key = item.id or (item.doc_id, item.section_id, item.text, item.start, item.end)
        if key in seen:
            raise QueryError(
                "duplicate_id", f"chunk {place}: {quoted(item.name)} stands in this reply already"
            )
        seen.add(key)


def parse_item(chunk: Any, place: int) -> Item:
    """Read one chunk; `place` counts from 1 and is for the message."""
    if not isinstance(chunk, Mapping):
        raise QueryError("wrong_shape", f"chunk {place}: found {_kind(chunk)}, accepted an object")
    ids = [_id(chunk[key], key, place) for key in ID_KEYS if chunk.get(key) is not None]
    doc_id, section_id = (
        _id(chunk[key], key, place) if chunk.get(key) is not None else ""
        for key in ("doc_id", "section_id")
    )
    if not ids and not doc_id and not section_id:
        raise QueryError(
            "missing_id", f"chunk {place}: accepted one of {', '.join(ID_KEYS)}, doc_id, section_id"
        )
    text = chunk.get("text")
    if text is not None and not isinstance(text, str):
        raise QueryError("bad_text", f"chunk {place}: found {_kind(text)}, accepted a text")
    start, end = _offsets(chunk, place)
    whole = (
        (text or "").encode("utf-8", "replace").decode("utf-8")
    )  # lone surrogates cannot be stored
    return Item(
        ids[0] if ids else "",
        doc_id,
        section_id,
        whole,
        start,
        end,
        _score(chunk.get("score"), place),
    )


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__}"


def _id(value: Any, key: str, place: int) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_OFFSET:
        return str(value)  # stores that number their rows
    if not isinstance(value, str) or not value.strip():
        raise QueryError(
            "bad_id",
            f"chunk {place}: {key}: found {_kind(value) if not isinstance(value, str) else 'an empty text'}, accepted a text",
        )
    if len(value) > MAX_ID_CHARS:
        raise QueryError(
            "bad_id",
            f"chunk {place}: {key}: found {len(value)} characters, accepted at most {MAX_ID_CHARS}",
        )
    if any(unicodedata.category(char) in _UNSAFE for char in value):
        raise QueryError(
            "bad_id",
            f"chunk {place}: {key}: control characters in {quoted(value.encode('utf-8', 'backslashreplace').decode())}",
        )
    return value


def _score(value: Any, place: int) -> float:
    if not isinstance(value, bool) and isinstance(
        value, numbers.Real
    ):  # a port may give NumPy's numbers
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    shown = _kind(value) if not isinstance(value, float) else str(value)
    raise QueryError("bad_score", f"chunk {place}: found {shown}, accepted a finite number")


def _offsets(chunk: Mapping[str, Any], place: int) -> tuple[int, int]:
    given = chunk.get("offsets")
    if given is not None and not isinstance(given, Mapping):
        raise QueryError(
            "bad_offsets",
            f"chunk {place}: found {_kind(given)}, accepted an object with start and end",
        )
    holder = chunk if given is None else given
    if holder.get("unit", "char") != "char":
        return -1, -1  # a place counted in tokens cannot be found; the text can
    start, end = holder.get("start"), holder.get("end")
    if start is None and end is None:
        return -1, -1
    whole = all(isinstance(value, int) and not isinstance(value, bool) for value in (start, end))
    if not whole or start is None or end is None or not 0 <= start < end < _MAX_OFFSET:
        raise QueryError(
            "bad_offsets", f"chunk {place}: accepted whole numbers with 0 <= start < end"
        )
    return start, end
