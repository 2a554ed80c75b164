"""The kind `external`: the user's own retriever, or rankings that were made beforehand.

A source is asked over HTTP or through an imported port, or its lists are read from a file. Nothing
in a reply is trusted: a reply becomes items, or the code of a failure.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import numbers
import threading
import time
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

import pandas as pd
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from rag_eval.core.errors import InputError, Name, Problem, ProblemList, quoted
from rag_eval.core.rows import read_lines
from rag_eval.core.settings import ExternalLimits, Settings
from rag_eval.core.strategy import Identity, IdentityInputs, Strategy
from rag_eval.core.types import Offsets, RetrievalOptions
from rag_eval.corpus.loaders.recorded import rankings, read_outputs
from rag_eval.corpus.masking import mask_snippet
from rag_eval.gold.files import ORIGINAL
from rag_eval.storage.hashing import digest, file_hash

if TYPE_CHECKING:
    import httpx

SourceKind = Literal["http", "import", "run_file", "recorded"]


class External(Strategy):
    """A strategy whose rankings come from a named source, a TREC run, or recorded outputs.

    The settings map the name of a source to an import path or URL.
    """

    kind: Literal["external"]
    source: Name | None = Field(default=None, description="a name under `sources` of the settings")
    run_file: str | None = Field(default=None, description="a TREC run; relative to the gold set")
    recorded: str | None = Field(
        default=None,
        description="recorded outputs (JSONL); their contexts, in order, are the ranking",
    )
    top_k: int | None = Field(
        default=None, ge=1, le=1000, description="chunks asked for; default: the gold set's depth"
    )
    own_units: ClassVar[bool] = True

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(given is not None for given in (self.source, self.run_file, self.recorded)) != 1:
            raise ValueError("give exactly one of source, run_file and recorded")
        if self.rerank is not None:
            raise ValueError(
                "an external retriever ranks by itself; rerank is for strategies that run here"
            )
        return self

    def files(self) -> dict[str, str]:
        """Return the run file or the recorded outputs."""
        named = {"run_file": self.run_file, "recorded": self.recorded}
        return {field: path for field, path in named.items() if path is not None}

    @property
    def store_name(self) -> str:
        """Name the source."""
        return f"external:{self.source or 'file'}"

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Hash the source's name, its kind, the statements of a port, and the content of a file.

        The address does not count, because a service that moves stays the same. The version of a
        service does not count, because it is only known after a query.
        """
        kind = self.source_kind(inputs.settings)
        content = file_hash(self.list_path(inputs.folder)) if self.files() else ""
        stated = dict(inputs.stated())
        return Identity(f"external:{digest([self.source or '', kind, stated, content])}", "")

    def source_kind(self, settings: Settings) -> SourceKind:
        """Name the kind of the source. Raises `InputError` (`unknown_source`)."""
        if self.source is None:
            return "recorded" if self.run_file is None else "run_file"
        address = settings.sources.get(self.source)
        if address is None:
            raise InputError(
                Problem(
                    "unknown_source",
                    "the settings enable no source of this name, "
                    f"which strategy {self.name} asks for",
                    field="source",
                    found=self.source,
                    accepted=(", ".join(sorted(settings.sources)) or "none is enabled")
                    + " (enable one with RAG_EVAL_SOURCES or under [sources] of settings.toml)",
                )
            )
        return "http" if address.startswith(("http://", "https://")) else "import"

    def list_path(self, folder: Path) -> Path:
        """Path of the run file or recorded outputs. Raises `InputError` (`missing_file`)."""
        ((field, name),) = self.files().items()
        path = folder / name
        if not path.is_file():
            raise InputError(
                Problem(
                    "missing_file",
                    f"strategy {self.name}: no such file",
                    file=str(path),
                    field=field,
                    found=name,
                    accepted="a path relative to the gold set",
                )
            )
        return path


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


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """One retrieved item as the source states it. Empty texts and -1 mean not given.

    `id` names a chunk of this corpus, a document, a section, or an entry of the source. `start` and
    `end` count the characters of the document's text.
    """

    id: str
    doc_id: str
    section_id: str
    text: str
    start: int
    end: int
    score: float

    @property
    def name(self) -> str:
        """Most exact id that the source gives: `id`, else `doc_id`, else `section_id`."""
        return self.id or self.doc_id or self.section_id


