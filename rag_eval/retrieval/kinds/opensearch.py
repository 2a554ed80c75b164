"""The kind `opensearch`: BM25, k-NN and hybrid search in an index of OpenSearch, over its REST API.

It follows the documented API. The tests use replies of that form, and no real server.
"""

import base64
import math
import urllib.parse
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, JsonValue, RootModel, ValidationError

from rag_eval.core.settings import OpenSearchEngine, Settings
from rag_eval.retrieval.engines import Engine, EngineSource, read_key
from rag_eval.retrieval.outside import (
    QueryError,
    RetryableError,
    Source,
    WebClient,
    describe_first,
    too_late,
)
from rag_eval.storage.hashing import digest

Mode = Literal["bm25", "knn", "hybrid"]
Reply = TypeVar("Reply", bound=BaseModel)


class OpenSearch(Engine):
    """A strategy that ranks the documents of an index."""

    kind: Literal["opensearch"]
    mode: Mode = Field(
        default="bm25", description="how questions are searched; hybrid needs a search pipeline"
    )

    def open_source(self, settings: Settings) -> Source:
        """Describe the index. Raises `InputError` if mode hybrid lacks its pipeline."""
        engine = self.configured(settings, OpenSearchEngine)
        source = OpenSearchSource(self.engine, engine, settings, self.mode)
        if self.mode == "hybrid" and engine.search_pipeline is None:
            raise source.unusable("search_pipeline", "none, which mode hybrid needs")
        source.read_identity()
        return source


# ---- Replies. Other fields are ignored.


class _Hit(BaseModel):
    id: str = Field(alias="_id")
    score: float = Field(alias="_score", allow_inf_nan=False)
    fields: dict[str, JsonValue] = Field(default_factory=dict, alias="_source")


class _Hits(BaseModel):
    hits: list[_Hit]


class _Shards(BaseModel):
    failed: int


class _Found(BaseModel):
    timed_out: bool
    shards: _Shards = Field(alias="_shards")
    hits: _Hits


class _Count(BaseModel):
    count: int


class _Copy(BaseModel):
    routing: dict[str, JsonValue]
    seq_no: dict[str, int]


class _IndexStats(BaseModel):
    shards: dict[str, list[_Copy]]


class _Stats(BaseModel):
    indices: dict[str, _IndexStats]


class _Json(RootModel[dict[str, JsonValue]]):
    """A reply that is only hashed."""


class OpenSearchSource(EngineSource):
    """An index or an alias, searched in one mode."""

    def __init__(self, name: str, engine: OpenSearchEngine, settings: Settings, mode: Mode) -> None:
        super().__init__(name, engine, settings)
        self._mode, self._pipeline = mode, engine.search_pipeline
        headers, key = {}, read_key(self, engine.api_key_env)
        if key is not None:
            sent = base64.b64encode(key.encode()).decode() if engine.key_scheme == "Basic" else key
            headers["authorization"] = f"{engine.key_scheme} {sent}"
        self._web = WebClient(engine.url.rstrip("/"), self.limits, headers)
        self.uses_vectors = mode != "bm25"
        self._filter = [{"terms": {name: value}} for name, value in self.filter_values().items()]

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        self._web.close()

    def _ask(self, read: type[Reply], method: str, path: str, body: object = None) -> Reply:
        """Send one request below the index, and read its reply. Raises `QueryError`."""
        name = urllib.parse.quote(self.index, safe="")
        return self._read(read, method, f"{self._web.url}/{name}/{path}", body)

    def _read(self, read: type[Reply], method: str, url: str, body: object = None) -> Reply:
        try:
            return read.model_validate_json(self._web.send(method, url, body))
        except ValidationError as error:
            raise QueryError("malformed_reply", describe_first(error)) from error

    def describe(self) -> dict[str, object]:
        """Hash mapping, settings and pipeline, count the documents, and read the sequence numbers.

        A write raises the sequence number of its shard, before a refresh makes it visible.
        """
        settings = [self._ask(_Json, "GET", path).root for path in ("_mapping", "_settings")]
        if self._mode == "hybrid":
            name = urllib.parse.quote(self._pipeline or "", safe="")
            settings.append(
                self._read(_Json, "GET", f"{self._web.url}/_search/pipeline/{name}").root
            )
        query = {"query": {"bool": {"filter": self._filter}}}
        stats = self._ask(_Stats, "GET", "_stats?level=shards")
        writes = sorted(
            (index, shard, copy.seq_no["max_seq_no"])
            for index, one in stats.indices.items()
            for shard, copies in one.shards.items()
            for copy in copies
            if copy.routing.get("primary")
        )
        return {
            "settings_hash": digest([self._mode, *settings]),
            "n_documents": self._ask(_Count, "POST", "_count", query).count,
            "generation": digest(writes),
        }

    def _words(self, query: str) -> dict[str, object]:
        if not self.fields.text:
            raise self.unusable("fields.text", f"none, which mode {self._mode} needs")
        match = {"match": {self.fields.text: {"query": query}}}
        return {"bool": {"must": [match], "filter": self._filter}}

    def _vector_near(self, query: str, top_k: int) -> dict[str, object]:
        near: dict[str, object] = {"vector": self.vector(query), "k": top_k}
        if self._filter:
            near["filter"] = {"bool": {"filter": self._filter}}
        return {"knn": {self.fields.vector or "embedding": near}}

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
            "_source": self.wanted_fields(),
            "timeout": f"{math.ceil(1000 * self.limits.timeout_s)}ms",
        }
        path = "_search"
        if self._mode == "hybrid":
            path += f"?search_pipeline={urllib.parse.quote(self._pipeline or '', safe='')}"
        found = self._ask(_Found, "POST", path, body)
        if found.timed_out:
            raise too_late(self.limits)
        if found.shards.failed > 0:
            raise RetryableError("partial_reply", f"{found.shards.failed} shards failed")
        return [self.chunk(hit.fields, hit.id, hit.score) for hit in found.hits.hits]
