"""Recorded outputs in the formats of other tools, made into rows of this package.

`FORMATS` says where each field stands. A path is a series of keys with dots, and `*` stands for
every item of a list; the first path with a value counts. Attributes with dots in their names are
nested objects, and a text of JSON is entered like an object.

Spans (steps of a request) give one output for each trace with a retrieval. The question and the
answer are those of the root span; else the question is the query of the first retrieval, and the
answer that of the last other span with one. The contexts are those of all retrievals in the order
of time. A reranked list replaces the lists before it, and a retrieval the ones inside of it. A span
that was exported twice counts once, the last time.
"""

import dataclasses
import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rag_eval.core.errors import Place, Problem, ProblemList, format_count, quoted
from rag_eval.core.fields import ID
from rag_eval.core.rows import parse_object, read_lines, read_values

MAX_BYTES: Final = 256_000_000
PARQUET: Final = ".parquet"
_MAX_DEPTH: Final = 32
_SHOWN_TRACES, _SHOWN_CHARS = 5, 40

Row = dict[str, Any]
Placed = tuple[Path, int, Row]
"""A row with its file and line."""

SPEECH: Final = {
    "user": "question query user_input user_query input prompt text kwargs.question kwargs.query"
    " kwargs.input args.*",
    "assistant": "answer final_answer output output_text result response generation text content"
    " output.content choices.*.message.content generations.*.*.text",
}
"""Paths inside of an input and of an output, by who speaks; messages are found anywhere."""
PASSAGE: Final = {
    "id": "id metadata.id metadata.doc_id metadata.document_id metadata.source metadata.file_path"
    " metadata.file_name metadata.path metadata.url node.metadata.file_path node.metadata.file_name"
    " node.id_ id_",
    "text": "page_content pageContent content text node.text",
    "score": "score metadata.score metadata.relevance_score",
}
"""Paths of the fields of a passage that is no plain text; metadata that is no id is passed over."""
ROLES: Final = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "model"), "assistant"),
    **dict.fromkeys(("system", "developer", "tool", "function"), "other"),
}
"""Who speaks, by the role, type or class of a message."""
TEXT_PARTS: Final = {"text", "input_text", "output_text"}
"""Types of the parts of a message that are read."""
OWN_KEYS: Final = ("query_id", "query")
"""Keys of a row of this package, whatever else the row holds."""


