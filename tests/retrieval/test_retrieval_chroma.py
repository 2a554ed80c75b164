"""The vector store against a real Chroma: embedded below a folder, and a real server."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from corpora import listed

from rag_eval.core.errors import InputError
from rag_eval.retrieval.dense import ChromaStore, ExactSearch, SyncReport
from rag_eval.retrieval.embedding.embedders import unit

N = 300
IDS = [f"chunk{i:04d}" for i in range(N)]
DOCS = [f"doc{i // 3}" for i in range(N)]
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


def kept(store, name):
    found = store._client.get_collection(name, embedding_function=None).get(
        include=["embeddings", "metadatas"]
    )
    documents = [meta["doc_id"] for meta in found["metadatas"]]
    values = zip(found["embeddings"], documents, strict=True)
    return dict(zip(found["ids"], values, strict=True))


def sync(store, rows, name="model", **more):
    return store.sync(name, IDS[rows], VECTORS[rows], DOCS[rows], **more)


def test_sync_adds_keeps_and_removes(store):
    counts = []
    assert sync(store, slice(10), advance=counts.append) == SyncReport(added=10, removed=0, kept=0)
    assert sum(counts) == 10
    assert sync(store, slice(10)) == SyncReport(added=0, removed=0, kept=10)
    assert sync(store, slice(4, 13)) == SyncReport(added=3, removed=4, kept=6)
    assert store.ids("model") == set(IDS[4:13])
    there = kept(store, "model")
    for row in range(4, 13):
        assert np.abs(there[IDS[row]][0] - VECTORS[row]).max() < 1e-6
        assert there[IDS[row]][1] == DOCS[row]
    assert sync(store, slice(0)) == SyncReport(added=0, removed=9, kept=0)
    assert store.ids("model") == set()
    assert sync(store, slice(0), "empty") == SyncReport(0, 0, 0)


def test_a_chunk_that_is_indexed_under_another_text_gets_its_new_vector(store):
    sync(store, slice(3), text_hashes=["a", "b", "c"])
    changed = store.sync("model", IDS[:3], VECTORS[10:13], DOCS[:3], text_hashes=["a", "B", "c"])
    assert changed == SyncReport(added=1, removed=0, kept=2)
    there = kept(store, "model")
    for row, vector in enumerate((VECTORS[0], VECTORS[11], VECTORS[2])):
        assert np.abs(there[IDS[row]][0] - vector).max() < 1e-6


def test_a_graph_over_a_small_corpus_is_exact(store):
    assert store.build("graph", IDS, VECTORS, DOCS, seed=13)
    queries = np.concatenate(
        [random_vectors(20, seed=1), np.zeros((1, 16), dtype=np.float32), VECTORS[5:6]]
    )
    for depth in (1, 10, N, 3 * N):
        found, exact = (
            store.search("graph", queries, depth, ROW),
            ExactSearch(VECTORS).search(queries, depth),
        )
        assert found.rows.shape == exact.rows.shape
        for query in range(len(queries)):
            left, right = listed(found, query), listed(exact, query)
            assert {row for row, _ in left} == {row for row, _ in right}
            ours, theirs = ([score for _, score in part] for part in (left, right))
            assert ours == pytest.approx(theirs, rel=0, abs=2e-6)
            assert [(-score, row) for row, score in left] == sorted(
                (-score, row) for row, score in left
            )
            ours, theirs = (
                [norm for _, norm in listed(part, query, "norm")] for part in (found, exact)
            )
            assert ours == pytest.approx(theirs, abs=1e-4)
        assert not found.has_chunk[20].any()


def test_zero_vectors_are_not_found_in_a_graph(store):
    store.build("graph", IDS, VECTORS, DOCS, seed=13)
    assert store.ids("graph") == set(IDS) - {IDS[7], IDS[150]}
    assert not store.build("graph", IDS, VECTORS, DOCS, seed=13)
    store.build("blank", IDS[:3], np.zeros((3, 16), dtype=np.float32), DOCS[:3], seed=13)
    assert not store.search(
        "blank", VECTORS[:2], 3, {chunk: ROW[chunk] for chunk in IDS[:3]}
    ).has_chunk.any()


def test_the_seed_is_the_order_of_insertion(store, monkeypatch):
    orders, whole = {}, ChromaStore.sync

    def watched(self, name, ids, vectors, doc_ids, *rest):
        orders[name] = list(ids)
        assert all(
            np.array_equal(vector, VECTORS[ROW[chunk]])
            for chunk, vector in zip(ids, vectors, strict=True)
        )
        assert [DOCS[ROW[chunk]] for chunk in ids] == list(doc_ids)
        return whole(self, name, ids, vectors, doc_ids, *rest)

    monkeypatch.setattr(ChromaStore, "sync", watched)
    for name, seed in (("g-s13", 13), ("g-s29", 29), ("again-s13", 13)):
        assert store.build(name, IDS, VECTORS, DOCS, seed=seed)
    assert orders["g-s13"] == orders["again-s13"]
    assert orders["g-s13"] != orders["g-s29"]
    assert (
        sorted(orders["g-s13"]) == sorted(orders["g-s29"]) == sorted(set(IDS) - {IDS[7], IDS[150]})
    )
    assert store._client.get_collection("g-s29", embedding_function=None).metadata == {
        "complete": True,
        "seed": 29,
    }


def test_a_finished_graph_is_left_alone_and_a_half_built_one_is_built_anew(store):
    sync(store, slice(50), "graph")  # A killed build leaves chunks without a mark of completion.
    assert store.build("graph", IDS, VECTORS, DOCS, seed=13)
    assert len(store.ids("graph")) == N - 2
    assert not store.build("graph", IDS, VECTORS, DOCS, seed=13)
    known = VECTORS.any(axis=1)
    store.sync("whole", np.array(IDS)[known].tolist(), VECTORS[known], DOCS[: N - 2])
    # Every chunk is stored, but the mark is missing.
    assert store.build("whole", IDS, VECTORS, DOCS, seed=13)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "", "/path"])
def test_what_is_no_address_of_a_server_is_an_input_error(tmp_path, url):
    with pytest.raises(InputError, match="chroma_url"):
        ChromaStore(tmp_path, url)


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
    assert one.sync("model", IDS[:20], VECTORS[:20], DOCS[:20]) == SyncReport(20, 0, 0)
    assert one.sync("model", IDS[5:30], VECTORS[5:30], DOCS[5:30]) == SyncReport(10, 5, 15)
    assert one.build("g-s13", IDS, VECTORS, DOCS, seed=13)
    assert not one.build("g-s13", IDS, VECTORS, DOCS, seed=13)
    assert one.collections() == ["g-s13", "model"]
    assert one.drop("model", set()) == ["model"]
    queries = random_vectors(10, seed=5)
    return [
        one.search("g-s13", queries, 10, ROW, mask).rows.tolist()
        for mask in (None, np.arange(N) % 3 == 0)
    ]


_REMOTE = """
import json, sys
from pathlib import Path
from rag_eval.retrieval.dense import ChromaStore
from test_retrieval_chroma import exercise
print(json.dumps(exercise(ChromaStore(Path(sys.argv[1]), sys.argv[2]))))
assert ChromaStore(Path(sys.argv[1]), sys.argv[2]).collections() == ["g-s13"]
"""


@pytest.mark.slow
def test_a_server_is_used_like_the_embedded_store(server, store, tmp_path, project_root):
    """Run Chroma in another process.

    Its client never closes its connections, and an unclosed socket is an error in these tests.
    """
    path = os.pathsep.join(
        str(project_root / folder) for folder in (".", "tests/reference", "tests/retrieval")
    )
    done = subprocess.run(
        [sys.executable, "-c", _REMOTE, str(tmp_path / "unused"), server],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "unused").exists()
    assert json.loads(done.stdout) == exercise(store)
