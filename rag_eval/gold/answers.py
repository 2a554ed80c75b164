"""Quoted evidence: `answers.jsonl` in our layout, XQuAD's, and `evidence.jsonl` of SciFact. Each row names a query and where its answer stands.

Belongs here: file -> ANCHORS, DECOYS, REFERENCE_ANSWERS and the judgements that a row implies. Finding the text is in `anchors`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rag_eval.gold.frames import ANCHORS, DECOYS, JUDGEMENTS, REFERENCE_ANSWERS, make_frame
from rag_eval.gold.lines import read_objects
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.rows import Row

ACCEPTED_ROWS = (
    '{"query_id", "doc_id", "anchors": [{"quote"}]}, {"query_id", "doc_id", "answers": [{"text", "start", "end"}]}, '
    '{"query_id", "doc_id", "spans": [{"start", "end", "unit": "char"}]} or {"query_id", "decoy": {"doc_id"}}'
)


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """What answer files say: `anchors`, `decoys`, `references`, and `judgements` (grade 1, not explicit) of the documents and sections named."""

    anchors: pd.DataFrame
    decoys: pd.DataFrame
    references: pd.DataFrame
    judgements: pd.DataFrame


@dataclasses.dataclass(slots=True)
class _Rows:
    anchors: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    decoys: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    references: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    judgements: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)


def _quotes(row: Row) -> list[tuple[str, int, int]]:
    """(quote, start, end) of every anchor of a row, in any of the three layouts."""
    found: list[tuple[str, int, int]] = []
    for part in row.objects("anchors"):
        quote = part.text("quote")
        if quote is not None and not quote.strip():
            part.fault(
                "empty_anchor",
                "the quote is empty",
                "quote",
                quote,
                "verbatim text of the document",
            )
        elif quote:
            found.append((quote, -1, -1))
    for part in row.objects("answers"):
        text, place = part.text("text"), part.offsets()
        if text and place:
            found.append((text, *place))
        elif text is not None and place:
            part.fault(
                "empty_anchor", "the answer is empty", "text", text, "verbatim text of the document"
            )
    found.extend(("", *place) for part in row.objects("spans") if (place := part.offsets()))
    return found


def _decoy(row: Row) -> str | None:
    value = row.values.get("decoy")
    if value is None:
        return None
    accepted = '{"doc_id": ...} or {"section_id": ...}'
    if not isinstance(value, dict) or not {"doc_id", "section_id"} & value.keys():
        row.fault("wrong_type", "a decoy names a document or a section", "decoy", value, accepted)
        return None
    part = Row(value, row.file, row.line, row.problems)
    return part.name("section_id" if "section_id" in value else "doc_id", "decoy")


def _take(row: Row, rows: _Rows) -> None:
    values, place = row.values, (row.file, row.line)
    query_id, decoy = row.identifier("query_id"), _decoy(row)
    if query_id is None:
        return
    if decoy is not None:
        rows.decoys.append((query_id, decoy, *place))
    if answer := row.optional_text("answer"):
        rows.references.append((query_id, answer))
    if (
        "doc_id" not in values
        and "decoy" in values
        and not {"anchors", "answers", "spans", "section_id"} & values.keys()
    ):
        return
    doc = row.name("doc_id")
    section = row.name("section_id") if values.get("section_id") is not None else ""
    label, quotes = row.optional_text("label"), _quotes(row)
    if doc is None or section is None:
        return
    rows.judgements.append((query_id, section or doc, 1, False, *place))
    rows.anchors.extend(
        (query_id, doc, section, quote, start, end, label, *place) for quote, start, end in quotes
    )
    rows.references.extend((query_id, quote) for quote, start, _ in quotes if quote and start >= 0)


def read_answers(paths: Sequence[Path], problems: ProblemList) -> Evidence:
    """Evidence of one or more files; rows of the accepted layouts (`ACCEPTED_ROWS`) may be mixed. An empty file has none.

    Faults: those of `read_objects` and `Row`, `empty_anchor`, `bad_offsets`, `bad_unit`.
    """
    rows = _Rows()
    for path in paths:
        for line, values in read_objects(path, problems):
            _take(Row(values, str(path), line, problems), rows)
    return Evidence(
        make_frame(ANCHORS, rows.anchors),
        make_frame(DECOYS, rows.decoys),
        make_frame(REFERENCE_ANSWERS, rows.references),
        make_frame(JUDGEMENTS, rows.judgements),
    )
