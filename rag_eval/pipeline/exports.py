"""Files of a run for people and other tools: answers, traces, evidence."""

import dataclasses
import datetime as dt
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pandas as pd

from rag_eval.answers.replies import CODES
from rag_eval.answers.scoring import UNCHECKED
from rag_eval.citations.payload import validate
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
from rag_eval.corpus.masking import mask_snippet, masked_tree
from rag_eval.gold.files import ORIGINAL
from rag_eval.measures.stability import CAUSES
from rag_eval.pipeline.answer_stages import AnswerMeasures, AnswerSet, CitationSet
from rag_eval.pipeline.measure_stages import StabilityMeasures
from rag_eval.pipeline.runner import Results, Work
from rag_eval.pipeline.strategy_runs import ScoredRuns
from rag_eval.reporting.outgoing import Outgoing
from rag_eval.reporting.report import Report
from rag_eval.storage.home import atomic_path
from rag_eval.storage.locks import is_shared
from rag_eval.storage.sql import ColumnSpec, Kind, SqlStore, TableSpec, open_store
from rag_eval.trust.sources import explain_factors

SCHEMA_VERSION: Final = {"schema_version": 1}


def _lines(rows: Iterable[Mapping[str, object]]) -> bytes:
    texts = (json.dumps({**row, **SCHEMA_VERSION}, sort_keys=True, allow_nan=False) for row in rows)
    return "".join(f"{text}\n" for text in texts).encode()


# ---- Answers and citations, which `rag-eval validate` reads again.


class Answered(NamedTuple):
    """The results of the answer stages."""

    answers: AnswerSet
    citations: CitationSet
    measures: AnswerMeasures

    @property
    def ids(self) -> list[str]:
        """Identities of the three results."""
        return [result.id for result in self]

    @classmethod
    def find(cls, results: Results) -> Self | None:
        """Find the results of the answer stages; None without configured answers."""
        answers, citations = results.find(AnswerSet), results.find(CitationSet)
        measures = results.find(AnswerMeasures)
        if answers is None or citations is None or measures is None:
            return None
        return cls(answers, citations, measures)


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


NO_GOLD: Final = "without gold it is not known whether a wording hits"


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
) -> bytes:
    """Write one answer as the auditable block, or as `{error, fix}`.

    The keys keep the order of the contract, citations first. `segments` has the segment of each
    citation, because the text has no markers and may be cut.
    """
    if answer.outcome in UNCHECKED:
        code, error, fix = answer.codes[0], "", ""
        if answer.outcome == "contract_error_reply":
            error, _, fix = text.removeprefix("error: ").partition("; fix: ")
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
    return f"{json.dumps({**line, 'query_id': answer.query_id, **SCHEMA_VERSION})}\n".encode()


