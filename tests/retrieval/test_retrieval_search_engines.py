"""Search engines of the user's own: pgvector on a real server, Qdrant's local mode, OpenSearch.

OpenSearch replies as its documentation shows, from a server of this file.
"""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import postgres_server
import pytest
from pydantic import TypeAdapter
from requirements import need_package

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import AnyStrategy, IdentityInputs
from rag_eval.retrieval import outside
from rag_eval.retrieval.kinds.qdrant import QdrantSource
from rag_eval.retrieval.outside import QueryError

ROWS = [
    ("1", "retries.md", "A failed job is tried again.", "en", [1.0, 0.0, 0.0]),
    ("2", "alerts.md", "An alert is sent at night.", "en", [0.0, 1.0, 0.0]),
    ("3", "storage.md", "Ergebnisse bleiben dreißig Tage.", "de", [0.0, 0.0, 1.0]),
]
VECTORS = {"tried": [1.0, 0.3, 0.2], "night": [0.1, 1.0, 0.5]}
FIELDS = {"doc_id": "doc", "text": "words"}
QUICK = {"timeout_s": 5, "max_retries": 1, "concurrency": 2}


def embed(texts):
    return [VECTORS.get(text, [0.2, 0.2, 0.9]) for text in texts]


def undefined(texts):
    return [[float("nan")] * 3 for _ in texts]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(outside, "BACKOFF_S", 0.01)
    monkeypatch.setattr(outside, "MAX_REPLY_BYTES", 10_000)


class Index:
    """An index with ROWS, its entry of the settings, and the strategy that names it."""

    def __init__(self, engine, update, **strategy):
        self.engine = {
            "embedding": "test_retrieval_search_engines:embed",
            "fields": FIELDS,
        } | engine
        self.update = update
        spec = {"name": "mine", "kind": engine["kind"], "engine": "docs", **strategy}
        self.spec = TypeAdapter(AnyStrategy).validate_python(spec)

    @contextlib.contextmanager
    def open(self, limits=QUICK, **changes):
        settings = Settings(engines={"docs": self.engine | changes}, external=limits)
        with contextlib.closing(self.spec.open_source(settings)) as source:
            yield source

    def hash(self, **changes):
        with self.open(**changes) as source:
            stated = source.stated
        inputs = IdentityInputs(Path(), Settings(), "", list, None, str, lambda: stated)
        return self.spec.identity(inputs).index_hash


def documents(outcome):
    return [item.doc_id for item in outcome.items]


# pgvector


@pytest.fixture(scope="module")
def server():
    with postgres_server.running_with_pgvector() as url:
        yield url


@pytest.fixture
def pgvector(server):
    psycopg = need_package("psycopg")
    url = postgres_server.new_database(server)

    def run(statement):
        return postgres_server.execute(url, statement)

    run("CREATE EXTENSION vector")
    run(
        'CREATE TABLE "Notes; x" (id bigint PRIMARY KEY, doc text, words text, lang text,'
        " embedding vector(3))"
    )
    # The last rows cannot be ranked: they have no vector, or a vector without a direction.
    unranked = [(4, "none.md", "x", "en", None), (5, "zero.md", "x", "en", [0, 0, 0])]
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.executemany(
            'INSERT INTO "Notes; x" VALUES (%s, %s, %s, %s, %s::text::vector)',
            [(*texts, vector and str(vector)) for *texts, vector in [*ROWS, *unranked]],
        )
    engine = {"kind": "pgvector", "url": url, "index": "public.Notes; x"}
    return Index(engine, lambda: run("""UPDATE "Notes; x" SET words = 'new' WHERE id = 1"""))


# Qdrant


@pytest.fixture
def qdrant(tmp_path):
    client_module = need_package("qdrant_client")
    models = client_module.models

    def write(rows, name="notes", distance=models.Distance.COSINE):
        client = client_module.QdrantClient(path=str(tmp_path))
        if not client.collection_exists(name):
            size = models.VectorParams(size=3, distance=distance)
            client.create_collection(name, vectors_config=size)
        points = [
            models.PointStruct(
                id=int(key),
                vector=vector,
                payload={"meta": {"doc": doc}, "words": words, "lang": lang},
            )
            for key, doc, words, lang, vector in rows
        ]
        client.upsert(name, points)
        client.close()

    write(ROWS)
    write(ROWS, "distances", models.Distance.EUCLID)
    engine = {"kind": "qdrant", "path": str(tmp_path), "index": "notes"}
    engine["fields"] = FIELDS | {"doc_id": "meta.doc"}
    return Index(engine, lambda: write([("9", "new.md", "new", "en", [0.5, 0.5, 0.5])]))


# OpenSearch