@dataclasses.dataclass(frozen=True, slots=True)
class Retrieved:
    """Items of one query, best first, and the version that the source states, else empty."""

    items: tuple[Item, ...]
    version: str = ""


Outcome = Retrieved | Failure | None
"""Result of one wording; None for a wording that the source was not run on."""


class Advance(Protocol):
    """Display of progress: the number of new results, and a note."""

    def __call__(self, count: int, note: str = "", /) -> object:
        """Add to the display."""
        ...


def failed_note(failed: int) -> str:
    """Write the number of failed queries for the progress display."""
    return f"{failed:,} failed" if failed else ""


# ---- A reply -> items, or the code of a failure.

_UNSAFE = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories of characters that could forge a line of a log."""
_LARGEST = 2**53


def _as_id(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return str(value)  # some stores number their rows
    return value


def _printable(value: str) -> str:
    if not value.strip() or any(unicodedata.category(char) in _UNSAFE for char in value):
        raise ValueError("accepted: a text without control characters")
    return value


def _as_float(value: object) -> object:
    if not isinstance(value, bool) and isinstance(value, numbers.Real):  # Real includes NumPy
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


class _Chunk(BaseModel):
    model_config = ConfigDict(strict=True)

    id: _Id | None = None
    doc_id: _Id | None = None
    section_id: _Id | None = None
    text: _Text | None = None
    offsets: _Place | None = None
    score: _Score


_CODES = {"text": "bad_text", "score": "bad_score", "offsets": "bad_offsets"}


def parse_item(chunk: object, place: int) -> Item:
    """Read one chunk. `place` counts from 1, for the message. Raises `QueryError`."""
    try:
        given = _Chunk.model_validate(chunk)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        code = _CODES.get(field, "bad_id") if field else "wrong_shape"
        raise QueryError(code, f"chunk {place}: {field}: {quoted(first['msg'])}") from error
    if not (given.id or given.doc_id or given.section_id):
        raise QueryError("missing_id", f"chunk {place}: accepted id, doc_id or section_id")
    where = given.offsets or _Place()
    start, end = -1, -1
    # Offsets in tokens do not give a place in the text, so the text itself is searched later.
    if where.unit == "char" and (where.start, where.end) != (None, None):
        if where.start is None or where.end is None or not 0 <= where.start < where.end < _LARGEST:
            raise QueryError("bad_offsets", f"chunk {place}: accepted 0 <= start < end")
        start, end = where.start, where.end
    given_texts = (given.id, given.doc_id, given.section_id, given.text)
    name, doc_id, section_id, text = (part or "" for part in given_texts)
    return Item(name, doc_id, section_id, text, start, end, given.score)


def parse_items(chunks: Sequence[object]) -> tuple[Item, ...]:
    """Read chunks, best first. Raises `QueryError`.

    A single faulty chunk fails the query, because a ranking with a gap is not the ranking of the
    source. A document may occur again with another text or another place.
    """
    items = tuple(parse_item(chunk, place) for place, chunk in enumerate(chunks, start=1))
    seen: set[object] = set()
    for place, item in enumerate(items, start=1):
        key = item.id or (item.doc_id, item.section_id, item.text, item.start, item.end)
        if key in seen:
            message = f"chunk {place}: {quoted(item.name)} occurs in this reply already"
            raise QueryError("duplicate_id", message)
        seen.add(key)
    return items


def parse_reply(data: bytes, top_k: int) -> Retrieved:
    """Read the first `top_k` chunks and the version of a reply. Raises `QueryError`.

    The reply is `{"chunks": [{"id" | "doc_id", "text", "score", ...}, ...], "version": ...}`. The
    fields of a chunk are those of `_Chunk`.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        message = f"the reply is no JSON in UTF-8: {quoted(str(error))}"
        raise QueryError("malformed_reply", message) from error
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
"""Longest Retry-After to wait for."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class _RetryableError(QueryError):
    """A failed try that may be repeated, after `wait_s` if the service states a time."""

    def __init__(self, code: str, message: str, wait_s: float | None = None) -> None:
        super().__init__(code, message)
        self.wait_s = wait_s


class HttpSource:
    """A retriever behind an HTTP endpoint."""

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
            # A proxy cannot reach this machine. A compressed reply could grow without bound.
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
        """Close the connections. The next query opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a retry. Raises `QueryError`."""
        return self._try(self._open(), query, top_k)

    def ask_version(self, query: str) -> str:
        """Ask one query to learn the version of the source; empty when it states none.

        Later calls return the same version. The connections are closed, because a reused run asks
        no further query.
        """
        if self._stated is None:
            try:
                self._stated = self.ask_one(query, 1).version
            except QueryError:
                self._stated = ""
            self.close()
        return self._stated

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask for every query, `concurrency` at a time.

        A query is tried again after 429, 5xx, a time-out or a broken connection. When as many
        queries in a row as run at a time get no reply, the service may be down. Then each query
        gets one try until a reply comes.
        """
        failed, client = 0, self._open()
        with self._threads() as threads:
            tasks = [threads.submit(self._ask, client, query, top_k) for query in queries]
            for task in as_completed(tasks):
                failed += isinstance(task.result(), Failure)
                advance(1, failed_note(failed))
        return [task.result() for task in tasks]

    @contextlib.contextmanager
    def _threads(self) -> Iterator[ThreadPoolExecutor]:
        """Open threads that end with the caller, also threads that wait for their next try."""
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
                reply = self._try(client, query, top_k)
            except _RetryableError as again:
                pause = again.wait_s
                if pause is None:
                    pause = self.limits.backoff_s * 2**number
                if number == retries or pause > MAX_WAIT_S or self._stopped.wait(pause):
                    is_silent = again.code in {"timeout", "connection"}
                    self._unanswered = self._unanswered + 1 if is_silent else 0
                    return again.failure
            except QueryError as error:  # The service replied, so a retry would not help.
                self._unanswered = 0
                return error.failure
            else:
                self._unanswered = 0
                return reply
        raise AssertionError("the last try returns")

    def _try(self, client: "httpx.Client", query: str, top_k: int) -> Retrieved:
        """Post once. Raises `QueryError`, or `_RetryableError` when a retry may help."""
        import httpx

        body = json.dumps({"query": query, "top_k": top_k}).encode("ascii")
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            with client.stream("POST", self.url, content=body) as reply:
                _check_status(reply)
                return parse_reply(self._read(reply, deadline), top_k)
        except httpx.TimeoutException as error:
            raise self._late() from error
        except QueryError:
            raise
        except Exception as error:  # The text may hold the address with a password, so omit it.
            raise _RetryableError("connection", f"no reply ({type(error).__name__})") from error

    def _late(self) -> _RetryableError:
        return _RetryableError("timeout", f"no whole reply within {self.limits.timeout_s:g} s")

    def _read(self, reply: "httpx.Response", deadline: float) -> bytes:
        """Read the body within the limits of size and time."""
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            raise QueryError("malformed_reply", "the reply is compressed, which was not asked for")
        parts, size = [], 0
        for part in reply.iter_raw():
            size += len(part)
            if size > self.limits.max_reply_bytes:
                message = f"more than {self.limits.max_reply_bytes} bytes"
                raise QueryError("reply_too_large", message)
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