def answer_files(
    answered: Answered, stability: StabilityMeasures, runs: ScoredRuns
) -> dict[str, bytes]:
    """Return the files about answers, as name -> content.

    `rag-eval validate` reads citations.jsonl. rejected.jsonl has the replies that broke the
    contract, with the reasons.
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
    parts: dict[str, Sequence[Any]] = {
        "preflights": answer_set.preflights,
        "rejected": answer_set.rejected,
    }
    return {
        "answers.jsonl": _lines(
            _answer_line(answer, outgoing[answer.query_id]) for answer in answers
        ),
        "auditable-answers.jsonl": b"".join(blocks),
        "citations.jsonl": _lines(record for lines in cited.values() for record in lines),
        **{
            f"{name}.jsonl": _lines(
                _outgoing_row(dataclasses.asdict(row), outgoing.get(row.query_id)) for row in rows
            )
            for name, rows in parts.items()
        },
        "events.log": answer_set.events,
    }


def _outgoing_row(row: Mapping[str, Any], outgoing: Outgoing | None) -> Open:
    """Mask a row about a question; messages and reply become snippets."""
    line: Open = masked_tree(dict(row))
    if outgoing is not None and "reply" in row:
        line["messages"] = [outgoing.line(str(item)) for item in row.get("messages", ())]
        line["reply"] = outgoing.line(str(row["reply"]))
    return line


# ---- Traces of a finished run: rows of `rag_traces`, and lines of `traces.log`. No value can break
# ---- a line, forge another line or reorder the visible text.

MAX_TEXT = 600
"""Most characters of a text; a longer text keeps its head and ends with a hash."""
MAX_ITEMS = 1_000
"""Most items of a list; further items are left out."""
MISSING = "-"
NO_DELTA_S, NO_STATE = -1.0, "undefined"
"""Values of a row without ΔS or λ, whose columns are NOT NULL. ΔS itself is 0 to 1."""


def _bound(value: Any) -> Any:
    """Shorten a text or a list; return a plain number, or None for a number that is not finite."""
    if isinstance(value, tuple):
        return tuple(map(_bound, value[:MAX_ITEMS]))
    if isinstance(value, str) and len(value) > MAX_TEXT:
        tail = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return f"{value[: MAX_TEXT - 33]}…{tail}"
    if value is None or isinstance(value, str):
        return value
    plain = value.item() if hasattr(value, "item") else value  # a NumPy number
    return plain + 0 if math.isfinite(plain) else None  # + 0 turns -0.0 into 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Citations, index and ranks behind one segment of an answer; the constructor bounds values.

    `seg` is the number of the answer's sentence from 1; 0 for the answer as a whole. `delta_s` is
    1 - cosine between the question and its evidence. `k`, the number of requested chunks, is in the
    line only; the fields that the contract's line lacks are in the row only. `citations`, `scores`,
    `kpos` and `kfinal` are the cited snippets, their scores, and their ranks before and after
    reranking.
    """

    ts: str
    qid: str
    seg: int
    delta_s: float | None = None
    lambda_state: str = ""
    k: int | None = None
    store: str = ""
    index_hash: str = ""
    embed_model: str = ""
    analyzer: str = ""
    section_id: str = ""
    rev: str = ""
    citations: tuple[str, ...] = ()
    scores: tuple[float | None, ...] = ()
    kpos: tuple[int | None, ...] = ()
    kfinal: tuple[int | None, ...] = ()
    run_id: str = ""
    strategy: str = ""
    paraphrase_id: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        """Shorten long texts and lists."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _bound(getattr(self, field.name)))


_LINE = (
    "ts qid seg deltaS=delta_s lambda=lambda_state k store index_hash embed=embed_model citations "
    "scores kpos kfinal section_id rev"
).split()
"""Keys of a line in the contract's order, each with its field where the names differ."""
_COLUMNS = (
    "ts qid seg delta_s lambda_state store index_hash embed_model analyzer section_id rev "
    "citations scores kpos kfinal run_id strategy paraphrase_id seed"
).split()
"""Field of each column of the table."""
_KINDS: dict[str, Kind] = {
    "ts": "timestamp",
    "seg": "integer",
    "seed": "integer",
    "delta_s": "float",
    **dict.fromkeys(("citations", "scores", "kpos", "kfinal"), "jsonb"),
}
"""Kind of the columns that are no text."""
_REQUIRED = frozenset({"ts", "qid", "seg", "delta_s", "lambda_state"})
_NAMES = {"delta_s": "deltaS"}

RAG_TRACES = TableSpec(
    "rag_traces",
    tuple(
        ColumnSpec(_NAMES.get(name, name), _KINDS.get(name, "text"), required=name in _REQUIRED)
        for name in _COLUMNS
    ),
    indexes=(("run_id",), ("qid",)),
)

_PLAIN = re.compile(r"[A-Za-z0-9_./:#@+-]+")


def _format(value: object) -> str:
    """Return a value as a line writes it."""
    if isinstance(value, tuple):
        return f"[{','.join(map(_format, value))}]"
    if value is None or value == "":
        return MISSING
    if not isinstance(value, str):
        return repr(value)
    if _PLAIN.fullmatch(value) and value != MISSING:
        return value
    # escape separators and bidi controls, because JSON leaves them unescaped
    return "".join(
        letter if letter.isprintable() else json.dumps(letter)[1:-1]
        for letter in json.dumps(value, ensure_ascii=False)
    )


