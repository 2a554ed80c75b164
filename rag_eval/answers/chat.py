"""A chat endpoint that speaks OpenAI's protocol, wherever it runs: limits, retries, cache and accounts around the `openai` package.

Belongs here: sending one conversation and coming back with a reply or a `ChatError`. The only file that imports openai, when the first request goes out;
a run whose replies are all cached never does. Not here: prompts and what a reply means.

Of the package only the protocol is used. Its own retries are off: they would pass the rate limit by, and it does not say how many it took when all failed.
Its HTTP client is narrowed: fixed headers (nothing about this machine, and no `OPENAI_*` variable changes what is sent or where), no redirects, no
compression, a bound on the bytes of a reply and on the time of a whole request. Proxies and certificate files named in the environment are used as
everywhere else, but never for a loopback address.
"""

import dataclasses
import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rag_eval.answers.chat_cache import ChatCache, StoredReply, request_key
from rag_eval.answers.chat_endpoint import NO_KEY, address_of, key_of, loopback
from rag_eval.answers.chat_flight import SharedRequests
from rag_eval.answers.chat_limits import Deadline, RateLimit, backoff
from rag_eval.answers.chat_reply import RETRIED, Failure, one_line, read_reply, refusal, whole_text
from rag_eval.answers.chat_totals import Tally, Totals
from rag_eval.records.answers import ChatError, Message, Reply
from rag_eval.settings import Endpoint

MAX_REPLY_BYTES = 2_000_000
_MIN_SECRET = 8  # a shorter key may be a word of an answer
_LOG = logging.getLogger(__name__)


class _ReplyTooLargeError(Exception):
    """Passes through the openai package as the cause of its connection error."""


_Post = Callable[[dict[str, Any]], bytes | Failure]


class ChatClient:
    """Asks one endpoint. Safe to call from several threads.

    Parameters
    ----------
    endpoint
        Address, model, limits and prices. Its key, or else that in the environment variable that it names, or else the word "none".
        `timeout_s` bounds each request from connecting to the last byte.
    cache
        Where replies are kept. With a cache, equal calls at the same time share one request. None: every call goes out.
    backoff_s
        First wait before a retry; it doubles each time. A Retry-After of up to a minute is kept to instead, by all threads; a longer one ends the call.
    max_reply_bytes
        A longer reply is `reply_too_large`.

    Raises
    ------
    InputError
        The address cannot be one of an endpoint, or the key cannot be sent.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        cache: ChatCache | None,
        *,
        backoff_s: float = 0.5,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._backoff_s = backoff_s
        self._max_reply_bytes = max_reply_bytes
        self._address = address_of(endpoint.base_url)
        self._key = key_of(endpoint)
        self._slots = threading.BoundedSemaphore(endpoint.concurrency)
        self._rate = RateLimit(endpoint.requests_per_minute)
        self._tally = Tally(endpoint.price_per_1k_tokens_in, endpoint.price_per_1k_tokens_out)
        self._shared = None if cache is None else SharedRequests(cache, self._tally)
        self._lock = threading.Lock()
        self._opened: _Post | None = None

    def __repr__(self) -> str:
        return f"ChatClient({self._address}, {self._endpoint.model!r})"

    def totals(self) -> Totals:
        """What was asked, sent, saved and paid so far."""
        return self._tally.totals()

    def ask(self, messages: Sequence[Message]) -> Reply:
        """Send the messages and return the reply, from the cache where it is there.

        Raises
        ------
        ChatError
            No usable reply came, after all retries.
        """
        payload = self._payload(messages)
        try:
            if self._shared is None:
                return self._request(payload)[0]
            return self._shared.ask(
                request_key(self._address, payload), lambda: self._request(payload)
            )
        except ChatError as error:
            self._tally.failed(error.code)
            raise

    def _payload(self, messages: Sequence[Message]) -> dict[str, Any]:
        endpoint = self._endpoint
        payload: dict[str, Any] = {
            "model": endpoint.model,
            "messages": [
                {"role": message.role, "content": whole_text(message.content)}
                for message in messages
            ],
            "temperature": endpoint.temperature,
            "max_tokens": endpoint.max_tokens,
        }
        return payload if endpoint.seed is None else {**payload, "seed": endpoint.seed}

    def _request(self, payload: dict[str, Any]) -> tuple[Reply, StoredReply]:
        """Send until a reply comes or no retry is left."""
        post = self._post()  # opened before the clock starts
        retries = 0
        while True:
            with self._slots:
                self._rate.wait()
                self._tally.sent(retry=retries > 0)
                started = time.monotonic()
                outcome = post(payload)
                seconds = time.monotonic() - started
            if isinstance(outcome, bytes):
                return self._reply(outcome, seconds, retries)
            if (
                outcome.final
                or outcome.code not in RETRIED
                or retries >= self._endpoint.max_retries
            ):
                raise self._error(outcome.code, outcome.message, retries)
            if outcome.wait_s is None:
                wait_s = backoff(self._backoff_s, retries)
            else:
                wait_s = outcome.wait_s
                self._rate.pause(wait_s)
            retries += 1
            _LOG.info(
                "event=chat.retry code=%s retry=%d wait_s=%.3f", outcome.code, retries, wait_s
            )
            time.sleep(wait_s)

    def _reply(self, body: bytes, seconds: float, retries: int) -> tuple[Reply, StoredReply]:
        read = read_reply(body)
        self._tally.charged(read)
        if read.text is None:
            raise self._error("malformed_reply", read.problem, retries)
        # an endpoint knows the key that it is sent and might put it into an answer, which ends up in reports
        text = read.text.replace(self._key, "[key]") if len(self._key) >= _MIN_SECRET else read.text
        self._tally.answered()
        stored = StoredReply(
            text,
            read.finish_reason,
            read.tokens_in,
            read.tokens_out,
            usage_missing=read.usage_missing,
        )
        return Reply(
            text,
            read.tokens_in,
            read.tokens_out,
            read.finish_reason,
            seconds=seconds,
            retries=retries,
        ), stored

    def _error(self, code: str, message: str, retries: int) -> ChatError:
        sent = f"{retries + 1} requests" if retries else "1 request"
        return ChatError(
            code,
            f"{self._address}: {one_line(message, '' if self._key == NO_KEY else self._key)} (after {sent})",
            retries,
        )

    def _post(self) -> _Post:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> _Post:
        """The openai package's client and what its errors mean."""
        import openai

        http = _narrow_http(self._endpoint, self._key, self._max_reply_bytes)
        client = openai.OpenAI(
            base_url=self._endpoint.base_url,
            api_key=self._key,
            timeout=self._endpoint.timeout_s,
            max_retries=0,
            http_client=http,
        ).chat.completions.with_raw_response
        name = self._endpoint.api_key_env
        unset = (
            f"the environment variable {name} is not set; " if name and self._key == NO_KEY else ""
        )

        def post(payload: dict[str, Any]) -> bytes | Failure:
            try:
                return client.create(**payload).content
            except openai.APIStatusError as error:
                failure = refusal(
                    error.status_code,
                    error.response.headers.get("retry-after"),
                    error.response.content,
                    dt.datetime.now(dt.UTC),
                )
                return (
                    dataclasses.replace(failure, message=unset + failure.message)
                    if failure.code == "refused"
                    else failure
                )
            except openai.APIConnectionError as error:
                cause = error.__cause__
                if isinstance(cause, _ReplyTooLargeError):
                    return Failure(
                        "reply_too_large", f"a reply of more than {self._max_reply_bytes} bytes"
                    )
                if isinstance(error, openai.APITimeoutError) or isinstance(cause, TimeoutError):
                    return Failure(
                        "timeout", f"no whole reply within {self._endpoint.timeout_s:g} s"
                    )
                return Failure("connection", f"{type(cause).__name__}: {cause}")

        return post


