"""Ask a chat endpoint that speaks OpenAI's protocol, and keep its replies in the SQL store.

The `openai` package sends, times out and retries. The endpoint's reply is untrusted and the
machine's data is private, so this module restricts the HTTP client: fixed headers, no `OPENAI_*`
variable, no redirects, no compression, a bound on the bytes and the time of a reply. The first
request imports the package, so a run whose replies are all kept never loads it.
"""

import collections
import dataclasses
import functools
import ipaddress
import json
import os
import threading
import time
import urllib.parse
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

# ---- Replies in the SQL store

REPLIES = TableSpec(
    "chat_replies",
    (ColumnSpec("request", "text", required=True), ColumnSpec("reply", "text", required=True)),
    unique=(("request",),),
)


@dataclasses.dataclass(frozen=True, slots=True)
class StoredReply:
    """A reply with its cost; missing token counts are 0."""

    text: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    usage_missing: bool


class ChatCache:
    """Replies in the table `chat_replies`, shared by threads and processes."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def read(self, key: str) -> StoredReply | None:
        """Return the reply to a request, or None."""
        self._store.create(REPLIES)
        with self._store.reading() as transaction:
            rows = transaction.select(REPLIES, {"request": key})
        return StoredReply(**json.loads(rows[0]["reply"])) if rows else None

    def keep(self, key: str, reply: StoredReply) -> StoredReply:
        """Keep the first reply to a request, and return it."""
        # databases refuse NUL in text, so the row holds JSON in ASCII, where NUL is escaped
        text = json.dumps(dataclasses.asdict(reply))
        self._store.create(REPLIES)
        with self._store.transaction() as transaction:
            added = transaction.insert_new(REPLIES, [(key, text)], "request")
        return reply if added else self.read(key) or reply


# ---- Addresses and keys


def _is_loopback(base_url: str) -> bool:
    """Tell whether an address is on this machine, so that requests need no proxy."""
    host = urllib.parse.urlsplit(base_url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_address(base_url: str) -> str:
    """Return `host:port/path` of an endpoint; raises InputError `bad_base_url`."""
    try:
        parts = urllib.parse.urlsplit(base_url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        parts, port = urllib.parse.urlsplit(""), 0
    plain = base_url.isascii() and base_url.isprintable()
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment or not plain:
        raise InputError.of(  # do not quote the address, because the address may contain a password
            "bad_base_url",
            "not the address of a chat endpoint; a key belongs in api_key or api_key_env",
            field="base_url",
            accepted="http(s)://host[:port][/path] in ASCII, no user name, query or fragment",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}{parts.path.rstrip('/')}"


def _read_key(endpoint: Endpoint) -> str:
    """Return the key of the endpoint or of its environment variable, else the word "none"."""
    if endpoint.api_key is not None:
        key = endpoint.api_key.get_secret_value()
    else:
        key = os.environ.get(endpoint.api_key_env or "", "")
    key = key.strip() or NO_KEY  # a key read from a file often ends with a line end
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InputError.of(
            "bad_api_key",
            "the key cannot be sent in a header",
            field="api_key",
            accepted="printable ASCII without spaces",
        )
    return key


# ---- Reading a reply, which may be anything


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can express and UTF-8 cannot, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, secret: str) -> str:
    """Shorten untrusted text to one line, after removing the key, so that no part of it is left."""
    shown = text.replace(secret, "[key]") if secret else text
    return quoted(" ".join(shown.split()), MAX_MESSAGE_CHARS)


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None


def read_reply(body: bytes) -> tuple[StoredReply, str]:
    """Read a chat completion of any content.

    Returns the reply, and the reason why it carries no text, or "". Tokens count even without text,
    because they were charged.
    """
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return StoredReply("", "", 0, 0, usage_missing=True), "not JSON"
    value = value if isinstance(value, dict) else {}
    counts = [_count(value.get("usage"), name) for name in ("prompt_tokens", "completion_tokens")]
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    problem = ""
    if not isinstance(content, str):
        refusal = message.get("refusal") if isinstance(message, dict) else value.get("error")
        why = f": {refusal}" if isinstance(refusal, str | dict) and refusal else ""
        problem = _replace_surrogates(f"the first choice carries no text{why}")
    reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    reply = StoredReply(
        _replace_surrogates(content) if isinstance(content, str) else "",
        quoted(_replace_surrogates(reason), 40) if isinstance(reason, str) else "",
        counts[0] or 0,
        counts[1] or 0,
        usage_missing=None in counts,
    )
    return reply, problem


# ---- The client


class _RateLimit:
    """Space the starts of requests evenly over all threads; 0 a minute sets no limit."""

    def __init__(self, per_minute: int) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self) -> None:
        """Return when the next request may start."""
        with self._lock:
            start = max(self._next, time.monotonic())
            self._next = start + self._interval
        time.sleep(max(start - time.monotonic(), 0.0))


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

    Parameters
    ----------
    endpoint
        `timeout_s` bounds each wait for bytes and the whole reply.
    cache
        The store of replies. None: every call goes out.
    max_reply_bytes
        A longer reply is `reply_too_large`.

    Raises
    ------
    InputError
        `bad_base_url` or `bad_api_key`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        cache: ChatCache | None,
        *,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._cache = cache
        self._max_reply_bytes = max_reply_bytes
        self._address = _read_address(endpoint.base_url)
        self._key = _read_key(endpoint)
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def __repr__(self) -> str:
        return f"ChatClient({self._address}, {self._endpoint.model!r})"

    def usage(self) -> Usage:
        """Return the counts of requests and tokens and the cost so far."""
        with self._lock:
            counts = self._counts.copy()
        prices = self._endpoint.price_per_1k_tokens_in, self._endpoint.price_per_1k_tokens_out

        def cost(tokens_in: int, tokens_out: int) -> float:
            return (tokens_in * prices[0] + tokens_out * prices[1]) / 1000

        names = [field.name for field in dataclasses.fields(Usage) if "cost" not in field.name]
        return Usage(
            **{name: counts[name] for name in names},
            cost=cost(counts["tokens_in"], counts["tokens_out"]),
            saved_cost=cost(counts["saved_tokens_in"], counts["saved_tokens_out"]),
        )

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
        if self._cache and (known := self._cache.read(key)):
            self._add(cached=1, saved_tokens_in=known.tokens_in, saved_tokens_out=known.tokens_out)
            return Reply(known.text, 0, 0, known.finish_reason, cached=True)
        result = self._send(payload)
        if isinstance(result, ChatError):
            # raise outside the `except` block, because the context would hold the headers
            raise result
        reply, retries = result
        if self._cache:
            text = self._cache.keep(key, reply).text
            reply = dataclasses.replace(reply, text=text)
        return Reply(
            reply.text,
            reply.tokens_in,
            reply.tokens_out,
            reply.finish_reason,
            retries=retries,
        )

    def _add(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _send(self, payload: Mapping[str, object]) -> tuple[StoredReply, int] | ChatError:
        """Return the reply and the number of retries."""
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
        reply, problem = read_reply(raw.content)
        self._add(
            tokens_in=reply.tokens_in,
            tokens_out=reply.tokens_out,
            usage_missing=int(reply.usage_missing),
        )
        if problem:
            return self._error("malformed_reply", problem, raw.retries_taken)
        if len(self._key) >= _MIN_SECRET:
            # an endpoint could repeat the key in an answer, which reports show
            reply = dataclasses.replace(reply, text=reply.text.replace(self._key, "[key]"))
        return reply, raw.retries_taken

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
        text, name = f"HTTP {status}: {_replace_surrogates(error.message)}", endpoint.api_key_env
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return "server_error", text
        passing = {429: "rate_limited", 408: "timeout"}
        if status in passing and error.code != "insufficient_quota":
            return passing[status], text
        unset = f"the environment variable {name} is not set; " if name and self._no_key else ""
        return "refused", unset + text

    @property
    def _no_key(self) -> bool:
        return self._key == NO_KEY

    def _error(self, code: str, message: str, retries: int) -> ChatError:
        sent = f"{retries + 1} requests" if retries else "1 request"
        line = one_line(message, "" if self._no_key else self._key)
        return ChatError(code, f"{self._address}: {line} (after {sent})", retries)

    @functools.cached_property
    def _create(self) -> Any:
        """Make the openai package's method that returns the raw response of a request."""
        import openai

        endpoint = self._endpoint
        return openai.OpenAI(
            base_url=endpoint.base_url,
            api_key=self._key,
            timeout=endpoint.timeout_s,
            max_retries=endpoint.max_retries,
            http_client=_narrow_http(endpoint, self._key, self._max_reply_bytes),
        ).chat.completions.with_raw_response.create


def _narrow_http(endpoint: Endpoint, key: str, max_reply_bytes: int) -> Any:
    """Make the openai package's HTTP client with bounds on headers, rate, bytes and time.

    The package builds on httpx or httpx2, depending on its version. Its own class serves both.
    """
    import openai

    rate = _RateLimit(endpoint.requests_per_minute)
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
            rate.wait()
            started = time.monotonic()
            sent = type(request)(
                request.method,
                request.url,
                headers=headers,
                content=request.read(),
                extensions=request.extensions,
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
            return type(response)(
                response.status_code,
                headers={"content-type": "application/json", **wait},
                content=bytes(body),
                request=request,
            )

    return Narrow(trust_env=not _is_loopback(endpoint.base_url), follow_redirects=False)


def async_client(endpoint: Endpoint) -> Any:
    """Make the openai package's asynchronous client, without `ChatClient`'s cache and bounds."""
    import openai

    return openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=_read_key(endpoint),
        timeout=endpoint.timeout_s,
        max_retries=endpoint.max_retries,
        http_client=openai.DefaultAsyncHttpxClient(
            trust_env=not _is_loopback(endpoint.base_url), follow_redirects=False
        ),
    )
