"""The artifact store holds an artifact whole or not at all, also after a failure."""

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.core.errors import InputError
from rag_eval.storage.artifacts import ArtifactStore


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "artifacts")


def everything(store):
    return (
        sorted(path.relative_to(store.root).as_posix() for path in store.root.rglob("*"))
        if store.root.exists()
        else []
    )


def test_parts_come_back_as_they_were(store):
    frame = pd.DataFrame(
        {
            "text": pd.Series(["a", "", "naïve\n", "𝒳"], dtype="str"),
            "count": np.array([1, -2, 2**62, 0], dtype=np.int64),
            "score": [0.1, -np.inf, np.nan, 1e-300],
            "flag": [True, False, True, False],
            "names": [["a", "b"], [], ["c"], ["d"]],
        },
        index=[9, 8, 7, 6],
    )
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    value = {"b": [1, 2.5, None, True], "a": {"ü": "\u2028"}}
    made = store.memo(
        "stage",
        "key",
        lambda: {
            "frame": frame,
            "array": array,
            "value": value,
            "empty": frame.iloc[:0],
            "none": np.zeros((0, 3)),
        },
    )
    assert not made.reused
    for artifact in (made, store.get("stage", "key"), store.memo("stage", "key", dict)):
        back = artifact.frame("frame")
        pd.testing.assert_frame_equal(
            back.drop(columns="names"), frame.drop(columns="names").reset_index(drop=True)
        )
        assert [list(names) for names in back["names"]] == frame["names"].tolist()
        assert artifact.frame("empty").columns.tolist() == frame.columns.tolist()
        assert len(artifact.frame("empty")) == 0
        assert np.array_equal(artifact.array("array"), array)
        assert artifact.array("array").dtype == np.float32
        assert artifact.array("none").shape == (0, 3)
        assert artifact.json("value") == value
        mapped = artifact.array("array", mapped=True)
        assert np.array_equal(mapped, array)
        with pytest.raises(ValueError, match="read-only"):
            mapped[0, 0] = 1
        assert artifact.path("frame.parquet").is_file()
    assert store.get("stage", "key").reused


def test_an_artifact_is_flushed_before_it_gets_its_name(store, flushed):
    folder = store.memo("stage", "key", lambda: {"value": 1, "array": np.zeros(2)}).folder
    assert flushed.before(folder) == {path.stat().st_ino for path in (folder, *folder.iterdir())}


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(st.characters(codec="utf-8")),
        ),
    )
)
def test_any_json_comes_back(tmp_path_factory, value):
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    assert store.memo("s", "k", lambda: {"value": value}).json("value") == value


def test_what_is_there_is_not_made_again(store):
    calls = []

    def make():
        calls.append(1)
        return {"value": len(calls)}

    assert store.get("stage", "key") is None
    assert [store.memo("stage", "key", make).json("value") for _ in range(3)] == [1, 1, 1]
    assert [
        store.memo("stage", "key", make).reused,
        store.memo("stage", "other", make).reused,
        store.memo("other", "key", make).reused,
    ] == [True, False, False]
    assert len(calls) == 3


class StageError(Exception):
    """Raised by a stage."""


@pytest.mark.parametrize("error", [StageError, KeyboardInterrupt, SystemExit])
def test_a_maker_that_raises_leaves_nothing(store, error):
    def make():
        raise error

    with pytest.raises(error):
        store.memo("stage", "key", make)
    assert everything(store) == []
    assert store.memo("stage", "key", lambda: {"value": 1}).json("value") == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"value": float("nan")},
        {"value": object()},
        {"value": "\ud800"},
        {"array": np.array([{}], dtype=object)},
        {"frame": pd.DataFrame({"x": [object()]})},
    ],
)
def test_a_part_that_cannot_be_written_leaves_nothing(store, bad):
    with pytest.raises(Exception, match=r".+"):
        store.memo("stage", "key", lambda: {"first": 1, **bad, "last": 2})
    assert everything(store) == ["stage"]
    assert store.get("stage", "key") is None
    assert store.memo("stage", "key", lambda: {"value": 1}).json("value") == 1


def test_a_part_may_not_take_the_place_of_the_description(store):
    with pytest.raises(ValueError, match="artifact"):
        store.memo("stage", "key", lambda: {"artifact": {}})
    assert everything(store) == []


def test_others_may_read_what_is_stored(store):
    folder = store.memo("stage", "key", lambda: {"value": 1}).folder
    assert folder.stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir())


