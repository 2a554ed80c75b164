"""Answers, citations and evidence as files for people and other tools: JSON lines beside the report.

Belongs here: what a line holds. Everything in it is data: JSON escapes what could break a line. How much of a source may leave the home is
`rag_eval.reporting.outgoing`; the home keeps everything whole.
"""

import json
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.records.answers import Answer
from rag_eval.reporting.outgoing import Outgoing, outgoing_record, outgoing_row
from rag_eval.storage.artifacts import Artifact

SCHEMA_VERSION = 1


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(
        f"{json.dumps({**row, 'schema_version': SCHEMA_VERSION}, sort_keys=True, ensure_ascii=True, allow_nan=False)}\n"
        for row in rows
    ).encode()


def _answer(answer: Answer, outgoing: Outgoing) -> dict[str, Any]:
    """One answer, citing by token; a citation of what is no evidence keeps its own words."""
    cited = [
        {
            "segment": span.segment,
            "token": answer.evidence[span.evidence].token if span.evidence >= 0 else None,
            "doc_id": quote.doc_id,
            "source_url": quote.source_url,
            **{name: getattr(span, name) for name in ("start", "end")},
            **quote.fields,
        }
        for span, quote in zip(answer.citations, outgoing.quotes, strict=True)
    ]
    names = (
        "query_id",
        "mode",
        "outcome",
        "codes",
        "signal",
        "delta_s",
        "attempts",
        "top_k",
        "tokens_in",
        "tokens_out",
    )
    said = {
        "text": outgoing.text,
        "verdict": outgoing.said(answer.verdict),
        "lambda_state": outgoing.said(answer.lambda_state),
    }
    return {
        **{name: getattr(answer, name) for name in names},
        **said,
        "citations": cited,
        "evidence": [item.token for item in answer.evidence],
    }


def _citations(
    answers: list[Answer], outgoing: dict[str, Outgoing], records: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Records stand in the order of the answers and their citations."""
    places = (
        (answer.query_id, place) for answer in answers for place in range(len(answer.citations))
    )
    for (query_id, place), record in zip(places, records, strict=True):
        yield outgoing_record(record, outgoing[query_id], place)


def answer_line_schema() -> dict[str, Any]:
    """Return the published JSON Schema of a line of answers.jsonl."""
    loaded: dict[str, Any] = json.loads(
        resources.files("rag_eval.evaluation")
        .joinpath("answer-line.schema.json")
        .read_text(encoding="utf-8")
    )
    return loaded


def answer_files(made: Artifact | None, cited: Artifact | None) -> dict[str, bytes]:
    """Name -> content: answers.jsonl, citations.jsonl (what `rag-eval validate` reads), preflights.jsonl, rejected.jsonl (replies that broke the contract, with why), events.log; nothing without answers."""
    if made is None or cited is None:
        return {}
    answers = from_artifact(made)
    outgoing = {answer.query_id: Outgoing(answer) for answer in answers}
    return {
        "answers.jsonl": _lines(_answer(answer, outgoing[answer.query_id]) for answer in answers),
        "citations.jsonl": _lines(_citations(answers, outgoing, cited.json("records"))),
        "preflights.jsonl": _lines(
            outgoing_row(row, outgoing.get(row["query_id"])) for row in made.json("preflights")
        ),
        "rejected.jsonl": _lines(
            outgoing_row(row, outgoing.get(row["query_id"])) for row in made.json("rejected")
        ),
        "events.log": made.path("events.log").read_bytes(),
    }
