"""Fixture of a folder of documents in a git repository."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


class Checkout:
    """Documents below `base/corpus`; `git init` makes `base` a repository."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def write(self, name, content):
        path = self.base / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def git(self, *arguments, at="2024-03-01T12:00:00+00:00", given=""):
        if shutil.which("git") is None:
            pytest.skip("git is not installed")
        options = "user.name=T user.email=t@example.org commit.gpgsign=false"
        identity = [part for option in options.split() for part in ("-c", option)]
        dates = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00+00:00", "GIT_COMMITTER_DATE": at}
        command = ["git", *identity, *arguments]
        env = os.environ | dates
        options = {"cwd": self.base, "env": env, "input": given}
        done = subprocess.run(command, check=True, capture_output=True, text=True, **options)
        return done.stdout.strip()

    def commit(self, *at):
        """Commit everything, and return the commit."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change", **({"at": at[0]} if at else {}))
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)
