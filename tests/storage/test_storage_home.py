"""The home by address: equal behaviour in a folder and in an object store."""

import threading

import pytest
import s3_server

from rag_eval.core.errors import InputError
from rag_eval.storage.home import PARTIAL, Home, atomic_path, write_bytes, write_text


def test_a_file_is_written_read_listed_and_deleted(home_url, tmp_path):
    home = Home(home_url, tmp_path / "scratch")
    home.write("runs/a.json", b"1")
    home.write("runs/a.json", b"2")
    home.write("runs/old/b.json", b"3")
    assert home.read("runs/a.json") == b"2"
    assert home.names("runs") == ["runs/a.json", "runs/old/b.json"]
    assert home.names() == home.names("runs")
    home.delete("runs/a.json")
    home.delete("runs/a.json")
    assert not home.has("runs/a.json")
    assert home.names("nothing") == []
    with pytest.raises(FileNotFoundError):
        home.read("runs/a.json")


def test_one_of_eight_writers_creates_a_name(home_url, tmp_path):
    won = []
    homes = [Home(home_url, tmp_path / "scratch") for _ in range(8)]

    def create(at):
        if homes[at].create("lock", b"%d" % at):
            won.append(at)

    threads = [threading.Thread(target=create, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert homes[0].read("lock") == b"%d" % won[0]


def test_a_file_that_another_worker_wrote_is_fetched_once(home_url, tmp_path):
    source = tmp_path / "large"
    source.write_bytes(b"x" * 6_000_000)
    Home(home_url, tmp_path / "one").put("artifacts/large", source)
    other = Home(home_url, tmp_path / "two")
    path = other.fetch("artifacts/large")
    assert path.read_bytes() == source.read_bytes()
    if other.is_remote:
        other.delete("artifacts/large")
        assert other.fetch("artifacts/large") == path
    with pytest.raises(FileNotFoundError):
        other.fetch("artifacts/none")


def test_homes_with_one_scratch_folder_keep_their_copies_apart(tmp_path, monkeypatch):
    with s3_server.running(monkeypatch) as url:
        homes = [Home(f"{url}/{name}", tmp_path) for name in ("one", "two")]
        for home in homes:
            home.write("runs/a", home.url.encode())
        assert [home.fetch("runs/a").read_bytes().decode() for home in homes] == [
            home.url for home in homes
        ]


def test_what_a_killed_writer_left_is_no_file(tmp_path):
    home = Home(tmp_path)
    home.write("runs/a", b"1")
    (tmp_path / "runs" / f"{PARTIAL}b").write_bytes(b"{")
    assert home.names("runs") == ["runs/a"]


@pytest.mark.parametrize("name", ["/etc/passwd", "runs/../../x"])
def test_a_name_stays_in_the_home(tmp_path, name):
    with pytest.raises(ValueError, match="outside of the home"):
        Home(tmp_path).read(name)


def test_a_key_in_the_address_and_an_unknown_store_are_refused():
    with pytest.raises(InputError, match="no user and no key"):
        Home("s3://user:secret@bucket/home")
    with pytest.raises(InputError, match="cannot be opened"):
        Home("nowhere://bucket/home").read("x")


# ---- Atomic files.


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