def test_a_neighbour_that_was_faster_wins(store):
    neighbour = ArtifactStore(store.root)

    def make():
        neighbour.memo("stage", "key", lambda: {"value": "the neighbour's"})
        return {"value": "ours"}

    assert store.memo("stage", "key", make).json("value") == "the neighbour's"
    assert everything(store) == [
        "stage",
        "stage/key",
        "stage/key/artifact.json",
        "stage/key/value.json",
    ]


def _make_at_once(root, number, ready, start):
    def make():
        ready.release()
        start.wait()
        return {"frame": pd.DataFrame({"x": range(2000)}), "writer": [number] * 1000}

    ArtifactStore(root).memo("stage", "key", make)


def test_two_processes_may_make_one_key_at_once(store):
    context = multiprocessing.get_context("spawn")
    ready, start = context.Semaphore(0), context.Event()
    writers = [
        context.Process(target=_make_at_once, args=(store.root, number, ready, start))
        for number in range(2)
    ]
    for writer in writers:
        writer.start()
    for _ in writers:
        assert ready.acquire(timeout=120)
    start.set()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    artifact = store.get("stage", "key")
    assert artifact.json("writer") in ([0] * 1000, [1] * 1000)
    assert len(artifact.frame("frame")) == 2000
    assert store.sweep() == 0


_KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from rag_eval.storage import artifacts
def make():
    if sys.argv[2] == "making":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"first": np.arange(1000), "second": {"a": 1}, "third": [1]}
def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "writing":
    artifacts.canonical_json = die
if sys.argv[2] == "flushing":
    artifacts._fsync_tree = die
