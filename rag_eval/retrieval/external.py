"""A retriever of the user's own: asked over HTTP or through an imported port.

Nothing that it replies is trusted: a reply becomes items, or the code of a failure.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import numbers
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.settings import ExternalLimits, Settings
from rag_eval.core.types import Offsets, RetrievalOptions
from rag_eval.corpus.masking import mask_snippet
from rag_eval.retrieval.kinds.external import External
from rag_eval.storage.hashing import digest

if TYPE_CHECKING:
    import httpx

FAILURES: Final[Mapping[str, str]] = {
    "timeout": "no whole reply within the time limit",
    "connection": "the connection could not be made, or broke",
    "rate_limited": "429 on every try, or a Retry-After longer than is waited",
    "server_error": "5xx on every try",
    "refused": "another status than 200, a redirect among them",
    "reply_too_large": "more bytes than settings.external.max_reply_bytes",
    "malformed_reply": "not JSON in UTF-8, or compressed although that was not asked for",
    "wrong_shape": "JSON, but not {chunks: [{...}, ...]}",
    "missing_id": "a chunk without id, chunk_id, snippet_id, doc_id or section_id",
    "bad_id": "an id that is no text, is empty or too long, or holds control characters",
    "duplicate_id": "the same chunk twice in one reply",
    "bad_score": "a score that is missing or no finite number",
    "bad_text": "a text that is no text",
    "bad_offsets": "offsets that are not 0 <= start < end",
    "raised": "the imported retriever raised an exception",
    "not_recorded": "the recorded outputs lack this question",
    "recorded_error": "the recorded output is an error without any context",
}
"""Code -> what happened. Such a query is failed: counted, scored 0, asked again by the next run."""


class QueryError(Exception):
    """One query failed, with a code of FAILURES; untrusted text has gone through `quoted`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def failure(self) -> "Failure":
        """The failure as it is counted, masked: its message may repeat a source."""
        return Failure(self.code, mask_snippet(f"{self.code}: {self}"))


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a query has no result: a code of FAILURES and one line for a person."""

    code: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """One retrieved thing as the source names it; empty texts and -1 stand for nothing given."""

    id: str
    """An id of any kind: of our chunk, a document, a section, or the source's own."""
    doc_id: str
    section_id: str
    text: str
    start: int
    """Place in the document's text, in characters."""
    end: int
    score: float

    @property
    def name(self) -> str:
        """The id that a person would look for."""
        return self.id or self.doc_id or self.section_id


@dataclasses.dataclass(frozen=True, slots=True)
class Retrieved:
    """Result of one query, best first; `version` as the source states it, else empty."""

    items: tuple[Item, ...]
    version: str = ""


Outcome = Retrieved | Failure | None
"""Result of one wording; None if the source was never run on it."""


class Advance(Protocol):
    """Told how many queries were just done, and what there is to say about them."""

    def __call__(self, count: int, note: str = "", /) -> object:
        """Note progress."""
        ...


def failed_note(failed: int) -> str:
    """Say for the progress how many failed."""
    return f"{failed:,} failed" if failed else ""


# ---- A reply -> items, or the code of a failure.

