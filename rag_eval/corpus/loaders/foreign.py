"""Traces of OpenTelemetry (GenAI, OpenInference), LangSmith and Langfuse as recorded outputs.

`FIELDS` says where each field of a span stands, whatever tool wrote it; `docs/exchange.md` says
what becomes of a trace. A span that was exported twice counts once, the last time.
"""

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from rag_eval.core.errors import Place, Problem, ProblemList, format_count, quoted
from rag_eval.core.fields import ID
from rag_eval.core.rows import parse_object, read_lines, read_values

MAX_BYTES: Final = 256_000_000
_MAX_DEPTH: Final = 32

Row = dict[str, Any]
Placed = tuple[Path, int, Row]
"""A row with its file and line."""
Kind = Literal["spans", "ragas", "own"]

FIELDS: Final[Mapping[str, str]] = {
    "children": "resourceSpans.*.scopeSpans.*.spans.* child_runs.* observations.* data.*",
    "trace": "traceId trace_id context.trace_id trace.id id",
    "span": "spanId context.span_id id",
    "parent": "parentSpanId parent_id parent_run_id parentObservationId",
    "start": "startTimeUnixNano start_time startTime timestamp trace.timestamp",
    "kind": "gen_ai.operation.name openinference.span.kind run_type type",
    "question": "gen_ai.retrieval.query.text input.value gen_ai.input.messages llm.input_messages"
    " reranker.query inputs input trace.input",
    "answer": "gen_ai.output.messages output.value llm.output_messages outputs output trace.output",
    "error": "status.message error",
    "passages": "gen_ai.retrieval.documents.* reranker.output_documents.*.document"
    " retrieval.documents.*.document outputs.documents.* outputs.output.* output.documents.*"
    " output.*",
}
"""Field of a span -> paths, the first with a value counts.

A path is a series of keys with dots, and `*` stands for every item of a list. Attributes with dots
in their names are nested objects, and a text of JSON is entered like an object."""
SPEECH: Final[Mapping[str, str]] = {
    "user": "question query user_input user_query input prompt text args.*",
    "assistant": "answer final_answer output output_text result response text content"
    " output.content choices.*.message.content generations.*.*.text",
}
"""Paths inside of an input and of an output, by who speaks; messages are found anywhere."""
PASSAGE: Final[Mapping[str, str]] = {
    "id": "id metadata.id metadata.doc_id metadata.document_id metadata.source metadata.file_path"
    " metadata.file_name metadata.path metadata.url node.metadata.file_path node.id_ id_",
    "text": "page_content pageContent content text node.text",
    "score": "score metadata.score metadata.relevance_score",
}
"""Paths of the fields of a passage that is no plain text; metadata that is no id is passed over."""
ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "model"), "assistant"),
    **dict.fromkeys(("system", "developer", "tool", "function"), "other"),
}
"""Who speaks, by the role, type or class of a message."""
_MARKS: Final = {path.split(".")[0] for path in FIELDS["children"].split()}
_MARKS_OF_SPANS: Final = {*_MARKS, "attributes", "run_type", "traceId"}


def find_kind(path: Path) -> Kind:
    """Tell by the keys of the first object whether a file holds spans or other rows.

    A file holds JSON lines, one JSON document, or a list of objects.
    """
    unreported = ProblemList()  # the reader of the file reports its faults
    _, line = next(read_lines(path, unreported), (0, ""))
    first: object = parse_object(line, strict=False)
    if not isinstance(first, dict) and line.lstrip()[:1] in {"[", "{"}:
        _, first = next(read_values(path, unreported, MAX_BYTES, strict=False), (0, {}))
    keys = {key.split(".")[0] for key in first} if isinstance(first, dict) else set[str]()
    if "user_input" in keys:
        return "ragas"
    is_own = keys.isdisjoint(_MARKS_OF_SPANS) or not keys.isdisjoint({"query_id", "query"})
    return "own" if is_own else "spans"


