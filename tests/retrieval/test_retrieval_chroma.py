"""The vector store against a real Chroma: embedded below a folder, and a real server."""

import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import chromadb
import numpy as np
import pandas as pd
import pytest
from chromadb.errors import ChromaError
from corpora import listed
from pydantic import ValidationError

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.retrieval.chroma import ChromaStore, clear_unused
from rag_eval.retrieval.dense import ExactSearch
from rag_eval.retrieval.embedding.embedders import unit

N = 300
IDS = [f"chunk{i:04d}" for i in range(N)]
DOCS = [f"doc{i // 3}" for i in range(N)]
TABLE = pd.DataFrame({"chunk_id": IDS, "doc_id": DOCS, "text_hash": "same"})
ROW = {chunk: row for row, chunk in enumerate(IDS)}


def random_vectors(count, seed=0):
    return unit(np.random.default_rng(seed).normal(size=(count, 16)).astype(np.float32))


VECTORS = random_vectors(N)
VECTORS[[7, 150]] = 0.0


@pytest.fixture
def store(tmp_path):
    store = ChromaStore(tmp_path / "chroma")
    yield store
    store.close()


def chunks(rows=slice(None)):
    return dict(zip(IDS[rows], DOCS[rows], strict=True))


def build(store, name, seed=13):
    return store.build(name, chunks(), VECTORS, seed=seed)


def ids(store, name, kind=set):
    return kind(store._collection(name).get(include=[])["ids"])


def test_a_graph_over_a_small_corpus_is_exact(store):
    assert build(store, "graph")
    zero = np.zeros((1, 16), dtype=np.float32)
    queries = np.concatenate([random_vectors(20, seed=1), zero, VECTORS[5:6]])
    for depth in (1, 10, 3 * N):
        ranked = store.search("graph", queries, depth, ROW)
        exact = ExactSearch(VECTORS).search(queries, depth)
        assert ranked.rows.shape == exact.rows.shape
        for query in range(len(queries)):
            ours, theirs = listed(ranked, query), listed(exact, query)
            assert {row for row, _ in ours} == {row for row, _ in theirs}
            assert [score for _, score in ours] == pytest.approx(
                [score for _, score in theirs], rel=0, abs=2e-6
            )
            in_order = [(-score, row) for row, score in ours]
            assert in_order == sorted(in_order)
        assert not ranked.has_chunk[20].any()


def test_zero_vectors_are_not_found_in_a_graph(store):
    build(store, "graph")
    assert ids(store, "graph") == set(IDS) - {IDS[7], IDS[150]}
    store.build("blank", chunks(slice(3)), np.zeros((3, 16), dtype=np.float32), seed=13)
    assert not store.search(
        "blank", VECTORS[:2], 3, {chunk: ROW[chunk] for chunk in IDS[:3]}
    ).has_chunk.any()


def test_the_seed_is_the_order_of_insertion(store):
    for name, seed in (("g-s13", 13), ("g-s29", 29), ("again-s13", 13)):
        assert build(store, name, seed)
    orders = [ids(store, name, list) for name in ("g-s13", "g-s29", "again-s13")]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert store._collection("g-s29").metadata == {"complete": True, "seed": 29}


def test_a_finished_graph_is_left_alone_and_a_half_built_one_is_built_anew(store):
    assert build(store, "graph")
    assert not build(store, "graph")
    # A killed build leaves chunks without the mark of completion.
    store._collection("graph").modify(metadata={"seed": 13})
    assert build(store, "graph")
    assert len(ids(store, "graph")) == N - 2


