"""The cache embeds no text twice and loses no vector to a kill or a damaged file."""

import os
import signal
import subprocess
import sys

import numpy as np

from rag_eval.retrieval.embedding.embedders import no_advance
from rag_eval.retrieval.embedding.source import CacheUse, EmbeddingCache, embed_cached
from rag_eval.storage.hashing import lines_hash, text_hash
from rag_eval.storage.home import Home


class Counting:
    """A tiny embedder that remembers its inputs."""

    model = "counting"
    dimensions = 2

    def __init__(self):
        self.asked = []

    def embed(self, texts, advance=no_advance):
        self.asked.extend(texts)
        advance(len(texts))
        return np.array([vector_of(text) for text in texts], dtype=np.float32)


def vector_of(text):
    return [len(text), int(text_hash(text)[:6], 16)]


def wanted(texts):
    return np.array([vector_of(text) for text in texts], dtype=np.float32)


def embed(embedder, cache, texts, **more):
    """Embed texts; return the vectors, and the counts of needed and embedded texts."""
    use = CacheUse()
    vectors = embed_cached(embedder.embed, cache, texts, use=use, **more)
    return vectors, (use.needed, use.embedded)


def test_each_distinct_text_is_embedded_once(tmp_path):
    embedder, cache, counts = Counting(), EmbeddingCache(Home(tmp_path), "m"), []
    vectors, use = embed(embedder, cache, ["b", "a", "b", "c"], advance=counts.append)
    assert np.array_equal(vectors, wanted(["b", "a", "b", "c"]))
    assert embedder.asked == ["b", "a", "c"]
    assert (*use, sum(counts)) == (3, 3, 4)
    vectors, use = embed(embedder, cache, ["c", "d", "a"], advance=counts.append)
    assert np.array_equal(vectors, wanted(["c", "d", "a"]))
    assert embedder.asked == ["b", "a", "c", "d"]
    assert (*use, sum(counts)) == (3, 1, 7)


def test_a_reopened_cache_needs_no_embedder(tmp_path):
    embed(Counting(), EmbeddingCache(Home(tmp_path), "m"), ["a", "b"])
    embedder = Counting()
    vectors, use = embed(embedder, EmbeddingCache(Home(tmp_path), "m"), ["b", "a", "b"])
    assert np.array_equal(vectors, wanted(["b", "a", "b"]))
    assert (use, embedder.asked) == ((2, 0), [])
    assert embed(embedder, EmbeddingCache(Home(tmp_path), "m"), [])[0].shape[0] == 0


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
    vectors, use = embed(embedder, EmbeddingCache(Home(tmp_path), "m"), texts)
    assert np.array_equal(vectors, wanted(texts))
    assert (embedder.asked, use) == (["a", "b", "c"], (4, 3))
    assert all(str(paths[text]) in caplog.text for text in "abc")
    assert embed(embedder, EmbeddingCache(Home(tmp_path), "m"), texts)[1] == (4, 0)


_KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from rag_eval.retrieval.embedding import source as module
from test_retrieval_cache import Counting
module.BLOCK = 10
class Dies(Counting):
    def embed(self, texts, advance=None):
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
module.embed_cached(embedder.embed, cache, [f"text {i}" for i in range(100)])
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
    vectors, use = embed(embedder, EmbeddingCache(Home(tmp_path), "m"), texts)
    assert np.array_equal(vectors, wanted(texts))
    assert embedder.asked == texts[30:]
    assert use == (100, 70)