@dataclasses.dataclass(frozen=True)
class Format:
    """A format: its marks and the paths of its fields, several separated by blanks.

    A file has the format when its first object has one of the keys in `marks`. `retrieval` and
    `reranking` mark spans: `path=word|word&path=word` asks for one of the words at each path.
    `passages` are best first. Without `trace`, an object is an output, whose keys `renamed` maps.
    """

    name: str
    marks: str
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    question: str = ""
    answer: str = ""
    error: str = ""
    passages: str = ""
    trace: str = ""
    span: str = ""
    parent: str = ""
    start: str = ""
    children: str = ""
    retrieval: str = ""
    reranking: str = ""
    claim: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Paths of what a retrieval states for a claim: strategy, fingerprint and miss rate."""
    citations: str = ""
    annotations: str = ""


OPENTELEMETRY: Final = Format(
    "OpenTelemetry (GenAI and OpenInference)",
    marks="resourceSpans attributes",
    question="gen_ai.retrieval.query.text input.value gen_ai.input.messages llm.input_messages"
    " reranker.query gen_ai.prompt",
    answer="gen_ai.output.messages.* output.value llm.output_messages gen_ai.completion",
    error="status.message",
    passages="gen_ai.retrieval.documents.* reranker.output_documents.*.document"
    " reranker.output_documents.* retrieval.documents.*.document retrieval.documents.*",
    trace="traceId context.trace_id",
    span="spanId context.span_id",
    parent="parentSpanId parent_id",
    start="startTimeUnixNano start_time",
    children="resourceSpans.*.scopeSpans.*.spans.*",
    retrieval="gen_ai.operation.name=retrieval openinference.span.kind=retriever",
    reranking="gen_ai.operation.name=rerank openinference.span.kind=reranker",
    claim={name: f"metadata.{name}" for name in ("strategy", "strategy_fingerprint", "miss_rate")},
    citations="metadata.citations.*",
    annotations="annotations.*.annotation trace.annotations.*.annotation",
)
FORMATS: Final = (
    # a ragas sample is a row already: `recorded.RecordedOutput` knows its keys
    Format("ragas", marks="user_input", question="user_input"),
    Format(
        "DeepEval",
        marks="actual_output retrieval_context expected_output "
        "actualOutput retrievalContext expectedOutput",
        renamed={
            "input": "user_input",
            **dict.fromkeys(("actual_output", "actualOutput"), "answer"),
            **dict.fromkeys(("expected_output", "expectedOutput"), "reference"),
            **dict.fromkeys(("retrieval_context", "retrievalContext"), "contexts"),
        },
        question="input",
        answer="actual_output actualOutput",
    ),
    OPENTELEMETRY,
    Format(
        "LangSmith",
        marks="run_type",
        question="inputs",
        answer="outputs",
        error="error",
        passages="outputs.documents.* outputs.output.*",
        trace="trace_id id",
        span="id",
        parent="parent_run_id",
        start="start_time",
        children="child_runs.*",
        retrieval="run_type=retriever",
        reranking="run_type=retriever|chain|tool&name=rerank|re-rank|re_rank",
    ),
    Format(
        "Langfuse",
        marks="observations traceId data",
        question="input trace.input",
        answer="output trace.output",
        passages="output.documents.* output.*",
        trace="traceId trace.id id",
        span="id",
        parent="parentObservationId",
        start="startTime timestamp trace.timestamp",
        children="observations.* data.*",
        retrieval="type=retriever",
        reranking="type=retriever|span|chain|tool&name=rerank|re-rank|re_rank",
    ),
)


def find_format(path: Path) -> Format | None:
    """Return the format of a file by the keys of its first object; None for the own layouts.

    Of Parquet files only tables of spans are read.
    """
    if path.suffix == PARQUET:
        return OPENTELEMETRY
    quiet = ProblemList()  # whoever reads the file reports its faults
    _, line = next(read_lines(path, quiet), (0, ""))
    first = parse_object(line, strict=False)
    if not isinstance(first, dict) and line.lstrip()[:1] in {"[", "{"}:
        _, first = next(read_values(path, quiet, MAX_BYTES, strict=False), (0, {}))
    if not isinstance(first, dict):
        return None
    keys = {key.split(".")[0] for key in first}
    if not keys.isdisjoint(OWN_KEYS) and "user_input" not in keys:
        return None
    return next((one for one in FORMATS if not keys.isdisjoint(one.marks.split())), None)


def _read(path: Path, layout: Format, problems: ProblemList) -> Iterator[tuple[int, Row]]:
    """Yield the objects of a file with their lines, or the rows of a Parquet file with numbers."""
    if path.suffix != PARQUET:
        yield from read_values(path, problems, MAX_BYTES, strict=not layout.trace)
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


class LeftOut:
    """Traces and spans that give no output. Each is left out alone; a reason is reported once."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str], list[tuple[str, Problem]]] = {}

    def add(self, trace: str, faults: Iterable[Problem]) -> None:
        """Leave out a trace for its faults; an empty name stands for a span without a trace."""
        for reason, fault in {(one.code, one.message): one for one in faults}.items():
            self._reasons.setdefault(reason, []).append((quoted(trace, _SHOWN_CHARS), fault))

    def report(self, n_read: int, problems: ProblemList, warnings: ProblemList) -> None:
        """Report each reason with its first place: as an error if no trace was read."""
        for entries in self._reasons.values():
            names, fault = [name for name, _ in entries[:_SHOWN_TRACES]], entries[0][1]
            count = format_count(len(entries), "trace" if names[0] else "span")
            message = f"{count} left out and {format_count(n_read, 'trace')} read: {fault.message}"
            dots = ["..."] if len(entries) > len(names) else []
            more: Place = {"line": fault.line, "field": fault.field, "accepted": fault.accepted}
            more["found"] = fault.found or ", ".join([*filter(None, names), *dots]) or None
            more["severity"] = "warning" if n_read else "error"
            code, reported = ("left_out", warnings) if n_read else (fault.code, problems)
            reported.add(code, message, fault.file, **more)


# ---- Spans.