_UNSAFE = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, lone surrogates, line separators: they could forge a line of a log."""
_LARGEST = 2**53


def _as_id(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return str(value)  # stores that number their rows
    return value


def _printable(value: str) -> str:
    if not value.strip() or any(unicodedata.category(char) in _UNSAFE for char in value):
        raise ValueError("accepted: a text without control characters")
    return value


def _as_float(value: object) -> object:
    if not isinstance(value, bool) and isinstance(value, numbers.Real):  # also NumPy's numbers
        with contextlib.suppress(OverflowError):
            return float(value)
    return value


def _storable(value: object) -> object:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


_Id = Annotated[str, BeforeValidator(_as_id), AfterValidator(_printable), Field(max_length=1000)]
_Score = Annotated[float, BeforeValidator(_as_float), Field(allow_inf_nan=False)]
_Text = Annotated[str, BeforeValidator(_storable)]


class _Place(BaseModel):
    model_config = ConfigDict(strict=True)

    start: int | None = None
    end: int | None = None
    unit: str = "char"


class _Chunk(_Place):
    id: _Id | None = None
    chunk_id: _Id | None = None
    snippet_id: _Id | None = None
    doc_id: _Id | None = None
    section_id: _Id | None = None
    text: _Text | None = None
    offsets: _Place | None = None
    score: _Score


_CODES = {"text": "bad_text", "score": "bad_score"} | dict.fromkeys(
    ("start", "end", "unit", "offsets"), "bad_offsets"
)


def parse_item(chunk: object, place: int) -> Item:
    """Read one chunk; `place` counts from 1 and is for the message. Raises `QueryError`."""
    try:
        given = _Chunk.model_validate(chunk)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        code = _CODES.get(field, "bad_id") if field else "wrong_shape"
        raise QueryError(code, f"chunk {place}: {field}: {quoted(first['msg'])}") from error
    name = given.id or given.chunk_id or given.snippet_id or ""
    if not (name or given.doc_id or given.section_id):
        raise QueryError("missing_id", f"chunk {place}: accepted id, doc_id or section_id")
    where = given.offsets or given
    start, end = -1, -1
    # a place counted in tokens cannot be found; the text can
    if where.unit == "char" and (where.start, where.end) != (None, None):
        if where.start is None or where.end is None or not 0 <= where.start < where.end < _LARGEST:
            raise QueryError("bad_offsets", f"chunk {place}: accepted 0 <= start < end")
        start, end = where.start, where.end
    return Item(
        name,
        given.doc_id or "",
        given.section_id or "",
        given.text or "",
        start,
        end,
        given.score,
    )


def parse_items(chunks: Sequence[object]) -> tuple[Item, ...]:
    """Read chunks, best first.

    One chunk at fault fails the query: a ranking with a hole would be scored as if the source had
    ranked so. A document may stand several times by `doc_id`, with other texts or other places.

    Raises
    ------
    QueryError
        `wrong_shape`, `missing_id`, `bad_id`, `duplicate_id`, `bad_score`, `bad_text` or
        `bad_offsets`.
    """
    items = tuple(parse_item(chunk, place) for place, chunk in enumerate(chunks, start=1))
    seen: set[object] = set()
    for place, item in enumerate(items, start=1):
        key = item.id or (item.doc_id, item.section_id, item.text, item.start, item.end)
        if key in seen:
            raise QueryError(
                "duplicate_id", f"chunk {place}: {quoted(item.name)} stands in this reply already"
            )
        seen.add(key)
    return items


def parse_reply(data: bytes, top_k: int) -> Retrieved:
    """Read `{"chunks": [{"id" | "doc_id", "text", "score", ...}, ...]}`, at most `top_k` of them.

    Of each chunk are read `id` (or `chunk_id`, `snippet_id`), `doc_id`, `section_id`, `text`,
    `score`, and the place as `offsets: {start, end}` or `start` and `end`. Of the reply itself
    `version` is read. Raises `QueryError`, see `parse_items`, or `malformed_reply`.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise QueryError(
            "malformed_reply", f"the reply is no JSON in UTF-8: {quoted(str(error))}"
        ) from error
    chunks = value.get("chunks") if isinstance(value, dict) else None
    if not isinstance(chunks, list):
        raise QueryError("wrong_shape", 'accepted: an object with a list "chunks"')
    version = value.get("version")
    return Retrieved(parse_items(chunks[:top_k]), version[:200] if isinstance(version, str) else "")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


# ---- HTTP: `POST {query, top_k}`.

