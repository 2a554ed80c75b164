"""Fixtures that every suite may ask for."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import postgres_server
import pytest
import s3_server
from cli_project import PAGES, Project, set_apart
from hypothesis import settings
from requirements import bound_skips, report_missing
from shared_runs import SharedRuns

ROOT = Path(__file__).resolve().parents[1]
os.environ["COLUMNS"] = "120"  # tests share printed runs, so the terminal has one width
os.environ.setdefault(PAGES, "false")
"""Tests write no report page unless they use the fixture `pages`.

A page costs more time than the rest of a tiny run.
"""
settings.register_profile("no-clock", deadline=None)
settings.load_profile("no-clock")
MEMORY, ENOUGH = Path("/dev/shm"), 8e9  # noqa: S108 - pytest makes its own private folder there
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH:
    # A run flushes some 500 files and transactions to disk, which costs seconds on a busy disk.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_sessionfinish(session: pytest.Session) -> None:
    bound_skips(session)


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of the public data sets: RAG_EVAL_TEST_DATA, else ../shared/data."""
    folder = Path(os.environ.get("RAG_EVAL_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "scifact" / "corpus.jsonl").is_file():
        report_missing("data", f"public test data not found at {folder}; set RAG_EVAL_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server; yield its address."""
    with postgres_server.running() as url:
        yield url


@pytest.fixture(params=["folder", "s3"])
def home_url(request, tmp_path, monkeypatch) -> Iterator[str]:
    """Yield the address of a new home of each kind: a folder, and a bucket of an object store."""
    if request.param == "folder":
        yield str(tmp_path / "home")
    else:
        with s3_server.running(monkeypatch) as address:
            yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path) -> str:
    """Return the address of a new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return postgres_server.new_database(request.getfixturevalue("postgres"))


@pytest.fixture(scope="session")
def tracking_store(tmp_path_factory) -> str:
    """Return the address of one MLflow store for all in-process runs.

    A new store for every run would cost seconds.
    """
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


class Scenario(NamedTuple):
    """Project that all tests of a module share, and the patches of the module's environment."""

    project: Project
    patch: pytest.MonkeyPatch


class Flushes:
    """Inodes that were flushed to disk, each with the paths that existed at that moment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[int, set[Path]]] = []

    def note(self, handle: int) -> None:
        self.calls.append((os.fstat(handle).st_ino, set(self.root.rglob("*"))))

    def before(self, path: Path) -> set[int]:
        """Return the inodes that were flushed while the path did not exist."""
        return {inode for inode, paths in self.calls if path not in paths}

    def all(self) -> set[int]:
        return {inode for inode, _ in self.calls}


@pytest.fixture
def flushed(tmp_path, monkeypatch) -> Flushes:
    """Record each flush below the test's folder; the flush itself still happens."""
    flushes, fsync = Flushes(tmp_path), os.fsync

    def watched(handle: int) -> None:
        flushes.note(handle)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    return flushes


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory) -> SharedRuns:
    """Return the evaluations that the tests of all workers share."""
    base = tmp_path_factory.getbasetemp()
    return SharedRuns(
        (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-runs"
    )


@pytest.fixture(scope="module")
def pages():
    """Let runs write the report page, as runs of a person do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAGES, "true")
        yield


@pytest.fixture
def project(tmp_path, monkeypatch, tracking_store) -> Project:
    """Return a project with one tiny gold set."""
    return set_apart(monkeypatch, tmp_path, tracking_store)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory, tracking_store) -> Iterator[Scenario]:
    """Yield a project that the module's fixtures evaluate and the module's tests only read."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("scenario")
        yield Scenario(set_apart(patch, root, tracking_store), patch)
