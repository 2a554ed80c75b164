"""Files and rows of a run for other tools: answers, citations, traces, trust of the evidence."""

import dataclasses
import datetime as dt
import json
import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from rag_eval.answers.codes import CODES
from rag_eval.answers.replies import split_error
from rag_eval.answers.scoring import UNCHECKED
from rag_eval.citations.payload import validate
from rag_eval.citations.traces import NO_STATE, Trace, write_log, write_traces
from rag_eval.core.arrays import number
from rag_eval.core.errors import InputError
from rag_eval.core.records import Open
from rag_eval.core.strategy import Identity
from rag_eval.core.types import (
    ABSTAINED,
    AUDITABLE_FIELDS,
    INSUFFICIENT_EVIDENCE,
    NOT_FOUND,
    Answer,
)
from rag_eval.corpus.masking import mask_snippet
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.stability import CAUSES
from rag_eval.pipeline.answer_stages import AnswerSet
from rag_eval.pipeline.measure_stages import Answered, StabilityMeasures
from rag_eval.pipeline.runner import Work
from rag_eval.pipeline.runs import ScoredRuns
from rag_eval.reporting.outgoing import Outgoing, outgoing_row
from rag_eval.reporting.report import Report
from rag_eval.storage.locks import is_shared
from rag_eval.storage.sql import open_store
from rag_eval.trust.sources import explain_factors

# ---- Files of answers, citations and evidence for people and other tools: JSON lines.

SCHEMA_VERSION = 1


def _lines(rows: Iterable[Mapping[str, object]]) -> bytes:
    versioned = ({**row, "schema_version": SCHEMA_VERSION} for row in rows)
    return "".join(
        f"{json.dumps(row, sort_keys=True, ensure_ascii=True, allow_nan=False)}\n"
        for row in versioned
    ).encode()


def _answer_line(answer: Answer, outgoing: Outgoing) -> dict[str, object]:
    """Write one answer with citations by token. A citation without evidence keeps its own text."""
    cited = [
        {
            "segment": span.segment,
            "token": answer.evidence[span.evidence].token if span.evidence >= 0 else None,
            "doc_id": quote.doc_id,
            "source_url": quote.source_url,
            "start": span.start,
            "end": span.end,
            **quote.fields,
        }
        for span, quote in zip(answer.citations, outgoing.quotes, strict=True)
    ]
    plain = (
        *("query_id", "mode", "outcome", "codes", "signal", "delta_s", "attempts", "top_k"),
        *("tokens_in", "tokens_out"),
    )
    return {
        **{name: getattr(answer, name) for name in plain},
        "text": outgoing.text,
        "verdict": outgoing.line(answer.verdict),
        "lambda_state": outgoing.line(answer.lambda_state),
        "citations": cited,
        "findings": [
            {**dataclasses.asdict(finding), "text": outgoing.line(finding.text)}
            for finding in answer.findings
        ],
        "evidence": [item.token for item in answer.evidence],
    }


NO_GOLD = "without gold it is not known whether a wording hits"


class _Stability:
    """The measured ΔS and λ of each question, of one strategy, its first seed and wording."""

    def __init__(self, stability: StabilityMeasures, runs: ScoredRuns, name: str) -> None:
        key = {"strategy": name, "seed": runs.first_seed(name), "paraphrase_id": ORIGINAL}
        per_run, states = stability.per_run, stability.per_query.query("strategy == @name")
        per_run = per_run[(per_run[list(key)] == list(key.values())).all(axis=1)]
        distances = per_run[["query_id", "delta_s"]].dropna()
        self.delta_s = dict(distances.itertuples(index=False, name=None))
        self.states = dict(zip(states["query_id"], states["lambda_state"], strict=True))
        why = stability.about.strategies[name].delta_s.why
        self._no_distance = why.get("value", "nothing was retrieved for the question")

    def complete(self, answer: Answer) -> dict[str, object]:
        """Return ΔS and λ as the answer states them, else as measured, else null and `why`."""
        delta_s, state, why = answer.delta_s, answer.lambda_state, {}
        if delta_s is None:
            delta_s = self.delta_s.get(answer.query_id, math.nan)
        if math.isnan(delta_s):
            why["ΔS"] = self._no_distance
        state = state or self.states.get(answer.query_id, "")
        if state in {"", "undefined"}:
            why["λ"] = CAUSES["one_run"] if state else NO_GOLD
        values = {"ΔS": number(delta_s), "λ": None if "λ" in why else state}
        return {**values, "why": why} if why else values