class _Span(NamedTuple):
    file: Path
    line: int
    value: Row
    id: str
    parent: str
    start: str


def read_foreign(
    paths: Sequence[Path], layout: Format, problems: ProblemList, left_out: LeftOut
) -> Iterator[Placed]:
    """Yield rows of recorded outputs with file and line; faults become problems.

    A file holds JSON lines, one JSON document, or a list of objects; or it is a Parquet file. A
    trace may be cut over several files. Traces without a retrieval, and spans without a trace, are
    added to `left_out`.
    """
    objects = ((path, *item) for path in paths for item in _read(path, layout, problems))
    if layout.trace:
        yield from _join_spans(objects, layout, left_out)
        return
    for path, line, value in objects:
        row = {layout.renamed.get(key, key): item for key, item in value.items()}
        if missing := _find_missing(row, layout):
            more: Place = {"line": line, "field": missing.split()[0], "accepted": _either(missing)}
            problems.add("missing_key", f"{layout.name}: the record has no text here", path, **more)
        else:
            yield path, line, row


def _join_spans(
    objects: Iterator[Placed], layout: Format, left_out: LeftOut
) -> Iterator[tuple[Path, int, Row]]:
    """Yield the rows of traces; the other traces and spans are left out."""
    traces: dict[str, dict[str, _Span]] = {}
    for number, (path, line, value) in enumerate(objects):
        for place, (trace, fields) in enumerate(_spans_in(value, layout)):
            places = (layout.span, layout.parent, layout.start)
            name, parent, start = (str(_first(fields, place) or "") for place in places)
            key = name if trace and name else f"{number} {place}"
            traces.setdefault(trace, {})[key] = _Span(path, line, fields, name, parent, start)
    for span in traces.pop("", {}).values():
        accepted = f"the trace at {_either(layout.trace)}"
        left_out.add("", [_fault(span, "no_trace", "the span names no trace", accepted)])
    for trace, by_id in traces.items():
        # times of one file have one form, but whole seconds may stand without fractions
        spans = sorted(by_id.values(), key=lambda span: span.start.removesuffix("Z"))
        row = _make_row(trace, spans, layout)
        if row is None:
            message, accepted = "the trace has no retrieval span", _either(layout.retrieval)
            fault = _fault(spans[0], "no_retrieval", message, f"a span with {accepted}")
        elif missing := _find_missing(row, layout):
            accepted = f"a text at {_either(missing)}"
            fault = _fault(spans[0], "missing_key", "the trace has no question", accepted)
        else:
            yield spans[0].file, spans[0].line, row
            continue
        left_out.add(trace, [fault])


def _find_missing(row: Row, layout: Format) -> str:
    """Return the paths of the question or the answer that a row lacks, else an empty text."""
    if row.get("question", row.get("user_input")) is None:
        return layout.question if layout.trace or "query_id" not in row else ""
    has_output = not layout.renamed or row.get("answer") is not None or row.get("contexts")
    return "" if has_output else layout.answer


def _fault(span: _Span, code: str, message: str, accepted: str) -> Problem:
    return Problem(code, message, str(span.file), span.line, accepted=accepted)


def _spans_in(value: Row, layout: Format) -> Iterator[tuple[str, Row]]:
    """Yield the spans of an object with their traces; a parent comes before its children.

    The trace is empty where neither the span nor one above it names a trace.
    """
    lists = {path.split(".")[0] for path in layout.children.split()}
    left = [("", value)]
    while left:
        above, item = left.pop()
        fields = _open_attributes(item)
        trace = str(above or _first(fields, layout.trace) or "")
        inside = [child for child in _values(fields, layout.children) if isinstance(child, dict)]
        left += [(trace, child) for child in reversed(inside)]
        # An object with a list of spans, and without a field of a span, is only their envelope.
        if trace or lists.isdisjoint(fields) or _first(fields, f"{layout.span} {layout.start}"):
            yield trace, fields


def _has_mark(span: _Span, marks: str) -> bool:
    return any(
        all(
            any(word in str(_first(span.value, path)).casefold() for word in words.split("|"))
            for path, words in (condition.split("=") for condition in mark.split("&"))
        )
        for mark in marks.split()
    )