class LeftOut:
    """Traces and spans that give no output. Each is left out alone; a reason is reported once."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str], list[tuple[str, Problem]]] = {}

    def add(self, trace: str, faults: Iterable[Problem]) -> None:
        """Leave out a trace for its faults; an empty name stands for a span without a trace."""
        for reason, fault in {(fault.code, fault.message): fault for fault in faults}.items():
            self._reasons.setdefault(reason, []).append((trace, fault))

    def report(self, n_read: int, problems: ProblemList, warnings: ProblemList) -> None:
        """Report each reason with its first place: as an error if no trace was read."""
        for entries in self._reasons.values():
            trace, fault = entries[0]
            count = format_count(len(entries), "trace" if trace else "span")
            message = f"{count} left out and {format_count(n_read, 'trace')} read: {fault.message}"
            more: Place = {"line": fault.line, "field": fault.field, "accepted": fault.accepted}
            more["found"] = fault.found or quoted(trace) or None
            more["severity"] = "warning" if n_read else "error"
            code, reported = ("left_out", warnings) if n_read else (fault.code, problems)
            reported.add(code, message, fault.file, **more)


# ---- Spans


class _Span:
    """A span with its place in a file, its place in the trace, and its passages."""

    def __init__(self, file: Path, line: int, value: Row) -> None:
        self.file, self.line, self.value = file, line, value
        places = (str(_first(value, FIELDS[name]) or "") for name in ("span", "parent", "start"))
        self.id, self.parent, self.start = places
        kind = str(_first(value, FIELDS["kind"])).casefold()
        # Some tools mark a reranking only by its name.
        is_named = re.search("re[-_]?rank", str(value.get("name")).casefold()) is not None
        is_step = kind in {"retriever", "span", "chain", "tool"}
        self.is_reranking = kind.startswith("rerank") or (is_named and is_step)
        self.is_retrieval = kind in {"retriever", "retrieval"} and not self.is_reranking
        lists = (list(_values(value, path)) for path in FIELDS["passages"].split())
        items = ([item for item in items if item is not None] for items in lists)
        self.passages = list(map(_read_passage, next(filter(None, items), [])))


_REASONS: Final = {
    "no_trace": ("the span names no trace", "trace"),
    "no_retrieval": ("the trace has no retrieval span", "kind"),
    "missing_key": ("the trace has no question", "question"),
}
"""Message and missing field of each reason to leave out a trace or a span."""


def _fault(code: str, span: _Span) -> Problem:
    message, field = _REASONS[code]
    accepted = " or ".join(FIELDS[field].split())
    return Problem(code, message, str(span.file), span.line, accepted=accepted)


def read_spans(paths: Sequence[Path], problems: ProblemList, left_out: LeftOut) -> Iterator[Placed]:
    """Yield a row of recorded outputs for each trace with file and line; faults become problems.

    A trace may be cut over several files. Traces without a retrieval or a question, and spans
    without a trace, are added to `left_out`.
    """
    traces: dict[str, dict[str, _Span]] = {}
    for path in paths:
        for line, value in read_values(path, problems, MAX_BYTES, strict=False):
            for place, (trace, fields) in enumerate(_spans_in(value)):
                span = _Span(path, line, fields)
                key = span.id if trace and span.id else f"{path} {line} {place}"
                traces.setdefault(trace, {})[key] = span
    for span in traces.pop("", {}).values():
        left_out.add("", [_fault("no_trace", span)])
    for trace, by_id in traces.items():
        # times of one file have one form, but whole seconds may stand without fractions
        spans = sorted(by_id.values(), key=lambda span: span.start.removesuffix("Z"))
        row = _make_row(trace, spans)
        if row is None:
            left_out.add(trace, [_fault("no_retrieval", spans[0])])
        elif row["question"] is None:
            left_out.add(trace, [_fault("missing_key", spans[0])])
        else:
            yield spans[0].file, spans[0].line, row


def _spans_in(value: Row, above: str = "", depth: int = 0) -> Iterator[tuple[str, Row]]:
    """Yield the spans of an object with their traces, perhaps empty; parents come first."""
    fields = _nest(value)
    attributes = fields.pop("attributes", {})
    if isinstance(attributes, list):
        attributes = _untype({"kvlistValue": {"values": attributes}})
    if isinstance(attributes, dict):
        fields = _nest(attributes) | fields
    trace = above or str(_first(fields, FIELDS["trace"]) or "")
    # An object with a list of spans and without a trace is only their envelope.
    if trace or fields.keys().isdisjoint({"resourceSpans", "data"}):
        yield trace, fields
    for child in _values(fields, FIELDS["children"]):
        if isinstance(child, dict) and depth < _MAX_DEPTH:
            yield from _spans_in(child, trace, depth + 1)


def _make_row(trace: str, spans: list[_Span]) -> Row | None:
    """Make the row of a trace from its spans in the order of time; None without a retrieval."""
    parents = {span.id: span.parent for span in spans if span.id}
    root = next((span for span in spans if span.parent not in parents), spans[0])
    steps = [
        span
        for span in spans
        if span.is_retrieval or (span.is_reranking and span is not root and span.passages)
    ]
    if not steps:
        return None
    others = [span for span in [root, *reversed(spans)] if span not in steps]
    return {
        "query_id": trace,
        "question": _first_speech([root, *steps], "question", "user"),
        "answer": _first_speech(others, "answer", "assistant"),
        "error": _first_text(root.value, FIELDS["error"]),
        "contexts": _join_passages(steps, parents),
        "at": _format_time(root.start),
        "is_trace": True,
    }


def _join_passages(steps: list[_Span], parents: Mapping[str, str]) -> list[Row]:
    """Join the passages of the retrievals of a trace, as the system used them."""
    steps = [step for step in steps if step.passages]
    ids = {step.id for step in steps if step.id}
    reranked: list[Row] = []
    lists: list[list[Row]] = []  # since the last reranking
    for step in steps:
        above = [step.parent]
        while (parent := parents.get(above[-1], "")) not in above:  # parents may form a circle
            above.append(parent)
        if not ids.isdisjoint(above):
            continue  # the retrieval around this one made its own list of this list
        if not step.is_reranking:
            lists.append(step.passages)
            continue
        before = [item for items in lists for item in items] or reranked
        texts = {item["id"]: item for item in before if "id" in item}
        passages = [texts.get(item.get("id"), {}) | item for item in step.passages]
        reranked = [*reranked, *passages] if lists else passages
        lists = []
    return [*reranked, *(item for items in lists for item in items)]


def _format_time(text: str) -> str:
    """Write a time, or a number since 1970, as ISO 8601 with a zone; else return an empty text."""
    if re.fullmatch(r"\d{10,19}", text):  # seconds to nanoseconds, from 2001 to 2286
        return dt.datetime.fromtimestamp(int(text) / 10 ** (len(text) - 10), dt.UTC).isoformat()
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return ""  # an output needs no time
    return text if moment.tzinfo else f"{text}+00:00"


def _untype(value: Any, depth: int = 0) -> Any:
    """Read a typed value of OTLP; values of another form, or nested too deeply, become None."""
    if not isinstance(value, dict) or not value or depth > _MAX_DEPTH:
        return None
    kind, plain = next(iter(value.items()))
    items = [item for item in _values(plain, "values.*") if isinstance(item, dict)]
    if kind == "arrayValue":
        return [_untype(item, depth + 1) for item in items]
    if kind == "kvlistValue":
        return {str(item.get("key")): _untype(item.get("value"), depth + 1) for item in items}
    return plain


def _nest(values: Row) -> Row:
    """Turn names with dots into objects in objects."""
    nested: Row = {}
    for name, value in values.items():
        *above, last = name.split(".")
        place = nested
        for key in above:
            inner = place.get(key)
            place[key] = inner if isinstance(inner, dict) else {}
            place = place[key]
        place.setdefault(last, value)
    return nested


# ---- Passages and messages


def _read_passage(item: Any) -> Row:
    if not isinstance(item, dict):
        return {"text": item}
    item = _unpack(_nest(item))
    fields = {name: _first(item, paths) for name, paths in PASSAGE.items()}
    ids = (ID.read(value) for value in _values(item, PASSAGE["id"]) if value != "")
    fields["id"] = next(filter(None, ids), None)
    return {name: value for name, value in fields.items() if value is not None}


def _first_speech(spans: Iterable[_Span], field: str, role: str) -> str | None:
    """Return the first text of a role in a field of spans: at a known key, else a message."""
    for value in (value for span in spans for value in _values(span.value, FIELDS[field])):
        opened = _open_json(value)
        texts = [text for speaker, text in _messages(opened) if speaker == role]
        if isinstance(opened, str):
            texts.append(opened)
        elif not (isinstance(opened, dict) and {"role", "type"} & opened.keys()):  # no message
            texts.append(_first_text(opened, SPEECH[role]) or "")
        if text := next((text for text in reversed(texts) if text.strip()), None):
            return text
    return None


def _messages(value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield who speaks and the text of each message in a value, in order."""
    if isinstance(value, dict):
        fields = _unpack(value)
        words = (str(fields.get(key)).casefold() for key in ("role", "type"))
        roles = (ROLES.get(word.removesuffix("chunk").removesuffix("message")) for word in words)
        role, content = next(filter(None, roles), None), _first(fields, "content parts")
        if role is not None and content is not None:
            parts = [content] if isinstance(content, str) else _items(content)
            yield role, "".join(map(_part_text, parts))
            return
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inside if depth < _MAX_DEPTH else ():
        yield from _messages(item, depth + 1)


