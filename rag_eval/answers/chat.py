"""Ask a chat endpoint that speaks OpenAI's protocol, and keep its replies in the SQL store.

The `openai` package sends, times out and retries. The endpoint's reply is untrusted and the
machine's data is private, so this module restricts the HTTP client: fixed headers, no `OPENAI_*`
variable, no redirects, no compression, a bound on the bytes and the time of a reply. The first
request imports the package, so a run whose replies are all kept never loads it.
"""

import collections
import dataclasses
import functools
import json
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.settings import Endpoint
from rag_eval.core.types import ChatError, Message, Reply
from rag_eval.storage.hashing import digest
from rag_eval.storage.sql import ColumnSpec, SqlStore, TableSpec

VERSION = 2
MAX_REPLY_BYTES = 2_000_000
MAX_TOKENS = 100_000_000
"""Largest believable number of tokens of a reply; a larger number counts as missing."""
MAX_MESSAGE_CHARS = 300
NO_KEY = "none"
"""Key for endpoints without a key, because the header must not be empty."""
_MIN_SECRET = 8  # a shorter key could be an ordinary word
_ADDRESS = re.compile(
    r"http(?P<s>s?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-~]*)?",
    re.ASCII,
)
_LOOPBACK = re.compile(r"https?://(?:localhost|127\.|\[::1\])")  # is reached without a proxy

# ---- Replies in the SQL store

REPLIES = TableSpec(
    "chat_replies",
    (ColumnSpec("request", "text", required=True), ColumnSpec("reply", "text", required=True)),
    unique=(("request",),),
)
_KEPT = ("text", "finish_reason", "tokens_in", "tokens_out", "usage_missing")


class ChatCache:
    """Replies in the table `chat_replies`, shared by threads and processes."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def read(self, key: str) -> Reply | None:
        """Return the reply to a request, or None."""
        self._store.create(REPLIES)
        with self._store.reading() as transaction:
            rows = transaction.select(REPLIES, {"request": key})
        return Reply(**json.loads(rows[0]["reply"])) if rows else None

    def keep(self, key: str, reply: Reply) -> Reply:
        """Keep the first reply to a request, and return it."""
        # databases refuse NUL in text, so the row holds JSON in ASCII, where NUL is escaped
        text = json.dumps({name: getattr(reply, name) for name in _KEPT})
        self._store.create(REPLIES)
        with self._store.transaction() as transaction:
            added = transaction.insert_new(REPLIES, [(key, text)], "request")
        return reply if added else self.read(key) or reply


# ---- Addresses, keys, and replies, which may be anything


def _read_address(base_url: str) -> str:
    """Return `host:port/path` of an endpoint; raises InputError `bad_base_url`."""
    match = _ADDRESS.fullmatch(base_url)
    if match is None or {"?", "#"} & set(base_url):
        raise InputError.of(  # do not quote the address, because the address may contain a password
            "bad_base_url",
            "not the address of a chat endpoint; a key belongs in api_key or api_key_env",
            field="base_url",
            accepted="http(s)://host[:port][/path] in ASCII, no user name, query or fragment",
        )
    port = match["port"] or ("443" if match["s"] else "80")
    return f"{match['host'].lower()}:{port}{(match['path'] or '').rstrip('/')}"


def _read_key(endpoint: Endpoint) -> str:
    """Return the key of the endpoint or of its environment variable, else the word "none"."""
    key = os.environ.get(endpoint.api_key_env or "", "")
    if endpoint.api_key is not None:
        key = endpoint.api_key.get_secret_value()
    key = key.strip() or NO_KEY  # a key read from a file often ends with a line end
    if not re.fullmatch("[!-~]+", key):
        message, accepted = "the key cannot be sent in a header", "printable ASCII without spaces"
        raise InputError.of("bad_api_key", message, field="api_key", accepted=accepted)
    return key


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can express and UTF-8 cannot, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _look_up(value: Any, *path: str | int) -> Any:
    """Return the value at a path of keys and places; None if the path leads nowhere."""
    try:
        return functools.reduce(lambda held, step: held[step], path, value)
    except (KeyError, IndexError, TypeError):
        return None


def _read_reply(body: bytes) -> tuple[Reply, str]:
    """Read a chat completion of any content.

    Returns the reply, and the reason why it carries no text, or "". Tokens count even without text,
    because they were charged.
    """
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Reply("", 0, 0, "", usage_missing=True), "not JSON"
    counts = (_look_up(value, "usage", name) for name in ("prompt_tokens", "completion_tokens"))
    tokens = [n if type(n) is int and 0 <= n <= MAX_TOKENS else None for n in counts]
    choice = _look_up(value, "choices", 0)
    content, finish = _look_up(choice, "message", "content"), _look_up(choice, "finish_reason")
    problem = ""
    if not isinstance(content, str):
        content, problem = "", "the first choice carries no text"
        why = _look_up(choice, "message", "refusal") or _look_up(value, "error")
        problem += f": {why}" if isinstance(why, str | dict) and why else ""
    reply = Reply(
        _replace_surrogates(content),
        tokens[0] or 0,
        tokens[1] or 0,
        quoted(_replace_surrogates(finish), 40) if isinstance(finish, str) else "",
        usage_missing=None in tokens,
    )
    return reply, _replace_surrogates(problem)


# ---- The client


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Counts of a client since its creation.

    `requests` includes `retries`. `cached` counts replies from the cache. `saved_*` are the tokens
    and costs that cached replies saved. Tokens of unusable replies count. With any `usage_missing`,
    tokens and cost are lower bounds. Costs are in the currency of the endpoint's prices.
    """

    requests: int
    retries: int
    cached: int
    tokens_in: int
    tokens_out: int
    saved_tokens_in: int
    saved_tokens_out: int
    usage_missing: int
    cost: float
    saved_cost: float