def _make_row(trace: str, spans: list[_Span], layout: Format) -> Row | None:
    """Make the row of a trace from its spans in the order of time; None without a retrieval."""
    ids = {span.id for span in spans} - {""}
    root = next((span for span in spans if span.parent not in ids), spans[0])
    steps = [
        span
        for span in spans
        if _has_mark(span, layout.retrieval)
        or (span is not root and _has_mark(span, layout.reranking) and _passages(span, layout))
    ]
    if not steps:
        return None
    others = [span for span in [root, *reversed(spans)] if span not in steps]
    claim = {name: _first(steps[0].value, path) for name, path in layout.claim.items()}
    if not all(isinstance(claim.get(name), str) for name in ("strategy", "strategy_fingerprint")):
        claim = {}  # metadata of another system
    cited = _values(root.value, layout.citations)
    notes = (note for span in spans for note in _values(span.value, layout.annotations))
    labels = (_first(note, "label") for note in notes if _first(note, "annotator_kind") == "HUMAN")
    return {
        "query_id": trace,
        "question": _first_speech([root, *steps], layout.question, "user"),
        "answer": _first_speech(others, layout.answer, "assistant"),
        "error": _first_text(root.value, layout.error),
        "contexts": _join_passages(spans, steps, layout),
        "at": _format_time(root.start),
        "citations": [name for name in cited if isinstance(name, str)],
        "traced": {**claim, "labels": [label for label in labels if isinstance(label, str)]},
    }


def _join_passages(spans: list[_Span], steps: list[_Span], layout: Format) -> list[Any]:
    """Join the passages of the retrievals of a trace, as the system used them."""
    listed = [(step, items) for step in steps if (items := _passages(step, layout))]
    parents = {span.id: span.parent for span in spans if span.id}
    names = {step.id for step, _ in listed} - {""}
    around = [_find_around(step, names, parents) for step, _ in listed]
    lists: list[list[Any]] = []
    first = 0  # place of the first list since the last reranking
    for (step, items), outer in zip(listed, around, strict=True):
        if outer:
            continue  # the retrieval around this one made its own list of this list
        if _has_mark(step, layout.reranking) and step.id not in around:
            first -= first == len(lists) > 0  # the last list was reranked again
            before = [item for passages in lists[first:] for item in passages]
            lists[first:] = [[_complete(item, before) for item in items]]
            first = len(lists)
        else:
            lists.append(items)
    return [item for passages in lists for item in passages]


def _find_around(span: _Span, names: set[str], parents: dict[str, str]) -> str:
    """Return the id of the nearest span of `names` around a span, else an empty text."""
    outer, seen = span.parent, {span.id}
    while outer and outer not in seen:
        if outer in names:
            return outer
        seen.add(outer)
        outer = parents.get(outer, "")
    return ""


def _complete(item: Any, before: list[Any]) -> Any:
    """Fill in the text of a reranked passage that has only an id."""
    if not isinstance(item, dict) or "text" in item:
        return item
    same = (one for one in before if isinstance(one, dict) and one.get("id") == item.get("id"))
    return next(same, {}) | item


def _format_time(text: str) -> str:
    """Write a time, or a number since 1970, as ISO 8601 with a zone; else return an empty text."""
    if re.fullmatch(r"\d{10,19}", text):  # seconds to nanoseconds, from 2001 to 2286
        return dt.datetime.fromtimestamp(int(text) / 10 ** (len(text) - 10), dt.UTC).isoformat()
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return ""  # an output needs no time
    return text if moment.tzinfo else f"{text}+00:00"


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
    if kind == "intValue" and re.fullmatch(r"-?\d{1,19}", str(plain)):
        return int(plain)  # JSON of OTLP writes whole numbers as texts
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


# ---- Passages and messages.


def _passages(span: _Span, layout: Format) -> list[Any]:
    """Collect the passages at the first path that has some; a text is a passage without an id."""
    for path in layout.passages.split():
        if items := [item for item in _values(span.value, path) if item is not None]:
            return [_read_passage(item) for item in items]
    return []


