"""An external retriever of this process: an import path that satisfies RetrievalPort, version 1. Foreign code; what it raises fails its query.

Belongs here: loading and calling. What its results mean is `external_reply`.
"""

import importlib
import numbers
from collections.abc import Sequence
from typing import Any

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.records.retrieval import RetrievalOptions
from rag_eval.retrieval.external import Advance, Failure, QueryError, Retrieved, failed_note
from rag_eval.retrieval.external_reply import check_distinct, parse_item
from rag_eval.storage.hashing import digest

METHODS = ("retrieve", "batch_retrieve", "stats")
VERSION = 1
BATCH = 64
"""Queries given to `batch_retrieve` at a time: what is asked again one by one when a batch fails."""
STATED = ("corpus_rev", "chunks_hash", "index_hashes")
FOREIGN = (Exception, SystemExit)
"""What foreign code may raise without ending the evaluation; an interrupt by a person still does."""


def load_port(name: str, path: str) -> Any:
    """Import a retriever: an object, or a class or function that is called without arguments.

    Raises
    ------
    InputError
        It cannot be loaded, or is no RetrievalPort of version 1.
    """
    module, attribute = path.split(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
        port: Any = (
            found()
            if isinstance(found, type) or (callable(found) and not hasattr(found, "retrieve"))
            else found
        )
    except FOREIGN as error:
        raise InputError(
            Problem(
                "source_unusable",
                f"the source {quoted(name)} cannot be loaded",
                file="settings",
                field="sources",
                found=f"{path}: {type(error).__name__}: {error}",
            )
        ) from error
    missing = [method for method in METHODS if not callable(getattr(port, method, None))]
    version = getattr(port, "version", None)
    if missing or type(version) is not int or version != VERSION:
        found_text = f"without {', '.join(missing)}" if missing else f"version {quoted(version)}"
        raise InputError(
            Problem(
                "source_unusable",
                f"the source {quoted(name)} is no RetrievalPort",
                file="settings",
                field="sources",
                found=f"{path}: {found_text}",
                accepted=f"version {VERSION} with {', '.join(METHODS)}",
            )
        )
    return port


class PortSource:
    """A loaded port.

    Parameters
    ----------
    port
        See `load_port`.
    """

    def __init__(self, port: Any) -> None:
        self.port = port
        self.stated = self._stated()
        self.version = digest(self.stated) if self.stated else ""

    def _stated(self) -> dict[str, Any]:
        """Return what the port's stats say about its index: as texts, empty where they say nothing or cannot be had."""
        try:
            stats = self.port.stats()
            values = {name: getattr(stats, name, None) for name in (*STATED, "embed_model")}
            hashes = values["index_hashes"]
            values["index_hashes"] = (
                {str(key): str(value) for key, value in dict(hashes).items()} if hashes else None
            )
            return {
                name: value if isinstance(value, dict) else str(value)
                for name, value in values.items()
                if value
            }
        except FOREIGN:
            return {}

    @property
    def embed_model(self) -> str:
        """The embedding as the stats name it, else empty."""
        return quoted(self.stated.get("embed_model", ""), 200)

    def close(self) -> None:
        """Leave the port as it is: it was not opened here."""

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask through `retrieve`."""
        try:
            return _retrieved(self.port.retrieve(query, RetrievalOptions(top_k=top_k)), top_k)
        except QueryError:
            raise
        except FOREIGN as error:
            raise QueryError("raised", quoted(f"{type(error).__name__}: {error}")) from error

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Ask through `batch_retrieve`; a batch that raises or has another length is asked again one by one, so that only the culprits fail."""
        outcomes: list[Retrieved | Failure] = []
        for start in range(0, len(queries), BATCH):
            batch = list(queries[start : start + BATCH])
            outcomes += self._batch(batch, top_k)
            advance(
                len(batch), failed_note(sum(isinstance(outcome, Failure) for outcome in outcomes))
            )
        return outcomes

    def _batch(self, queries: list[str], top_k: int) -> list[Retrieved | Failure]:
        try:
            results = self.port.batch_retrieve(queries, RetrievalOptions(top_k=top_k))
            whole = isinstance(results, (list, tuple)) and len(results) == len(queries)
        except FOREIGN:
            whole = False
        if not whole:
            return [self._alone(query, top_k) for query in queries]
        return [_outcome(result, top_k) for result in results]

    def _alone(self, query: str, top_k: int) -> Retrieved | Failure:
        try:
            return self.ask_one(query, top_k)
        except QueryError as error:
            return error.failure


def _outcome(result: Any, top_k: int) -> Retrieved | Failure:
    try:
        return _retrieved(result, top_k)
    except QueryError as error:
        return error.failure
    except FOREIGN as error:  # a property of a foreign object may do anything
        return QueryError("raised", quoted(f"{type(error).__name__}: {error}")).failure


def _retrieved(result: Any, top_k: int) -> Retrieved:
    """Read a RetrievalResult, or anything with its attributes."""
    chunks = getattr(result, "chunks", None)
    if not isinstance(chunks, (list, tuple)):
        raise QueryError(
            "wrong_shape",
            f"found {type(result).__name__} with chunks {type(chunks).__name__}, accepted a RetrievalResult",
        )
    items = tuple(
        parse_item(_described(chunk), place) for place, chunk in enumerate(chunks[:top_k], start=1)
    )
    check_distinct(items)
    return Retrieved(items)


def _described(chunk: Any) -> dict[str, Any]:
    """Write a ScoredChunk as a reply would hold it; empty texts and offsets without extent say nothing."""
    values = {
        key: getattr(chunk, name, None)
        for key, name in (
            ("id", "snippet_id"),
            ("doc_id", "doc_id"),
            ("section_id", "section_id"),
            ("text", "text"),
            ("score", "score_raw"),
        )
    }
    offsets = getattr(chunk, "offsets", None)
    start, end = getattr(offsets, "start", None), getattr(offsets, "end", None)
    if (
        isinstance(start, numbers.Integral)
        and isinstance(end, numbers.Integral)
        and 0 <= int(start) < int(end)
    ):
        values["offsets"] = {
            "start": int(start),
            "end": int(end),
            "unit": getattr(offsets, "unit", "char"),
        }
    return {
        key: value
        for key, value in values.items()
        if value is not None and not (isinstance(value, str) and not value and key != "text")
    }
