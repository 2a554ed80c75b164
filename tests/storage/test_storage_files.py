"""Atomic files, the lock of a home, and the one hashing function."""

import hashlib
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.core.errors import InputError
from rag_eval.storage.artifacts import atomic_path, home_lock, write_bytes, write_text
from rag_eval.storage.hashing import (
    LIBRARIES,
    canonical_json,
    code_version,
    digest,
    file_hash,
    library_versions,
    lines_hash,
    text_hash,
)


def test_a_file_is_written_whole_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b.txt"
    write_text(path, "naïve\nline\n")
    assert path.read_bytes() == "naïve\nline\n".encode()
    write_bytes(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["b.txt"]


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path, flushed):
    path = tmp_path / "a.txt"
    write_text(path, "new")
    assert flushed.before(path) == {path.stat().st_ino}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a.json"
    write_text(path, "old")

    def write_half():
        with atomic_path(path) as partial:
            partial.write_text("half")
            assert partial.suffix == ".json"
            raise error

    with pytest.raises(error):
        write_half()
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


_HOLDER = """
import sys, time, pathlib
from rag_eval.storage.artifacts import home_lock
with home_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


_KILLED = """
import os, signal, sys, pathlib
from rag_eval.storage.artifacts import atomic_path
with atomic_path(pathlib.Path(sys.argv[1], "a.txt")) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def start_python(tmp_path, project_root):
    """Start a process that runs code on this project, with the test's folder as its argument."""

    def start(code):
        environment = {**os.environ, "PYTHONPATH": str(project_root)}
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def holder(start_python):
    with start_python(_HOLDER) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path, start_python):
    write_text(tmp_path / "a.txt", "old")
    with start_python(_KILLED) as process:
        assert process.wait() == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_second_process_is_told_who_holds_the_home(tmp_path, holder):
    with pytest.raises(InputError) as caught, home_lock(tmp_path):
        pass
    problem = caught.value.problems[0]
    assert problem.code == "home_busy"
    assert problem.found == f"held by process {holder.pid}"
    assert problem.file == str(tmp_path)
    with home_lock(tmp_path / "other"):
        pass


def test_a_killed_holder_leaves_no_lock(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with home_lock(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_the_lock_is_freed_when_the_work_ends_or_fails(tmp_path):
    with pytest.raises(RuntimeError), home_lock(tmp_path):
        raise RuntimeError
    busy = pytest.raises(InputError, match=f"held by process {os.getpid()}")
    with home_lock(tmp_path), busy, home_lock(tmp_path):
        pass
    with home_lock(tmp_path):
        pass


def test_a_lock_that_fails_otherwise_is_not_called_held(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("rag_eval.storage.artifacts.fcntl.flock", no_locks)
    with pytest.raises(OSError, match="No locks available"), home_lock(tmp_path):
        pass


VALUES = st.none() | st.booleans() | st.integers() | st.text()
VALUES |= st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def reorder(value):
    if isinstance(value, dict):
        return {key: reorder(value[key]) for key in reversed(list(value))}
    return [reorder(item) for item in value] if isinstance(value, list) else value


@given(JSON, JSON, st.integers(1, 64))
def test_a_digest_is_the_head_of_sha256_over_canonical_json(one, other, length):
    assert canonical_json(reorder(one)) == canonical_json(one)
    assert digest(reorder(one)) == digest(one)
    assert (digest(one) == digest(other)) == (canonical_json(one) == canonical_json(other))
    data = canonical_json(one).encode("utf-8", "surrogatepass")
    assert digest(one, length) == hashlib.sha256(data).hexdigest()[:length]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_numbers_that_json_lacks_are_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest(value)


def test_a_digest_is_the_same_in_every_version():
    text = '{"a":[1.5,"ü",null],"b":1}'
    assert digest({"b": 1, "a": [1.5, "ü", None]}) == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert digest("\ud800") != digest("\ud801")


@given(st.text())
def test_a_text_is_hashed_as_its_bytes(text):
    assert text_hash(text) == hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@given(st.lists(st.text(max_size=3), max_size=5), st.lists(st.text(max_size=3), max_size=5))
def test_a_sequence_is_hashed_with_its_borders(one, other):
    assert (lines_hash(one) == lines_hash(other)) == (one == other)
    assert lines_hash(iter(one)) == lines_hash(one)


def test_a_file_is_hashed_as_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"\x00" * 300_000)
    assert file_hash(tmp_path / "a") == hashlib.sha256(b"\x00" * 300_000).hexdigest()


def test_the_code_version_names_the_libraries_that_figures_depend_on():
    assert set(library_versions()) == set(LIBRARIES)
    assert {"bm25s", "numpy", "chromadb", "scikit-learn"} <= set(LIBRARIES)
    assert len(code_version()) == 32
    assert code_version() == code_version()