def _narrow_http(endpoint: Endpoint, key: str, max_reply_bytes: int) -> Any:
    """The openai package's own HTTP client with its headers, bytes and time bounded.

    It is built on httpx or on httpx2, by the package's version; deriving from it serves both without importing either.
    """
    import openai

    class Narrow(openai.DefaultHttpxClient):
        def send(self, request: Any, **options: Any) -> Any:
            # a fresh connection for each request: only of a new one is the socket known before the first byte comes back, so that it can be cut
            headers = {
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Authorization": f"Bearer {key}",
                "Connection": "close",
                "Content-Type": "application/json",
                "User-Agent": "rag-eval",
            }
            with Deadline(endpoint.timeout_s) as deadline:
                sent = type(request)(
                    request.method,
                    request.url,
                    headers=headers,
                    content=request.read(),
                    extensions={**request.extensions, "trace": deadline.trace},
                )
                try:
                    response = super().send(sent, **{**options, "stream": True})
                    try:
                        body = _bounded(response, max_reply_bytes)
                    finally:
                        response.close()
                except Exception:
                    if deadline.passed:
                        raise TimeoutError from None
                    raise
            if deadline.passed:  # a reply without a stated length looks whole when it is cut
                raise TimeoutError
            # of the headers only this one is read; a character set or compression of the sender's choice is not
            kept = {
                "content-type": "application/json",
                **{
                    name: response.headers[name]
                    for name in ("retry-after",)
                    if name in response.headers
                },
            }
            return type(response)(
                status_code=response.status_code, headers=kept, content=body, request=request
            )

    return Narrow(trust_env=not loopback(endpoint.base_url), follow_redirects=False)


def _bounded(response: Any, limit: int) -> bytes:
    declared = response.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _ReplyTooLargeError
    body = bytearray()
    for part in response.iter_raw():
        body += part
        if len(body) > limit:
            raise _ReplyTooLargeError
    return bytes(body)


def async_client(endpoint: Endpoint) -> Any:
    """The openai package's asynchronous client of an endpoint, for libraries that take one; it retries by itself.

    Limits of bytes and the cache are `ChatClient`'s and do not hold here. The environment's OPENAI_* variables and proxies to this machine are not heeded.
    """
    import openai

    return openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=key_of(endpoint),
        timeout=endpoint.timeout_s,
        max_retries=endpoint.max_retries,
        http_client=openai.DefaultAsyncHttpxClient(
            trust_env=not loopback(endpoint.base_url), follow_redirects=False
        ),
    )
