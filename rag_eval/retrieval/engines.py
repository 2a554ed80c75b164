"""A search engine of the user's own: what the kinds opensearch, qdrant and pgvector share.

The settings hold address, key, fields and filters of an engine. A gold set only names it.
"""

import functools
import importlib
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from rag_eval.core.errors import InputError
from rag_eval.core.parts import FOREIGN, Name
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Identity, IdentityInputs
from rag_eval.retrieval.chroma import ChromaFunctionEmbedder
from rag_eval.retrieval.outside import (
    Advance,
    Outside,
    QueryError,
    Retrieved,
    RetryableError,
    Source,
    SourceKind,
    parse_reply,
)
from rag_eval.storage.hashing import digest


class Engine(Outside):
    """A strategy whose rankings come from an index of a search engine."""

    engine: Name = Field(description="a name under `engines` of the settings")
    source_type: ClassVar[Callable[..., "EngineSource"]]
    """Makes the source from the strategy, the engine of the settings, and the settings."""

    @property
    def store_name(self) -> str:
        """Name kind and engine."""
        return f"{self.kind}:{self.engine}"

    def identity(self, inputs: IdentityInputs) -> Identity:
        """Hash the engine's name, the options, and the identity that the engine gives its index.

        The address does not count, because a service that moves stays the same.
        """
        described = [self.source_options(), dict(inputs.stated())]
        return Identity(f"external:{digest(described)}", "")

    def source_kind(self, settings: Settings) -> SourceKind:
        """Name the kind of the engine. Raises `InputError` (`unknown_engine`)."""
        engines = {name: its for name, its in settings.engines.items() if its.kind == self.kind}
        if self.engine in engines:
            return engines[self.engine].kind
        raise InputError.of(
            "unknown_engine",
            f"the settings have no engine of kind {self.kind} and of this name, which strategy "
            f"{self.name} asks for",
            field="engine",
            found=self.engine,
            accepted=(", ".join(sorted(engines)) or "none is configured")
            + " (configure one with RAG_EVAL_ENGINES or under [engines] of settings.toml)",
        )

    def open_source(self, settings: Settings) -> Source:
        """Open the index and describe it. It stays undescribed while the engine does not reply.

        Raises `InputError`: `unknown_engine`, or `engine_unusable` when the engine refuses the
        index or the key.
        """
        self.source_kind(settings)
        source = type(self).source_type(self, settings.engines[self.engine], settings)
        try:
            source.stated = source.describe_now()
        except RetryableError:
            source.stated = {}
        except QueryError as error:
            raise source.unusable("settings", str(error)) from error
        return source


class EngineSource(Source):
    """An index of an engine. A subclass searches one query and describes the index."""

    uses_vectors = True
    """Whether queries are embedded."""

    def __init__(self, spec: Engine, engine: Any, settings: Settings) -> None:
        super().__init__(settings.external)
        self.name, self.engine, self.index = spec.engine, engine, engine.index
        self.embed_model = engine.embedding or ""
        self.names = {field: name for field, name in engine.fields if name and field != "vector"}
        """Field of the index that holds each part of a chunk."""
        self.accepted: dict[str, list[str | int | bool]] = {
            name: value if isinstance(value, list) else [value]
            for name, value in engine.filters.items()
        }
        """Accepted values of each filtered field."""
        self._embeddings = settings.embeddings
        self._vectors: dict[str, list[float]] = {}
        """Vectors of the queries of `ask_all`."""
        variable = engine.api_key_env
        self.key = os.environ.get(variable, "").strip() if variable else ""
        """Key of the engine; empty for an engine without a key."""
        if variable and not self.key:
            raise self.unusable("api_key_env", f"{variable}, which is not set")

    @abstractmethod
    def search(self, query: str, top_k: int) -> list[dict[str, object]]:
        """Search once, and return chunks as `parse_reply` reads them. Raises `QueryError`."""

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Read the identity of the index: its settings, its size and, if known, its `generation`.

        Raises `QueryError`.
        """

    def unusable(self, field: str, cause: str) -> InputError:
        """Return the error of an engine that its settings do not fit."""
        return InputError.of(
            "engine_unusable",
            f"the engine {self.name} cannot be asked",
            "settings",
            field=f"engines.{self.name}.{field}",
            found=cause,
            accepted="an index, fields and a key that the engine accepts",
        )

    def describe_now(self) -> dict[str, object]:
        """Return what identifies the index, and close, as a reused run asks no query."""
        asked: dict[str, object] = self.engine.model_dump(
            include={"index", "fields", "filters", "embedding"}
        )
        try:
            return asked | self.repeat(self.describe)
        except (KeyError, TypeError, AttributeError) as error:
            raise _other_form(error) from error
        finally:
            self.close()

    def ask_version(self, query: str) -> str:  # noqa: ARG002 - no query is needed
        """Return a hash of the index as it is now; empty for an engine without generations."""
        try:
            described = self.describe_now()
        except QueryError:
            return ""
        return digest(described) if described.get("generation") else ""

    # ---- Queries and their vectors.

    @functools.cached_property
    def _embed(self) -> Callable[[list[str]], Any]:
        path = self.engine.embedding or ""
        if path in self._embeddings:
            entry = self._embeddings[path]
            return ChromaFunctionEmbedder(entry.function, entry.config).embed_queries
        module, _, attribute = path.partition(":")
        try:
            function: Callable[[list[str]], Any] = getattr(
                importlib.import_module(module), attribute
            )
        except FOREIGN as error:
            cause = f"{path or 'none'}: {type(error).__name__}: {error}"
            raise self.unusable("embedding", cause) from error
        return function

    def vector(self, query: str) -> list[float]:
        """Return the vector of a query, from the batch if the query is one of it."""
        return self._vectors.get(query) or self._embed_all([query])[query]

    def _embed_all(self, queries: Sequence[str]) -> dict[str, list[float]]:
        """Embed queries. Raises `InputError` unless each gets one finite vector."""
        vectors = np.asarray(self._embed(list(queries)), dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != len(queries) or not np.isfinite(vectors).all():  # noqa: PLR2004 - rows and columns
            raise self.unusable("embedding", f"shape {vectors.shape} for {len(queries)} queries")
        return dict(zip(queries, vectors.tolist(), strict=True))

    def ask_one(self, query: str, top_k: int) -> Retrieved:
        """Ask once, without a retry. Raises `QueryError`."""
        try:
            return parse_reply({"chunks": self.search(query, top_k)}, top_k)
        except (KeyError, TypeError, AttributeError) as error:
            raise _other_form(error) from error

    def ask_all(
        self, queries: Sequence[str], top_k: int, advance: Advance
    ) -> list[Retrieved | QueryError]:
        """Embed all queries at once, then ask for every query."""
        if self.uses_vectors:
            self._vectors = self._embed_all(queries)
        return super().ask_all(queries, top_k, advance)

    def chunk(
        self, row: Mapping[str, object], engine_id: object, score: object
    ) -> dict[str, object]:
        """Read the mapped fields of a row; without a field of the id, `engine_id` is the id."""
        fields = {field: _pick(row, name) for field, name in self.names.items()}
        return {"id": engine_id, **fields, "score": score}


def _other_form(error: Exception) -> QueryError:
    return QueryError("malformed_reply", f"{type(error).__name__}: {error}")


def _pick(row: Mapping[str, object], path: str) -> object:
    """Follow a path with dots, unless the row has a field of the whole name."""
    value: object = row
    for name in [path] if path in row else path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
