"""Evaluations that tests share. Equal gold sets are evaluated once, and each test gets a copy.

A failed run is one failure. The first test that asked shows the failure, and later tests skip.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from cli_project import Project

T = TypeVar("T")
LEFT_BEHIND = ("home", "reports")
NOT_IN_FIGURES = {"RAG_EVAL_TRACKING_URI", "RAG_EVAL_TEST_DATA"}


class Ran(NamedTuple):
    """The output and report of a run."""

    exit_code: int
    stdout: str
    stderr: str
    report: dict


class SharedRuns:
    """Evaluated projects in a folder that all workers of a test run share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def run(self, project: Project, *, times: int = 1, exit_code: int = 0) -> list[Ran]:
        """Give a project without a home the files that `times` runs over its gold set write."""
        assert not project.home.exists(), "only the first runs of a project can be shared"
        stored = self.folder / fingerprint(project, times)
        with self._making(stored) as make:
            if make:
                _store(project, stored, times, exit_code)
            else:
                for name in LEFT_BEHIND:
                    shutil.copytree(stored / name, project.root / name)
        return [Ran(*values) for values in json.loads((stored / "ran.json").read_text("utf-8"))]

    @contextlib.contextmanager
    def _making(self, stored: Path) -> Iterator[bool]:
        """Hold the lock of an evaluation; yield True when the evaluation must be made."""
        failed = stored.with_suffix(".failed")
        with stored.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if failed.exists():
                skip_after(failed.read_text("utf-8"))
            if stored.exists():
                yield False
                return
            failed.write_text(current_test(), "utf-8")
            yield True
            failed.unlink()


class MadeOnce:
    """A value that the first test makes. If that fails, later tests skip and name that test."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._values, self._failed = make, [], ""

    def get(self) -> T:
        if self._failed:
            skip_after(self._failed)
        if not self._values:
            self._failed = current_test()
            self._values.append(self._make())
            self._failed = ""
        return self._values[0]


def fingerprint(project: Project, times: int) -> str:
    """Name the inputs of the runs: the files of all gold sets, the settings, the number of runs."""
    found = hashlib.sha256(str(times).encode())
    for path in sorted((project.root / "gold_sets").rglob("*")):
        if path.is_file():
            found.update(f"{path.relative_to(project.root)}\0".encode() + path.read_bytes())
    names = {name for name in os.environ if name.startswith(("RAG_EVAL_", "FEATURE_"))}
    settings = {name: os.environ[name] for name in names - NOT_IN_FIGURES}
    found.update(json.dumps(settings, sort_keys=True).encode())
    return found.hexdigest()[:16]


def _store(project: Project, stored: Path, times: int, exit_code: int) -> None:
    ran = []
    for _ in range(times):
        result = project.invoke("run", "tiny")
        assert result.exit_code == exit_code, result.output
        ran.append(Ran(result.exit_code, result.stdout, result.stderr, project.report()))
    partial = stored.with_suffix(".partial")
    for name in LEFT_BEHIND:
        shutil.copytree(project.root / name, partial / name)
    (partial / "ran.json").write_text(json.dumps(ran), "utf-8")
    partial.rename(stored)


def current_test() -> str:
    return os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]


def skip_after(test: str) -> None:
    pytest.skip(f"the shared evaluation failed, see {test}")
