"""Artifacts in an object store: uploaded, then published, and read with their checksums."""

import shutil
import uuid

import numpy as np
import pytest
from test_storage_artifacts import flip_bit, put_sharded

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.retrieval.embedding.source import EmbeddingCache, pack_hashes
from rag_eval.storage.artifacts import ArtifactStore
from rag_eval.storage.home import Home


@pytest.fixture
def home(tmp_path):
    """Return a home in the object store that fsspec keeps in memory."""
    return Home(f"memory://{uuid.uuid4().hex}/home", tmp_path / "scratch")


@pytest.fixture
def other(home, tmp_path):
    """Return the home as another worker opens it."""
    return Home(home.url, tmp_path / "another worker")


def parts_of(seconds=1.0):
    return {"value": {"a": 1}, "array": np.arange(3), "lines.txt": b"x\n", "seconds": seconds}


def put(home, seconds=1.0):
    return ArtifactStore(home).put("stage", parts_of(seconds), volatile=["seconds"], key="key")


def test_another_worker_reads_what_was_published(home, other):
    made = put(home)
    assert not made.reused
    found = ArtifactStore(other).whole("stage", "key")
    assert (found.id, found.reused) == (made.id, True)
    assert found.json("value") == {"a": 1}
    assert found.array("array").tolist() == [0, 1, 2]
    assert found.bytes("lines.txt") == b"x\n"
    shutil.rmtree(home.folder)
    assert ArtifactStore(home).memo("stage", "key", dict).json("seconds") == 1.0


def test_another_worker_reads_a_sharded_frame(home, other):
    made = put_sharded(ArtifactStore(home), {"a": [], "b": ["doc-2"]})
    found = ArtifactStore(other).whole("whole", made.key)
    assert found.frame("rows")["doc_id"].tolist() == ["doc-1", "doc-10", "doc-3"]
    home.remove("artifacts/shard/b")
    assert ArtifactStore(other).whole("whole", made.key) is None


def test_an_upload_without_its_record_is_no_artifact(home, other, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(Home, "create", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            put(home)
    assert len(home.names("artifacts")) == 4
    assert ArtifactStore(other).get("stage", "key") is None
    assert ArtifactStore(other).whole("stage", "key") is None
    assert put(other).json("value") == {"a": 1}


def test_the_loser_of_two_writers_reads_what_the_winner_wrote(home, other):
    assert put(home, seconds=1.0).json("seconds") == 1.0
    lost = put(other, seconds=2.0)
    assert (lost.json("seconds"), lost.reused) == (1.0, False)
    shutil.rmtree(home.folder)
    assert ArtifactStore(home).whole("stage", "key").json("seconds") == 1.0


def test_a_damaged_local_copy_is_fetched_again_and_a_lost_object_is_made_again(home, other, caplog):
    flip_bit(put(home).path("array.npy"))
    assert ArtifactStore(home).memo("stage", "key", dict).array("array").tolist() == [0, 1, 2]
    assert not caplog.records
    (lost,) = (name for name in home.names("artifacts") if name.endswith("array.npy"))
    home.delete(lost)
    assert not ArtifactStore(other).memo("stage", "key", parts_of).reused


@pytest.mark.parametrize("name", ["value.json", "array.npy", "artifact.json"])
def test_a_damaged_object_is_named_and_made_again(home, other, name, caplog):
    made = put(home)
    (place,) = (one for one in home.names("artifacts") if one.endswith(f"/{name}"))
    other.write(place, b"[")
    if name == "array.npy":
        with pytest.raises(InputError, match="artifact_damaged"):
            ArtifactStore(other).get("stage", "key").array("array")
    again = ArtifactStore(other).memo("stage", "key", parts_of)
    assert (again.reused, again.array("array").tolist()) == (False, [0, 1, 2])
    assert name in caplog.text
    shutil.rmtree(home.folder)
    assert ArtifactStore(home).whole("stage", "key").json("value") == made.json("value")


def test_vectors_of_two_workers_are_one_cache(home, other):
    one, two = EmbeddingCache(home, "m"), EmbeddingCache(other, "m")
    a, b = pack_hashes(["a" * 64]), pack_hashes(["b" * 64])
    one.add(a, np.ones((1, 2), dtype=np.float32))
    two.add(b, np.zeros((1, 2), dtype=np.float32))
    shutil.rmtree(home.folder)
    both = EmbeddingCache(home, "m")
    assert both.vectors(both.find(np.concatenate([b, a]))).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("more", "field", "accepted"),
    [
        ({"tracking_uri": "http://mlflow:5000"}, "database_url", "postgresql"),
        (
            {"tracking_uri": "http://mlflow:5000", "database_url": "sqlite:///x.db"},
            "database_url",
            "postgresql",
        ),
        ({"database_url": "postgresql://db/x"}, "tracking_uri", "http"),
    ],
)
def test_an_address_as_home_needs_servers_beside_it(more, field, accepted):
    with pytest.raises(ValueError, match=rf"{field}\n.*accepted: .*{accepted}"):
        Settings(home="s3://team/home", **more)
    assert Settings(home="local").database_url is None


def test_a_store_that_cannot_be_used_is_named(home, monkeypatch):
    def refuse(*_):
        raise ConnectionError("no route")

    monkeypatch.setattr(type(home._files), "cat_file", refuse)
    with pytest.raises(InputError, match=r"home_unreachable.*no route"):
        ArtifactStore(home).get("stage", "key")
