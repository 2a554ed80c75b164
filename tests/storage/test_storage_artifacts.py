"""The artifact store holds an artifact whole or not at all, also after a failure."""

import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rag_eval.core.errors import InputError
from rag_eval.storage.artifacts import ArtifactStore, ShardedFrame
from rag_eval.storage.home import Home, sweep


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(Home(tmp_path))


def list_all(store):
    return sorted(path.relative_to(store.root).as_posix() for path in store.root.rglob("*"))


def test_parts_come_back_as_they_were(store):
    frame = pd.DataFrame(
        {
            "text": pd.Series(["a", "", "naïve\n", "𝒳"], dtype="str"),
            "count": np.array([1, -2, 2**62, 0], dtype=np.int64),
            "score": [0.1, -np.inf, np.nan, 1e-300],
            "flag": [True, False, True, False],
        },
        index=[9, 8, 7, 6],
    )
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    value = {"b": [1, 2.5, None, True], "a": {"ü": "\u2028"}}
    parts = {"frame": frame, "array": array, "value": value, "none": np.zeros((0, 3))}
    made = store.memo("stage", "key", lambda: parts)
    assert not made.reused
    for artifact in (made, store.get("stage", "key"), store.memo("stage", "key", dict)):
        pd.testing.assert_frame_equal(artifact.frame("frame"), frame.reset_index(drop=True))
        assert np.array_equal(artifact.array("array"), array)
        assert artifact.array("array").dtype == np.float32
        assert artifact.array("none").shape == (0, 3)
        assert artifact.json("value") == value
    assert store.get("stage", "key").reused


def test_an_artifact_is_flushed_before_it_gets_its_name(store, flushed):
    folder = store.memo("stage", "key", lambda: {"value": 1, "array": np.zeros(2)}).folder
    assert flushed.before(folder) == {path.stat().st_ino for path in (folder, *folder.iterdir())}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_maker_that_raises_leaves_nothing(store, error):
    def make():
        raise error

    with pytest.raises(error):
        store.memo("stage", "key", make)
    assert list_all(store) == []
    assert store.memo("stage", "key", lambda: {"value": 1}).json("value") == 1


def fail_half_way():
    yield b"one\n"
    raise ValueError("half way")


@pytest.mark.parametrize(
    "bad",
    [
        {"value": float("nan")},
        {"array": np.array([{}], dtype=object)},
        {"lines.jsonl": fail_half_way()},
    ],
)
def test_a_part_that_cannot_be_written_leaves_nothing(store, bad):
    with pytest.raises(Exception, match=r".+"):
        store.memo("stage", "key", lambda: {"first": 1, **bad, "last": 2})
    assert list_all(store) == ["stage"]
    assert store.get("stage", "key") is None
    assert store.memo("stage", "key", lambda: {"value": 1}).json("value") == 1


def test_a_neighbour_that_was_faster_wins(store):
    neighbour = ArtifactStore(store.home)

    def make():
        neighbour.memo("stage", "key", lambda: {"value": "the neighbour's"})
        return {"value": "ours"}

    assert store.memo("stage", "key", make).json("value") == "the neighbour's"
    files = ["stage", "stage/key", "stage/key/artifact.json", "stage/key/value.json"]
    assert list_all(store) == files


_KILLED = """
import os, signal, sys
from rag_eval.storage import artifacts
from rag_eval.storage.home import Home
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
artifacts._fsync_tree = die
artifacts.ArtifactStore(Home(sys.argv[1])).memo("stage", "key", lambda: {"value": 1})
"""


def test_a_killed_writer_leaves_nothing_that_looks_whole(store, project_root):
    environment = {**os.environ, "PYTHONPATH": str(project_root)}
    command = [sys.executable, "-c", _KILLED, store.home.url]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert store.get("stage", "key") is None
    again = store.memo("stage", "key", lambda: {"value": "whole"})
    assert (again.reused, again.json("value")) == (False, "whole")
    assert sweep(store.root, "*") == 1
    assert not list(store.root.glob("stage/.partial-*"))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_part_may_be_the_file_of_another_artifact(store, monkeypatch, has_links):
    def refuse(self, target):
        raise PermissionError(errno.EPERM, "no hard links here")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    large = store.memo("parts", "k", lambda: {"large.bin": b"x" * 1000, "array": np.arange(3)})
    files = {name: large.path(name) for name in ("large.bin", "array.npy")}
    night = store.memo("bundle", "k", lambda: {"summary": {"night": 1}, **files})
    assert night.path("large.bin").samefile(large.path("large.bin")) == has_links
    shutil.rmtree(large.folder)  # the part outlives the other artifact
    assert night.path("large.bin").read_bytes() == b"x" * 1000
    assert night.array("array").tolist() == [0, 1, 2]


