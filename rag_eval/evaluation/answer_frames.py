"""Answers as the artifact store keeps them: three flat frames, and back.

Belongs here: conversion. Durations are left out, so that equal answers give equal bytes.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rag_eval.records.answers import Answer, Evidence
from rag_eval.records.citation import CitedSpan
from rag_eval.records.frames import Column, FrameSchema
from rag_eval.records.retrieval import Offsets, ScoredChunk
from rag_eval.storage.artifacts import Artifact

ANSWERS = FrameSchema(
    "answers",
    {
        "query_id": Column("str", "the question"),
        "mode": Column("str", "deterministic | llm | recorded"),
        "outcome": Column(
            "str", "answered | not_found | insufficient_evidence | contract_error_reply | failed"
        ),
        "codes": Column("list", "why it failed"),
        "text": Column("str", "the answer without its citations"),
        "verdict": Column("str", "VERDICT of the two-line form; else empty"),
        "signal": Column(
            "float", "how well the evidence carries the question, in [0, 1]; NaN where not measured"
        ),
        "delta_s": Column("float", "as the answer stated it; NaN where it did not"),
        "lambda_state": Column("str", "as the answer stated it; else empty"),
        "attempts": Column("int", "answers asked for, the first included"),
        "top_k": Column("int", "chunks asked for in the last retrieval"),
        "tokens_in": Column("int", "of all attempts"),
        "tokens_out": Column("int", "of all attempts"),
        "confidence": Column("float", "as the system reported it; NaN where it reported nothing"),
    },
)
CITED = FrameSchema(
    "cited",
    {
        "query_id": Column("str", "the question"),
        "segment": Column(
            "int", "answer sentence that it supports, from 0; -1 = the answer as a whole"
        ),
        "evidence": Column("int", "place in the question's evidence, from 0; -1 = not among it"),
        "doc_id": Column("str", "the cited document, as cited"),
        "start": Column("int", "first character in the document's text; -1 where unknown"),
        "end": Column("int", "one past the last character; -1 where unknown"),
        "quote": Column("str", "what the answer says stands there; empty where it quotes nothing"),
    },
)
_PAYLOAD = (
    "doc_id",
    "section_id",
    "snippet_id",
    "source_url",
    "tokens",
    "index_hash",
    "embed_model",
    "analyzer",
    "rev",
    "text",
    "score_raw",
    "score_norm",
    "k_pos",
    "k_final",
)
EVIDENCE = FrameSchema(
    "evidence",
    {
        "query_id": Column("str", "the question"),
        "token": Column("str", "how an answer cites it"),
        "kind": Column("str", "the preflight that found it"),
        "first_line": Column("int", "from 1"),
        "last_line": Column("int", "included"),
        **{
            name: Column(
                "int"
                if name in {"tokens", "k_pos", "k_final"}
                else "float"
                if name.startswith("score")
                else "str",
                "citation payload",
            )
            for name in _PAYLOAD
        },
        "rerank_score": Column("float", "citation payload; NaN where no rerank ran"),
        "start": Column("int", "offsets of the payload"),
        "end": Column("int", "offsets of the payload"),
        "unit": Column("str", "offsets of the payload"),
    },
)
_DTYPES = {"str": "str", "int": "int64", "float": "float64", "bool": "bool", "list": "object"}


def _frame(schema: FrameSchema, rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(schema.columns))
    return schema.check(
        frame.astype({name: _DTYPES[column.kind] for name, column in schema.columns.items()})
    )


def to_frames(answers: Sequence[Answer]) -> dict[str, pd.DataFrame]:
    """Answers as `answers`, `cited` and `evidence`, in the order of the answers."""
    nan = float("nan")
    rows = [
        {name: getattr(answer, name) for name in ANSWERS.columns}
        | {
            "codes": list(answer.codes),
            "signal": nan if answer.signal is None else answer.signal,
            "delta_s": nan if answer.delta_s is None else answer.delta_s,
            "confidence": nan if answer.confidence is None else answer.confidence,
        }
        for answer in answers
    ]
    cited = [
        {"query_id": answer.query_id, **dataclasses.asdict(span)}
        for answer in answers
        for span in answer.citations
    ]
    evidence = [
        {
            "query_id": answer.query_id,
            **{name: getattr(item, name) for name in ("token", "kind", "first_line", "last_line")},
            **{name: getattr(item.chunk, name) for name in _PAYLOAD},
            "rerank_score": nan if item.chunk.rerank_score is None else item.chunk.rerank_score,
            **dataclasses.asdict(item.chunk.offsets),
        }
        for answer in answers
        for item in answer.evidence
    ]
    return {
        "answers": _frame(ANSWERS, rows),
        "cited": _frame(CITED, cited),
        "evidence": _frame(EVIDENCE, evidence),
    }


def _evidence(row: dict[str, Any]) -> Evidence:
    rerank = row["rerank_score"]
    chunk = ScoredChunk(
        **{name: row[name] for name in _PAYLOAD},
        offsets=Offsets(row["start"], row["end"], row["unit"]),
        rerank_score=None if math.isnan(rerank) else rerank,
    )
    return Evidence(row["token"], chunk, row["kind"], row["first_line"], row["last_line"])


def _rows(artifact: Artifact, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = artifact.frame(name).to_dict("records")  # type: ignore[assignment]  # the columns are named by texts
    return rows


def from_artifact(artifact: Artifact) -> list[Answer]:
    """Read the answers of a stored artifact back."""
    by_query: dict[str, tuple[list[CitedSpan], list[Evidence]]] = {}
    for row in _rows(artifact, "cited"):
        by_query.setdefault(row.pop("query_id"), ([], []))[0].append(CitedSpan(**row))
    for row in _rows(artifact, "evidence"):
        by_query.setdefault(row["query_id"], ([], []))[1].append(_evidence(row))
    answers = []
    for row in _rows(artifact, "answers"):
        cited, evidence = by_query.get(row["query_id"], ([], []))
        for name in ("signal", "delta_s", "confidence"):
            row[name] = None if math.isnan(row[name]) else row[name]
        answers.append(
            Answer(
                **{**row, "codes": tuple(row["codes"])},
                citations=tuple(cited),
                evidence=tuple(evidence),
            )
        )
    return answers