# ---- An imported RetrievalPort, version 1. It is foreign code.

METHODS = ("retrieve", "batch_retrieve", "stats")
VERSION = 1
BATCH = 64
"""Number of queries in a call of `batch_retrieve`. A failed batch is asked one by one."""
FOREIGN = (Exception, SystemExit)
"""Exceptions of foreign code that do not end the evaluation; an interrupt still ends it."""


def load_port(name: str, path: str) -> Any:
    """Import a retriever: an object, or a class or function without required arguments.

    Raises `InputError` (`source_unusable`) when it cannot be loaded or is no RetrievalPort.
    """

    def unusable(message: str, found: str) -> InputError:
        return InputError(
            Problem(
                "source_unusable",
                f"the source {quoted(name)} {message}",
                file="settings",
                field="sources",
                found=f"{path}: {found}",
                accepted=f"version {VERSION} with {', '.join(METHODS)}",
            )
        )

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
        """Texts that identify the index, from the stats of the port; empty without them."""
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

    def ask_version(self, query: str) -> str:  # noqa: ARG002 - no query is needed
        """Return the version that the stats state; empty without one."""
        return self.version

    @property
    def embed_model(self) -> str:
        """Name of the embedding in the stats, else empty."""
        return quoted(self.stated.get("embed_model", ""), 200)

    def close(self) -> None:
        """Do nothing, because a port holds no connection of ours."""

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask through `retrieve`. Raises `QueryError`."""
        with _foreign():
            return _read_result(self.port.retrieve(query, RetrievalOptions(top_k=top_k)), top_k)

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask through `batch_retrieve`.

        A batch that raises or has another length is asked one by one, so that only the faulty
        queries fail.
        """
        outcomes: list[Retrieved | Failure] = []
        failed = 0
        for start in range(0, len(queries), BATCH):
            batch = self._ask_batch(list(queries[start : start + BATCH]), top_k)
            outcomes += batch
            failed += sum(isinstance(outcome, Failure) for outcome in batch)
            advance(len(batch), failed_note(failed))
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
    """Turn an exception of foreign code into the failure of its query."""
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
"""Attribute of a ScoredChunk for each key of a reply."""