def write_one(store):
    parts = {"value": {"a": 1}, "frame": pd.DataFrame({"x": [1, 2]}), "array": np.arange(3)}
    return store.memo("stage", "key", lambda: parts)


def empty_file(path):
    path.write_bytes(b"")


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["value.json", "frame.parquet", "array.npy", "artifact.json"])
@pytest.mark.parametrize("harm", [empty_file, flip_bit, Path.unlink])
def test_a_damaged_part_is_named_set_aside_and_made_again(store, caplog, name, harm):
    made = write_one(store)
    harm(made.folder / name)
    if name == "artifact.json" and harm is flip_bit:
        (made.folder / name).write_text("[")  # the file can stay valid JSON after flip_bit
    again = write_one(store)
    assert (again.reused, again.id) == (False, made.id)
    assert again.array("array").tolist() == [0, 1, 2]
    assert list((store.root / "stage").glob(".damaged-key*"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(made.folder) in caplog.text
    assert name in caplog.text
    assert write_one(store).reused


def test_a_reader_of_a_damaged_part_is_told_and_changes_nothing(store):
    made = write_one(store)
    flip_bit(made.folder / "array.npy")
    empty_file(made.folder / "frame.parquet")
    found = store.get("stage", "key")
    assert found.json("value") == {"a": 1}
    for read, name in ((found.frame, "frame"), (found.array, "array")):
        with pytest.raises(InputError, match=rf"{name}\.(parquet|npy): error artifact_damaged"):
            read(name)
    assert [path.name for path in (store.root / "stage").iterdir()] == ["key"]


def test_equal_parts_have_equal_ids(store):
    ids = [
        store.put("stage", {"value": value, "timing": key}, volatile=["timing"], key=key).id
        for key, value in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert ids[0] == ids[1] != ids[2]
    assert store.get("stage", "b").id == ids[1]


# ---- Frames with rows in other artifacts.

ROWS = {"a": ["doc-3", "doc-1"], "b": ["doc-2", "doc-10"]}


def put_sharded(store, gone, content="rows"):
    for key, ids in ROWS.items():
        rows = pd.DataFrame({"doc_id": ids, "text": [f"Text of {name}." for name in ids]})
        store.put("shard", {"rows": rows}, key=key)
    return store.put("whole", {"rows": ShardedFrame("shard", gone, ["doc_id"], content)})


def test_a_sharded_frame_is_read_in_order_without_what_is_gone(store):
    artifact = put_sharded(store, {"a": ["doc-1"], "b": []})
    expected = pd.DataFrame({"doc_id": ["doc-10", "doc-2", "doc-3"]})
    expected["text"] = [f"Text of {name}." for name in expected["doc_id"]]
    pd.testing.assert_frame_equal(artifact.frame("rows"), expected)
    pd.testing.assert_frame_equal(artifact.frame("rows", ["text"]), expected[["text"]])


def test_only_the_content_of_a_sharded_frame_identifies_it(store):
    ids = [
        put_sharded(store, gone, content).id
        for gone, content in (
            ({"a": [], "b": []}, "rows"),
            ({"b": [], "a": []}, "rows"),
            ({"a": [], "b": []}, "other rows"),
        )
    ]
    assert ids[0] == ids[1] != ids[2]


def test_an_artifact_without_one_of_its_shards_is_set_aside(store, caplog):
    artifact = put_sharded(store, {"a": [], "b": []})
    assert store.whole("whole", artifact.key) == dataclasses.replace(artifact, reused=True)
    shutil.rmtree(store.root / "shard" / "b")
    with pytest.raises(InputError, match="artifact_damaged"):
        artifact.frame("rows")
    assert store.whole("whole", artifact.key) is None
    assert "lacks artifacts/shard/b" in caplog.text