class Replies(BaseHTTPRequestHandler):
    """Replies as documented; `server.replies` maps the end of a path to another reply."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.path, json.loads(body or "null"), self.headers))
        status, reply = 200, self.server.replies.get(self.path.partition("?")[0].rpartition("/")[2])
        if isinstance(reply, int):
            status, reply = reply, {}
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 - the name that http.server calls


def stats(number):
    primary = {"routing": {"primary": True}, "seq_no": {"max_seq_no": number}}
    copy = {"routing": {"primary": False}, "seq_no": {"max_seq_no": 0}}
    return {"indices": {"notes-1": {"shards": {"0": [primary, copy]}}}}


def found(**changes):
    hits = [
        {"_id": key, "_score": 1 / place, "_source": {"doc": doc, "words": words}}
        for place, (key, doc, words, *_) in enumerate(ROWS, start=1)
    ]
    head = {"took": 5, "timed_out": False, "_shards": {"total": 1, "successful": 1, "failed": 0}}
    return head | {"hits": {"max_score": 1.0, "hits": hits}} | changes


@pytest.fixture
def cluster():
    service = ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    service.asked = []
    service.replies = {
        "_mapping": {"notes-1": {"mappings": {"properties": {"words": {"type": "text"}}}}},
        "_settings": {"notes-1": {"settings": {"index": {"knn": "true", "uuid": "u1"}}}},
        "_count": {"count": 3},
        "_stats": stats(7),
        "_search": found(),
        "mix": {"mix": {"phase_results_processors": [{"normalization-processor": {}}]}},
    }
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    yield service
    service.shutdown()
    thread.join()
    service.server_close()


def opensearch_index(cluster, mode):
    engine = {"kind": "opensearch", "index": "notes", "search_pipeline": "mix"}
    engine["url"] = f"http://127.0.0.1:{cluster.server_port}"
    return Index(engine, lambda: cluster.replies.update(_stats=stats(8)), mode=mode)


@pytest.fixture
def opensearch(cluster):
    return opensearch_index(cluster, "knn")


# what holds for every engine


@pytest.fixture(params=["pgvector", "qdrant", "opensearch"])
def index(request):
    return request.getfixturevalue(request.param)


def test_items_are_ranked_with_document_text_and_score(index):
    with index.open() as source:
        first, _ = source.ask_all(["tried", "night"], 3, lambda *_: None)
    assert documents(first) == ["retries.md", "alerts.md", "storage.md"]
    assert [item.id for item in first.items] == ["1", "2", "3"]
    assert first.items[2].text == "Ergebnisse bleiben dreißig Tage."
    scores = [item.score for item in first.items]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", ["pgvector", "qdrant"])
def test_nearest_rows_that_the_filters_accept(name, request):
    index = request.getfixturevalue(name)
    with index.open(filters={"lang": ["en", "fr"]}) as source:
        assert documents(source.ask_one("night", 5)) == ["alerts.md", "retries.md"]
        assert documents(source.ask_one("night", 1)) == ["alerts.md"]
        filtered = source.stated
    with index.open() as source:
        assert documents(source.ask_one("night", 5)) == ["alerts.md", "storage.md", "retries.md"]
        assert source.stated["n_documents"] > filtered["n_documents"]


def test_a_changed_index_has_another_hash(index):
    before = index.hash()
    assert before.startswith("external:")
    assert index.hash() == before
    assert index.hash(filters={"lang": "en"}) != before
    index.update()
    assert index.hash() != before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"api_key_env": "RAG_EVAL_TEST_NO_KEY"}, "api_key_env"),
        ({"embedding": None}, "embedding"),
        ({"embedding": "test_retrieval_search_engines:undefined"}, "embedding"),
    ],
)
def test_settings_that_do_not_fit_are_errors(index, changes, field):
    with pytest.raises(InputError) as raised, index.open(**changes) as source:
        source.ask_all(["tried"], 3, lambda *_: None)
    (problem,) = raised.value.problems
    assert (problem.code, problem.field) == ("engine_unusable", f"engines.docs.{field}")


def test_an_index_that_is_absent_is_an_error(index, cluster):
    cluster.replies["_mapping"] = 404
    with pytest.raises(InputError, match="engine_unusable"), index.open(index="absent"):
        pass


def test_a_name_of_another_kind_lists_the_engines_of_this_kind(qdrant):
    settings = Settings(
        engines={"docs": {"kind": "pgvector", "url": "postgresql://h/d", "index": "t"}}
    )
    with pytest.raises(InputError, match="unknown_engine") as raised:
        qdrant.spec.open_source(settings)
    assert "none is configured" in raised.value.problems[0].accepted


ADDRESSES = {
    "pgvector": "postgresql://user:secret@127.0.0.1:9/d",
    "qdrant": "http://user:secret@127.0.0.1:9",
    "opensearch": "http://user:secret@127.0.0.1:9",
}


@pytest.mark.parametrize("kind", ADDRESSES)
def test_an_engine_that_is_down_fails_every_query_and_ends_nothing(kind):
    need_package({"pgvector": "psycopg", "qdrant": "qdrant_client", "opensearch": "httpx"}[kind])
    with Index({"kind": kind, "url": ADDRESSES[kind], "index": "notes"}, None).open() as source:
        replies = source.ask_texts(["tried", "night"], 3, lambda *_: None)
    assert [outcome.code for outcome in replies.outcomes] == ["connection", "connection"]
    assert replies.version == ""
    assert "secret" not in repr(replies)


# what holds for one engine


def test_a_session_of_pgvector_only_reads(pgvector):
    with pgvector.open() as source, source._connection() as connection:
        assert connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",)


def test_a_distance_of_qdrant_is_a_negative_score_without_a_description(qdrant, monkeypatch):
    monkeypatch.setattr(QdrantSource, "describe", lambda _: {})
    with qdrant.open(index="distances") as source:
        scores = [item.score for item in source.ask_one("tried", 3).items]
    assert scores == sorted(scores, reverse=True)
    assert max(scores) < 0


def test_bodies_of_opensearch_are_the_documented_ones(cluster):
    match = {"match": {"words": {"query": "tried"}}}
    terms = [{"terms": {"lang": ["en"]}}]
    words = {"bool": {"must": [match], "filter": terms}}
    near = {"vector": VECTORS["tried"], "k": 3, "filter": {"bool": {"filter": terms}}}
    knn = {"knn": {"embedding": near}}
    queries = {"bm25": words, "knn": knn, "hybrid": {"hybrid": {"queries": [words, knn]}}}
    for mode, query in queries.items():
        with opensearch_index(cluster, mode).open(filters={"lang": "en"}) as source:
            source.ask_one("tried", 3)
        path, body, _ = cluster.asked[-1]
        assert path == "/notes/_search" + ("?search_pipeline=mix" if mode == "hybrid" else "")
        assert body == {"query": query, "size": 3, "_source": ["doc", "words"], "timeout": "5000ms"}


def test_hybrid_needs_its_pipeline_and_is_identified_by_it(cluster):
    index = opensearch_index(cluster, "hybrid")
    before = index.hash()
    cluster.replies["mix"] = {"mix": {"phase_results_processors": []}}
    assert index.hash() != before
    with pytest.raises(InputError, match="search_pipeline"), index.open(search_pipeline=None):
        pass


@pytest.mark.parametrize(
    ("key", "sent"),
    [("k1", "Bearer k1"), ("me:pw", "Basic bWU6cHc="), ("ApiKey bWU6", "ApiKey bWU6")],
)
def test_the_key_is_sent_with_its_scheme(opensearch, cluster, monkeypatch, key, sent):
    monkeypatch.setenv("MY_KEY", key)
    with opensearch.open(api_key_env="MY_KEY"):
        assert cluster.asked[-1][2]["authorization"] == sent


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (503, "server_error"),
        (400, "refused"),
        (found(timed_out=True), "timeout"),
        (found(_shards={"total": 2, "successful": 1, "failed": 1}), "partial_reply"),
        (found(hits={"hits": [{"_id": "1", "_score": None}]}), "malformed_reply"),
        ([], "malformed_reply"),
        (found(more="x" * 20_000), "reply_too_large"),
    ],
    ids=range(7),
)
def test_a_faulty_reply_of_opensearch_fails_its_query(opensearch, cluster, reply, code):
    with opensearch.open() as source:
        cluster.replies["_search"] = reply
        (outcome,) = source.ask_all(["tried"], 3, lambda *_: None)
    assert isinstance(outcome, QueryError)
    assert outcome.code == code


@pytest.mark.parametrize(
    ("reply", "code"),
    [(503, "server_error"), (404, "refused"), ([], "malformed_reply")],
    ids=range(3),
)
def test_replies_of_a_qdrant_server_are_checked(cluster, reply, code):
    need_package("qdrant_client")
    engine = {"kind": "qdrant", "url": f"http://127.0.0.1:{cluster.server_port}", "index": "notes"}
    cluster.replies["notes"] = 503
    cluster.replies["query"] = reply
    with Index(engine, None).open() as source:
        (outcome,) = source.ask_all(["tried"], 3, lambda *_: None)
    assert outcome.code == code


def narrow(texts):
    return [[1.0, 0.0] for _ in texts]


@pytest.mark.parametrize("name", ["pgvector", "qdrant"])
def test_a_vector_of_another_size_is_refused(name, request):
    index = request.getfixturevalue(name)
    with index.open(embedding="test_retrieval_search_engines:narrow") as source:
        (outcome,) = source.ask_all(["tried"], 3, lambda *_: None)
    assert outcome.code == "refused"


def test_slow_statements_fail_their_query(pgvector):
    slow = {"statement_timeout": "1"}
    with pgvector.open(session={"hnsw.ef_search": "100"}) as source:
        source.engine = source.engine.model_copy(update={"session": slow})
        source._parts["filters"] = need_package("psycopg.sql").SQL("pg_sleep(1) IS NOT NULL")
        source.close()
        assert source.ask_all(["tried"], 3, lambda *_: None)[0].code == "timeout"