def _read_passage(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    item = _unpack(item)
    own, *others = PASSAGE["id"].split()
    names = (ID.read(value) for path in others for value in _values(item, path))
    fields = {name: _first(item, paths) for name, paths in PASSAGE.items()}
    if fields["id"] != item.get(own) or item.get(own) == "":
        fields["id"] = next(filter(None, names), None)
    fields["score"] = _read_score(fields["score"])
    return {name: value for name, value in fields.items() if value is not None}


def _read_score(value: Any) -> Any:
    """Read a score that is written as a text; the check of the row refuses other texts."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _first_speech(spans: Iterable[_Span], paths: str, role: str) -> str | None:
    """Return the first text of a role at the paths of spans: at a known key, else a message."""
    for value in (value for span in spans for value in _values(span.value, paths)):
        opened = _open_json(value) if isinstance(value, str) else value
        messages = list(_messages(opened))
        is_message = messages == [_read_message(opened)]
        text = None if is_message else _first_text(opened, SPEECH[role])
        texts = [text, *(text for who, text in reversed(messages) if who == role)]
        # a text that is no JSON of messages speaks for itself
        texts += [value] if isinstance(value, str) and not messages else []
        if text := next((text for text in texts if text and text.strip()), None):
            return text
    return None


def _messages(value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield who speaks and the text of each message in a value, in order."""
    if message := _read_message(value):
        yield message
        return
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inside if depth < _MAX_DEPTH else ():
        yield from _messages(item, depth + 1)


def _read_message(value: Any) -> tuple[str, str] | None:
    """Return who speaks in a message, and its text; None for another value."""
    if isinstance(value, list) and len(value) == 2 and value[0] in (*ROLES,):  # noqa: PLR2004 - a pair
        value = {"role": value[0], "content": value[1]}  # a pair of LangChain
    value = _unpack(value) if isinstance(value, dict) else {}
    words = (str(value.get(key)).casefold() for key in ("role", "type"))
    roles = (ROLES.get(word.removesuffix("chunk").removesuffix("message")) for word in words)
    role, content = next(filter(None, roles), None), _first(value, "content parts contents")
    if role is None or content is None:
        return None
    return role, content if isinstance(content, str) else "".join(_texts(content))


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts among the parts of a message."""
    for part in _items(content):
        kind = _first(part, "message_content.type type") or "text"
        paths = "message_content.text text.value text content" if kind in TEXT_PARTS else ""
        yield part if isinstance(part, str) else _first_text(part, paths) or ""


def _unpack(value: Row) -> Row:
    """Return the fields of a message or document that LangChain packed with its class or type."""
    kwargs, data, names = value.get("kwargs"), value.get("data"), value.get("id")
    if "lc" in value and isinstance(kwargs, dict):
        return {"type": names[-1] if isinstance(names, list) and names else "", **kwargs}
    return {**value, **data} if isinstance(data, dict) and "type" in value else value


# ---- Paths.


def _open_json(text: str) -> Any:
    """Parse JSON, also JSON in a text of JSON; a plain text gives None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _open_json(value) if isinstance(value, str) else value


def _items(value: Any) -> list[Any]:
    """Return the items of a list, or of an object with numbers as keys."""
    if isinstance(value, dict) and all(name.isdecimal() for name in value):
        return [value[name] for name in sorted(value, key=int)]
    return value if isinstance(value, list) else []


def _walk(value: Any, keys: list[str]) -> Iterator[Any]:
    """Yield the values at a path, in order."""
    if not keys:
        yield value
        return
    value = _open_json(value) if isinstance(value, str) else value
    key, *rest = keys
    if isinstance(value, dict) and key not in value and any("." in name for name in value):
        value = _nest(value)
    if key == "*":
        for item in _items(value):
            yield from _walk(item, rest)
    elif isinstance(value, dict) and key in value:
        yield from _walk(value[key], rest)


def _values(value: Any, paths: str) -> Iterator[Any]:
    """Yield the values at several paths, separated by blanks."""
    for path in paths.split():
        yield from _walk(value, path.split("."))


def _first(value: Any, paths: str) -> Any:
    return next((item for item in _values(value, paths) if item is not None), None)


def _first_text(value: Any, paths: str) -> str | None:
    texts = (item for item in _values(value, paths) if isinstance(item, str) and item.strip())
    return next(texts, None)


def _either(paths: str) -> str:
    return " or ".join(paths.split())
