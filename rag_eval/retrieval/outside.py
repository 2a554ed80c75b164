"""A retriever outside rag_eval: its strategy, its replies, its failures, and how it is asked.

Nothing in a reply is trusted: a reply becomes items, or a failure with a code. `Source` repeats and
counts queries. Each kind adds how one query is asked, and the version of its index.
"""

import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from rag_eval.core.errors import quoted
from rag_eval.core.fields import ID
from rag_eval.core.settings import ExternalLimits, Settings
from rag_eval.core.strategy import Strategy
from rag_eval.corpus.masking import mask_snippet

if TYPE_CHECKING:
    import httpx

SourceKind = Literal["http", "import", "run_file", "recorded", "opensearch", "qdrant", "pgvector"]
T = TypeVar("T")


# ---- Results of queries, and the failures.


class QueryError(Exception):
    """A failed query: a code of docs/external.md, and a masked line for a person.

    It counts with score 0, and the next run asks it again.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(mask_snippet(quoted(f"{code}: {message}", 400)))
        self.code = code


class RetryableError(QueryError):
    """A failed try that may be repeated, after `wait_s` if the service states a time."""

    def __init__(self, code: str, message: str, wait_s: float | None = None) -> None:
        super().__init__(code, message)
        self.wait_s = wait_s


_EMPTY = BeforeValidator(lambda value: "" if value is None else value)
_Id = Annotated[str, BeforeValidator(lambda value: ID.check(value) if value else "")]


class ItemOffsets(BaseModel):
    """Place of an item in the text of its document, `start` to `end` (exclusive)."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    start: int
    end: int
    unit: Literal["char", "token"] = "char"


class Item(BaseModel):
    """One retrieved item as the source states it; empty texts mean not given.

    `id` names a chunk of this corpus, a document, a section, or an entry of the source. The other
    names of fields are those of a `ScoredChunk`.
    """

    model_config = ConfigDict(frozen=True, from_attributes=True)

    id: _Id = Field(default="", validation_alias=AliasChoices("id", "snippet_id"))
    doc_id: _Id = ""
    section_id: _Id = ""
    text: Annotated[str, _EMPTY] = ""
    offsets: ItemOffsets | None = None
    score: float = Field(allow_inf_nan=False, validation_alias=AliasChoices("score", "score_raw"))

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if not self.name:
            raise ValueError("accepted: an id, a doc_id or a section_id")
        return self

    @property
    def name(self) -> str:
        """Most exact id that the source gives: `id`, else `doc_id`, else `section_id`."""
        return self.id or self.doc_id or self.section_id


