"""The kind `opensearch`: BM25, k-NN and hybrid search in an index of OpenSearch, over its REST API.

It follows the documented API. The tests use replies of that form, and no real server.
"""

import math
import urllib.parse
from base64 import b64encode
from typing import ClassVar, Literal, TypeVar

from pydantic import AliasPath, BaseModel, Field, JsonValue, TypeAdapter, ValidationError

from rag_eval.core.settings import OpenSearchEngine, Settings
from rag_eval.retrieval.engines import Engine, EngineSource
from rag_eval.retrieval.outside import (
    QueryError,
    RetryableError,
    WebClient,
    describe_first,
    too_late,
)
from rag_eval.storage.hashing import digest

T = TypeVar("T")


class _Hit(BaseModel):
    id: str = Field(alias="_id")
    score: float = Field(alias="_score", allow_inf_nan=False)
    fields: dict[str, JsonValue] = Field(default_factory=dict, alias="_source")


class _Results(BaseModel):
    """The reply to a search. Other fields are ignored, here and in the other replies."""

    timed_out: bool
    failed_shards: int = Field(validation_alias=AliasPath("_shards", "failed"))
    hits: list[_Hit] = Field(validation_alias=AliasPath("hits", "hits"))


class _Copy(BaseModel):
    routing: dict[str, JsonValue]
    seq_no: dict[str, int]


class _Stats(BaseModel):
    indices: dict[str, dict[Literal["shards"], dict[str, list[_Copy]]]]


class _Count(BaseModel):
    count: int


def _authorization(key: str) -> str:
    """Write the header of `user:password`, of a bare token, or of a key with its own scheme."""
    if " " in key:
        return key
    return f"Basic {b64encode(key.encode()).decode()}" if ":" in key else f"Bearer {key}"


class OpenSearchSource(EngineSource):
    """An index or an alias, searched in the mode of its strategy."""

    def __init__(self, spec: "OpenSearch", engine: OpenSearchEngine, settings: Settings) -> None:
        super().__init__(spec, engine, settings)
        self._mode, self.uses_vectors = spec.mode, spec.mode != "bm25"
        if self._mode == "hybrid" and engine.search_pipeline is None:
            raise self.unusable("search_pipeline", "none, which mode hybrid needs")
        self._pipeline = urllib.parse.quote(engine.search_pipeline or "", safe="")
        headers = {"authorization": _authorization(self.key)} if self.key else {}
        self._web = WebClient(engine.url.rstrip("/"), self.limits, headers)
        self._place = f"/{urllib.parse.quote(self.index, safe='')}/"
        self._filter = [{"terms": {name: values}} for name, values in self.accepted.items()]

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        self._web.close()

    def _ask(self, read: type[T], path: str, body: object = None) -> T:
        """Send one request below the index, or of a whole path. Raises `QueryError`."""
        address = self._web.url + (path if path.startswith("/") else self._place + path)
        reply = self._web.send("GET" if body is None else "POST", address, body)
        try:
            return TypeAdapter(read).validate_json(reply)
        except ValidationError as error:
            raise QueryError("malformed_reply", describe_first(error)) from error

    def describe(self) -> dict[str, object]:
        """Hash mapping, settings and pipeline, count the documents, and read the sequence numbers.

        A write raises the sequence number of its shard, before a refresh makes it visible.
        """
        paths = ["_mapping", "_settings"]
        if self._mode == "hybrid":
            paths.append(f"/_search/pipeline/{self._pipeline}")
        settings = [self._ask(dict[str, JsonValue], path) for path in paths]
        query = {"query": {"bool": {"filter": self._filter}}}
        writes = sorted(
            (index, shard, copy.seq_no["max_seq_no"])
            for index, stats in self._ask(_Stats, "_stats?level=shards").indices.items()
            for shard, copies in stats["shards"].items()
            for copy in copies
            if copy.routing.get("primary")
        )
        return {
            "settings_hash": digest([self._mode, *settings]),
            "n_documents": self._ask(_Count, "_count", query).count,
            "generation": digest(writes),
        }

    def _words(self, query: str) -> dict[str, object]:
        if not self.engine.fields.text:
            raise self.unusable("fields.text", f"none, which mode {self._mode} needs")
        match = {"match": {self.engine.fields.text: {"query": query}}}
        return {"bool": {"must": [match], "filter": self._filter}}

    def _vector_near(self, query: str, top_k: int) -> dict[str, object]:
        near: dict[str, object] = {"vector": self.vector(query), "k": top_k}
        if self._filter:
            near["filter"] = {"bool": {"filter": self._filter}}
        return {"knn": {self.engine.fields.vector or "embedding": near}}

    def _query(self, query: str, top_k: int) -> dict[str, object]:
        if self._mode == "bm25":
            return self._words(query)
        if self._mode == "knn":
            return self._vector_near(query, top_k)
        return {"hybrid": {"queries": [self._words(query), self._vector_near(query, top_k)]}}

    def search(self, query: str, top_k: int) -> list[dict[str, object]]:
        """Search once. A reply without all shards fails the query, because its ranking has gaps."""
        body = {
            "query": self._query(query, top_k),
            "size": top_k,
            "_source": list(self.names.values()),
            "timeout": f"{math.ceil(1000 * self.limits.timeout_s)}ms",
        }
        pipeline = f"?search_pipeline={self._pipeline}" if self._mode == "hybrid" else ""
        results = self._ask(_Results, f"_search{pipeline}", body)
        if results.timed_out:
            raise too_late(self.limits)
        if results.failed_shards > 0:
            raise RetryableError("partial_reply", f"{results.failed_shards} shards failed")
        return [self.chunk(hit.fields, hit.id, hit.score) for hit in results.hits]


class OpenSearch(Engine):
    """A strategy that ranks the documents of an index."""

    kind: Literal["opensearch"]
    mode: Literal["bm25", "knn", "hybrid"] = Field(
        default="bm25", description="how questions are searched; hybrid needs a search pipeline"
    )
    source_type: ClassVar = OpenSearchSource
