"""Recorded outputs in the formats of other tools, made into rows of this package.

`FORMATS` is the table of formats: the marks of each, and the paths of its fields. A path is a
series of keys with dots, and `*` stands for every item of a list. The first path with a value
counts. Attributes with dots in their names become nested objects, and a text of JSON is entered
like an object.

Tools that record spans (steps of a request) give one output for each trace with a retrieval span.
The question and the answer are those of the root span; else the question is the query of the first
retrieval, and the answer that of the last other span with one. The contexts are those of all
retrieval spans, in the order of time. A span that was exported twice counts once, the last time.
One warning counts the traces without a retrieval span and the spans without a trace, which are left
out.
"""

import dataclasses
import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rag_eval.core.errors import Place, ProblemList, quoted
from rag_eval.core.rows import parse_object, read_lines, read_values
from rag_eval.storage.hashing import digest

MAX_BYTES: Final = 256_000_000
_ID_DIGITS: Final = 16
_MAX_DEPTH: Final = 16
_SHOWN_TRACES, _SHOWN_CHARS = 5, 40
_NANOSECOND_DIGITS: Final = 19
"""Digits of a time until the year 2286."""
_ZONE: Final = re.compile(r"(?:Z|[+-]\d\d:?\d\d)$")

PARQUET: Final = ".parquet"

Row = dict[str, Any]
Placed = tuple[Path, int, Row]
"""A row with its file and line."""


