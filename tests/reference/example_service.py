"""A small retrieval service for the tests that needs only the standard library.

`POST /search {query, top_k}` returns `{chunks: [...]}`.

    python example_service.py --corpus FOLDER [--port 0]

It prints its port. It ranks sections of the folder's Markdown files by the words that they share
with the query. The address selects a fault. `/search?fault=down` fails every query.
`/search?fault=hang&on=night` hangs for queries with that word. `GET /stats` lists the requests.
"""

import argparse
import collections
import gzip
import json
import os
import re
import signal
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HANG_S = 30.0
BLOCK = b"x" * 65536
BOMB = gzip.compress(b" " * 10_000_000)


class Index:
    """Return the sections of the Markdown files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.sections = []
        for path in sorted(folder.glob("*.md")):
            for text in re.split(r"\n(?=## )", path.read_text(encoding="utf-8")):
                self.sections.append(
                    (path.name, text.strip(), set(re.findall(r"\w+", text.lower())))
                )

    def search(self, query: str, top_k: int) -> list[dict]:
        words = set(re.findall(r"\w+", query.lower()))
        scored = sorted(
            ((len(words & terms), name, text) for name, text, terms in self.sections),
            key=lambda row: (-row[0], row[1], row[2]),
        )
        return [
            {"doc_id": name, "text": text, "score": float(score)}
            for score, name, text in scored[:top_k]
            if score
        ]


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, index: Index) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.index = index
        self.lock = threading.Lock()
        self.asked = collections.Counter()
        self.queries = collections.Counter()


class Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"
    # The service sends headers and body apart. Nagle's algorithm would delay the body by 40 ms.
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def reply(
        self,
        body: bytes,
        status: int = 200,
        *,
        kind: str = "application/json",
        length: int | None = None,
        **headers: str,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        counts = {"asked": self.server.asked, "queries": self.server.queries}
        self.reply(json.dumps(counts).encode())

    def do_POST(self) -> None:
        try:
            self.answer()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        self.options = options = dict(urllib.parse.parse_qsl(address.query))
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        query, top_k = asked["query"], asked["top_k"]
        with self.server.lock:
            self.server.asked[self.path] += 1
            self.server.queries[f"{self.path} {query}"] += 1
            self.nth, self.nth_of_query = (
                self.server.asked[self.path],
                self.server.queries[f"{self.path} {query}"],
            )
        time.sleep(float(options.get("delay", 0)))
        if self.nth > int(options.get("die_after", 10**9)):
            os.kill(os.getpid(), signal.SIGKILL)
        found = {
            "chunks": self.server.index.search(query, top_k),
            **({"version": options["version"]} if "version" in options else {}),
        }
        fault = options.get("fault") if options.get("on", "") in query else None
        self.good = json.dumps(found).encode()
        getattr(self, f"fault_{fault}", self.fault_none)()

    def fault_none(self) -> None:
        self.reply(self.good)

    def fault_hang(self) -> None:
        time.sleep(HANG_S)
        self.close_connection = True

    def fault_drip(self) -> None:
        """Send a byte every 50 ms, so that each wait is short; the reply takes HANG_S seconds."""
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        for _ in range(int(HANG_S / 0.05)):
            self.wfile.write(b" ")
            time.sleep(0.05)

    def fault_burst(self) -> None:
        """Reply 429 with Retry-After to the first requests, and a good reply to later requests."""
        if self.nth <= int(self.options.get("burst", 3)):
            self.reply(b"slow down", 429, Retry_After=self.options.get("after", "0"))
        else:
            self.reply(self.good)

    def fault_down(self) -> None:
        self.reply(b"", 503)

    def fault_half(self) -> None:
        self.reply(self.good[: len(self.good) // 2], length=len(self.good))
        self.close_connection = True

    def fault_oversized(self) -> None:
        """Send an endless reply until the client closes the connection."""
        self.send_response(200)
        self.send_header("Content-Length", str(10**12))
        self.end_headers()
        while True:
            self.wfile.write(BLOCK)

    def fault_gzip(self) -> None:
        self.reply(BOMB, Content_Encoding="gzip")

    def fault_malformed(self) -> None:
        self.reply(self.good[:-1])

    def fault_unknown(self) -> None:
        """Reply with a document that is not in the corpus."""
        self.reply(b'{"chunks": [{"doc_id": "elsewhere.md", "text": "x", "score": 1}]}')

    def fault_ids(self) -> None:
        """Reply with names of documents, without text and place."""
        chunks = json.loads(self.good)["chunks"]
        self.reply(
            json.dumps(
                {
                    "chunks": [
                        {"id": name, "score": -at}
                        for at, name in enumerate(
                            dict.fromkeys(chunk["doc_id"] for chunk in chunks)
                        )
                    ]
                }
            ).encode()
        )

    def fault_redirect(self) -> None:
        self.reply(b"", 307, Location=self.options.get("to", "/search"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    service = Service(arguments.port, Index(arguments.corpus))
    sys.stdout.write(f"{service.server_address[1]}\n")
    sys.stdout.flush()
    service.serve_forever()


if __name__ == "__main__":
    main()
