"""Send spans of retrievals and answers to OpenTelemetry, with the attributes of OpenInference.

No other file imports opentelemetry, and this one only where the standard variables name an
exporter. The attributes are those of https://arize-ai.github.io/openinference/spec/. Texts are
masked and short: of a passage, a span shows a snippet.
"""

import dataclasses
import functools
import importlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, cast

from rag_eval.core.types import Message, ScoredChunk
from rag_eval.corpus.masking import mask_snippet, masked_text
from rag_eval.storage.secrets import without_secrets
from rag_eval.storage.sql import cleaned

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Span

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
_GRPC_LOGGER: Final = "opentelemetry.exporter.otlp.proto.grpc.exporter"
MAX_DOCUMENTS: Final = 20
"""Most documents of a span, because OpenTelemetry keeps 128 attributes of a span by default."""
MAX_TEXT: Final = 4_000
"""Most characters of a question, an answer or a message."""

_log = logging.getLogger(__name__)

Kind = Literal["CHAIN", "LLM", "RETRIEVER"]
Attributes = Mapping[str, str | int | float]


def is_configured() -> bool:
    """Tell whether the standard variables of OpenTelemetry name an exporter of spans."""
    return (
        any(os.environ.get(name) for name in ENDPOINTS)
        and os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
        and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


@dataclasses.dataclass(frozen=True)
class SpanRecord:
    """A span with its children. `start` and `end` are nanoseconds since 1970; `error` ends it."""

    name: str
    kind: Kind
    start: int
    end: int
    attributes: Attributes
    error: str = ""
    children: tuple["SpanRecord", ...] = ()


@dataclasses.dataclass(frozen=True)
class SpanCounts:
    """Numbers of spans that a receiver took and did not take, with the first reason."""

    n_sent: int
    n_failed: int
    reason: str = ""

    def __str__(self) -> str:
        """Say how many spans were sent, and why others were not."""
        if not self.reason:
            return f"{self.n_sent:,} sent"
        return f"{self.n_sent:,} sent, {self.n_failed:,} not: {self.reason}"


# ---- Attributes.


def describe_retrieval(
    query: str, chunks: Sequence[ScoredChunk], about: Mapping[str, object]
) -> Attributes:
    """Describe a retrieval: question, documents best first, and facts under `metadata`."""
    from openinference.semconv.trace import DocumentAttributes, SpanAttributes

    found: dict[str, str | int | float] = {
        SpanAttributes.INPUT_VALUE: _shorten(masked_text(query)),
        SpanAttributes.METADATA: _dump(about),
    }
    for place, chunk in enumerate(chunks[:MAX_DOCUMENTS]):
        prefix = f"{SpanAttributes.RETRIEVAL_DOCUMENTS}.{place}"
        found[f"{prefix}.{DocumentAttributes.DOCUMENT_ID}"] = cleaned(chunk.snippet_id)
        found[f"{prefix}.{DocumentAttributes.DOCUMENT_SCORE}"] = float(chunk.score_raw)
        found[f"{prefix}.{DocumentAttributes.DOCUMENT_CONTENT}"] = _snippet(chunk.text)
    return found


def describe_answer(query: str, text: str, about: Mapping[str, object]) -> Attributes:
    """Describe an answer: question, masked text, and facts under `metadata`."""
    from openinference.semconv.trace import SpanAttributes

    return {
        SpanAttributes.INPUT_VALUE: _shorten(masked_text(query)),
        SpanAttributes.OUTPUT_VALUE: _shorten(text),
        SpanAttributes.METADATA: _dump(about),
    }


def describe_chat(
    model: str, messages: Sequence[Message], reply: str, tokens: tuple[int, int]
) -> Attributes:
    """Describe the requests to a model: masked messages and reply, tokens in and out."""
    from openinference.semconv.trace import MessageAttributes, SpanAttributes

    found: dict[str, str | int | float] = {
        SpanAttributes.LLM_MODEL_NAME: model,
        SpanAttributes.LLM_TOKEN_COUNT_PROMPT: tokens[0],
        SpanAttributes.LLM_TOKEN_COUNT_COMPLETION: tokens[1],
        SpanAttributes.OUTPUT_VALUE: _shorten(reply),
    }
    for place, message in enumerate(messages):
        prefix = f"{SpanAttributes.LLM_INPUT_MESSAGES}.{place}"
        found[f"{prefix}.{MessageAttributes.MESSAGE_ROLE}"] = message.role
        found[f"{prefix}.{MessageAttributes.MESSAGE_CONTENT}"] = _shorten(message.content)
    return found


@functools.lru_cache(maxsize=4_096)
def _snippet(text: str) -> str:
    """Mask a passage once, because many questions find it."""
    return mask_snippet(text)


def _shorten(text: str) -> str:
    return cleaned(text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…")


def _dump(about: Mapping[str, object]) -> str:
    known = {
        name: value
        for name, value in about.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }
    return json.dumps(known)


# ---- Sending.


class _Counting:
    """An exporter that counts the spans taken by another exporter, and says its first failure.

    With `gives_up`, the first failure ends the sending: an absent receiver costs one time limit.
    """

    def __init__(self, exporter: "SpanExporter", *, gives_up: bool) -> None:
        self._exporter, self._gives_up = exporter, gives_up
        self.n_sent, self.reason = 0, ""
        self._noted = ""

    def note(self, record: logging.LogRecord) -> bool:
        """Keep the first message of an exporter's log, and let no message pass."""
        self._noted = self._noted or record.getMessage()
        return False

    def export(self, spans: Sequence["ReadableSpan"]) -> "SpanExportResult":
        """Send a batch."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self.reason and self._gives_up:
            return SpanExportResult.FAILURE
        self._noted = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - an exporter may raise any exception
            result, self._noted = SpanExportResult.FAILURE, f"{type(error).__name__}: {error}"
        if result is SpanExportResult.SUCCESS:
            self.n_sent += len(spans)
        elif not self.reason:
            self.reason = hide_endpoints(self._noted or "the exporter gave no reason")
            if not self._gives_up:
                _log.warning("spans are not sent: %s", self.reason)
        return result

    def shutdown(self) -> None:
        """End the exporter."""
        self._exporter.shutdown()


def hide_endpoints(text: str) -> str:
    """Hide the credentials of the receiver's address in a text."""
    for name in ENDPOINTS:
        text = without_secrets(text, os.environ.get(name, ""))
    return text


def open_exporter() -> "SpanExporter":
    """Open the exporter that the standard variables name. It reads all further variables itself.

    Raises ImportError without the extra `spans`, and ValueError for a variable with a bad value.
    """
    default = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", default)
    if protocol not in PROTOCOLS:
        accepted = ", ".join(PROTOCOLS)
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL: found {protocol!r}, accepted {accepted}")
    exporter: SpanExporter = importlib.import_module(PROTOCOLS[protocol]).OTLPSpanExporter()
    return exporter


class Spans:
    """Sends spans in batches from a thread of its own.

    `room` is the number of spans that may wait; the oldest ones go first when there are more.
    """

    def __init__(self, exporter: "SpanExporter", *, room: int, gives_up: bool = False) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._counting = _Counting(exporter, gives_up=gives_up)
        self._loggers = [logging.getLogger(name) for name in (*PROTOCOLS.values(), _GRPC_LOGGER)]
        for logger in self._loggers:
            logger.addFilter(self._counting.note)
        resource = Resource({"service.name": "rag_eval"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource)
        batch = min(room, 512)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                cast("SpanExporter", self._counting),  # duck typing keeps the import lazy
                max_queue_size=room,
                max_export_batch_size=batch,
            )
        )
        self._tracer = self._provider.get_tracer("rag_eval")
        self.n_ended = 0

    def send(self, record: SpanRecord, parent: "Span | None" = None) -> None:
        """Queue a span and its children; without a parent, the current span is the parent."""
        from openinference.semconv.trace import SpanAttributes
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        span = self._tracer.start_span(
            record.name,
            context=None if parent is None else set_span_in_context(parent),
            start_time=record.start,
            attributes={SpanAttributes.OPENINFERENCE_SPAN_KIND: record.kind, **record.attributes},
        )
        for child in record.children:
            self.send(child, span)
        if record.error:
            span.set_status(Status(StatusCode.ERROR, _shorten(record.error)))
        span.end(record.end)
        self.n_ended += span.get_span_context().trace_flags.sampled

    def close(self) -> SpanCounts:
        """Send what waits, for at most 30 seconds, and count."""
        self._provider.shutdown()
        for logger in self._loggers:
            logger.removeFilter(self._counting.note)
        n_sent, reason = self._counting.n_sent, self._counting.reason
        left = self.n_ended - n_sent
        return SpanCounts(n_sent, left, reason or ("no answer in time" if left else ""))
