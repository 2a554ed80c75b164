"""The kind `external`: the user's own retriever, or rankings that were made beforehand.

A source is asked over HTTP or through an imported port, or its lists are read from a file. Nothing
in a reply is trusted: a reply becomes items, or the code of a failure.
"""

import dataclasses
import functools
import importlib
import math
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import pandas as pd
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from rag_eval.core.errors import InputError, Name, ProblemList, quoted
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
            raise InputError.of(
                "unknown_source",
                f"the settings enable no source of this name, which strategy {self.name} asks for",
                field="source",
                found=self.source,
                accepted=(", ".join(sorted(settings.sources)) or "none is enabled")
                + " (enable one with RAG_EVAL_SOURCES or under [sources] of settings.toml)",
            )
        return "http" if address.startswith(("http://", "https://")) else "import"

    def list_path(self, folder: Path) -> Path:
        """Path of the run file or recorded outputs. Raises `InputError` (`missing_file`)."""
        ((field, name),) = self.files().items()
        path = folder / name
        if not path.is_file():
            raise InputError.of(
                "missing_file",
                f"strategy {self.name}: no such file",
                path,
                field=field,
                found=name,
                accepted="a path relative to the gold set",
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


def _as_text(value: object) -> object:
    if value is None:
        return ""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else value  # Some stores number their rows.


_Id = Annotated[
    str,
    # No control characters or line separators, which could forge a line of a log.
    StringConstraints(max_length=1000, strip_whitespace=True, pattern=r"^[^\p{Cc}\p{Zl}\p{Zp}]*$"),
    BeforeValidator(_as_text),
]


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
    text: Annotated[str, BeforeValidator(_as_text)] = ""
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
        raise QueryError("malformed_reply", _describe_first(error)) from error
    version = read.version[:200] if isinstance(read.version, str) else ""
    return Retrieved(tuple(read.chunks[:top_k]), version)


def _describe_first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return quoted(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", 200)


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
        self._n_silent = 0
        """Number of queries in a row that got no reply."""
        self._stated: str | None = None

    @functools.cached_property
    def _client(self) -> "httpx.Client":
        import httpx

        return httpx.Client(
            timeout=self.limits.timeout_s,
            follow_redirects=False,
            trust_env=httpx.URL(self.url).host
            not in LOOPBACK,  # A proxy cannot reach this machine.
            limits=httpx.Limits(max_connections=self.limits.concurrency),
            headers={"accept": "application/json", "accept-encoding": "identity"},
        )

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.close()

    def ask_version(self, query: str) -> str:
        """Ask one query to learn the version of the source, once; empty when it states none."""
        if self._stated is None:
            try:
                self._stated = self.ask_one(query, 1).version
            except QueryError:
                self._stated = ""
            self.close()  # A reused run asks no further query.
        return self._stated

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask for every query, `concurrency` at a time.

        A query is tried again after 429, 5xx, a time-out or a broken connection. When as many
        queries in a row as run at a time get no reply, the service may be down. Then each query
        gets one try until a reply comes.
        """
        failed, _ = 0, self._client
        self._stopped.clear()
        threads = ThreadPoolExecutor(self.limits.concurrency, thread_name_prefix="external")
        try:
            tasks = [threads.submit(self._ask, query, top_k) for query in queries]
            for task in as_completed(tasks):
                failed += isinstance(task.result(), Failure)
                advance(1, failed_note(failed))
        finally:
            self._stopped.set()  # An interrupt wakes the threads that wait for their next try.
            threads.shutdown(cancel_futures=True)
        return [task.result() for task in tasks]

    def _ask(self, query: str, top_k: int) -> Retrieved | Failure:
        is_down = self._n_silent >= self.limits.concurrency
        for tries_left in reversed(range(1 if is_down else 1 + self.limits.max_retries)):
            try:
                reply = self.ask_one(query, top_k)
            except _RetryableError as again:
                tries = self.limits.max_retries - tries_left
                pause = self.limits.backoff_s * 2**tries if again.wait_s is None else again.wait_s
                if not tries_left or pause > MAX_WAIT_S or self._stopped.wait(pause):
                    is_silent = again.code in {"timeout", "connection"}
                    self._n_silent = self._n_silent + 1 if is_silent else 0
                    return again.failure
            except QueryError as error:  # The service replied, so a retry would not help.
                self._n_silent = 0
                return error.failure
            else:
                self._n_silent = 0
                return reply
        raise AssertionError("the last try returns")

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a retry. Raises `QueryError`."""
        import httpx

        body = {"query": query, "top_k": top_k}
        deadline = time.monotonic() + self.limits.timeout_s
        try:
            with self._client.stream("POST", self.url, json=body) as reply:
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
        parts, size = [], 0
        for part in reply.iter_bytes():
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
    module, attribute = path.split(":")
    try:
        port: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(port, type) or (callable(port) and not hasattr(port, "retrieve")):
            port = port()
        lacks = [method for method in METHODS if not callable(getattr(port, method, None))]
        version = getattr(port, "version", None)
        if lacks or type(version) is not int or version != VERSION:
            raise TypeError(f"without {', '.join(lacks)}" if lacks else f"version {version!r}")
    except FOREIGN as error:
        raise InputError.of(
            "source_unusable",
            f"the source {quoted(name)} cannot be loaded as a RetrievalPort",
            "settings",
            field="sources",
            found=f"{path}: {type(error).__name__}: {error}",
            accepted=f"version {VERSION} with {', '.join(METHODS)}",
        ) from error
    return port


class PortSource:
    """A port that `load_port` loaded."""

    def __init__(self, port: Any) -> None:
        self.port = port
        self.stated = self._read_stats()
        """Texts that identify the index, from the stats of the port; empty without them."""
        self.embed_model = quoted(self.stated.get("embed_model", ""), 200)

    def _read_stats(self) -> dict[str, str]:
        names = ("corpus_rev", "chunks_hash", "embed_model", "index_hashes")
        try:
            stats = self.port.stats()
            return {name: str(value) for name in names if (value := getattr(stats, name, None))}
        except FOREIGN:
            return {}

    def ask_version(self, query: str) -> str:  # noqa: ARG002 - no query is needed
        """Return a hash of the stats; empty without them."""
        return digest(self.stated) if self.stated else ""

    def close(self) -> None:
        """Do nothing, because a port holds no connection of ours."""

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask through `retrieve`. Raises `QueryError`."""
        try:
            result = self.port.retrieve(query, RetrievalOptions(top_k=top_k))
        except FOREIGN as error:
            raise QueryError("raised", quoted(f"{type(error).__name__}: {error}")) from error
        return parse_reply(result, top_k)

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask through `batch_retrieve`.

        A batch that raises, or has a faulty result or another length, is asked one by one, so that
        only the faulty queries fail.
        """
        outcomes: list[Retrieved | Failure] = []
        for start in range(0, len(queries), BATCH):
            batch = self._ask_batch(list(queries[start : start + BATCH]), top_k)
            outcomes += batch
            failed = sum(isinstance(outcome, Failure) for outcome in outcomes)
            advance(len(batch), failed_note(failed))
        return outcomes

    def _ask_batch(self, queries: list[str], top_k: int) -> list[Retrieved | Failure]:
        try:
            results = self.port.batch_retrieve(queries, RetrievalOptions(top_k=top_k))
            return [parse_reply(result, top_k) for _, result in zip(queries, results, strict=True)]
        except FOREIGN:
            return [self._ask_alone(query, top_k) for query in queries]

    def _ask_alone(self, query: str, top_k: int) -> Retrieved | Failure:
        try:
            return self.ask_one(query, top_k)
        except QueryError as error:
            return error.failure


def ask_source(
    source: HttpSource | PortSource, texts: Sequence[str], top_k: int, advance: Advance
) -> Replies:
    """Ask for every wording, but only once for equal texts."""
    version, distinct = source.ask_version(texts[0]), list(dict.fromkeys(texts))
    replies = dict(zip(distinct, source.ask_all(distinct, top_k, advance), strict=True))
    outcomes: list[Outcome] = [replies[text] for text in texts]
    failed = sum(isinstance(outcome, Failure) for outcome in outcomes)
    advance(len(texts) - len(distinct), failed_note(failed))
    stated = {outcome.version for outcome in outcomes if isinstance(outcome, Retrieved)}
    if isinstance(source, HttpSource) and version and stated - {version}:
        named = sorted(quoted(one or "none", 40) for one in stated | {version})[:5]
        return Replies(outcomes, [f"the replies state different versions: {', '.join(named)}"])
    return Replies(outcomes, [], quoted(version, 200))


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


# ---- Lists that were made beforehand: recorded outputs, or a TREC run.

Key = tuple[str, str]
"""Key of a wording: (query_id, paraphrase_id)."""


def match_lists(
    lists: Mapping[Key, Retrieved | Failure],
    variants: pd.DataFrame,
    top_k: int,
    missing: Retrieved | Failure,
) -> Replies:
    """Give every wording (VARIANTS) its list, cut at `top_k`; `missing` where it has none.

    If no paraphrase has a list, the source was not run on paraphrases.
    """
    keys = list(zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True))
    paraphrases = {key for key in keys if key[1] != ORIGINAL}
    original_only = bool(paraphrases) and paraphrases.isdisjoint(lists)
    ran = [key for key in keys if not original_only or key not in paraphrases]
    found = {key: lists.get(key, missing) for key in ran}
    outcomes = [
        Retrieved(outcome.items[:top_k]) if isinstance(outcome, Retrieved) else outcome
        for outcome in map(found.get, keys)
    ]
    without, others = sum(key not in lists for key in ran), len(set(lists) - set(keys))
    notes = {
        "evaluated on the questions' original wordings only: "
        "there is no list for any paraphrase": original_only,
        f"{without} of {len(ran)} wordings have no row and count as having retrieved nothing": (
            without and isinstance(missing, Retrieved)
        ),
        f"{others} rankings belong to no question of the gold set and were left out": others,
    }
    shown = [note for note, applies in notes.items() if applies]
    return Replies(outcomes, shown, original_only=original_only)


def read_lists(
    path: Path, spec: External, variants: pd.DataFrame, top_k: int, warnings: ProblemList
) -> Replies:
    """Read the rankings of a strategy's file. Raises `InputError` when it cannot be used.

    Adds what the reader of recorded outputs leaves out to `warnings`.

    A wording without a row of a run retrieved nothing, because run files leave empty rankings out.
    A question without a recorded output failed.
    """
    if spec.run_file is not None:
        return match_lists(read_run(path, variants), variants, top_k, Retrieved(()))
    lacking = QueryError("not_recorded", "the recorded outputs lack the question").failure
    return match_lists(_read_recorded(path, warnings), variants, top_k, lacking)


def _read_recorded(path: Path, warnings: ProblemList) -> dict[Key, Retrieved | Failure]:
    """Read rankings of recorded outputs by (query_id, original).

    The recorded order is the ranking. A missing score becomes 1 / rank. An output with an error and
    without contexts is a failed retrieval.
    """
    outputs = read_outputs(path, warnings)
    lists: dict[Key, Retrieved | Failure] = {}
    for query_id, rows in rankings(outputs).items():
        chunks = [
            {"doc_id": name, "text": text, "score": 1 / place if math.isnan(score) else score}
            for place, (name, score, text) in enumerate(rows, start=1)
        ]
        try:
            lists[query_id, ORIGINAL] = parse_reply({"chunks": chunks}, len(chunks))
        except QueryError as error:
            lists[query_id, ORIGINAL] = error.failure
    errors = {
        (output.query_id, ORIGINAL): QueryError("recorded_error", quoted(output.error)).failure
        for output in outputs
        if output.error and not output.contexts
    }
    return lists | errors


ACCEPTED = "qid Q0 docno rank score tag, separated by white space"


def read_run(path: Path, variants: pd.DataFrame) -> dict[Key, Retrieved | Failure]:
    """Read the rankings of a TREC run by (query_id, paraphrase_id).

    A qid is `query_id` for the original wording, or `query_id/paraphrase_id`. Percent-encoded ids,
    as our exports write them, are decoded. As in trec_eval, rows are ordered by score. Equal scores
    are ordered by rank and docno. Rows of other queries get the key (qid, ""), to be counted.

    Raises
    ------
    InputError
        Lists every faulty line: `bad_row`, `other_queries`, and those of `read_lines`.
    """
    problems = ProblemList()
    keys = zip(variants["query_id"].tolist(), variants["paraphrase_id"].tolist(), strict=True)
    wordings = {"/".join(key): key for key in keys}
    wordings |= {query: (query, ORIGINAL) for query, _ in list(wordings.values())}
    rows: dict[Key, list[tuple[float, int, str, Item]]] = {}
    for line, text in read_lines(path, problems):
        try:
            qid, _, docno, rank, score, _ = text.split()
            item = Item.model_validate({"id": docno, "score": score})
            row = (-item.score, int(rank), docno, item)
        except ValueError as error:
            why = _describe_first(error) if isinstance(error, ValidationError) else str(error)
            problems.add(
                "bad_row",
                f"not a row of a run: {why}",
                file=str(path),
                line=line,
                found=quoted(text),
                accepted=ACCEPTED,
            )
            continue
        key = wordings.get(qid) or wordings.get(urllib.parse.unquote(qid)) or (qid, "")
        rows.setdefault(key, []).append(row)
    if not problems.n_errors and not any(paraphrase for _, paraphrase in rows):
        problems.add(
            "other_queries",
            "no row is about a question of this gold set",
            file=str(path),
            found=", ".join(quoted(query, 40) for query, _ in list(rows)[:3]) or "no row",
            accepted=f"query_id or query_id/paraphrase_id as qid of {ACCEPTED}",
        )
    problems.raise_errors()
    return {
        key: Retrieved(tuple(item for *_, item in sorted(ranking, key=lambda row: row[:3])))
        for key, ranking in rows.items()
    }