class ChatClient:
    """Ask one endpoint, from any number of threads.

    Without a cache, every call goes out. A longer reply than `max_reply_bytes` is
    `reply_too_large`. `timeout_s` of the endpoint bounds each wait for bytes and the whole reply.
    Raises InputError `bad_base_url` or `bad_api_key`.
    """

    def __init__(
        self, endpoint: Endpoint, cache: ChatCache | None, *, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> None:
        self._endpoint, self._cache, self._max_reply_bytes = endpoint, cache, max_reply_bytes
        self._address, self._key = _read_address(endpoint.base_url), _read_key(endpoint)
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def __repr__(self) -> str:
        return f"ChatClient({self._address}, {self._endpoint.model!r})"

    def usage(self) -> Usage:
        """Return the counts of requests and tokens and the cost so far."""
        with self._lock:
            counts = self._counts.copy()
        prices = self._endpoint.price_per_1k_tokens_in, self._endpoint.price_per_1k_tokens_out
        cost, saved = (
            (counts[f"{prefix}tokens_in"] * prices[0] + counts[f"{prefix}tokens_out"] * prices[1])
            / 1000
            for prefix in ("", "saved_")
        )
        names = [field.name for field in dataclasses.fields(Usage) if "cost" not in field.name]
        return Usage(**{name: counts[name] for name in names}, cost=cost, saved_cost=saved)

    def ask(self, messages: Sequence[Message]) -> Reply:
        """Return the reply, from the cache if possible; raises ChatError after all retries."""
        endpoint = self._endpoint
        payload: dict[str, object] = {
            "model": endpoint.model,
            "messages": [
                {"role": message.role, "content": _replace_surrogates(message.content)}
                for message in messages
            ],
            "temperature": endpoint.temperature,
            "max_tokens": endpoint.max_tokens,
            **({} if endpoint.seed is None else {"seed": endpoint.seed}),
        }
        # include the address, because another server may answer differently; leave out the key
        sent = {"version": VERSION, "address": self._address, "request": payload}
        key = digest(sent, length=64)
        if self._cache and (reply := self._cache.read(key)):
            self._add(cached=1, saved_tokens_in=reply.tokens_in, saved_tokens_out=reply.tokens_out)
            return dataclasses.replace(reply, tokens_in=0, tokens_out=0, cached=True)
        result = self._send(payload)
        if isinstance(result, ChatError):
            # raise outside the `except` block, because the context would hold the headers
            raise result
        text = self._cache.keep(key, result).text if self._cache else result.text
        return dataclasses.replace(result, text=text)

    def _add(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _send(self, payload: Mapping[str, object]) -> Reply | ChatError:
        import openai

        try:
            with self._lock:  # two threads must not open two clients
                create = self._create
            raw = create(**payload)
        except openai.APIError as error:
            retries = int(error.request.headers.get("x-stainless-retry-count", 0))
            self._add(requests=retries + 1, retries=retries)
            return self._error(*self._judge(error), retries)
        self._add(requests=raw.retries_taken + 1, retries=raw.retries_taken)
        reply, problem = _read_reply(raw.content)
        missing = int(reply.usage_missing)
        self._add(tokens_in=reply.tokens_in, tokens_out=reply.tokens_out, usage_missing=missing)
        if problem:
            return self._error("malformed_reply", problem, raw.retries_taken)
        # an endpoint could repeat the key in an answer, which reports show
        is_secret = len(self._key) >= _MIN_SECRET
        text = reply.text.replace(self._key, "[key]") if is_secret else reply.text
        return dataclasses.replace(reply, text=text, retries=raw.retries_taken)

    def _judge(self, error: Any) -> tuple[str, str]:
        """Return the code and the message of an error of the openai package."""
        import openai

        endpoint, status = self._endpoint, getattr(error, "status_code", 0)
        if isinstance(error, openai.APITimeoutError) or isinstance(error.__cause__, TimeoutError):
            return "timeout", f"no whole reply within {endpoint.timeout_s:g} s"
        if isinstance(error, openai.APIConnectionError):
            return "connection", f"{type(error.__cause__).__name__}: {error.__cause__}"
        if not status:
            return "reply_too_large", error.message
        text = f"HTTP {status}: {_replace_surrogates(error.message)}"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return "server_error", text
        if status == HTTPStatus.TOO_MANY_REQUESTS and error.code != "insufficient_quota":
            return "rate_limited", text
        if self._key == NO_KEY and endpoint.api_key_env:
            text = f"the environment variable {endpoint.api_key_env} is not set; {text}"
        return "refused", text

    def _error(self, code: str, message: str, retries: int) -> ChatError:
        """Make an error of one line of untrusted text, from which the key is removed first."""
        text = message if self._key == NO_KEY else message.replace(self._key, "[key]")
        line = quoted(" ".join(text.split()), MAX_MESSAGE_CHARS)
        sent = f"{retries + 1} requests" if retries else "1 request"
        return ChatError(code, f"{self._address}: {line} (after {sent})", retries)

    @functools.cached_property
    def _create(self) -> Any:
        """Make the openai package's method that returns the raw response of a request."""
        import openai

        http_client = _narrow_http(self._endpoint, self._key, self._max_reply_bytes)
        client = openai.OpenAI(**_options(self._endpoint, self._key), http_client=http_client)
        return client.chat.completions.with_raw_response.create


def _options(endpoint: Endpoint, key: str) -> dict[str, Any]:
    return {
        "base_url": endpoint.base_url,
        "api_key": key,
        "timeout": endpoint.timeout_s,
        "max_retries": endpoint.max_retries,
    }


def _http_options(endpoint: Endpoint) -> dict[str, Any]:
    return {"trust_env": not _LOOPBACK.match(endpoint.base_url), "follow_redirects": False}


def _narrow_http(endpoint: Endpoint, key: str, max_reply_bytes: int) -> Any:
    """Make the openai package's HTTP client with bounds on headers, bytes and time.

    The package builds on httpx or httpx2, depending on its version. Its own class serves both.
    """
    import openai

    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Authorization": f"Bearer {key}",
        "Connection": "close",  # close the socket after each request
        "Content-Type": "application/json",
        "User-Agent": "rag-eval",
    }

    class Narrow(openai.DefaultHttpxClient):
        def send(self, request: Any, **options: Any) -> Any:
            started, make = time.monotonic(), type(request)
            content, extensions = request.read(), request.extensions
            sent = make(
                request.method, request.url, headers=headers, content=content, extensions=extensions
            )
            response = super().send(sent, **{**options, "stream": True})
            body, declared = bytearray(), response.headers.get("content-length", "")
            size = int(declared) if declared.isdecimal() else 0
            try:
                for part in (b"",) if size > max_reply_bytes else response.iter_raw():
                    body += part
                    if max(size, len(body)) > max_reply_bytes:
                        # APIError, because the package retries other errors
                        message = f"a reply of more than {max_reply_bytes} bytes"
                        raise openai.APIError(message, request, body=None)
                    if time.monotonic() - started > endpoint.timeout_s:
                        # single bytes never exceed the time limit of one read
                        raise TimeoutError
            finally:
                response.close()
            # The reply is untrusted, so Retry-After is the only header to pass on.
            wait = {k: v for k, v in response.headers.items() if k.lower() == "retry-after"}
            wait["content-type"] = "application/json"
            status, content = response.status_code, bytes(body)
            return type(response)(status, headers=wait, content=content, request=request)

    return Narrow(**_http_options(endpoint))


def async_client(endpoint: Endpoint) -> Any:
    """Make the openai package's asynchronous client, without `ChatClient`'s cache and bounds."""
    import openai

    http_client = openai.DefaultAsyncHttpxClient(**_http_options(endpoint))
    return openai.AsyncOpenAI(**_options(endpoint, _read_key(endpoint)), http_client=http_client)
