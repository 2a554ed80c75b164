"""The files of Chroma's graphs hold no residue of a process's memory."""

import os
import platform
import struct
import subprocess
import sys

import numpy as np
import pytest

from rag_eval.core.errors import InputError
from rag_eval.retrieval.dense import ChromaStore, clear_unused
from rag_eval.retrieval.embedding.base import unit

GARBAGE = b"\xbe" * 8  # glibc fills allocated memory with the complement of 65
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="only glibc can be told to fill the memory it hands out",
)

BARE = """
import sys
import chromadb, numpy
from chromadb.config import Settings
client = chromadb.PersistentClient(sys.argv[1], settings=Settings(anonymized_telemetry=False))
few = client.create_collection("few", embedding_function=None)
few.add(ids=[str(i) for i in range(7)], embeddings=numpy.eye(7, 16))
"""

OURS = """
import os, sys
from pathlib import Path
import numpy
from rag_eval.retrieval.dense import ChromaStore
folder, when = Path(sys.argv[1]), sys.argv[2]
vectors = numpy.random.default_rng(0).normal(size=(1500, 16)).astype("f4")
ids = [str(i) for i in range(1500)]
rows = {chunk: row for row, chunk in enumerate(ids)}
store = ChromaStore(folder)
for count in (0, 7, 150, 1500):
    store.sync(f"model{count}", ids[:count], vectors[:count], ids[:count])
    store.build(f"graph{count}", ids[:count], vectors[:count], ids[:count], seed=1)
    store.search(f"graph{count}", vectors[:2], 3, rows)
if when == "closed":
    store.close()
elif when == "reopened":
    store.close()
    store = ChromaStore(folder)
    store.search("graph7", vectors[:2], 3, rows)
    store.sync("model150", ids[:149], vectors[:149], ids[:149])
os._exit(0)
"""


def filled(code, *arguments):
    """Run code in a process whose C library fills allocated memory with garbage."""
    env = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.perturb=65"}
    subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=True, env=env, timeout=120
    )


def with_garbage(folder):
    return [
        path.name
        for path in sorted(folder.rglob("*"))
        if path.is_file() and GARBAGE in path.read_bytes()
    ]


@needs_glibc
def test_chroma_alone_stores_what_the_memory_held_and_opening_clears_it(tmp_path):
    """A failure means that Chroma clears its memory, so `clear_unused` is no longer needed."""
    filled(BARE, tmp_path)
    assert "data_level0.bin" in with_garbage(tmp_path)
    ChromaStore(tmp_path).close()
    assert not with_garbage(tmp_path)


@needs_glibc
@pytest.mark.parametrize("when", ["killed", "closed", "reopened"])
def test_no_memory_of_the_process_stays(tmp_path, when):
    filled(OURS, tmp_path, when)
    assert len(list(tmp_path.glob("*/data_level0.bin"))) == 6
    assert not with_garbage(tmp_path)


def graph(tmp_path, name="graph"):
    return next((tmp_path / name).glob("*/data_level0.bin")).parent


@pytest.fixture
def stored(tmp_path):
    """Make a graph of 1,200 vectors that was written whole, and return its answers."""
    ids = [f"c{i}" for i in range(1200)]
    vectors = unit(np.random.default_rng(0).normal(size=(1200, 16)).astype(np.float32))
    rows = {chunk: row for row, chunk in enumerate(ids)}
    store = ChromaStore(tmp_path / "graph")
    store.build("graph", ids, vectors, ids, seed=1)
    found = store.search("graph", vectors[:50], 10, rows)
    store.close()

    def answers():
        again = ChromaStore(tmp_path / "graph")
        try:
            return again.search("graph", vectors[:50], 10, rows)
        finally:
            again.close()

    return found, answers


def test_what_is_in_use_is_left_and_what_is_not_is_cleared(tmp_path, stored):
    found, answers = stored
    folder = graph(tmp_path)
    whole = {
        name: (folder / name).read_bytes()
        for name in ("data_level0.bin", "length.bin", "header.bin")
    }
    used = struct.unpack_from("<iQQQQ", whole["header.bin"])[3]
    assert used == 1200
    for name in ("data_level0.bin", "length.bin"):
        with (folder / name).open("ab") as stream:
            stream.write(b"sk-secret" * 30)
    assert clear_unused(tmp_path / "graph") == 2 * 270
    for name, before in whole.items():
        after = (folder / name).read_bytes()
        assert after[: len(before)] == before
        assert not after[len(before) :].strip(b"\0")
    assert clear_unused(tmp_path / "graph") == 0
    again = answers()
    assert np.array_equal(again.rows, found.rows)


def test_a_graph_whose_header_was_never_written_has_nothing_in_use(tmp_path):
    folder = tmp_path / "half"
    folder.mkdir()
    (folder / "data_level0.bin").write_bytes(b"\0sk-secret" * 300_000)
    (folder / "header.bin").write_bytes(b"")
    assert clear_unused(tmp_path) == 9 * 300_000
    assert not (folder / "data_level0.bin").read_bytes().strip(b"\0")


@pytest.mark.parametrize("damage", ["layout", "short"])
def test_a_header_that_is_not_understood_is_an_error_and_nothing_is_touched(
    tmp_path, stored, damage
):
    folder = graph(tmp_path)
    header = bytearray((folder / "header.bin").read_bytes())
    if damage == "layout":
        header[0] = 2
    else:
        del header[50:]
    (folder / "header.bin").write_bytes(header)
    before = (folder / "data_level0.bin").read_bytes()
    with pytest.raises(InputError) as raised:
        ChromaStore(tmp_path / "graph")
    assert raised.value.problems[0].code == "chroma_layout"
    assert "header.bin" in str(raised.value)
    assert (folder / "data_level0.bin").read_bytes() == before


def test_an_error_on_the_way_leaves_nothing_either(tmp_path):
    store = ChromaStore(tmp_path)
    store.sync("model", ["a"], np.eye(1, 16, dtype=np.float32), ["a"])
    level0 = next(tmp_path.glob("*/data_level0.bin"))
    level0.write_bytes(b"\1" * level0.stat().st_size)
    with pytest.raises(Exception, match="dimension"):
        store.sync("model", ["b"], np.eye(1, 17, dtype=np.float32), ["b"])
    assert not level0.read_bytes().strip(b"\0")
    store.close()
