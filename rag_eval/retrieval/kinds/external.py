"""The kind `external`: the user's own retriever, or rankings that were made beforehand.

A source is asked over HTTP or through an imported object, or its lists are read from a file.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd
from pydantic import Field, ValidationError, model_validator

from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.fields import decode_id
from rag_eval.core.parts import FOREIGN, Name
from rag_eval.core.rows import read_lines
from rag_eval.core.settings import ExternalLimits, Settings
from rag_eval.core.strategy import Identity, IdentityInputs
from rag_eval.core.types import RetrievalOptions
from rag_eval.corpus.loaders.recorded import rankings, read_outputs
from rag_eval.gold.files import ORIGINAL
from rag_eval.retrieval.outside import (
    Advance,
    Failure,
    Item,
    Outcome,
    Outside,
    QueryError,
    Replies,
    Retrieved,
    Source,
    SourceKind,
    WebClient,
    describe_first,
    failed_note,
    parse_reply,
)
from rag_eval.storage.hashing import digest, file_hash


class External(Outside):
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

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(way is not None for way in (self.source, self.run_file, self.recorded)) != 1:
            raise ValueError("give exactly one of source, run_file and recorded")
        return self

    def files(self) -> dict[str, str]:
        """Return the run file or the recorded outputs."""
        paths = {"run_file": self.run_file, "recorded": self.recorded}
        return {field: path for field, path in paths.items() if path is not None}

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
        corpus_facts = dict(inputs.stated())
        return Identity(f"external:{digest([self.source or '', kind, corpus_facts, content])}", "")

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

    def open_source(self, settings: Settings) -> Source:
        """Open the endpoint or the imported object of the name."""
        kind, name = self.source_kind(settings), self.source or ""
        address = settings.sources[name]
        if kind == "http":
            return HttpSource(address, settings.external)
        return load_source(name, address, settings.external)

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


# ---- HTTP: `POST {query, top_k}`.


class HttpSource(Source):
    """A retriever behind an endpoint of its own."""

    def __init__(self, url: str, limits: ExternalLimits) -> None:
        super().__init__(limits)
        self._web = WebClient(url, limits)
        self._version: str | None = None

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        self._web.close()

    def ask_version(self, query: str) -> str:
        """Ask one query to learn the version of the source, once; empty when it states none."""
        if self._version is None:
            try:
                self._version = self.ask_one(query, 1).version
            except QueryError:
                self._version = ""
            self.close()  # A reused run asks no further query.
        return self._version

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a retry. Raises `QueryError`."""
        body = {"query": query, "top_k": top_k}
        return parse_reply(self._web.send("POST", self._web.url, body), top_k)

    def find_changes(self, version: str, outcomes: Sequence[Outcome]) -> list[str]:
        """Compare the versions that the replies state."""
        versions = {outcome.version for outcome in outcomes if isinstance(outcome, Retrieved)}
        if not version or not versions - {version}:
            return []
        names = sorted(quoted(name or "none", 40) for name in versions | {version})[:5]
        return [f"the replies state different versions: {', '.join(names)}"]


# ---- An imported RetrievalPort, which is foreign code.

METHODS = ("retrieve", "batch_retrieve", "stats")
VERSION = 1
BATCH = 64
"""Number of queries in a call of `batch_retrieve`. A failed batch is asked one by one."""


def load_source(name: str, path: str, limits: ExternalLimits) -> "PortSource":
    """Import a RetrievalPort: an object, or a class or function without required arguments.

    Raises `InputError` (`source_unusable`) when it cannot be loaded or is no port.
    """
    module, attribute = path.split(":")
    try:
        source: Any = getattr(importlib.import_module(module), attribute)
        if isinstance(source, type) or (callable(source) and not hasattr(source, "retrieve")):
            source = source()
        version = getattr(source, "version", None)
        lacks = [method for method in METHODS if not callable(getattr(source, method, None))]
        if lacks or type(version) is not int or version != VERSION:
            raise TypeError(f"without {', '.join(lacks)}" if lacks else f"version {version!r}")
        return PortSource(source, limits)
    except FOREIGN as error:
        raise InputError.of(
            "source_unusable",
            f"the source {quoted(name)} cannot be loaded as a RetrievalPort",
            "settings",
            field="sources",
            found=f"{path}: {type(error).__name__}: {error}",
            accepted=f"version {VERSION} with {', '.join(METHODS)}",
        ) from error


class PortSource(Source):
    """A port that `load_source` loaded. It is asked without threads, as it may not allow them."""

    def __init__(self, port: Any, limits: ExternalLimits | None = None) -> None:
        super().__init__(limits or ExternalLimits())
        self.port = port
        stats = self._read_stats()
        self.stated = stats
        """Texts that identify the index, from the stats of the port; empty without them."""
        self.embed_model = quoted(stats.get("embed_model", ""), 200)

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
            return [self.ask_again(query, top_k) for query in queries]


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
    list_of = {key: lists.get(key, missing) for key in ran}
    outcomes = [
        Retrieved(outcome.items[:top_k]) if isinstance(outcome, Retrieved) else outcome
        for outcome in map(list_of.get, keys)
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
            why = describe_first(error) if isinstance(error, ValidationError) else str(error)
            problems.add(
                "bad_row",
                f"not a row of a run: {why}",
                file=str(path),
                line=line,
                found=quoted(text),
                accepted=ACCEPTED,
            )
            continue
        key = wordings.get(qid) or wordings.get(decode_id(qid)) or (qid, "")
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