@dataclasses.dataclass(frozen=True)
class Format:
    """A format: marks, and paths by field, several separated by blanks.

    A file has the format when its first object has one of the keys in `marks`. `passages` lead to
    the retrieved passages, best first, and `passage` to the fields of one that is no plain text.
    """

    name: str
    marks: str
    fields: Mapping[str, str]
    passages: str
    passage: Mapping[str, str]
    span: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Paths of trace, id, parent and start of a span; empty when an object is an output."""
    children: str = ""
    """Paths of the spans inside of an object."""
    retrieval: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Values by path; one of them marks a span as a retrieval."""
    stated: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Paths of what a retrieval span states for a claim: strategy, fingerprint and miss rate."""
    citations: str = ""
    """Paths of the cited ids in the root span."""
    annotations: str = ""
    """Paths of the annotations of a span."""


_QUESTION: Final = "question query input"
_ANSWER: Final = "answer output result response content"
_DOCUMENT: Final = {
    "id": "id metadata.id metadata.doc_id metadata.source",
    "text": "page_content pageContent content text",
    "score": "score metadata.score",
}


def _below(path: str, keys: str) -> str:
    return " ".join([*(f"{path}.{key}" for key in keys.split()), path])


OPENTELEMETRY: Final = Format(
    "OpenTelemetry (GenAI and OpenInference)",
    marks="resourceSpans attributes",
    fields={
        "question": f"gen_ai.retrieval.query.text {_below('input.value', _QUESTION)}",
        "answer": f"gen_ai.output.messages.*.parts.*.content {_below('output.value', _ANSWER)}",
        "error": "status.message",
    },
    passages="gen_ai.retrieval.documents.* retrieval.documents.*.document",
    passage=_DOCUMENT,
    span={
        "trace": "traceId context.trace_id",
        "id": "spanId context.span_id",
        "parent": "parentSpanId parent_id",
        "start": "startTimeUnixNano start_time",
    },
    children="resourceSpans.*.scopeSpans.*.spans.*",
    retrieval={"gen_ai.operation.name": "retrieval", "openinference.span.kind": "RETRIEVER"},
    stated={name: f"metadata.{name}" for name in ("strategy", "strategy_fingerprint", "miss_rate")},
    citations="metadata.citations.*",
    annotations="annotations.*.annotation trace.annotations.*.annotation",
)
FORMATS: Final = (
    # a ragas sample is a row already: `recorded.RecordedOutput` knows its keys
    Format("ragas", marks="user_input", fields={}, passages="", passage={}),
    Format(
        "DeepEval",
        marks="actual_output retrieval_context expected_output "
        "actualOutput retrievalContext expectedOutput",
        fields={
            "question": "input",
            "answer": "actual_output actualOutput",
            "reference": "expected_output expectedOutput",
        },
        passages="retrieval_context.* retrievalContext.*",
        passage={},
    ),
    OPENTELEMETRY,
    Format(
        "LangSmith",
        marks="run_type",
        fields={
            "question": _below("inputs", _QUESTION),
            "answer": _below("outputs", _ANSWER),
            "error": "error",
        },
        passages="outputs.documents.* outputs.output.*",
        passage=_DOCUMENT,
        span={
            "trace": "trace_id id",
            "id": "id",
            "parent": "parent_run_id",
            "start": "start_time",
        },
        children="child_runs.*",
        retrieval={"run_type": "retriever"},
    ),
    Format(
        "Langfuse",
        marks="observations traceId data",
        fields={
            "question": f"{_below('input', _QUESTION)} {_below('input.kwargs', _QUESTION)} "
            f"input.args.* {_below('trace.input', _QUESTION)}",
            "answer": f"{_below('output', _ANSWER)} {_below('trace.output', _ANSWER)}",
        },
        passages="output.documents.* output.*",
        passage=_DOCUMENT,
        span={
            "trace": "traceId trace.id id",
            "id": "id",
            "parent": "parentObservationId",
            "start": "startTime timestamp trace.timestamp",
        },
        children="observations.* data.*",
        retrieval={"type": "RETRIEVER"},
    ),
)
OWN_KEYS: Final = ("query_id", "query")
"""Keys of a row of this package, whatever else the row holds."""


def find_format(path: Path) -> Format | None:
    """Return the format of a file by the keys of its first object; None for the own layouts.

    Of Parquet files only tables of spans are read.
    """
    if path.suffix == PARQUET:
        return OPENTELEMETRY
    quiet = ProblemList()  # whoever reads the file reports its faults
    _, line = next(read_lines(path, quiet), (0, ""))
    first = parse_object(line)
    if not isinstance(first, dict) and line.lstrip()[:1] in {"[", "{"}:
        _, first = next(read_values(path, quiet, MAX_BYTES), (0, {}))
    if not isinstance(first, dict):
        return None
    keys = {key.split(".")[0] for key in first}
    if not keys.isdisjoint(OWN_KEYS) and "user_input" not in keys:
        return None
    return next((one for one in FORMATS if not keys.isdisjoint(one.marks.split())), None)


def _read(path: Path, problems: ProblemList) -> Iterator[tuple[int, Row]]:
    """Yield the objects of a file with their lines, or the rows of a Parquet file with numbers."""
    if path.suffix != PARQUET:
        yield from read_values(path, problems, MAX_BYTES)
        return
    import pyarrow as pa
    from pyarrow import parquet

    try:
        about = parquet.read_metadata(path)
        size = sum(about.row_group(at).total_byte_size for at in range(about.num_row_groups))
        if size > MAX_BYTES:
            accepted = f"at most {MAX_BYTES:,} bytes"
            problems.add("file_too_large", "the table is too large", path, accepted=accepted)
            return
        rows = parquet.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        message = f"the file cannot be read: {quoted(str(error))}"
        problems.add("unreadable_file", message, path, accepted="a Parquet file")
        return
    yield from enumerate(rows, 1)


def read_foreign(
    paths: Sequence[Path], layout: Format, problems: ProblemList
) -> Iterator[tuple[Path, int, Row]]:
    """Yield rows of recorded outputs with file and line; faults become problems.

    A file holds JSON lines, one JSON document, or a list of objects; or it is a Parquet file. A
    trace may be cut over several files. The warning `left_out` counts the traces and spans that
    give no row.
    """
    objects = ((path, *found) for path in paths for found in _read(path, problems))
    if not layout.fields:
        yield from objects
        return
    rows = _join_spans(objects, layout, problems, paths) if layout.span else _rows(objects, layout)
    for path, line, row in rows:
        wanted = layout.fields["answer"]
        if row["question"] is None:
            wanted = layout.fields["question"]
        elif row["answer"] is not None or row["contexts"] or layout.span:
            yield path, line, row
            continue
        message = f"{layout.name}: the record has no text here"
        more: Place = {"line": line, "field": wanted.split()[0], "accepted": _either(wanted)}
        problems.add("missing_key", message, str(path), **more)


def _either(paths: str) -> str:
    return " or ".join(paths.split())


def _rows(objects: Iterator[Placed], layout: Format) -> Iterator[Placed]:
    for path, line, value in objects:
        row: Row = {name: _first_text(value, paths) for name, paths in layout.fields.items()}
        row["query_id"] = f"q-{digest(row['question'] or '', _ID_DIGITS)}"
        yield path, line, row | {"contexts": _passages(value, layout)}


# ---- Spans.


class _Span(NamedTuple):
    file: Path
    line: int
    value: Row
    id: str
    parent: str
    start: str


def _join_spans(
    objects: Iterator[Placed], layout: Format, problems: ProblemList, paths: Sequence[Path]
) -> list[Placed]:
    """Make a row of each trace with a retrieval span; a problem counts what is left out."""
    traces: dict[str, dict[str, _Span]] = {}
    for number, (file, line, value) in enumerate(objects):
        for place, (trace, found) in enumerate(_spans_in(value, layout)):
            own, parent, start = (
                str(_first(found, layout.span[name]) or "") for name in ("id", "parent", "start")
            )
            key = own if trace and own else f"{number} {place}"
            traces.setdefault(trace, {})[key] = _Span(file, line, found, own, parent, start)
    n_spans, untraced = sum(map(len, traces.values())), traces.pop("", {})
    rows: list[Placed] = []
    others: list[str] = []
    for trace, by_id in traces.items():
        # times of one file have one form
        spans = sorted(by_id.values(), key=lambda span: span.start)
        if any(_is_retrieval(span, layout) for span in spans):
            rows.append(_row_of_trace(trace, spans, layout))
        else:
            others.append(quoted(trace, _SHOWN_CHARS))
    counts, accepted = [], []
    path = paths[0] if len(paths) == 1 else None
    marks = " or ".join(f"{name} = {value}" for name, value in layout.retrieval.items())
    if len(rows) < len(traces):
        counts.append(f"{len(others)} of {len(traces)} traces without a retrieval span")
        accepted.append(f"a span with {marks}")
    if untraced:
        counts.append(f"{len(untraced)} of {n_spans} spans without a trace")
        accepted.append(f"the trace at {_either(layout.span['trace'])}")
    if not any(row["contexts"] for *_, row in rows) and not problems.n_errors:
        message = f"{layout.name}: no retrieval span of the file records a document"
        more: Place = {"found": " and ".join(counts) or None}
        more["accepted"] = f"a span with {marks}, and documents at {_either(layout.passages)}"
        problems.add("no_retrieval", message, path, **more)
    elif counts:
        message = f"{layout.name}: {' and '.join(counts)} are left out"
        more = {"accepted": "; ".join(accepted), "severity": "warning"}
        if others:
            more["found"] = ", ".join(
                others[:_SHOWN_TRACES] + ["..."][: len(others) > _SHOWN_TRACES]
            )
        problems.add("left_out", message, path, **more)
    return rows


def _spans_in(value: Row, layout: Format) -> Iterator[tuple[str, Row]]:
    """Yield the spans of an object with their traces; a parent comes before its children.

    The trace is empty where neither the span nor one above it names a trace.
    """
    lists = {path.split(".")[0] for path in layout.children.split()}
    left = [("", value)]
    while left:
        above, found = left.pop()
        found = _open_attributes(found)
        trace = str(above or _first(found, layout.span["trace"]) or "")
        inside = [child for child in _values(found, layout.children) if isinstance(child, dict)]
        left += [(trace, child) for child in reversed(inside)]
        # An object with a list of spans, and without a field of a span, is only their envelope.
        own = (_first(found, layout.span[name]) for name in ("id", "parent", "start"))
        if trace or lists.isdisjoint(found) or any(own):
            yield trace, found


def _row_of_trace(trace: str, spans: list[_Span], layout: Format) -> Placed:
    ids, fields = {span.id for span in spans}, layout.fields
    root = next((span for span in spans if span.parent not in ids), spans[0])
    retrievals = [span for span in spans if _is_retrieval(span, layout)]
    others = [span for span in spans if span is not root and span not in retrievals]
    asked = (_first_text(span.value, fields["question"]) for span in [root, *retrievals])
    said = (
        _first_text(span.value, fields["answer"])
        for span in [root, *reversed(others)]
        if span not in retrievals
    )
    stated = {name: _first(retrievals[0].value, path) for name, path in layout.stated.items()}
    if not all(isinstance(stated.get(name), str) for name in ("strategy", "strategy_fingerprint")):
        stated = {}  # metadata of another system
    row: Row = {
        "query_id": trace,
        "question": next(filter(None, asked), None),
        "answer": next(filter(None, said), None),
        "error": _first_text(root.value, fields.get("error", "")),
        "contexts": [item for span in retrievals for item in _passages(span.value, layout)],
        "at": _format_time(root.start),
        "citations": [
            name for name in _values(root.value, layout.citations) if isinstance(name, str)
        ],
        "traced": {
            **stated,
            "labels": [
                label
                for span in spans
                for note in _values(span.value, layout.annotations)
                if _first(note, "annotator_kind") == "HUMAN"
                and isinstance(label := _first(note, "label"), str)
            ],
        },
    }
    return root.file, root.line, row


def _is_retrieval(span: _Span, layout: Format) -> bool:
    return any(_first(span.value, path) == value for path, value in layout.retrieval.items())


def _format_time(text: str) -> str:
    """Write nanoseconds since 1970, or a time without a zone, as ISO 8601 with a zone."""
    if text.isdecimal() and len(text) <= _NANOSECOND_DIGITS:
        return dt.datetime.fromtimestamp(int(text) / 1e9, dt.UTC).isoformat()
    return text if not text or _ZONE.search(text) else f"{text}+00:00"


def _open_attributes(span: Row) -> Row:
    """Put the attributes of a span beside its own fields, with names with dots as objects."""
    span = _nest(span)
    attributes = span.pop("attributes", {})
    if isinstance(attributes, list):
        attributes = _untype({"kvlistValue": {"values": attributes}})
    return {**_nest(attributes if isinstance(attributes, dict) else {}), **span}


def _untype(value: Any, depth: int = 0) -> Any:
    """Read a typed value of OTLP, such as {"stringValue": "a"} or {"arrayValue": ...}.

    Values that are nested deeper than `_MAX_DEPTH`, or have another form, become None.
    """
    if not isinstance(value, dict) or not value or depth > _MAX_DEPTH:
        return None
    kind, plain = next(iter(value.items()))
    inside = plain.get("values") if isinstance(plain, dict) else None
    items = [item for item in inside if isinstance(item, dict)] if isinstance(inside, list) else []
    if kind == "arrayValue":
        return [_untype(item, depth + 1) for item in items]
    if kind == "kvlistValue":
        return {str(item.get("key")): _untype(item.get("value"), depth + 1) for item in items}
    return plain


def _nest(values: Row) -> Row:
    """Turn names with dots into objects in objects."""
    found: Row = {}
    for name, value in values.items():
        *above, last = name.split(".")
        place = found
        for key in above:
            inner = place.get(key)
            place[key] = inner if isinstance(inner, dict) else {}
            place = place[key]
        place.setdefault(last, value)
    return found


# ---- Paths.


def _walk(value: Any, keys: list[str]) -> Iterator[Any]:
    """Yield the values at a path, in order."""
    if not keys:
        yield value
        return
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return  # a plain text has nothing inside
    key, *rest = keys
    if isinstance(value, dict) and key not in value and any("." in name for name in value):
        value = _nest(value)
    if key != "*":
        if isinstance(value, dict) and key in value:
            yield from _walk(value[key], rest)
        return
    items = value if isinstance(value, list) else []
    if isinstance(value, dict) and all(name.isdecimal() for name in value):
        items = [value[name] for name in sorted(value, key=int)]
    for item in items:
        yield from _walk(item, rest)


def _values(value: Any, paths: str) -> Iterator[Any]:
    """Yield the values at several paths, separated by blanks."""
    for path in paths.split():
        yield from _walk(value, path.split("."))


def _first(value: Any, paths: str) -> Any:
    return next((item for item in _values(value, paths) if item is not None), None)


def _first_text(value: Any, paths: str) -> str | None:
    found = (item for item in _values(value, paths) if isinstance(item, str) and item.strip())
    return next(found, None)


def _passages(value: Row, layout: Format) -> list[Any]:
    """Collect the passages at the first path that has some; a text is a passage without an id."""
    for path in layout.passages.split():
        if found := list(_values(value, path)):
            return [_passage(item, layout) for item in found]
    return []


def _passage(item: Any, layout: Format) -> Any:
    if not isinstance(item, dict):
        return item
    fields = {name: _first(item, paths) for name, paths in layout.passage.items()}
    if fields.get("id") is not None:
        fields["id"] = str(fields["id"])
    return {name: value for name, value in fields.items() if value is not None}