artifacts.ArtifactStore(Path(sys.argv[1])).memo("stage", "key", make)
"""


@pytest.mark.parametrize("moment", ["making", "writing", "flushing"])
def test_a_killed_writer_leaves_nothing_that_looks_whole(store, project_root, moment):
    environment = {**os.environ, "PYTHONPATH": str(project_root)}
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(store.root), moment],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert store.get("stage", "key") is None
    left = 0 if moment == "making" else 1
    assert len(list(store.root.glob("stage/.partial-*"))) == left
    again = store.memo("stage", "key", lambda: {"value": "whole"})
    assert (again.reused, again.json("value")) == (False, "whole")
    assert store.sweep() == left
    assert not list(store.root.glob("stage/.partial-*"))
    assert store.get("stage", "key").json("value") == "whole"


_KILLED_ANYWHERE = """
import sys
from pathlib import Path
import numpy as np
from rag_eval.core.errors import InputError
from rag_eval.storage.artifacts import ArtifactStore
store = ArtifactStore(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(100000):
    store.memo("stage", str(number), lambda: {"array": np.full(2000, number), "number": number})
"""


@pytest.mark.slow
def test_whatever_moment_a_writer_is_killed_at(tmp_path, project_root):
    environment = {**os.environ, "PYTHONPATH": str(project_root)}
    for attempt in range(8):
        store = ArtifactStore(tmp_path / str(attempt))
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED_ANYWHERE, str(store.root)],
            env=environment,
            stdout=subprocess.PIPE,
        ) as writer:
            writer.stdout.readline()
            time.sleep(0.05 + 0.013 * attempt)
            writer.kill()
        found = [
            path.name for path in (store.root / "stage").iterdir() if not path.name.startswith(".")
        ]
        assert found
        for key in found:
            artifact = store.get("stage", key)
            assert artifact.json("number") == int(key)
            assert (artifact.array("array") == int(key)).all()
        assert store.sweep() <= 1


def test_sweeping_a_store_that_is_not_there(store):
    assert store.sweep() == 0


def test_a_part_may_be_written_as_it_comes(tmp_path):
    made = ArtifactStore(tmp_path).memo(
        "lines",
        "k",
        lambda: {"a.jsonl": (f"{number}\n".encode() for number in range(3)), "about": {"n": 3}},
    )
    assert made.path("a.jsonl").read_bytes() == b"0\n1\n2\n"


def test_a_part_that_fails_half_way_leaves_nothing(tmp_path):
    def lines():
        yield b"one\n"
        raise ValueError("half way")

    store = ArtifactStore(tmp_path)
    with pytest.raises(ValueError, match="half way"):
        store.memo("lines", "k", lambda: {"a.jsonl": lines()})
    assert store.get("lines", "k") is None
    assert (
        store.memo("lines", "k", lambda: {"a.jsonl": iter([b"two\n"])}).path("a.jsonl").read_bytes()
        == b"two\n"
    )


def test_a_part_may_be_the_file_of_another_artifact_and_takes_its_place_only_once(tmp_path):
    store = ArtifactStore(tmp_path)
    large = store.memo("parts", "k", lambda: {"large.bin": b"x" * 1000, "array": np.arange(3)})
    night = store.memo(
        "bundle",
        "k",
        lambda: {
            "summary": {"night": 1},
            "large.bin": large.path("large.bin"),
            "array.npy": large.path("array.npy"),
        },
    )
    assert night.path("large.bin").samefile(large.path("large.bin"))
    shutil.rmtree(large.folder)  # the other artifact may go
    assert night.path("large.bin").read_bytes() == b"x" * 1000
    assert night.array("array").tolist() == [0, 1, 2]


def test_a_shared_part_is_copied_where_there_are_no_links(tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(errno.EPERM, "no hard links here")

    store = ArtifactStore(tmp_path)
    large = store.memo("parts", "k", lambda: {"large.bin": b"x" * 1000})
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    night = store.memo("bundle", "k", lambda: {"large.bin": large.path("large.bin")})
    assert not night.path("large.bin").samefile(large.path("large.bin"))
    assert night.path("large.bin").read_bytes() == b"x" * 1000


def test_a_shared_part_that_is_not_there_leaves_nothing(tmp_path):
    store = ArtifactStore(tmp_path)
    with pytest.raises(FileNotFoundError):
        store.memo("bundle", "k", lambda: {"large.bin": tmp_path / "nowhere"})
    assert store.get("bundle", "k") is None


def write_one(store, **parts):
    return store.memo(
        "stage",
        "key",
        lambda: {
            "value": {"a": 1},
            "frame": pd.DataFrame({"x": [1, 2]}),
            "array": np.arange(3),
            **parts,
        },
    )


def emptied(path):
    path.write_bytes(b"")


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", ["value.json", "frame.parquet", "array.npy", "artifact.json"])
@pytest.mark.parametrize("harm", [emptied, flipped, Path.unlink])
def test_a_damaged_part_is_named_set_aside_and_made_again(store, caplog, name, harm):
    made = write_one(store)
    harm(made.folder / name)
    if name == "artifact.json" and harm is flipped:
        (made.folder / name).write_text("[")  # a flipped bit there may still be JSON
    again = write_one(store)
    assert (again.reused, again.id) == (False, made.id)
    assert again.array("array").tolist() == [0, 1, 2]
    assert (store.root / "stage" / ".damaged-key").is_dir()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(made.folder) in caplog.text
    assert name in caplog.text
    assert write_one(store).reused


def test_a_folder_without_its_record_is_no_artifact(store):
    made = write_one(store)
    (made.folder / "artifact.json").unlink()
    assert store.get("stage", "key") is None


def test_a_reader_of_a_damaged_part_is_told_and_changes_nothing(store):
    made = write_one(store)
    flipped(made.folder / "array.npy")
    emptied(made.folder / "frame.parquet")
    found = store.get("stage", "key")
    assert found.json("value") == {"a": 1}
    for read, name in ((found.frame, "frame"), (found.array, "array")):
        with pytest.raises(InputError, match=rf"{name}\.(parquet|npy): error artifact_damaged"):
            read(name)
    assert [path.name for path in (store.root / "stage").iterdir()] == ["key"]


def test_each_damaged_artifact_is_kept(store):
    for _ in range(2):
        emptied(write_one(store).folder / "frame.parquet")
    assert not write_one(store).reused
    assert sorted(path.name for path in (store.root / "stage").iterdir()) == [
        ".damaged-key",
        ".damaged-key-2",
        "key",
    ]


def test_equal_parts_have_equal_ids(store):
    def made(key, value):
        return store.memo(
            "stage", key, lambda: {"value": value, "timing": key}, volatile=["timing"]
        )

    ids = [made(key, value).id for key, value in (("a", 1), ("b", 1), ("c", 2))]
    assert ids[0] == ids[1] != ids[2]
    assert store.get("stage", "b").id == ids[1]
    assert store.memo("stage", "d", lambda: {"value": 1, "timing": "d"}).id != ids[0]


def test_an_artifact_of_an_earlier_version_opens(store):
    made = write_one(store)
    (made.folder / "artifact.json").write_text(
        '{"key":"key","parts":["array","frame","value"],"stage":"stage"}'
    )
    found = store.get("stage", "key")
    assert (found.id, found.json("value")) == ("key", {"a": 1})
    assert write_one(store).reused
    emptied(made.folder / "frame.parquet")
    with pytest.raises(InputError, match=r"frame\.parquet: error artifact_damaged"):
        found.frame("frame")


def test_a_part_is_hashed_once_a_process(store, monkeypatch):
    write_one(store)
    write_one(store)
    monkeypatch.setattr(
        "rag_eval.storage.artifacts.file_hash", lambda path: pytest.fail(f"{path} was read again")
    )
    assert write_one(store).frame("frame")["x"].tolist() == [1, 2]
