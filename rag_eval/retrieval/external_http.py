"""An external retriever behind HTTP: `POST {query, top_k}`. The only file that imports httpx.

Belongs here: requests, tries, time limits, size limits. What a reply means is `external_reply`.
"""

import contextlib
import datetime as dt
import email.utils
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from rag_eval.retrieval.external import Advance, Failure, QueryError, Retrieved, failed_note
from rag_eval.retrieval.external_reply import parse_bytes
from rag_eval.settings import ExternalLimits

if TYPE_CHECKING:
    import httpx

OK, TOO_EARLY, REQUEST_TIMEOUT, TOO_MANY, SERVER_ERROR = 200, 425, 408, 429, 500
REDIRECTS = frozenset({301, 302, 303, 307, 308})
KEEPS_METHOD = frozenset({307, 308})
MAX_REDIRECTS = 3
MAX_WAIT_S = 60.0
"""A Retry-After longer than this is not waited for."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _TryAgain(Exception):  # noqa: N818 - not an error: a reply that asks for patience
    """A try that may be repeated; `wait_s` as the service asked for."""

    def __init__(self, error: QueryError, wait_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.wait_s = wait_s


def retry_after(header: str | None, now: dt.datetime) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3: a number of seconds or a date); None where it cannot be read.

    Examples
    --------
    >>> retry_after("3", dt.datetime(2024, 2, 29, tzinfo=dt.UTC)), retry_after("soon", dt.datetime(2024, 2, 29, tzinfo=dt.UTC))
    (3.0, None)
    >>> retry_after("Thu, 29 Feb 2024 00:00:09 GMT", dt.datetime(2024, 2, 29, tzinfo=dt.UTC))
    9.0
    """
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdigit():
        return float(header.strip()[:12])
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    return max(
        0.0, ((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)) - now).total_seconds()
    )