def _auditable_item(record: Open) -> Open:
    """Take the fields of the auditable block; one that is missing or cannot be right is null."""
    item = {name: record.get(name) for name in AUDITABLE_FIELDS}
    wrong = {field.partition(".")[0] for _, field in validate([item]).failures[0]}
    return {name: None if name in wrong else value for name, value in item.items()}


def _auditable_line(
    answer: Answer, text: str, citations: Sequence[Open], stability: _Stability
) -> dict[str, object]:
    """Write one answer as the auditable block, or as `{error, fix}`.

    The keys keep the order of the contract, citations first. `segments` has the segment of each
    citation, because the text has no markers and may be cut.
    """
    if answer.outcome in UNCHECKED:
        code, error, fix = answer.codes[0], "", ""
        if answer.outcome == "contract_error_reply":
            error, fix = split_error(text)
        error = error or f"{code}: {CODES[code].meaning}"
        line: dict[str, object] = {"error": error, "fix": fix or CODES[code].fix}
    else:
        if answer.outcome == "not_found":
            text = NOT_FOUND
        elif answer.outcome in ABSTAINED and not text.startswith(INSUFFICIENT_EVIDENCE):
            text = f"{INSUFFICIENT_EVIDENCE}: {text}"
        cited = list(map(_auditable_item, citations))
        line = {"citations": cited, "answer": text, **stability.complete(answer)}
        if cited:
            line["segments"] = [span.segment for span in answer.citations]
    return {**line, "query_id": answer.query_id, "schema_version": SCHEMA_VERSION}


def answer_files(
    answered: Answered, stability: StabilityMeasures, runs: ScoredRuns
) -> dict[str, bytes]:
    """Return the files about answers, as name -> content.

    The files are answers.jsonl, auditable-answers.jsonl, citations.jsonl, preflights.jsonl,
    rejected.jsonl and events.log. `rag-eval validate` reads citations.jsonl. rejected.jsonl has the
    replies that broke the contract, with the reasons.
    """
    answer_set, answers = answered.answers, answered.answers.answers
    outgoing = {answer.query_id: Outgoing(answer) for answer in answers}
    records = iter(answered.citations.records)
    cited = {
        answer.query_id: [
            outgoing[answer.query_id].record(next(records), place)
            for place in range(len(answer.citations))
        ]
        for answer in answers
    }
    measured = _Stability(stability, runs, answer_set.about.strategy)
    blocks = (
        _auditable_line(answer, outgoing[answer.query_id].text, cited[answer.query_id], measured)
        for answer in sorted(answers, key=lambda answer: answer.query_id)
    )
    rows = {
        name: [outgoing_row(dataclasses.asdict(row), outgoing.get(row.query_id)) for row in parts]
        for name, parts in (
            ("preflights", answer_set.preflights),
            ("rejected", answer_set.rejected),
        )
    }
    return {
        "answers.jsonl": _lines(
            _answer_line(answer, outgoing[answer.query_id]) for answer in answers
        ),
        "auditable-answers.jsonl": b"".join(f"{json.dumps(block)}\n".encode() for block in blocks),
        "citations.jsonl": _lines(record for lines in cited.values() for record in lines),
        **{f"{name}.jsonl": _lines(lines) for name, lines in rows.items()},
        "events.log": answer_set.events,
    }


# ---- Traces of a finished run: rows of `rag_traces`, and lines of `traces.log`.

LOG = "traces.log"


