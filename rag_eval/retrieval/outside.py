"""A retriever outside rag_eval: its strategy, its replies, its failures, and how it is asked.

Nothing in a reply is trusted: a reply becomes items, or the code of a failure. `Source` has the
retries, the counting and the end of a service that is down. Each kind adds one query and one
identity of its index.
"""

import dataclasses
import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeVar

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
from rag_eval.core.types import Offsets
from rag_eval.corpus.masking import mask_snippet

if TYPE_CHECKING:
    import httpx

SourceKind = Literal["http", "import", "run_file", "recorded", "opensearch", "qdrant", "pgvector"]
T = TypeVar("T")


# ---- Results of queries, and the failures.


class QueryError(Exception):
    """A failed query: a code of docs/external.md, and a message with quoted foreign text.

    It counts with score 0, and the next run asks it again.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def failure(self) -> "Failure":
        """Failure with a masked message, because the message may repeat text of a source."""
        return Failure(self.code, mask_snippet(f"{self.code}: {self}"))


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Cause of a missing result: a code of docs/external.md, and one line for a person."""

    code: str
    message: str


_EMPTY = BeforeValidator(lambda value: "" if value is None else value)
_Id = Annotated[str, BeforeValidator(lambda value: ID.check(value) if value else "")]


def _as_offsets(value: object) -> object:
    """Read the attributes of any object, because pydantic reads only models so."""
    if value is None or isinstance(value, Mapping):
        return value
    return {name: getattr(value, name) for name in _OFFSETS if hasattr(value, name)}


_OFFSETS = tuple(field.name for field in dataclasses.fields(Offsets))


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
    offsets: Annotated[Offsets | None, BeforeValidator(_as_offsets)] = None
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


@dataclasses.dataclass(frozen=True, slots=True)
class Retrieved:
    """Items of one query, best first, and the version that the source states, else empty."""

    items: tuple[Item, ...]
    version: str = ""


Outcome = Retrieved | Failure | None
"""Result of one wording; None for a wording that the source was not run on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replies:
    """Outcomes of all wordings, notes for the report, and the version that all replies state."""

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
        raise QueryError("malformed_reply", describe_first(error)) from error
    version = read.version[:200] if isinstance(read.version, str) else ""
    return Retrieved(tuple(read.chunks[:top_k]), version)


def describe_first(error: ValidationError) -> str:
    """Describe the first fault of a foreign value, with its place."""
    first = error.errors(include_url=False)[0]
    return quoted(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)


# ---- Sources: retries, counting, and what is done when a service is down.

_STATUS_CODES = {408: "timeout", 425: "timeout", 429: "rate_limited"}
_OK, _SERVER_ERROR = 200, 500
MAX_WAIT_S = 60.0
"""Longest Retry-After to wait for."""
BACKOFF_S = 0.5
"""First wait after 429, 5xx or a broken connection; doubles each time."""
MAX_REPLY_BYTES = 8_000_000
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SILENT = frozenset({"timeout", "connection"})
"""Codes of queries that got no reply."""


class RetryableError(QueryError):
    """A failed try that may be repeated, after `wait_s` if the service states a time."""

    def __init__(self, code: str, message: str, wait_s: float | None = None) -> None:
        super().__init__(code, message)
        self.wait_s = wait_s


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

    def find_changes(self, version: str, outcomes: Sequence[Outcome]) -> list[str]:  # noqa: ARG002 - for subclasses
        """Describe how the index changed during a run that began at this version."""
        return []

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
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
                failed += isinstance(task.result(), Failure)
                advance(1, failed_note(failed))
        finally:
            self._stopped.set()  # An interrupt wakes the threads that wait for their next try.
            threads.shutdown(cancel_futures=True)
            self._stopped.clear()
        return [task.result() for task in tasks]

    def ask_again(self, query: str, top_k: int) -> Retrieved | Failure:
        """Ask a query until it has a result, at most as often as the limits say."""
        try:
            return self.repeat(functools.partial(self.ask_one, query, top_k))
        except QueryError as error:
            return error.failure

    def repeat(self, call: Callable[[], T]) -> T:
        """Call until the service replies, at most as often as the limits say.

        Raises the `QueryError` of the last try.
        """
        is_down = self._n_silent >= self.limits.concurrency
        for tries_left in reversed(range(1 if is_down else 1 + self.limits.max_retries)):
            try:
                result = call()
            except RetryableError as again:
                tries = self.limits.max_retries - tries_left
                pause = BACKOFF_S * 2**tries if again.wait_s is None else again.wait_s
                if not tries_left or pause > MAX_WAIT_S or self._stopped.wait(pause):
                    self._n_silent = self._n_silent + 1 if again.code in _SILENT else 0
                    raise
            except QueryError:  # The service replied, so a retry would not help.
                self._n_silent = 0
                raise
            else:
                self._n_silent = 0
                return result
        raise AssertionError("the last try returns")


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
    asked = retry_after.strip()
    wait_s = float(asked[:12]) if asked.isascii() and asked.isdigit() else None
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

    @functools.cached_property
    def _opened(self) -> "httpx.Client":
        import httpx

        return httpx.Client(
            timeout=self.limits.timeout_s,
            follow_redirects=False,
            trust_env=httpx.URL(self.url).host
            not in LOOPBACK,  # A proxy cannot reach this machine.
            limits=httpx.Limits(max_connections=self.limits.concurrency),
            headers=self._headers,
        )

    @property
    def _client(self) -> "httpx.Client":
        with self._opening:  # Threads must share one client.
            return self._opened

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        client = self.__dict__.pop("_opened", None)
        if client is not None:
            client.close()

    def send(self, method: str, url: str, body: object = None) -> bytes:
        """Send one request, and return the whole reply. Raises `QueryError`."""
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            with self._client.stream(method, url, json=body) as reply:
                check_status(reply.status_code, reply.headers.get("retry-after", ""))
                return self._read(reply, deadline)
        except Exception as error:
            raise read_http_error(self.limits, error) from error

    def _read(self, reply: "httpx.Response", deadline: float) -> bytes:
        """Read the body within the limits of size and time."""
        parts, size = [], 0
        for part in reply.iter_bytes():
            size += len(part)
            if size > MAX_REPLY_BYTES:
                raise QueryError("reply_too_large", f"more than {MAX_REPLY_BYTES} bytes")
            if time.monotonic() > deadline:
                raise too_late(self.limits)
            parts.append(part)
        return b"".join(parts)


def ask_source(source: Source, texts: Sequence[str], top_k: int, advance: Advance) -> Replies:
    """Ask for every wording, but only once for equal texts."""
    version, distinct = source.ask_version(texts[0]), list(dict.fromkeys(texts))
    replies = dict(zip(distinct, source.ask_all(distinct, top_k, advance), strict=True))
    outcomes: list[Outcome] = [replies[text] for text in texts]
    failed = sum(isinstance(outcome, Failure) for outcome in outcomes)
    advance(len(texts) - len(distinct), failed_note(failed))
    changes = source.find_changes(version, outcomes)
    return Replies(outcomes, changes, "" if changes else quoted(version, 200))


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
