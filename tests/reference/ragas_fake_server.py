"""A local OpenAI-compatible server that plays the judge of ragas.

It reads the prompts of faithfulness and answers them in their schema. The statements are the
sentences of the answer. A statement follows from the context when the context holds all its words
of four letters or more. `behaviour` selects a fault: `no_statements` (ragas gives NaN), `garbage`
(no JSON), `wrong_schema`, `busy` (always 429), `busy_once` (429 to the first request), `down`
(500), or `slow` (answers after a second).
"""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


def last_input(prompt: str) -> dict:
    """Return the JSON object that ragas puts last into its prompt, after the examples."""
    start = prompt.rindex("\ninput: ") + len("\ninput: ")
    return json.JSONDecoder().raw_decode(prompt[start:].lstrip())[0]


def content_words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3}


def judge(prompt: str) -> dict:
    asked = last_input(prompt)
    if "answer" in asked:
        return {
            "statements": [part for part in re.split(r"(?<=[.!?])\s+", asked["answer"]) if part]
        }
    known = content_words(asked["context"])
    return {
        "statements": [
            {
                "statement": statement,
                "reason": "words",
                "verdict": int(content_words(statement) <= known),
            }
            for statement in asked["statements"]
        ]
    }


class FakeJudge:
    """Server as a context manager; `requests` and `started` list bodies and start times."""

    def __init__(self, behaviour: str = "good") -> None:
        self.behaviour = behaviour
        self.requests: list[dict] = []
        self.started: list[float] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply(self, body: dict) -> tuple[int, str]:
        status = {"busy": 429, "down": 500}.get(
            self.behaviour,
            429 if self.behaviour == "busy_once" and len(self.requests) == 1 else 200,
        )
        bad = {
            "garbage": "I would say NaN.",
            "wrong_schema": json.dumps({"score": "NaN"}),
            "no_statements": json.dumps({"statements": []}),
        }
        if self.behaviour == "slow":
            time.sleep(1)
        return status, bad.get(self.behaviour) or json.dumps(judge(body["messages"][-1]["content"]))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.requests.append(body)
                    outer.started.append(time.monotonic())
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                status, text = outer.reply(body)
                with outer._lock:
                    outer.at_once -= 1
                message = {"role": "assistant", "content": text}
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                answer = {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [choice],
                    "usage": usage,
                }
                payload = json.dumps(
                    answer if status == 200 else {"error": {"message": "no", "type": "fake"}}
                ).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(payload)))
                    self.end_headers()
                    self.wfile.write(payload)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def log_message(self, *_args: object) -> None:
                pass

        return Handler