class HttpSource:
    """One endpoint.

    Parameters
    ----------
    url
        Where queries are posted to.
    limits
        How.
    """

    def __init__(self, url: str, limits: ExternalLimits) -> None:
        self.url = url
        self.limits = limits
        self.version = ""
        self._stopped = threading.Event()
        self._unanswered = 0
        self._kept: httpx.Client | None = None

    def _client(self) -> "httpx.Client":
        import httpx

        # the proxies of the environment are for other machines; a compressed reply could grow without bound, so none is asked for
        return httpx.Client(
            timeout=self.limits.timeout_s,
            follow_redirects=False,
            trust_env=httpx.URL(self.url).host not in LOOPBACK,
            limits=httpx.Limits(max_connections=self.limits.concurrency),
            headers={
                "content-type": "application/json",
                "accept": "application/json",
                "accept-encoding": "identity",
            },
        )

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a second try, over a connection that is kept until `close`."""
        if self._kept is None:
            self._kept = self._client()
        try:
            return self._try(self._kept, query, top_k)
        except _TryAgain as again:
            raise again.error from again

    def close(self) -> None:
        """Close the connection of single queries; it is made anew where another one is asked."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask for every query, `concurrency` at a time; a query is tried again after 429, 5xx, a time-out or a broken connection.

        While nothing at all answers (as many queries in a row as are asked at a time ended without a reply), queries get one try
        each: waiting for a service that is down would take hours and find the same.
        """
        outcomes: dict[int, Retrieved | Failure] = {}
        failed = 0
        with self._client() as client, self._threads() as threads:
            asked = {
                threads.submit(self._ask, client, query, top_k): place
                for place, query in enumerate(queries)
            }
            waiting: set[Future[Retrieved | Failure]] = set(asked)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    outcome = future.result()
                    failed += isinstance(outcome, Failure)
                    outcomes[asked[future]] = outcome
                advance(len(done), failed_note(failed))
        return [outcomes[place] for place in range(len(queries))]

    @contextlib.contextmanager
    def _threads(self) -> Iterator[ThreadPoolExecutor]:
        """Threads that end with whoever asked: an interrupt wakes those that wait for their next try."""
        self._stopped.clear()
        threads = ThreadPoolExecutor(self.limits.concurrency, thread_name_prefix="external")
        try:
            yield threads
        finally:
            self._stopped.set()
            threads.shutdown(cancel_futures=True)

    def _ask(self, client: "httpx.Client", query: str, top_k: int) -> Retrieved | Failure:
        tries = 1 if self._unanswered >= self.limits.concurrency else 1 + self.limits.max_retries
        for number in range(1, tries + 1):
            try:
                found = self._try(client, query, top_k)
            except QueryError as error:  # a reply came, and asking again would bring the same
                self._unanswered = 0
                return error.failure
            except _TryAgain as again:
                pause = (
                    self.limits.backoff_s * 2 ** (number - 1)
                    if again.wait_s is None
                    else again.wait_s
                )
                if number == tries or pause > MAX_WAIT_S or self._stopped.wait(pause):
                    self._unanswered = (
                        self._unanswered + 1 if again.error.code in {"timeout", "connection"} else 0
                    )
                    return again.error.failure
            else:
                self._unanswered = 0
                return found
        raise AssertionError("every try ends above")

    def _try(self, client: "httpx.Client", query: str, top_k: int) -> Retrieved:
        """Post once.

        Raises
        ------
        QueryError, _TryAgain
            No usable reply; another try may help.
        """
        import httpx

        body = json.dumps({"query": query, "top_k": top_k}).encode("ascii")
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            return parse_bytes(self._body(client, httpx.URL(self.url), body, deadline), top_k)
        except httpx.TimeoutException as error:
            raise _TryAgain(
                QueryError("timeout", f"no whole reply within {self.limits.timeout_s:g} s")
            ) from error
        except (QueryError, _TryAgain):
            raise
        except Exception as error:  # whatever a service makes the client raise fails this query; the text may hold the address, and with it a password
            raise _TryAgain(
                QueryError("connection", f"no whole reply ({type(error).__name__})")
            ) from error

    def _body(
        self, client: "httpx.Client", url: "httpx.URL", body: bytes, deadline: float
    ) -> bytes:
        """Return the body of a reply with status 200, following redirects that stay on the host."""
        for _ in range(MAX_REDIRECTS + 1):
            with client.stream("POST", url, content=body) as reply:
                if reply.status_code not in REDIRECTS:
                    self._check_status(reply)
                    return self._read(reply, deadline)
                target = url.join(reply.headers.get("location", ""))
                if reply.status_code not in KEEPS_METHOD or (
                    target.scheme,
                    target.host,
                    target.port,
                ) != (url.scheme, url.host, url.port):
                    raise QueryError(
                        "redirect",
                        f"status {reply.status_code}; accepted: 307 and 308 to the same host",
                    )
                url = target.copy_with(userinfo=url.userinfo)
        raise QueryError("redirect", f"more than {MAX_REDIRECTS} redirects")

    @staticmethod
    def _check_status(reply: "httpx.Response") -> None:
        status = reply.status_code
        asked = retry_after(reply.headers.get("retry-after"), dt.datetime.now(dt.UTC))
        if status == TOO_MANY:
            raise _TryAgain(QueryError("rate_limited", f"status {status}"), asked)
        if status >= SERVER_ERROR:
            raise _TryAgain(QueryError("server_error", f"status {status}"), asked)
        if status in {REQUEST_TIMEOUT, TOO_EARLY}:
            raise _TryAgain(QueryError("timeout", f"status {status}"), asked)
        if status != OK:
            raise QueryError("refused", f"status {status}")

    def _read(self, reply: "httpx.Response", deadline: float) -> bytes:
        """Read the body until it ends, grows beyond the limit, or takes too long; the rest of it is never fetched."""
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            raise QueryError("malformed_reply", "the reply is compressed, which was not asked for")
        parts, size = [], 0
        for part in reply.iter_raw():
            size += len(part)
            if size > self.limits.max_reply_bytes:
                raise QueryError(
                    "reply_too_large", f"more than {self.limits.max_reply_bytes} bytes"
                )
            if time.monotonic() > deadline:
                raise _TryAgain(
                    QueryError("timeout", f"no whole reply within {self.limits.timeout_s:g} s")
                )
            parts.append(part)
        return b"".join(parts)