def _make_traces(
    answer_set: AnswerSet, runs: ScoredRuns, stability: StabilityMeasures, report: Report
) -> list[Trace]:
    """Make a trace for each answer and each segment with citations."""
    name = answer_set.about.strategy
    facts, seed = runs.about(name), runs.first_seed(name)
    measured = _Stability(stability, runs, name)
    common = Trace(
        ts=report.timestamp,
        qid="",
        seg=0,
        store=runs.config.base_of(runs.spec(name)).store_name,
        index_hash=facts.index_hash,
        embed_model=Identity(facts.index_hash, facts.embed_model).stated_model,
        analyzer=report.index.analyzer,
        run_id=report.run_id,
        strategy=name,
        paraphrase_id=ORIGINAL,
        seed=seed,
    )
    traces = []
    for answer in answer_set.answers:
        trace = dataclasses.replace(
            common,
            qid=answer.query_id,
            delta_s=measured.delta_s.get(answer.query_id),
            lambda_state=measured.states.get(answer.query_id) or NO_STATE,
            k=answer.top_k,
        )
        segments = sorted({span.segment for span in answer.citations}) or [-1]
        traces += [_cite(trace, answer, segment) for segment in segments]
    return traces


def _cite(trace: Trace, answer: Answer, segment: int) -> Trace:
    """Add the citations of a segment to a trace."""
    spans = [span for span in answer.citations if span.segment == segment]
    chunks = [
        answer.evidence[span.evidence].chunk if span.evidence >= 0 else None for span in spans
    ]
    first = next(filter(None, chunks), None)
    return dataclasses.replace(
        trace,
        seg=segment + 1,
        citations=tuple(  # a citation without evidence may hold any text
            chunk.snippet_id if chunk else mask_snippet(span.doc_id)
            for span, chunk in zip(spans, chunks, strict=True)
        ),
        scores=tuple(chunk.score_raw if chunk else None for chunk in chunks),
        kpos=tuple(chunk.k_pos if chunk else None for chunk in chunks),
        kfinal=tuple(chunk.k_final if chunk else None for chunk in chunks),
        section_id=first.section_id if first else "",
        rev=first.rev if first else "",
    )


def write_run_traces(
    work: Work,
    answer_set: AnswerSet | None,
    runs: ScoredRuns,
    stability: StabilityMeasures,
    report: Report,
) -> str:
    """Write the run's traces. Return the reason when the SQL store cannot be used, else ""."""
    traces = [] if answer_set is None else _make_traces(answer_set, runs, stability, report)
    log = work.evaluation.reports / LOG
    if traces:
        write_log(log, traces)
    else:
        log.unlink(missing_ok=True)  # lines of an earlier run do not belong to this report
    try:
        if traces:
            write_traces(open_store(work.settings), traces)
    except InputError as failure:
        if failure.is_outage and is_shared(work.settings):
            raise  # A team's run is tried again, because its traces would be missing.
        return str(failure)
    return ""


# ---- evidence-trust.jsonl with one line per chunk.

LINE_VERSION = 1
"""Schema version of the lines of evidence-trust.jsonl."""


def evidence_lines(trust: pd.DataFrame, as_of: str) -> bytes:
    """Write one JSON line per chunk (`evidence-trust-line.schema.json`), in order of the chunks.

    A label has the chunk's number in its document. It changes with the document, unlike the id.
    """
    day = dt.date.fromisoformat(as_of)
    numbers = trust.groupby("doc_id").cumcount() + 1
    lines = [
        {
            "schema_version": LINE_VERSION,
            "chunkId": row["chunk_id"],
            "doc_id": row["doc_id"],
            "label": f"{row['doc_id']}-chunk{place}",
            "trustScore": number(row["trust"]),
            "domain": row["domain"] or None,
            "signature": row["signature_state"],
            "timestamp": row["date"] or None,
            "factors": explain_factors(row, day),
            "blocked": row["verdict"] == "blocked",
            "reasons": list(row["reasons"]),
        }
        for row, place in zip(trust.to_dict("records"), numbers.tolist(), strict=True)
    ]
    return "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines).encode()