@pytest.fixture
def server(tmp_path):
    """Run `chroma run` on a free loopback port."""
    program = Path(sys.executable).with_name("chroma")
    if not program.is_file():
        pytest.skip(f"no program {program}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = str(tmp_path / "server")
    command = [program, "run", "--path", path, "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None:
                    raise RuntimeError(f"chroma ended with {process.returncode}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def exercise(one):
    """Use every method of a store, and return the answers of its graph."""
    assert build(one, "g-s13")
    assert not build(one, "g-s13")
    assert build(one, "model")
    assert one.collections() == ["g-s13", "model"]
    assert one.drop("model", set()) == ["model"]
    queries = random_vectors(10, seed=5)
    masks = (None, np.arange(N) % 3 == 0)
    return [one.search("g-s13", queries, 10, ROW, mask).rows.tolist() for mask in masks]


_REMOTE = """
import json, sys
from pathlib import Path
from rag_eval.retrieval.chroma import ChromaStore
from test_retrieval_chroma import exercise
print(json.dumps(exercise(ChromaStore(Path(sys.argv[1]), sys.argv[2]))))
"""


@pytest.mark.slow
def test_a_server_is_used_like_the_embedded_store(server, store, tmp_path, project_root):
    """Another process uses the server, because Chroma's client never closes its connections."""
    folders = (".", "tests/reference", "tests/retrieval")
    path = os.pathsep.join(str(project_root / folder) for folder in folders)
    done = subprocess.run(
        [sys.executable, "-c", _REMOTE, str(tmp_path / "unused"), server],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "unused").exists()
    assert json.loads(done.stdout) == exercise(store)


def test_a_server_is_asked_with_its_tenant_database_and_headers(tmp_path, monkeypatch):
    asked, given = {}, {"tenant": "search-team", "database": "nightly"}
    settings = Settings(
        home=tmp_path,
        chroma_url="http://127.0.0.1:9/team/vectors",
        chroma=given | {"headers": {"Authorization": "Bearer s3cret-token"}},
    )
    assert "s3cret" not in repr(settings) + settings.model_dump_json()
    monkeypatch.setattr(chromadb, "HttpClient", lambda **options: asked.update(options))
    ChromaStore.open(settings)
    assert asked.pop("settings").anonymized_telemetry is False
    place = {"host": "http://127.0.0.1:9/team/vectors", "ssl": False}
    assert asked == given | place | {"headers": {"Authorization": "Bearer s3cret-token"}}


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "", "/path", "http://me:pw@host:8000"]
)
def test_what_is_no_address_of_a_server_is_refused(url):
    with pytest.raises(ValidationError, match="chroma_url"):
        Settings(chroma_url=url)


def test_a_server_that_refuses_is_an_input_error(tmp_path, monkeypatch):
    def refuse(**_):
        raise ChromaError("no database")

    monkeypatch.setattr(chromadb, "HttpClient", refuse)
    with pytest.raises(InputError, match="chroma_server"):
        ChromaStore(tmp_path, "http://127.0.0.1:9")


# unused places of graph files

GARBAGE = b"\xbe" * 8  # glibc fills allocated memory with the complement of 65

KILLED = """
import os, sys
from pathlib import Path
import chromadb, numpy, pandas
from chromadb.config import Settings
from rag_eval.retrieval.chroma import ChromaStore
bare = chromadb.PersistentClient(sys.argv[1], settings=Settings(anonymized_telemetry=False))
few = bare.create_collection("few", embedding_function=None)
few.add(ids=[str(i) for i in range(7)], embeddings=numpy.eye(7, 16))
vectors = numpy.random.default_rng(0).normal(size=(1500, 16)).astype("f4")
store = ChromaStore(Path(sys.argv[2]))
for count in (0, 7, 1500):
    chunks = {str(i): "" for i in range(count)}
    store.build(f"graph{count}", chunks, vectors[:count], seed=1)
    store.build(f"other{count}", chunks, vectors[:count], seed=2)
os._exit(0)
"""


def with_garbage(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if GARBAGE in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can fill its memory")
def test_no_memory_of_the_process_stays(tmp_path):
    """Without garbage under `bare`, Chroma clears its memory and `clear_unused` can go."""
    bare, ours = tmp_path / "bare", tmp_path / "ours"
    env = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.perturb=65"}
    command = [sys.executable, "-c", KILLED, str(bare), str(ours)]
    subprocess.run(command, check=True, env=env, timeout=120)
    assert "data_level0.bin" in with_garbage(bare)
    assert len(list(ours.glob("*/data_level0.bin"))) == 4
    assert not with_garbage(ours)
    ChromaStore(bare).close()
    assert not with_garbage(bare)


def test_places_in_use_stay(tmp_path):
    store = ChromaStore(tmp_path)
    many = {f"c{i}": "d" for i in range(1200)}
    # Chroma writes a graph from 1,000 vectors on.
    store.build("model", many, np.ones((1200, 16), dtype=np.float32), seed=1)
    store.close()
    level0 = next(tmp_path.glob("*/data_level0.bin"))
    before = level0.read_bytes()
    assert before.strip(b"\0")
    level0.write_bytes(before + b"sk-secret" * 30)
    clear_unused(tmp_path)
    assert level0.read_bytes() == before + bytes(270)
    level0.with_name("header.bin").write_bytes(b"")  # A killed process never wrote the header.
    clear_unused(tmp_path)
    assert level0.read_bytes() == bytes(len(before) + 270)