def _read_result(result: Any, top_k: int) -> Retrieved:
    """Read a RetrievalResult, or an object with the same attributes."""
    chunks = getattr(result, "chunks", None)
    if not isinstance(chunks, (list, tuple)):
        message = f"found {type(result).__name__}, accepted a RetrievalResult"
        raise QueryError("wrong_shape", message)
    return Retrieved(parse_items([_describe(chunk) for chunk in chunks[:top_k]]))


def _describe(chunk: Any) -> dict[str, object]:
    """Write a ScoredChunk as in a reply, without empty ids and offsets."""
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
        """Open the source of a strategy once. Raises `unknown_source` or `source_unusable`."""
        name, kind = spec.source or "", spec.source_kind(self._settings)
        if name not in self._opened:
            address = self._settings.sources[name]
            self._opened[name] = (
                HttpSource(address, self._settings.external)
                if kind == "http"
                else PortSource(load_port(name, address))
            )
        return self._opened[name]


# ---- Lists that were made beforehand: matched to the wordings, read from recorded outputs.

Key = tuple[str, str]
"""Key of a wording: (query_id, paraphrase_id)."""


@dataclasses.dataclass(frozen=True)
class Listed:
    """Outcomes of all wordings, and notes for the report."""

    outcomes: list[Outcome]
    """Outcome of each wording; None for paraphrases when the lists hold only original wordings."""
    wordings: Literal["all", "original"]
    notes: list[str]


def match_lists(
    lists: Mapping[Key, Sequence[Item] | Failure],
    variants: pd.DataFrame,
    top_k: int,
    *,
    missing: Literal["empty", "failed"],
) -> Listed:
    """Give every wording (VARIANTS) its list, best first and cut at `top_k`.

    `missing` is the outcome of a wording without a list: `empty` for a run file, because run files
    leave empty rankings out, and `failed` for recorded outputs. If no paraphrase has a list, the
    source was not run on paraphrases.
    """
    keys = list(zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True))
    paraphrases = {key for key in keys if key[1] != ORIGINAL}
    original_only = bool(paraphrases) and paraphrases.isdisjoint(lists)
    ran = [key for key in keys if not original_only or key not in paraphrases]
    outcomes: dict[Key, Outcome] = {}
    for key in ran:
        items = lists.get(key, ())
        if isinstance(items, Failure):
            outcomes[key] = items
        elif key in lists or missing == "empty":
            outcomes[key] = Retrieved(tuple(items[:top_k]))
        else:
            message = f"no output for {quoted(key[0])}"
            outcomes[key] = QueryError("not_recorded", message).failure
    without, others = sum(key not in lists for key in ran), len(set(lists) - set(keys))
    notes = {
        "evaluated on the questions' original wordings only: "
        "there is no list for any paraphrase": original_only,
        f"{without} of {len(ran)} wordings have no row and count as having retrieved nothing": (
            without and missing == "empty"
        ),
        f"{others} rankings belong to no question of the gold set and were left out": others,
    }
    return Listed(
        [outcomes.get(key) for key in keys],
        "original" if original_only else "all",
        [note for note, applies in notes.items() if applies],
    )


