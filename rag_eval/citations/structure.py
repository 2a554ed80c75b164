"""The rules that one citation record can be held to by itself: its fields are there, of the right type, and possible.

Belongs here: types and ranges. Rules over a whole run, and those that ask the live index, are `rag_eval.citations.validators`.

A field that is absent or null, or whose value is of a type that cannot be it, is `missing_<field>`; blank text counts as absent, except in
`embed_model`, which is empty for lexical retrieval. Offsets that are there but wrong in any way are `bad_offsets`, and so are a `window` or a `page` that
cannot be: all three say where to look. A score that is there but no finite number is `missing_score`, a rank that is no whole
number from 1 is `trace_incomplete`.
"""

from collections.abc import Mapping
from typing import Any

from rag_eval.records.citation import PAYLOAD_FIELDS

Record = Mapping[str, Any]
Finding = tuple[str, str]
"""(code, field)."""

TEXTS = ("doc_id", "section_id", "snippet_id", "source_url", "index_hash", "analyzer", "rev")
"""Required fields that are text and not blank."""
UNITS = ("char", "token")
MAX_INTEGER = 2**53 - 1
"""Whole numbers beyond this are not the same number in every JSON reader."""
MAX_FLOAT = 1.7976931348623157e308
ROUNDING = 1e-9
"""How far a normalised score may leave [0, 1]: a sum of two products rounds."""

_FIELDS = frozenset(PAYLOAD_FIELDS)


def is_text(value: object) -> bool:
    """Text that is not blank."""
    return isinstance(value, str) and bool(value) and not value.isspace()


def is_whole(value: object, least: int) -> bool:
    """A whole number from `least`, no truth value and no float."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_INTEGER


def is_number(value: object, low: float = -MAX_FLOAT, high: float = MAX_FLOAT) -> bool:
    """A finite number within bounds, no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def is_empty(record: object) -> bool:
    """Whether there is no citation block: not an object, or one without a single payload field."""
    return not isinstance(record, Mapping) or _FIELDS.isdisjoint(record)


def wrong_offsets(offsets: object) -> str:
    """Name the part of the offsets that is wrong by itself; empty where none is."""
    if not isinstance(offsets, Mapping):
        return "offsets"
    start: Any = offsets.get("start")
    end: Any = offsets.get("end")
    if not is_whole(start, 0):
        return "offsets.start"
    if not is_whole(end, 1) or not start < end:
        return "offsets.end"
    unit = offsets.get("unit")
    return "" if isinstance(unit, str) and unit in UNITS else "offsets.unit"


def unit_of(record: Record) -> str | None:
    """Unit of a record's offsets; None where it states none."""
    offsets = record.get("offsets")
    unit = offsets.get("unit") if isinstance(offsets, Mapping) else None
    return unit if isinstance(unit, str) and unit in UNITS else None


def _wrong_surroundings(record: Record) -> str:
    window, page = record.get("window"), record.get("page")
    if window is not None and not (
        isinstance(window, Mapping)
        and is_whole(window.get("pre"), 0)
        and is_whole(window.get("post"), 0)
    ):
        return "window"
    return "page" if page is not None and not is_text(page) and not is_whole(page, 0) else ""


def _wrong_score(record: Record) -> str:
    raw, norm = record.get("score_raw"), record.get("score_norm")
    if raw is None and norm is None:
        return "score_raw"
    if raw is not None and not is_number(raw):
        return "score_raw"
    return "score_norm" if norm is not None and not is_number(norm, -ROUNDING, 1 + ROUNDING) else ""


def _wrong_rank(record: Record) -> str:
    if not is_whole(record.get("k_pos"), 1):
        return "k_pos"
    rerank, final, reranked = (
        record.get("rerank_score"),
        record.get("k_final"),
        record.get("reranked"),
    )
    if rerank is not None and not is_number(rerank):
        return "rerank_score"
    if reranked is not None and not isinstance(reranked, bool):
        return "reranked"
    due = rerank is not None or reranked is True
    return "k_final" if (due or final is not None) and not is_whole(final, 1) else ""


def cites_late(record: Record) -> str:
    """Name the field that says the citations came only after the answer, or that cannot be read; empty where they came first.

    `order` lists the blocks of the reply as they stood, `citations` and `answer` among them; `cited_before_answer` says it outright.
    """
    before, order = record.get("cited_before_answer"), record.get("order")
    if before is not None and before is not True:
        return "cited_before_answer"
    if order is None:
        return ""
    if not isinstance(order, list | tuple) or "citations" not in order:
        return "order"
    return "order" if "answer" in order and order.index("answer") < order.index("citations") else ""


def structural_findings(record: Record) -> list[Finding]:
    """Hold one record that is not empty against every rule of this module, each code at most once."""
    found = [(f"missing_{name}", name) for name in TEXTS if not is_text(record.get(name))]
    offsets = record.get("offsets")
    if offsets is None:
        found.append(("missing_offsets", "offsets"))
    if not is_whole(record.get("tokens"), 0):
        found.append(("missing_tokens", "tokens"))
    if not isinstance(record.get("embed_model"), str):
        found.append(("missing_embed_model", "embed_model"))
    place = (offsets is not None and wrong_offsets(offsets)) or _wrong_surroundings(record)
    named = (
        ("bad_offsets", place),
        ("missing_score", _wrong_score(record)),
        ("trace_incomplete", _wrong_rank(record)),
        ("explained_before_cited", cites_late(record)),
    )
    found.extend((code, field) for code, field in named if field)
    return found