def _part_text(part: Any) -> str:
    """Return the text of a part of a message; empty for a picture or a call of a tool."""
    if isinstance(part, str):
        return part
    is_text = str(_first(part, "type") or "text").endswith("text")
    return _first_text(part, "text content") or "" if is_text else ""


def _unpack(value: Row) -> Row:
    """Return the fields of a message or document that LangChain packed with its class or type."""
    kwargs, data, names = value.get("kwargs"), value.get("data"), value.get("id")
    if "lc" in value and isinstance(kwargs, dict):
        return {"type": names[-1] if isinstance(names, list) and names else "", **kwargs}
    return {**value, **data} if isinstance(data, dict) and "type" in value else value


# ---- Paths


def _open_json(value: Any) -> Any:
    """Open a text of JSON, also inside of a text of JSON; other values are returned as they are."""
    try:
        opened = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return value
    if isinstance(opened, str):
        return _open_json(opened)
    return opened if isinstance(opened, dict | list) else value


def _items(value: Any) -> list[Any]:
    """Return the items of a list, or of an object with numbers as keys."""
    if isinstance(value, dict) and all(name.isdecimal() for name in value):
        return [value[name] for name in sorted(value, key=int)]
    return value if isinstance(value, list) else []


def _values(value: Any, paths: str) -> Iterator[Any]:
    """Yield the values at several paths, separated by blanks, in order."""
    for path in paths.split():
        found = [value]
        for key in path.split("."):
            opened = map(_open_json, found)
            if key == "*":
                found = [item for place in opened for item in _items(place)]
            else:
                found = [it[key] for it in opened if isinstance(it, dict) and key in it]
        yield from found


def _first(value: Any, paths: str) -> Any:
    return next((item for item in _values(value, paths) if item is not None), None)


def _first_text(value: Any, paths: str) -> str | None:
    return next((it for it in _values(value, paths) if isinstance(it, str) and it.strip()), None)