def _format_line(trace: Trace) -> str:
    r"""Write the trace as one line without its line end.

    Examples
    --------
    >>> _format_line(Trace("2026-01-31", "q 1", 0)).split(" seg=")[0]
    'ts=2026-01-31 qid="q 1"'
    """
    pairs = (key.partition("=") for key in _LINE)
    return " ".join(f"{key}={_format(getattr(trace, name or key))}" for key, _, name in pairs)


def _make_row(trace: Trace) -> tuple[Any, ...]:
    """Return a trace as a row of `RAG_TRACES`; `ts` becomes UTC without its zone."""
    moment = dt.datetime.fromisoformat(trace.ts).astimezone(dt.UTC).replace(tzinfo=None)
    delta_s = NO_DELTA_S if trace.delta_s is None else trace.delta_s
    filled = {"ts": moment, "delta_s": delta_s, "lambda_state": trace.lambda_state or NO_STATE}
    return tuple([filled.get(name, getattr(trace, name)) for name in _COLUMNS])


def _write_traces(store: SqlStore, traces: Sequence[Trace]) -> int:
    """Write all traces in one transaction and return the number of traces.

    The traces replace the rows of an earlier try with the same (run_id, strategy). A table that was
    made with the contract's columns alone gets ours too.
    """
    store.create(RAG_TRACES)
    owned = sorted({(trace.run_id, trace.strategy) for trace in traces})
    locks = [f"{RAG_TRACES.name} {json.dumps(run_id)}" for run_id, _ in owned]
    with store.transaction(*locks) as transaction:
        for run_id, strategy in owned:
            transaction.delete(RAG_TRACES, {"run_id": run_id, "strategy": strategy})
        return transaction.insert(RAG_TRACES, map(_make_row, traces))


def _write_log(path: Path, traces: Iterable[Trace]) -> None:
    """Write a file with a line for each trace of one run; a failure leaves no partial file."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{_format_line(trace)}\n" for trace in traces)


def _make_traces(
    answer_set: AnswerSet, runs: ScoredRuns, stability: StabilityMeasures, report: Report
) -> Iterator[Trace]:
    """Make a trace for each answer and each segment with citations."""
    name = answer_set.about.strategy
    facts, measured = runs.runs[name].about, _Stability(stability, runs, name)
    for answer in answer_set.answers:
        trace = Trace(
            ts=report.timestamp,
            qid=answer.query_id,
            seg=0,
            delta_s=measured.delta_s.get(answer.query_id),
            lambda_state=measured.states.get(answer.query_id) or NO_STATE,
            k=answer.top_k,
            store=runs.config.base_of(runs.spec(name)).store_name,
            index_hash=facts.index_hash,
            embed_model=Identity(facts.index_hash, facts.embed_model).stated_model,
            analyzer=report.index.analyzer,
            run_id=report.run_id,
            strategy=name,
            paraphrase_id=ORIGINAL,
            seed=facts.seeds[0],
        )
        for segment in sorted({span.segment for span in answer.citations}) or [-1]:
            yield _cite(trace, answer, segment)


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
    log = work.evaluation.reports / "traces.log"
    if answer_set is None or not answer_set.answers:
        log.unlink(missing_ok=True)  # lines of an earlier run do not belong to this report
        return ""
    traces = list(_make_traces(answer_set, runs, stability, report))
    _write_log(log, traces)
    try:
        _write_traces(open_store(work.settings), traces)
    except InputError as failure:
        if failure.is_outage and is_shared(work.settings):
            raise  # A team's run is tried again, because its traces would be missing.
        return str(failure)
    return ""


# ---- evidence-trust.jsonl with one line per chunk.


def evidence_lines(trust: pd.DataFrame, as_of: str) -> bytes:
    """Write one JSON line per chunk (`evidence-trust-line.schema.json`), in order of the chunks.

    A label has the chunk's number in its document. It changes with the document, unlike the id.
    """
    day = dt.date.fromisoformat(as_of)
    numbers = trust.groupby("doc_id").cumcount() + 1
    return _lines(
        {
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
    )