_STATUS_CODES = {408: "timeout", 425: "timeout", 429: "rate_limited"}
_OK, _SERVER_ERROR = 200, 500
MAX_WAIT_S = 60.0
"""A Retry-After longer than this is not waited for."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _RetryableError(Exception):
    """A try that may be repeated; `wait_s` as the service asked for."""

    def __init__(self, code: str, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.error = QueryError(code, message)
        self.wait_s = wait_s


class HttpSource:
    """One endpoint."""

    version = ""
    embed_model = ""

    def __init__(self, url: str, limits: ExternalLimits) -> None:
        self.url = url
        self.limits = limits
        self._stopped = threading.Event()
        self._unanswered = 0
        self._client: httpx.Client | None = None
        self._stated: str | None = None

    def _open(self) -> "httpx.Client":
        import httpx

        if self._client is None:
            # The proxies of the environment are for other machines. A compressed reply could grow
            # without bound, so none is asked for.
            self._client = httpx.Client(
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
        return self._client

    def close(self) -> None:
        """Close the connections; they are made anew where another query is asked."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a second try. Raises `QueryError`."""
        try:
            return self._try(self._open(), query, top_k)
        except _RetryableError as again:
            raise again.error from again

    def ask_version(self, query: str, top_k: int) -> str:
        """Ask one query for the version that replies state; later calls remember it.

        Empty where no version is stated. No connection stays open: a run that is reused asks no
        more.
        """
        if self._stated is None:
            try:
                self._stated = self.ask_one(query, top_k).version
            except QueryError:
                self._stated = ""
            self.close()
        return self._stated

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask for every query, `concurrency` at a time.

        A query is tried again after 429, 5xx, a time-out or a broken connection. While nothing at
        all answers (as many queries in a row as are asked at a time ended without a reply), queries
        get one try each: waiting for a service that is down would take hours and find the same.
        """
        outcomes: dict[int, Retrieved | Failure] = {}
        failed, client = 0, self._open()
        with self._threads() as threads:
            asked = {
                threads.submit(self._ask, client, query, top_k): place
                for place, query in enumerate(queries)
            }
            waiting: set[Future[Retrieved | Failure]] = set(asked)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    outcomes[asked[future]] = outcome = future.result()
                    failed += isinstance(outcome, Failure)
                advance(len(done), failed_note(failed))
        return [outcomes[place] for place in range(len(queries))]

    @contextlib.contextmanager
    def _threads(self) -> Iterator[ThreadPoolExecutor]:
        """Threads that end with the caller: an interrupt wakes those that wait for a next try."""
        self._stopped.clear()
        threads = ThreadPoolExecutor(self.limits.concurrency, thread_name_prefix="external")
        try:
            yield threads
        finally:
            self._stopped.set()
            threads.shutdown(cancel_futures=True)

    def _ask(self, client: "httpx.Client", query: str, top_k: int) -> Retrieved | Failure:
        retries = 0 if self._unanswered >= self.limits.concurrency else self.limits.max_retries
        for number in range(retries + 1):
            try:
                found = self._try(client, query, top_k)
            except QueryError as error:  # a reply came, and asking again would bring the same
                self._unanswered = 0
                return error.failure
            except _RetryableError as again:
                pause = again.wait_s
                if pause is None:
                    pause = self.limits.backoff_s * 2**number
                if number == retries or pause > MAX_WAIT_S or self._stopped.wait(pause):
                    is_silent = again.error.code in {"timeout", "connection"}
                    self._unanswered = self._unanswered + 1 if is_silent else 0
                    return again.error.failure
            else:
                self._unanswered = 0
                return found
        raise AssertionError("every try ends above")

    def _try(self, client: "httpx.Client", query: str, top_k: int) -> Retrieved:
        """Post once. Raises `QueryError`, or `_RetryableError` where another try may help."""
        import httpx

        body = json.dumps({"query": query, "top_k": top_k}).encode("ascii")
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            with client.stream("POST", self.url, content=body) as reply:
                _check_status(reply)
                return parse_reply(self._read(reply, deadline), top_k)
        except httpx.TimeoutException as error:
            raise self._late() from error
        except (QueryError, _RetryableError):
            raise
        except Exception as error:  # its text may hold the address, and with it a password
            raise _RetryableError("connection", f"no reply ({type(error).__name__})") from error

    def _late(self) -> _RetryableError:
        return _RetryableError("timeout", f"no whole reply within {self.limits.timeout_s:g} s")

    def _read(self, reply: "httpx.Response", deadline: float) -> bytes:
        """Read the body until it ends, grows beyond the limit, or takes too long."""
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
                raise self._late()
            parts.append(part)
        return b"".join(parts)


def _check_status(reply: "httpx.Response") -> None:
    status = reply.status_code
    if status == _OK:
        return
    code = _STATUS_CODES.get(status, "server_error" if status >= _SERVER_ERROR else "refused")
    if code == "refused":
        raise QueryError(code, f"status {status}")
    asked = reply.headers.get("retry-after", "").strip()
    wait_s = float(asked[:12]) if asked.isascii() and asked.isdigit() else None
    raise _RetryableError(code, f"status {status}", wait_s)


# ---- An import path that satisfies RetrievalPort, version 1. It is foreign code.

METHODS = ("retrieve", "batch_retrieve", "stats")
VERSION = 1
BATCH = 64
"""Queries given to `batch_retrieve` at a time, and asked again one by one when a batch fails."""
FOREIGN = (Exception, SystemExit)
"""Exceptions of foreign code that do not end the evaluation; an interrupt still ends it."""


def load_port(name: str, path: str) -> Any:
    """Import a retriever: an object, or a class or function that is called without arguments.

    Raises `InputError` (`source_unusable`) where it cannot be loaded or is no RetrievalPort.
    """

    def unusable(message: str, found: str) -> InputError:
        accepted = f"version {VERSION} with {', '.join(METHODS)}"
        problem = Problem(
            "source_unusable",
            f"the source {quoted(name)} {message}",
            file="settings",
            field="sources",
            found=f"{path}: {found}",
            accepted=accepted,
        )
        return InputError(problem)

    module, attribute = path.split(":")
    try:
        port: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(port, type) or (callable(port) and not hasattr(port, "retrieve")):
            port = port()
    except FOREIGN as error:
        raise unusable("cannot be loaded", f"{type(error).__name__}: {error}") from error
    missing = [method for method in METHODS if not callable(getattr(port, method, None))]
    if missing:
        raise unusable("is no RetrievalPort", f"without {', '.join(missing)}")
    version = getattr(port, "version", None)
    if type(version) is not int or version != VERSION:
        raise unusable("is no RetrievalPort", f"version {quoted(version)}")
    return port


class PortSource:
    """A port that `load_port` loaded."""

    def __init__(self, port: Any) -> None:
        self.port = port
        self.stated = self._read_stats()
        """Index identity from the port's stats, as texts; empty if the stats lack it."""
        self.version = digest(self.stated) if self.stated else ""

    def _read_stats(self) -> dict[str, str | dict[str, str]]:
        try:
            stats = self.port.stats()
            stated: dict[str, str | dict[str, str]] = {
                name: str(value)
                for name in ("corpus_rev", "chunks_hash", "embed_model")
                if (value := getattr(stats, name, None))
            }
            if hashes := getattr(stats, "index_hashes", None):
                stated["index_hashes"] = {str(key): str(one) for key, one in dict(hashes).items()}
        except FOREIGN:
            return {}
        return stated

    @property
    def embed_model(self) -> str:
        """The embedding as the stats name it, else empty."""
        return quoted(self.stated.get("embed_model", ""), 200)

    def close(self) -> None:
        """Leave the port as it is: it was not opened here."""

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask through `retrieve`. Raises `QueryError`."""
        with _foreign():
            return _read_result(self.port.retrieve(query, RetrievalOptions(top_k=top_k)), top_k)

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask through `batch_retrieve`.

        A batch that raises or has another length is asked again one by one, so that only the
        culprits fail.
        """
        outcomes: list[Retrieved | Failure] = []
        failed = 0
        for start in range(0, len(queries), BATCH):
            found = self._ask_batch(list(queries[start : start + BATCH]), top_k)
            outcomes += found
            failed += sum(isinstance(outcome, Failure) for outcome in found)
            advance(len(found), failed_note(failed))
        return outcomes

    def _ask_batch(self, queries: list[str], top_k: int) -> list[Retrieved | Failure]:
        try:
            results = self.port.batch_retrieve(queries, RetrievalOptions(top_k=top_k))
            is_whole = isinstance(results, (list, tuple)) and len(results) == len(queries)
        except FOREIGN:
            is_whole = False
        if is_whole:
            return [_outcome(functools.partial(_read_result, one, top_k)) for one in results]
        return [_outcome(functools.partial(self.ask_one, query, top_k)) for query in queries]


