"""The kind `qdrant`: vector search in a collection of Qdrant, through its client."""

import functools
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from rag_eval.core.settings import QdrantEngine, Settings
from rag_eval.retrieval.engines import Engine, EngineSource
from rag_eval.retrieval.outside import (
    LOOPBACK,
    QueryError,
    RetryableError,
    check_status,
    malformed,
    read_http_error,
)
from rag_eval.storage.hashing import digest

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models

T = TypeVar("T")


class QdrantSource(EngineSource):
    """A collection. Qdrant counts no writes, so the description has no generation."""

    engine: QdrantEngine

    def __init__(self, spec: Engine, engine: QdrantEngine, settings: Settings) -> None:
        super().__init__(spec, engine, settings)
        if engine.path is not None:  # The local client is not made for threads.
            self.limits = self.limits.model_copy(update={"concurrency": 1})
        self._opening = threading.Lock()
        self._client: QdrantClient | None = None

    def _open(self) -> "QdrantClient":
        from qdrant_client import QdrantClient

        if (path := self.engine.path) is not None:
            try:
                return QdrantClient(path=str(path), force_disable_check_same_thread=True)
            except RuntimeError as error:  # Another process has the folder open.
                raise self.unusable("path", str(error)) from error
        return QdrantClient(
            url=self.engine.url,
            headers={"api-key": self.key} if self.key else None,
            timeout=math.ceil(self.limits.timeout_s),
            trust_env=urlsplit(self.engine.url).hostname not in LOOPBACK,
            check_compatibility=False,  # It would ask before the retries begin.
        )

    def close(self) -> None:
        """Close the connections, or the folder. The next query opens it again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, ask: Callable[["QdrantClient"], T]) -> T:
        """Ask the client, and map its errors to failures of a query."""
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        with self._opening:  # Threads must share one client.
            client = self._client = self._client or self._open()
        try:
            return ask(client)
        except ResponseHandlingException as error:
            if isinstance(error.source, ValidationError):
                raise malformed(error.source) from error
            raise read_http_error(self.limits, error.source) from error
        except QdrantException as error:  # Only a reply 429 with a Retry-After raises it.
            wait_s = getattr(error, "retry_after_s", None)
            raise RetryableError("rate_limited", "status 429", wait_s) from error
        except UnexpectedResponse as error:
            check_status(error.status_code or 0)
            raise QueryError("refused", error.reason_phrase) from error
        except ValueError as error:  # no such collection or vector in a folder; no JSON in a reply
            raise QueryError("refused", str(error)) from error

    @functools.cached_property
    def _sign(self) -> int:
        """Sign that makes a higher score nearer, by the distance of the collection."""
        info = self._call(lambda client: client.get_collection(self.index))
        vectors = info.config.params.vectors
        vector = vectors.get(self.engine.fields.vector) if isinstance(vectors, dict) else vectors
        return -1 if vector is not None and vector.distance in {"Euclid", "Manhattan"} else 1

    def describe(self) -> dict[str, object]:
        """Hash the configuration, and count the points that the filters accept."""
        info = self._call(lambda client: client.get_collection(self.index))
        count = self._call(lambda client: client.count(self.index, self._filter(), exact=True))
        settings = [info.config.model_dump(mode="json"), sorted(info.payload_schema)]
        return {"settings_hash": digest(settings), "n_documents": count.count}

    def _filter(self) -> "models.Filter":
        from qdrant_client import models

        def any_of(name: str, values: list[str | int | bool]) -> models.Filter:
            matches = (models.MatchValue(value=value) for value in values)
            return models.Filter(
                should=[models.FieldCondition(key=name, match=match) for match in matches]
            )

        return models.Filter(must=[any_of(*field) for field in self.accepted.items()])

    def search(self, query: str, top_k: int) -> list[dict[str, object]]:
        """Ask for the nearest points; a distance is negated to a score."""
        vector = self.vector(query)
        reply = self._call(
            lambda client: client.query_points(
                self.index,
                query=vector,
                using=self.engine.fields.vector,
                query_filter=self._filter(),
                limit=top_k,
                with_payload=list(self.names.values()),
            )
        )
        return [
            self.chunk(point.payload or {}, point.id, self._sign * point.score)
            for point in reply.points
        ]


class Qdrant(Engine):
    """A strategy that ranks the points of a collection by their vectors."""

    kind: Literal["qdrant"]
    source_type: ClassVar = QdrantSource
