"""Answers, citations and evidence as files for people and other tools: JSON lines beside the report.

Belongs here: what a line holds. Everything in it is data: JSON escapes what could break a line.
"""

import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.records.answers import Answer
from rag_eval.storage.artifacts import Artifact

SCHEMA_VERSION = 1


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps({**row, 'schema_version': SCHEMA_VERSION}, sort_keys=True, ensure_ascii=True, allow_nan=False)}\n" for row in rows).encode()


def _answer(answer: Answer) -> dict[str, Any]:
    """One answer, citing by token; a citation of what is no evidence keeps its own words."""
    cited = [
        {
            "segment": span.segment,
            "token": answer.evidence[span.evidence].token if span.evidence >= 0 else None,
            **{name: getattr(span, name) for name in ("doc_id", "start", "end", "quote")},
        }
        for span in answer.citations
    ]
    names = ("query_id", "mode", "outcome", "codes", "text", "verdict", "signal", "delta_s", "lambda_state", "attempts", "top_k", "tokens_in", "tokens_out")
    return {**{name: getattr(answer, name) for name in names}, "citations": cited, "evidence": [item.token for item in answer.evidence]}


def answer_line_schema() -> dict[str, Any]:
    """Return the published JSON Schema of a line of answers.jsonl."""
    loaded: dict[str, Any] = json.loads(resources.files("rag_eval.evaluation").joinpath("answer-line.schema.json").read_text(encoding="utf-8"))
    return loaded


def answer_files(made: Artifact | None, cited: Artifact | None) -> dict[str, bytes]:
    """Name -> content: answers.jsonl, citations.jsonl (what `rag-eval validate` reads), preflights.jsonl, rejected.jsonl (replies that broke the contract, with why), events.log; nothing without answers."""
    if made is None or cited is None:
        return {}
    return {
        "answers.jsonl": _lines(_answer(answer) for answer in from_artifact(made)),
        "citations.jsonl": _lines(cited.json("records")),
        "preflights.jsonl": _lines(made.json("preflights")),
        "rejected.jsonl": _lines(made.json("rejected")),
        "events.log": made.path("events.log").read_bytes(),
    }
