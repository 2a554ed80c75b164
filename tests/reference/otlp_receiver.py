"""A receiver of OTLP over HTTP, and its spans as the file exporter of the collector writes them."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

IDS = ("traceId", "spanId", "parentSpanId")


class Receiver:
    """Batches that arrived, as JSON of OTLP; `status` is the reply to the next ones."""

    def __init__(self) -> None:
        self.batches: list[dict] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.address = ""

    def lines(self) -> str:
        """Return the JSON lines of the collector's file exporter."""
        return "".join(f"{json.dumps(batch)}\n" for batch in self.batches)

    def spans(self) -> list[dict]:
        """List the spans, each with its attributes as a plain mapping."""
        found = []
        for batch in self.batches:
            for resource in batch["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    found += [plain(span) for span in scope["spans"]]
        return found


def plain(span: dict) -> dict:
    values = {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}
    return {**span, "attributes": values}


def decode(body: bytes) -> dict:
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    batch = MessageToDict(ExportTraceServiceRequest.FromString(body))
    for resource in batch["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                # the JSON of OTLP has hexadecimal ids, the JSON of protobuf has base64
                span |= {name: base64.b64decode(span[name]).hex() for name in IDS if name in span}
    return batch


@contextmanager
def receive() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            if receiver.status == 200:
                receiver.batches.append(decode(body))
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield receiver
        server.shutdown()
        thread.join()