@contextlib.contextmanager
def _foreign() -> Iterator[None]:
    """Turn whatever foreign code raises into the failure of its query."""
    try:
        yield
    except QueryError:
        raise
    except FOREIGN as error:
        raise QueryError("raised", quoted(f"{type(error).__name__}: {error}")) from error


def _outcome(ask: Callable[[], Retrieved]) -> Retrieved | Failure:
    try:
        with _foreign():
            return ask()
    except QueryError as error:
        return error.failure


_ATTRIBUTES = {
    "id": "snippet_id",
    "doc_id": "doc_id",
    "section_id": "section_id",
    "text": "text",
    "score": "score_raw",
}
"""Key of a reply -> attribute of a ScoredChunk."""


def _read_result(result: Any, top_k: int) -> Retrieved:
    """Read a RetrievalResult, or anything with its attributes."""
    chunks = getattr(result, "chunks", None)
    if not isinstance(chunks, (list, tuple)):
        raise QueryError(
            "wrong_shape", f"found {type(result).__name__}, accepted a RetrievalResult"
        )
    return Retrieved(parse_items([_describe(chunk) for chunk in chunks[:top_k]]))


def _describe(chunk: Any) -> dict[str, object]:
    """Write a ScoredChunk as a reply would hold it; empty ids and offsets say nothing."""
    values = {key: getattr(chunk, name, None) for key, name in _ATTRIBUTES.items()}
    offsets = getattr(chunk, "offsets", None)
    if isinstance(offsets, Offsets) and 0 <= offsets.start < offsets.end:
        values["offsets"] = dataclasses.asdict(offsets)
    return {key: value for key, value in values.items() if key == "text" or value not in (None, "")}


class Sources:
    """The outside sources of an evaluation, each opened once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: dict[str, HttpSource | PortSource] = {}

    def open(self, spec: External) -> HttpSource | PortSource:
        """Open the endpoint or import path of a strategy, or return it as it was opened before.

        Raises `InputError`: `unknown_source`, `source_unusable`.
        """
        name, kind = spec.source or "", spec.source_kind(self._settings)
        if name not in self._opened:
            address = self._settings.sources[name]
            self._opened[name] = (
                HttpSource(address, self._settings.external)
                if kind == "http"
                else PortSource(load_port(name, address))
            )
        return self._opened[name]
