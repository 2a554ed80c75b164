"""The cache embeds no text twice and loses no vector to a kill or a damaged file."""

import os
import signal
import subprocess
import sys

import numpy as np

from rag_eval.retrieval.embedding.source import EmbeddingCache
from rag_eval.storage.hashing import lines_hash, text_hash
from rag_eval.storage.home import Home


class Counting:
    """A tiny embedder that remembers its inputs."""

    model = "counting"
    dimensions = 2

    def __init__(self):
        self.asked = []

    def embed(self, texts):
        self.asked.extend(texts)
        return np.array([vector_of(text) for text in texts], dtype=np.float32)


def vector_of(text):
    return [len(text), int(text_hash(text)[:6], 16)]


def wanted(texts):
    return np.array([vector_of(text) for text in texts], dtype=np.float32)


def embed(embedder, cache, texts):
    """Embed texts; return the vectors, and the number of texts that the cache lacked."""
    before = cache.n_embedded
    return cache.embed(texts, embedder.embed), cache.n_embedded - before


def test_each_distinct_text_is_embedded_once(tmp_path):
    embedder, cache = Counting(), EmbeddingCache(Home(tmp_path), "m")
    for texts, n_new in ((["b", "a", "b", "c"], 3), (["c", "d", "a"], 1), (["a"], 0)):
        vectors, n_embedded = embed(embedder, cache, texts)
        assert np.array_equal(vectors, wanted(texts))
        assert n_embedded == n_new
    assert embedder.asked == ["b", "a", "c", "d"]
    reopened = EmbeddingCache(Home(tmp_path), "m")
    assert embed(embedder, reopened, ["b", "a", "b"])[1] == 0
    assert embed(embedder, reopened, [])[0].shape[0] == 0


def test_a_damaged_segment_is_named_and_its_texts_are_embedded_again(tmp_path, caplog):
    cache = EmbeddingCache(Home(tmp_path), "m")
    texts = ["a", "b", "c", "d"]
    for text in texts:
        embed(Counting(), cache, [text])
    paths = {
        text: tmp_path / cache.folder / f"segment-{lines_hash([text_hash(text)])}.npz"
        for text in texts
    }
    paths["a"].write_bytes(b"")
    paths["b"].write_bytes(paths["b"].read_bytes()[:-40])
    flipped = bytearray(paths["c"].read_bytes())
    flipped[-300] ^= 1
    paths["c"].write_bytes(bytes(flipped))
    embedder = Counting()
    vectors, n_embedded = embed(embedder, EmbeddingCache(Home(tmp_path), "m"), texts)
    assert np.array_equal(vectors, wanted(texts))
    assert (embedder.asked, n_embedded) == (["a", "b", "c"], 3)
    assert all(str(paths[text]) in caplog.text for text in "abc")
    assert embed(embedder, EmbeddingCache(Home(tmp_path), "m"), texts)[1] == 0


_KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from rag_eval.retrieval.embedding import source as module
from test_retrieval_cache import Counting
module.BLOCK = 10
class Dies(Counting):
    def embed(self, texts):
        if len(self.asked) >= 30:
            save = np.savez
            def half(stream, **parts):
                save(stream, **parts)
                stream.truncate(200)
                stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            module.np.savez = half
        return super().embed(texts)
embedder = Dies()
cache = module.EmbeddingCache(module.Home(sys.argv[1]), "m")
cache.embed([f"text {i}" for i in range(100)], embedder.embed)
"""


def test_a_run_that_is_killed_leaves_a_usable_cache_and_loses_one_block(tmp_path, project_root):
    path = os.pathsep.join(
        str(project_root / folder) for folder in (".", "tests/reference", "tests/retrieval")
    )
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    embedder = Counting()
    texts = [f"text {i}" for i in range(100)]
    vectors, n_embedded = embed(embedder, EmbeddingCache(Home(tmp_path), "m"), texts)
    assert np.array_equal(vectors, wanted(texts))
    assert embedder.asked == texts[30:]
    assert n_embedded == 70
