"""Spans: what is sent, what is counted, and that nothing is loaded without an exporter."""

import json
import logging
import subprocess
import sys
import time

import pytest
from otlp_receiver import receive
from requirements import need_package

from rag_eval.core.types import Message, Offsets, ScoredChunk
from rag_eval.reporting import spans
from rag_eval.reporting.spans import SpanCounts, SpanRecord, Spans, is_configured

SECRET = "s3cr3t-pw"


@pytest.fixture
def sdk():
    need_package("openinference.semconv")
    return need_package("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in (*spans.ENDPOINTS, "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


CASES = [
    ({}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, True),
    ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a"}, True),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_TRACES_EXPORTER": "none"}, False),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_SDK_DISABLED": "True"}, False),
]


@pytest.mark.parametrize(("variables", "configured"), CASES)
def test_the_standard_variables_name_the_exporter(variables, configured, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_configured() is configured


def chunk(name, text, score=0.5):
    return ScoredChunk(
        doc_id="a.md",
        section_id="s",
        snippet_id=name,
        source_url="",
        offsets=Offsets(0, len(text)),
        tokens=1,
        index_hash="h",
        embed_model="",
        analyzer="",
        rev="",
        text=text,
        window=None,
        page=None,
        score_raw=score,
        score_norm=score,
        k_pos=1,
        k_final=1,
        rerank_score=None,
    )


def record(attributes=None, **more):
    now = time.time_ns()
    return SpanRecord("retrieve bm25", "RETRIEVER", now, now + 1, attributes or {}, **more)


def test_a_trace_has_its_children_kinds_and_errors(sdk):
    exporter = sdk.InMemorySpanExporter()
    sender = Spans(exporter, room=10)
    sender.send(record(error="no answer", children=(record(), record())))
    finished = exporter.get_finished_spans
    assert sender.close() == SpanCounts(3, 0)
    *children, root = finished()
    assert [child.parent.span_id for child in children] == [root.context.span_id] * 2
    assert {one.context.trace_id for one in finished()} == {root.context.trace_id}
    assert {one.attributes["openinference.span.kind"] for one in finished()} == {"RETRIEVER"}
    assert (root.status.description, children[0].status.description) == ("no answer", None)
    assert root.resource.attributes["service.name"] == "rag_eval"
    assert root.end_time - root.start_time == 1


def test_a_retrieval_is_described_masked_and_bounded(sdk):
    long = "word " * 3_000
    chunks = [chunk(f"c{place}", f"mail jane@example.org {long}", place / 8) for place in range(30)]
    found = spans.describe_retrieval(f"ask jane@example.org {long}", chunks, {"a": 1, "b": None})
    assert json.loads(found["metadata"]) == {"a": 1}
    assert found["retrieval.documents.0.document.id"] == "c0"
    assert found["retrieval.documents.19.document.score"] == 19 / 8
    assert "retrieval.documents.20.document.id" not in found
    assert len(found) < 128
    assert len(found["input.value"]) == spans.MAX_TEXT
    assert len(found["retrieval.documents.0.document.content"]) <= 200
    assert not any("jane@" in str(value) for value in found.values())


def test_a_chat_is_described_with_messages_and_tokens(sdk):
    found = spans.describe_chat("m", [Message("user", "a\ud800")], "b", (3, 4))
    assert found["llm.input_messages.0.message.role"] == "user"
    assert found["llm.input_messages.0.message.content"] == "a\ufffd"
    assert (found["llm.token_count.prompt"], found["llm.token_count.completion"]) == (3, 4)


@pytest.fixture
def receiver(sdk, monkeypatch):
    with receive() as running:
        address = running.address.replace("//", f"//me:{SECRET}@")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={SECRET}")
        yield running


def test_a_receiver_gets_protobuf_over_http(receiver):
    sender = Spans(spans.open_exporter(), room=10)
    sender.send(record({"input.value": "a question"}))
    assert sender.close() == SpanCounts(1, 0)
    (span,) = receiver.spans()
    assert span["attributes"]["input.value"] == "a question"
    assert receiver.headers[0]["api-key"] == SECRET


def test_a_failure_ends_the_sending_and_is_said_once(receiver, caplog):
    receiver.status = 400
    sender = Spans(spans.open_exporter(), room=2_000, gives_up=True)
    for _ in range(1_200):  # three batches
        sender.send(record())
    counts = sender.close()
    assert (counts.n_sent, counts.n_failed) == (0, 1_200)
    assert "400" in counts.reason
    assert SECRET not in counts.reason
    assert len(receiver.headers) == 1
    assert caplog.records == []


def test_a_server_tries_again_and_warns_once(receiver, caplog):
    receiver.status = 400
    sender = Spans(spans.open_exporter(), room=10)
    for status in (400, 400, 200):
        receiver.status = status
        sender.send(record())
        sender._provider.force_flush()
    assert (sender.close().n_sent, len(receiver.headers)) == (1, 3)
    assert [one.name for one in caplog.records if one.levelno >= logging.WARNING] == [
        "rag_eval.reporting.spans"
    ]


def test_an_exporter_that_raises_is_counted(sdk):
    class Broken(sdk.InMemorySpanExporter):
        def export(self, spans):  # noqa: ARG002 - the name of the interface
            raise RuntimeError("full disk")

    sender = Spans(Broken(), room=10, gives_up=True)
    sender.send(record())
    assert sender.close() == SpanCounts(0, 1, "RuntimeError: full disk")


def test_an_unknown_protocol_is_refused(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ValueError, match="accepted http/protobuf, grpc"):
        spans.open_exporter()


def test_no_exporter_loads_no_opentelemetry():
    code = (
        "import sys, rag_eval.pipeline.spans as spans;"
        "spans.send_served('q', RuntimeError('x'), 0.1, {'strategy': 'bm25'});"
        "assert spans.send_run_spans(None, None, None) is None;"
        "print([name for name in sys.modules if name.startswith(('opentel', 'openinf'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
