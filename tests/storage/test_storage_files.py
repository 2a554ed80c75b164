"""Atomic files, and the one hashing function."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.storage.hashing import digest, lines_hash
from rag_eval.storage.home import atomic_path, write_bytes, write_text


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


def test_a_digest_is_the_same_in_every_version():
    text = '{"a":[1.5,"ü",null],"b":1}'
    assert digest({"b": 1, "a": [1.5, "ü", None]}) == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert digest("\ud800") != digest("\ud801")


@given(st.lists(st.text(max_size=3), max_size=5), st.lists(st.text(max_size=3), max_size=5))
def test_a_sequence_is_hashed_with_its_borders(one, other):
    assert (lines_hash(one) == lines_hash(other)) == (one == other)
    assert lines_hash(iter(one)) == lines_hash(one)