def read_recorded(path: Path) -> dict[Key, Sequence[Item] | Failure]:
    """Read rankings of recorded outputs by (query_id, original).

    The recorded order is the ranking. A missing score becomes 1 / rank. An output with an error and
    without contexts is a failed retrieval. Raises `InputError`, see `read_outputs`.
    """
    outputs = read_outputs(path)
    errors = {
        output.query_id: QueryError("recorded_error", quoted(output.error)).failure
        for output in outputs
        if output.error and not output.contexts
    }
    return {
        (query_id, ORIGINAL): errors.get(query_id) or _read_contexts(rows)
        for query_id, rows in rankings(outputs).items()
    }


def _read_contexts(rows: Sequence[tuple[str, float, str]]) -> Sequence[Item] | Failure:
    """Read a list of (document, score, text)."""
    chunks = [
        {"doc_id": name, "text": text, "score": 1 / place if math.isnan(score) else score}
        for place, (name, score, text) in enumerate(rows, start=1)
    ]
    try:
        return parse_items(chunks)
    except QueryError as error:
        return error.failure


# ---- A TREC run: `qid Q0 docno rank score tag`, one retrieved document a line.

ACCEPTED = "qid Q0 docno rank score tag, separated by white space"


def read_run(path: Path, variants: pd.DataFrame) -> dict[Key, Sequence[Item] | Failure]:
    """Read the rankings of a run file by (query_id, paraphrase_id).

    A qid is `query_id` for the original wording, or `query_id/paraphrase_id`. Percent-encoded ids,
    as our exports write them, are decoded. As in trec_eval, rows are ordered by score. Equal scores
    are ordered by rank and docno. Rows of other queries get the key (qid, ""), to be counted.

    Raises
    ------
    InputError
        Lists every faulty line: `missing_file`, `bad_columns`, `bad_number`, `bad_id`,
        `duplicate_document`, `empty_file`, `other_queries`, and those of `read_lines`.
    """
    problems = ProblemList()
    keys = zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True)
    wordings = {"/".join(key): key for key in keys}
    wordings |= {query: (query, ORIGINAL) for query, _ in list(wordings.values())}
    rows: dict[Key, dict[str, tuple[float, int, Item]]] = {}
    for line, text in read_lines(path, problems):
        code, message = "duplicate_document", "the query names this document twice"
        try:
            qid, rank, item = _parse_row(text)
        except QueryError as error:
            code, message = error.code, str(error)
        else:
            key = wordings.get(qid) or wordings.get(urllib.parse.unquote(qid)) or (qid, "")
            ranking = rows.setdefault(key, {})
            if item.id not in ranking:
                ranking[item.id] = (-item.score, rank, item)
                continue
        problems.add(
            code, message, file=str(path), line=line, found=quoted(text), accepted=ACCEPTED
        )
    if not problems.n_errors and not any(paraphrase for _, paraphrase in rows):
        problems.add(
            "other_queries" if rows else "empty_file",
            "no row is about a question of this gold set" if rows else "the run holds no row",
            file=str(path),
            found=", ".join(quoted(query, 40) for query, _ in list(rows)[:3]) or None,
            accepted="query_id or query_id/paraphrase_id as qid" if rows else ACCEPTED,
        )
    problems.raise_errors()
    return {
        key: tuple(
            item for *_, item in sorted(ranking.values(), key=lambda row: (*row[:2], row[2].id))
        )
        for key, ranking in rows.items()
    }


def _parse_row(text: str) -> tuple[str, int, Item]:
    """Read (qid, rank, item) from a line. Raises `QueryError` with the code of the problem."""
    parts = text.split()
    if len(parts) != len(ACCEPTED.partition(",")[0].split()):
        raise QueryError("bad_columns", f"the row has {len(parts)} columns, a run 6")
    qid, _, docno, rank, score, _ = parts
    try:
        place, number = int(rank), float(score)
    except ValueError as error:
        raise QueryError("bad_number", str(error)) from error
    if not math.isfinite(number):
        raise QueryError("bad_number", "a score is a finite number")
    try:
        return qid, place, parse_item({"id": docno, "score": number}, 1)
    except QueryError as error:
        raise QueryError("bad_id", str(error)) from error
