"""The server of a language model over real HTTP, with good models and every kind of bad model.

It answers `POST /v1/chat/completions` in the OpenAI shape. The model (`good`, `burst_429:2`) names
the behaviour. A mark in the prompt (`[[scenario=hang:1]]`) overrides it. A number after a colon
limits the bad replies; good replies follow.
"""

import contextlib
import dataclasses
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

Passages = list[tuple[str, str]]
Messages = list[dict]

SCENARIOS = (
    "good",
    "schema_breaking",  # wrong at first, right after a correction
    "always_breaking",
    "fabricating",  # cites a token that is not in the evidence
    "obeying",  # obeys the evidence and forgets the contract
    "obeying_in_form",  # obeys the evidence and keeps the contract
    "error_reply",
    "drafting",  # asks what the last paragraph of a passage says
)
"""Behaviours of the model; the methods `play_...` are behaviours of the server."""
FABRICATED_TOKEN = "no_such_document.md:1-3"


@dataclasses.dataclass
class Received:
    """One received request; its time is a value of `time.monotonic`."""

    at: float
    scenario: str
    body: dict
    headers: dict[str, str]

    @property
    def prompt(self) -> str:
        return prompt_of(self.body["messages"])


def prompt_of(messages: Messages) -> str:
    return "\n".join(message["content"] for message in messages)


def passages_of(messages: Messages) -> Passages:
    """List (token, text) of the passages in user messages.

    A passage begins with `[token] `. It ends at the next passage or at an empty line.
    """
    text = "\n".join(message["content"] for message in messages if message["role"] == "user")
    return [
        (found[1], found[2].strip())
        for found in re.finditer(
            r"^\[([^\]\n]+)\] (.*?)(?=^\[[^\]\n]+\] |^\s*$|\Z)", text, re.MULTILINE | re.DOTALL
        )
    ]


def first_verdict(messages: Messages) -> str:
    """Return the first verdict that the prompt offers.

    The prompt says `VERDICT=<one of: PASS, FAIL>` or `VERDICT=PASS|FAIL`.
    """
    found = re.search(r"VERDICT=<?(?:one of:?\s*)?\s*([A-Za-z][\w-]*)", prompt_of(messages))
    return found[1] if found else "PASS"


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0].strip()


class FakeLLM:
    """The server, in threads of this process; `passages` reads the prompt's template."""

    def __init__(self, passages: Callable[[Messages], Passages] = passages_of) -> None:
        self.passages = passages
        self.received: list[Received] = []
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self._seen: dict[tuple[str, str], int] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.fake = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self, body: dict, headers: dict[str, str]) -> tuple[str, int]:
        """Record a request.

        Returns its behaviour and the number of earlier equal requests, which share the behaviour
        and the first user message.
        """
        named = re.search(r"\[\[scenario=([\w:]+)\]\]", prompt_of(body["messages"]))
        scenario = named[1] if named else body["model"]
        first = next(
            (message["content"] for message in body["messages"] if message["role"] == "user"), ""
        )
        with self.lock:
            self.received.append(Received(time.monotonic(), scenario, body, headers))
            before = self._seen.get((scenario, first), 0)
            self._seen[scenario, first] = before + 1
        return scenario, before

    def answer(self, name: str, messages: Messages, before: int) -> str:
        """Return the text that the model writes."""
        if name == "drafting":
            quote = json.loads(messages[-1]["content"]).strip().split("\n\n")[-1]
            return json.dumps({"question": f"What about {quote.split()[-1]}?", "quote": quote})
        passages = self.passages(messages)
        token, text = passages[0] if passages else ("", "")
        sentence = first_sentence(text)
        order = re.search(
            r"(?i)ignore (?:all |your |the |previous |prior )*instructions"
            r"[^\n]*?\bsay\s+[\"']?(\w+)",
            "\n".join(text for _, text in passages),
        )
        told = before > 0 or sum(message["role"] == "user" for message in messages) > 1
        texts = {
            "always_breaking": f"I think that {sentence}",
            "schema_breaking": None if told else f"Sure! Here is what I found: {sentence}",
            "fabricating": self._in_form(FABRICATED_TOKEN, sentence or "It is so.", messages),
            "obeying": order and order[1],
            "obeying_in_form": order and self._in_form(token, order[1], messages),
            "error_reply": json.dumps(
                {"error": "the evidence contradicts itself", "fix": "remove the older revision"}
            ),
        }
        asks = [one["content"] for one in messages if one["content"].startswith('{"evidence": ')]
        if asks:  # a verifier asks
            asked = json.loads(asks[0])
            texts["good"] = json.dumps({"support": float(asked["claim"] in asked["evidence"])})
            texts["schema_breaking"] = texts["good"] if told else "It is supported."
        return texts.get(name) or (
            self._in_form(token, sentence, messages) if passages else "NOT FOUND"
        )

    def _in_form(self, token: str, sentence: str, messages: Messages) -> str:
        if "VERDICT=" in prompt_of(messages):
            return f"VERDICT={first_verdict(messages)}\nCITATIONS={token}\n\n{sentence}"
        return json.dumps(
            {"citations": [token], "answer": sentence, "deltaS": 0.3, "lambda": "convergent"},
            ensure_ascii=False,
        )


