"""A search engine of the user's own: what the kinds opensearch, qdrant and pgvector share.

The settings hold address, key, fields and filters of an engine. A gold set only names it.
"""

import functools
import importlib
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.parts import Name
from rag_eval.core.plugins import FOREIGN
from rag_eval.core.settings import AnyEngine, EngineSettings, Settings
from rag_eval.core.strategy import Identity, IdentityInputs
from rag_eval.retrieval.outside import (
    Advance,
    Failure,
    Outcome,
    Outside,
    QueryError,
    Retrieved,
    RetryableError,
    Source,
    SourceKind,
    parse_reply,
)
from rag_eval.storage.hashing import digest

Embed = Callable[[list[str]], Any]
Wanted = TypeVar("Wanted", bound=EngineSettings)


class Engine(Outside):
    """A strategy whose rankings come from an index of a search engine."""

    engine: Name = Field(description="a name under `engines` of the settings")

    @property
    def store_name(self) -> str:
        """Name kind and engine."""
        return f"{self.kind}:{self.engine}"

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Hash the engine's name, the options, and the identity that the engine gives its index.

        The address does not count, because a service that moves stays the same.
        """
        stated = [self.source_options(), dict(inputs.stated())]
        return Identity(f"external:{digest(stated)}", "")

    def source_kind(self, settings: Settings) -> SourceKind:
        """Name the kind of the engine. Raises `InputError` (`unknown_engine`)."""
        return self._find(settings).kind

    def _find(self, settings: Settings) -> AnyEngine:
        found = settings.engines.get(self.engine)
        if found is not None and found.kind == self.kind:
            return found
        of_kind = sorted(name for name, one in settings.engines.items() if one.kind == self.kind)
        raise InputError.of(
            "unknown_engine",
            f"the settings have no engine of kind {self.kind} and of this name, which strategy "
            f"{self.name} asks for",
            field="engine",
            found=self.engine,
            accepted=(", ".join(of_kind) or "none is configured")
            + " (configure one with RAG_EVAL_ENGINES or under [engines] of settings.toml)",
        )

    def configured(self, settings: Settings, wanted: type[Wanted]) -> Wanted:
        """Return the settings of the engine. Raises `InputError` (`unknown_engine`)."""
        found = self._find(settings)
        assert isinstance(found, wanted)
        return found


class EngineSource(Source):
    """An index of an engine. A subclass searches one query and describes the index.

    The description is read when the source is opened, before the queries and after them.
    """

    uses_vectors = True
    """Whether queries are embedded."""

    def __init__(self, name: str, engine: EngineSettings, settings: Settings) -> None:
        super().__init__(settings.external)
        self.name = name
        self.fields, self.filters = engine.fields, engine.filters
        self.index = engine.index
        self._engine, self._settings = engine, settings
        self.embed_model = engine.embedding or ""
        self._vectors: dict[str, list[float]] = {}
        """Vectors of the queries of `ask_all`."""

    @abstractmethod
    def search(self, query: str, top_k: int) -> list[dict[str, object]]:
        """Search once, and return chunks as `parse_reply` reads them. Raises `QueryError`."""

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Read the identity of the index: its settings, its size and, if known, its `generation`.

        Raises `QueryError`.
        """

    def read_identity(self) -> None:
        """Read `stated`; it stays empty while the engine does not reply.

        Raises `InputError` (`engine_unusable`) when the engine refuses the index or the key.
        """
        try:
            self.stated = self._describe()
        except RetryableError:
            self.stated = {}
        except QueryError as error:
            raise self.unusable("settings", f"{error.code}: {error}") from error
        finally:
            self.close()  # A reused run asks no query.

    def unusable(self, field: str, found: str) -> InputError:
        """Return the error of an engine that its settings do not fit."""
        return InputError.of(
            "engine_unusable",
            f"the engine {self.name} cannot be asked",
            "settings",
            field=f"engines.{self.name}.{field}",
            found=found,
            accepted="an index, fields and a key that the engine accepts",
        )

    def _describe(self) -> dict[str, object]:
        own = {"index": self.index, "fields": self.fields.model_dump(), "filters": self.filters}
        return {**own, "embedding": self._engine.embedding, **self.repeat(self.describe)}

    def ask_version(self, query: str) -> str:  # noqa: ARG002 - no query is needed
        """Return a hash of the index as it is now; empty for an engine without generations."""
        try:
            described = self._describe()
        except QueryError:
            return ""
        finally:
            self.close()
        return digest(described) if described.get("generation") else ""

    def find_changes(self, version: str, outcomes: Sequence[Outcome]) -> list[str]:  # noqa: ARG002 - replies state nothing
        """Describe the index again, and compare."""
        try:
            now = self._describe()
        except QueryError as error:
            return [f"whether the index changed during the run is not known ({error.code})"]
        if not self.stated:
            return ["the engine did not describe its index before the run"]
        if now == self.stated and version in {"", digest(now)}:
            return []
        names = sorted(name for name in now if now[name] != self.stated.get(name)) or ["content"]
        return [f"the index changed during the run ({', '.join(names)})"]

    @functools.cached_property
    def _embed(self) -> Embed:
        named, functions = self._engine.embedding, self._settings.embeddings
        if named in functions:
            from rag_eval.retrieval.chroma import ChromaFunctionEmbedder

            function = functions[named]
            return ChromaFunctionEmbedder(function.function, function.config).embed_queries
        module, colon, attribute = (named or "").partition(":")
        if not colon:
            raise self.unusable("embedding", named or "none")
        try:
            found: Embed = getattr(importlib.import_module(module), attribute)
        except FOREIGN as error:
            raise self.unusable("embedding", f"{type(error).__name__}: {error}") from error
        return found

    def embed(self, queries: list[str]) -> list[list[float]]:
        """Embed queries. Raises `InputError` unless each gets one finite vector."""
        vectors = np.asarray(self._embed(queries), dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != len(queries) or not np.isfinite(vectors).all():  # noqa: PLR2004 - rows and columns
            raise self.unusable("embedding", f"shape {vectors.shape} for {len(queries)} queries")
        listed: list[list[float]] = vectors.tolist()
        return listed

    def vector(self, query: str) -> list[float]:
        """Return the vector of a query, from the batch if the query is one of it."""
        return self._vectors.get(query) or self.embed([query])[0]

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a retry. Raises `QueryError`."""
        return parse_reply({"chunks": self.search(query, top_k)}, top_k)

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | Failure]:
        """Embed all queries at once, then ask for every query."""
        if self.uses_vectors:
            self._vectors = dict(zip(queries, self.embed(list(queries)), strict=True))
        try:
            return super().ask_all(queries, top_k, advance)
        finally:
            self._vectors = {}

    def chunk(self, row: Mapping[str, object], own_id: object, score: object) -> dict[str, object]:
        """Read the mapped fields of a row; without a field of the id, `own_id` is the id."""
        names = {"id": self.fields.id, "doc_id": self.fields.doc_id, "text": self.fields.text}
        names["section_id"] = self.fields.section_id
        found = {to: _pick(row, name) for to, name in names.items() if name}
        return {"id": own_id, **found, "score": score}

    def wanted_fields(self) -> list[str]:
        """List the fields of the index that `chunk` reads."""
        fields = self.fields
        return list(filter(None, (fields.id, fields.doc_id, fields.section_id, fields.text)))

    def filter_values(self) -> dict[str, list[str | int | bool]]:
        """Return the accepted values of each filtered field."""
        return {
            name: value if isinstance(value, list) else [value]
            for name, value in self.filters.items()
        }


def read_key(source: EngineSource, variable: str | None) -> str | None:
    """Read the key from its environment variable. Raises `InputError` if the variable is empty."""
    if variable is None:
        return None
    if key := os.environ.get(variable, "").strip():
        return key
    raise source.unusable("api_key_env", f"{variable}, which is not set")


def refused(error: object) -> QueryError:
    """Return the failure of a query that the engine refuses, for instance for an unknown field."""
    return QueryError("refused", quoted(str(error), 200))


def _pick(row: Mapping[str, object], path: str) -> object:
    """Follow a path with dots, unless the row has a field of the whole name."""
    if path in row:
        return row[path]
    found: object = row
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
