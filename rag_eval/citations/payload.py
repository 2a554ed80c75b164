"""The citation payload as it travels: from a retrieved chunk to a JSON object and back, and an answer's citations as records.

Belongs here: conversion and the published JSON Schema. What makes a payload valid is `rag_eval.citations.validators`.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from rag_eval.citations.validators import validate
from rag_eval.records.answers import Evidence
from rag_eval.records.citation import FIXES, PAYLOAD_FIELDS, REQUIRED, CitedSpan
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.records.retrieval import Offsets, ScoredChunk

SCHEMA_FILE = "citation_payload.schema.json"


@functools.cache
def payload_schema() -> dict[str, Any]:
    """Return the published JSON Schema (2020-12) of a payload; `#/$defs/record` describes a line of citations.jsonl."""
    schema: dict[str, Any] = json.loads(
        resources.files("rag_eval.records").joinpath(SCHEMA_FILE).read_text(encoding="utf-8")
    )
    return schema


def record_schema() -> dict[str, Any]:
    """JSON Schema of a line of citations.jsonl: a payload and what is known of the answer that cites it."""
    schema = payload_schema()
    return {"$schema": schema["$schema"], "$ref": "#/$defs/record", "$defs": schema["$defs"]}


def payload(chunk: ScoredChunk) -> dict[str, Any]:
    """Citation payload of a retrieved chunk: plain JSON values, without its text; optional fields that it lacks are left out."""
    values = {name: getattr(chunk, name) for name in PAYLOAD_FIELDS if hasattr(chunk, name)}
    values["offsets"] = dataclasses.asdict(chunk.offsets)
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }


def problems_of(record: Mapping[str, Any]) -> list[Problem]:
    """Name everything that one record shows to be wrong by itself, each with its code, field and what to do."""
    return [
        Problem(
            code,
            FIXES[code],
            field=field or None,
            found=_shown(record, field),
            accepted="see citation_payload.schema.json",
        )
        for code, field in validate([record]).failures[0]
    ]


def _shown(record: Mapping[str, Any], field: str) -> str:
    value: Any = record if isinstance(record, Mapping) else None
    for part in field.split(".") if field else ():
        value = value.get(part) if isinstance(value, Mapping) else None
    return "nothing" if value is None or not field else quoted(value)


def scored_chunk(record: Mapping[str, Any], text: str) -> ScoredChunk:
    """Make a retrieved chunk of a payload and the text at its offsets.

    A score that the payload lacks becomes NaN; without `k_final` the rank before reranking is the final one. `window` and `page` have no place in
    a chunk and are left out.

    Raises
    ------
    InputError
        The payload breaks a rule that it can be held to by itself; the problems carry its codes.
    """
    problems = problems_of(record)
    if problems:
        raise InputError(problems)
    offsets, rerank = record["offsets"], record.get("rerank_score")
    values: dict[str, Any] = {
        name: math.nan if record.get(name) is None else float(record[name])
        for name in ("score_raw", "score_norm")
    }
    values |= {name: record[name] for name in (*REQUIRED, "k_pos")}
    values |= {
        "offsets": Offsets(offsets["start"], offsets["end"], offsets["unit"]),
        "k_final": record["k_pos"] if record.get("k_final") is None else record["k_final"],
        "rerank_score": None if rerank is None else float(rerank),
    }
    return ScoredChunk(text=text, **values)


def citation_records(
    query_id: str,
    citations: Sequence[CitedSpan],
    evidence: Sequence[Evidence],
    *,
    cited_before_answer: bool | None = None,
) -> list[dict[str, Any]]:
    """Citations of one answer as records for `validate` and citations.jsonl.

    Parameters
    ----------
    query_id
        The question.
    citations
        What the answer cites, as it cites it: its own doc_id and offsets stand in the record, whatever the evidence says.
    evidence
        What it could cite. A citation of anything else has no payload and says `in_evidence: false`.
    cited_before_answer
        Where the citations stood; None where the form of the answer has no order.
    """
    records = []
    for span in citations:
        inside = 0 <= span.evidence < len(evidence)
        record = payload(evidence[span.evidence].chunk) if inside else {}
        record |= {
            "query_id": query_id,
            "segment": span.segment,
            "in_evidence": inside,
            "doc_id": span.doc_id,
            "offsets": {"start": span.start, "end": span.end, "unit": "char"},
        }
        if span.quote:
            record["quote"] = span.quote
        if cited_before_answer is not None:
            record["cited_before_answer"] = cited_before_answer
        records.append(record)
    return records