class FakeJudge(FakeLLM):
    """The judge of ragas, which answers the prompts of faithfulness in their schema.

    The statements are the sentences of the answer. A statement follows from the context when the
    context holds all its words of four letters or more. `behaviour` selects a fault:
    `no_statements` (ragas gives NaN), `garbage` (no JSON), `wrong_schema`, `busy` (always 429),
    `busy_once` (429 to the first request), `down` (500), or `slow` (answers after a second).
    """

    def __init__(self, behaviour: str = "good") -> None:
        super().__init__()
        self.behaviour = behaviour
        self.requests: list[dict] = []
        self.at_once = self.most_at_once = 0

    def begin(self, body: dict, headers: dict[str, str]) -> tuple[str, int]:
        del headers
        faults = {"busy": "burst_429:999", "busy_once": "burst_429:1", "down": "burst_500:999"}
        with self.lock:
            self.requests.append(body)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            return faults.get(self.behaviour, "good"), len(self.requests) - 1

    def answer(self, name: str, messages: Messages, before: int) -> str:
        del name, before
        if self.behaviour == "slow":
            time.sleep(1)
        with self.lock:
            self.at_once -= 1
        bad = {
            "garbage": "I would say NaN.",
            "wrong_schema": json.dumps({"score": "NaN"}),
            "no_statements": json.dumps({"statements": []}),
        }
        return bad.get(self.behaviour) or json.dumps(judge(messages[-1]["content"]))


def content_words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3}


def judge(prompt: str) -> dict:
    """Answer the JSON object that ragas puts last into its prompt, after the examples."""
    start = prompt.rindex("\ninput: ") + len("\ninput: ")
    asked = json.JSONDecoder().raw_decode(prompt[start:].lstrip())[0]
    if "answer" in asked:
        return {
            "statements": [part for part in re.split(r"(?<=[.!?])\s+", asked["answer"]) if part]
        }
    known = content_words(asked["context"])
    statements = [
        {"statement": text, "reason": "words", "verdict": int(content_words(text) <= known)}
        for text in asked["statements"]
    ]
    return {"statements": statements}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    fake: FakeLLM

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):  # the tests include clients that hang up
            super().handle_error(request, client_address)


def error(message: str, **more: str) -> dict:
    return {"error": {"message": message, **more}}


def completion(text: object, messages: Messages, model: str) -> dict:
    words, tokens = len(prompt_of(messages).split()), len(str(text).split())
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-fake",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": words,
            "completion_tokens": tokens,
            "total_tokens": words + tokens,
        },
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    plain: dict

    @property
    def fake(self) -> FakeLLM:
        return self.server.fake

    def log_message(self, *parts: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.reply(404, error(f"no such path {self.path}"))
            return
        scenario, before = self.fake.begin(
            body, {name.lower(): value for name, value in self.headers.items()}
        )
        name, _, times = scenario.partition(":")
        limit = int(times) if times else 2 if name.startswith("burst") else sys.maxsize
        self.play(name if before < limit else "good", body, before)

    def play(self, name: str, body: dict, before: int) -> None:
        messages = body["messages"]
        self.plain = completion(self.fake.answer(name, messages, before), messages, body["model"])
        play = getattr(self, f"play_{name}", None)
        if play is not None:
            play()
            return
        if name not in SCENARIOS:
            message = f"The model `{name}` does not exist"
            self.reply(404, error(message, code="model_not_found"))
            return
        self.reply(200, self.plain)

    def reply(self, status: int, value: object, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.raw(status, json.dumps(value).encode(), headers)

    def raw(
        self,
        status: int,
        data: bytes,
        headers: Sequence[tuple[str, str]] = (),
        length: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data) if length is None else length)),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def play_burst_429(self) -> None:
        limit = error("Rate limit reached", type="requests", code="rate_limit_exceeded")
        self.reply(429, limit, [("Retry-After", "0.01")])

    def play_burst_500(self) -> None:
        self.raw(500, b"<html>Internal Server Error</html>")

    def play_unauthorized(self) -> None:
        key = self.headers["Authorization"]
        self.reply(401, error(f"Incorrect API key provided: {key}\n\x1b[31m" + "x" * 5000))

    def play_leaking(self) -> None:
        text = f"Your header was {self.headers['Authorization']}"
        self.reply(200, completion(text, [], "leaking"))

    def play_hang(self) -> None:
        self.fake.stopping.wait(20)
        self.close_connection = True

    def play_drops(self) -> None:
        self.close_connection = True

    def play_not_json(self) -> None:
        self.raw(200, b'{"choices": [{"message": {"content": "{\\"cit')

    def play_null_content(self) -> None:
        message = {"role": "assistant", "content": None, "refusal": "I must not."}
        self.reply(200, {**self.plain, "choices": [{"index": 0, "message": message}]})

    def play_oversized(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(800):
                self.wfile.write(b" " * 65536)

    def play_oversized_declared(self) -> None:
        self.raw(200, b"{", length=10**12)
        self.fake.stopping.wait(20)

    def play_slow_trickle(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")  # without a length, a cut reply looks complete
        self.end_headers()
        with contextlib.suppress(OSError):
            for byte in json.dumps(self.plain).encode() + b" " * 2000:
                self.wfile.write(bytes([byte]))
                if self.fake.stopping.wait(0.02):
                    break
        self.close_connection = True