class _Reply(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    chunks: list[Item]
    version: object = ""


class Retrieved(NamedTuple):
    """Items of one query, best first, and the version that the source states, else empty."""

    items: tuple[Item, ...]
    version: str = ""


Outcome = Retrieved | QueryError | None
"""Result of one wording; None for a wording that the source was not run on."""


class Replies(NamedTuple):
    """Outcomes of all wordings, notes for the report, and the version of the source before them."""

    outcomes: list[Outcome]
    notes: list[str]
    version: str = ""
    original_only: bool = False
    """Whether the source was run on the original wordings only."""


Advance = Callable[[int, str], object]
"""Callback for progress: the number of new results, and a note."""


def failed_note(failed: int) -> str:
    """Write the number of failed queries for the progress display."""
    return f"{failed:,} failed" if failed else ""


def parse_reply(reply: object, top_k: int) -> Retrieved:
    """Read the first `top_k` chunks of a reply in JSON (bytes), or of a RetrievalResult.

    A single faulty chunk fails the query with a `QueryError`, because a ranking with a gap is not
    the ranking of the source.
    """
    try:
        if isinstance(reply, bytes):
            read = _Reply.model_validate_json(reply)
        else:
            read = _Reply.model_validate(reply)
    except ValidationError as error:
        raise malformed(error) from error
    version = read.version[:200] if isinstance(read.version, str) else ""
    return Retrieved(tuple(read.chunks[:top_k]), version)


def describe_first(error: ValidationError) -> str:
    """Describe the first fault of a foreign value, with its place."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def malformed(error: ValidationError) -> QueryError:
    """Return the failure of a reply of another form."""
    return QueryError("malformed_reply", describe_first(error))


# ---- Sources: retries, counting, and what is done when a service is down.

_STATUS_CODES = {408: "timeout", 425: "timeout", 429: "rate_limited"}
_OK, _SERVER_ERROR = 200, 500
MAX_WAIT_S = 60.0
"""Longest Retry-After to wait for."""
BACKOFF_S = 0.5
"""First wait after 429, 5xx or a broken connection; doubles each time."""
MAX_REPLY_BYTES = 8_000_000
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that a proxy cannot reach."""
_SILENT = frozenset({"timeout", "connection"})
"""Codes of queries that got no reply."""


class Source(ABC):
    """A retriever that answers queries. It may be asked by several threads."""

    embed_model = ""
    """Model of the vectors, as the source or its owner names it."""

    def __init__(self, limits: ExternalLimits) -> None:
        self.limits = limits
        self.stated: Mapping[str, object] = {}
        """Identity of the index; empty where the source states none."""
        self._stopped = threading.Event()
        self._n_silent = 0
        """Number of queries in a row that got no reply."""

    @abstractmethod
    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a retry. Raises `QueryError`."""

    @abstractmethod
    def ask_version(self, query: str) -> str:
        """Return the version of the index now; empty without one. May ask the query once."""

    def close(self) -> None:  # noqa: B027 - most sources hold no connection
        """Close the connections. The next query opens new ones."""

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | QueryError]:
        """Ask for every query, `concurrency` at a time.

        A query is tried again after 429, 5xx, a time-out or a broken connection. When as many
        queries in a row as run at a time get no reply, the service may be down. Then each query
        gets one try until a reply comes.
        """
        failed = 0
        threads = ThreadPoolExecutor(self.limits.concurrency, thread_name_prefix="external")
        try:
            tasks = [threads.submit(self.ask_again, query, top_k) for query in queries]
            for task in as_completed(tasks):
                failed += isinstance(task.result(), QueryError)
                advance(1, failed_note(failed))
        finally:
            self._stopped.set()  # An interrupt wakes the threads that wait for their next try.
            threads.shutdown(cancel_futures=True)
            self._stopped.clear()
        return [task.result() for task in tasks]

    def ask_texts(self, texts: Sequence[str], top_k: int, advance: Advance) -> Replies:
        """Ask for every wording, but only once for equal texts."""
        version, distinct = self.ask_version(texts[0]), list(dict.fromkeys(texts))
        replies = dict(zip(distinct, self.ask_all(distinct, top_k, advance), strict=True))
        outcomes: list[Outcome] = [replies[text] for text in texts]
        failed = sum(isinstance(outcome, QueryError) for outcome in outcomes)
        advance(len(texts) - len(distinct), failed_note(failed))
        return Replies(outcomes, [], quoted(version, 200))

    def ask_again(self, query: str, top_k: int) -> Retrieved | QueryError:
        """Ask a query until it has a result, at most as often as the limits say."""
        try:
            return self.repeat(functools.partial(self.ask_one, query, top_k))
        except QueryError as error:
            return error.with_traceback(None)

    def repeat(self, call: Callable[[], T]) -> T:
        """Call until the service replies, at most as often as the limits say.

        Raises the `QueryError` of the last try.
        """
        is_down, n_tries = self._n_silent >= self.limits.concurrency, 0
        while True:
            n_tries += 1
            try:
                result = call()
            except QueryError as error:
                if isinstance(error, RetryableError) and not is_down:
                    pause_s = error.wait_s or BACKOFF_S * 2 ** (n_tries - 1)
                    is_last = n_tries > self.limits.max_retries or pause_s > MAX_WAIT_S
                    if not is_last and not self._stopped.wait(pause_s):
                        continue
                self._n_silent = self._n_silent + 1 if error.code in _SILENT else 0
                raise
            self._n_silent = 0
            return result


def too_late(limits: ExternalLimits) -> RetryableError:
    """Return the failure of a reply that took too long."""
    return RetryableError("timeout", f"no whole reply within {limits.timeout_s:g} s")


def check_status(status: int, retry_after: str = "") -> None:
    """Raise the `QueryError` of any status but 200. `retry_after` is the header of that name."""
    if status == _OK:
        return
    code = _STATUS_CODES.get(status, "server_error" if status >= _SERVER_ERROR else "refused")
    if code == "refused":
        raise QueryError(code, f"status {status}")
    seconds = retry_after.strip()[:12]
    wait_s = float(seconds) if seconds.isascii() and seconds.isdigit() else None
    raise RetryableError(code, f"status {status}", wait_s)


def read_http_error(limits: ExternalLimits, error: Exception) -> QueryError:
    """Return the failure that an error of httpx stands for, or the failure itself."""
    import httpx

    if isinstance(error, QueryError):
        return error
    if isinstance(error, httpx.TimeoutException):
        return too_late(limits)
    # The text may hold the address with a password, so omit it.
    return RetryableError("connection", f"no reply ({type(error).__name__})")


class WebClient:
    """Sends requests with `headers` to one host, within the limits."""

    def __init__(
        self, url: str, limits: ExternalLimits, headers: Mapping[str, str] | None = None
    ) -> None:
        self.url, self.limits = url, limits
        self._headers = {"accept": "application/json", "accept-encoding": "identity"}
        self._headers |= headers or {}
        self._opening = threading.Lock()
        self._client: httpx.Client | None = None

    def _open(self) -> "httpx.Client":
        import httpx

        with self._opening:  # Threads must share one client.
            if self._client is None:
                self._client = httpx.Client(
                    timeout=self.limits.timeout_s,
                    trust_env=httpx.URL(self.url).host not in LOOPBACK,
                    limits=httpx.Limits(max_connections=self.limits.concurrency),
                    headers=self._headers,
                )
            return self._client

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def send(self, method: str, url: str, body: object = None) -> bytes:
        """Send one request, and return the whole reply. Raises `QueryError`."""
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            with self._open().stream(method, url, json=body) as reply:
                check_status(reply.status_code, reply.headers.get("retry-after", ""))
                return self._read(reply, deadline)
        except Exception as error:
            raise read_http_error(self.limits, error) from error

    def _read(self, reply: "httpx.Response", deadline: float) -> bytes:
        content = bytearray()
        for part in reply.iter_bytes():
            content += part
            if len(content) > MAX_REPLY_BYTES:
                raise QueryError("reply_too_large", f"more than {MAX_REPLY_BYTES} bytes")
            if time.monotonic() > deadline:
                raise too_late(self.limits)
        return bytes(content)


# ---- The strategy of a retriever outside.


class Outside(Strategy):
    """A strategy whose rankings a system outside rag_eval makes."""

    top_k: int | None = Field(
        default=None, ge=1, le=1000, description="chunks asked for; default: the gold set's depth"
    )
    own_units: ClassVar[bool] = True

    @model_validator(mode="after")
    def _ranks_by_itself(self) -> Self:
        if self.rerank is not None:
            raise ValueError(
                "an external retriever ranks by itself; rerank is for strategies that run here"
            )
        return self

    @abstractmethod
    def source_kind(self, settings: Settings) -> SourceKind:
        """Name the kind of the source. Raises `InputError` if the settings do not enable it."""

    @abstractmethod
    def open_source(self, settings: Settings) -> Source:
        """Open the source of a strategy without files. Raises `InputError` if it is unusable."""

    def source_options(self) -> str:
        """Return the options that the source is opened with, as JSON."""
        return self.model_dump_json(exclude={"name", "top_k"})


class Sources:
    """The outside sources of an evaluation, each opened once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: dict[str, Source] = {}

    def open(self, spec: Outside) -> Source:
        """Open the source of a strategy once. Raises `InputError` if it is unusable."""
        options = spec.source_options()
        if options not in self._opened:
            self._opened[options] = spec.open_source(self._settings)
        return self._opened[options]
