"""The files of Chroma's graphs hold no residue of a process's memory."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from rag_eval.core.errors import InputError
from rag_eval.retrieval.dense import ChromaStore, clear_unused

GARBAGE = b"\xbe" * 8  # glibc fills allocated memory with the complement of 65

KILLED = """
import os, sys
from pathlib import Path
import chromadb, numpy
from chromadb.config import Settings
from rag_eval.retrieval.dense import ChromaStore
bare = chromadb.PersistentClient(sys.argv[1], settings=Settings(anonymized_telemetry=False))
few = bare.create_collection("few", embedding_function=None)
few.add(ids=[str(i) for i in range(7)], embeddings=numpy.eye(7, 16))
vectors = numpy.random.default_rng(0).normal(size=(1500, 16)).astype("f4")
ids = [str(i) for i in range(1500)]
store = ChromaStore(Path(sys.argv[2]))
for count in (0, 7, 1500):
    store.sync(f"model{count}", ids[:count], vectors[:count], ids[:count])
    store.build(f"graph{count}", ids[:count], vectors[:count], ids[:count], seed=1)
os._exit(0)
"""


def with_garbage(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if GARBAGE in path.read_bytes()]


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


def test_places_in_use_stay_and_an_unknown_header_is_an_error(tmp_path):
    store = ChromaStore(tmp_path)
    ids = [f"c{i}" for i in range(1200)]  # Chroma writes a graph from 1,000 vectors on.
    store.sync("model", ids, np.ones((1200, 16), dtype=np.float32), ids)
    store.close()
    level0 = next(tmp_path.glob("*/data_level0.bin"))
    header = level0.with_name("header.bin")
    before = level0.read_bytes()
    assert before.strip(b"\0")
    level0.write_bytes(before + b"sk-secret" * 30)
    assert clear_unused(tmp_path) == 270
    assert level0.read_bytes() == before + bytes(270)
    header.write_bytes(b"\2" + header.read_bytes()[1:])
    with pytest.raises(InputError, match="chroma_layout"):
        ChromaStore(tmp_path)
    header.write_bytes(b"")  # A killed process never wrote the header.
    assert clear_unused(tmp_path) > 0
    assert not level0.read_bytes().strip(b"\0")
