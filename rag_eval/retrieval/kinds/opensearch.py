"""The kind `opensearch`: BM25, k-NN and hybrid search in an index of OpenSearch, over its REST API.

It follows the documented API. The tests use replies of that form, and no real server.
"""

import json
import math
import urllib.parse
from base64 import b64encode
from typing import Any, ClassVar, Literal

from pydantic import Field

from rag_eval.core.settings import OpenSearchEngine, Settings
from rag_eval.retrieval.engines import Engine, EngineSource
from rag_eval.retrieval.outside import QueryError, RetryableError, WebClient, too_late
from rag_eval.storage.hashing import digest


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
        if self._mode != "knn" and not engine.fields.text:
            raise self.unusable("fields.text", f"none, which mode {self._mode} needs")
        self._pipeline = urllib.parse.quote(engine.search_pipeline or "", safe="")
        headers = {"authorization": _authorization(self.key)} if self.key else {}
        self._web = WebClient(engine.url.rstrip("/"), self.limits, headers)
        self._place = f"/{urllib.parse.quote(self.index, safe='')}/"
        self._filter = [{"terms": {name: values}} for name, values in self.accepted.items()]

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        self._web.close()

    def _ask(self, path: str, body: object = None) -> Any:
        """Send one request, and return the JSON object of the reply. Raises `QueryError`."""
        reply = self._web.send("GET" if body is None else "POST", self._web.url + path, body)
        try:
            return dict(json.loads(reply))
        except (ValueError, TypeError, RecursionError) as error:
            raise QueryError("malformed_reply", str(error)) from error

    def describe(self) -> dict[str, object]:
        """Hash mapping, settings and pipeline, count the documents, and read the sequence numbers.

        A write raises the sequence number of its shard, before a refresh makes it visible.
        """
        paths = [f"{self._place}_mapping", f"{self._place}_settings"]
        if self._mode == "hybrid":
            paths.append(f"/_search/pipeline/{self._pipeline}")
        settings = [self._ask(path) for path in paths]
        query = {"query": {"bool": {"filter": self._filter}}}
        indices = self._ask(f"{self._place}_stats?level=shards")["indices"]
        writes = sorted(
            (index, shard, copy["seq_no"]["max_seq_no"])
            for index, stats in indices.items()
            for shard, copies in stats["shards"].items()
            for copy in copies
            if copy["routing"].get("primary")
        )
        return {
            "settings_hash": digest([self._mode, *settings]),
            "n_documents": self._ask(f"{self._place}_count", query)["count"],
            "generation": digest(writes),
        }

    def _query(self, query: str, top_k: int) -> dict[str, object]:
        match = {"match": {self.engine.fields.text: {"query": query}}}
        words: dict[str, object] = {"bool": {"must": [match], "filter": self._filter}}
        if self._mode == "bm25":
            return words
        near: dict[str, object] = {"vector": self.vector(query), "k": top_k}
        if self._filter:
            near["filter"] = {"bool": {"filter": self._filter}}
        knn: dict[str, object] = {"knn": {self.engine.fields.vector or "embedding": near}}
        return knn if self._mode == "knn" else {"hybrid": {"queries": [words, knn]}}

    def search(self, query: str, top_k: int) -> list[dict[str, object]]:
        """Search once. A reply without all shards fails the query, because its ranking has gaps."""
        body = {
            "query": self._query(query, top_k),
            "size": top_k,
            "_source": list(self.names.values()),
            "timeout": f"{math.ceil(1000 * self.limits.timeout_s)}ms",
        }
        pipeline = f"?search_pipeline={self._pipeline}" if self._mode == "hybrid" else ""
        results = self._ask(f"{self._place}_search{pipeline}", body)
        if results["timed_out"]:
            raise too_late(self.limits)
        if results["_shards"]["failed"] > 0:
            raise RetryableError("partial_reply", f"{results['_shards']['failed']} shards failed")
        hits = results["hits"]["hits"]
        return [self.chunk(hit.get("_source", {}), hit["_id"], hit["_score"]) for hit in hits]


class OpenSearch(Engine):
    """A strategy that ranks the documents of an index."""

    kind: Literal["opensearch"]
    mode: Literal["bm25", "knn", "hybrid"] = Field(
        default="bm25", description="how questions are searched; hybrid needs a search pipeline"
    )
    source_type: ClassVar = OpenSearchSource
