"""Killed at any moment, the next run ends with the report of an undisturbed one.

The moments are spread over what a run does once it holds its home: reading, indexing, retrieving, measuring, writing reports, MLflow, lineage.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KILLS, KILLS_IN_ONE_HOME = 20, 10


class Undisturbed(NamedTuple):
    """The project folder, the content_hash, and how long a run worked after it took its home."""

    root: Path
    content_hash: str
    seconds: float


def start(root: Path, home: str) -> "subprocess.Popen[bytes]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAG_EVAL_")}
    command = [sys.executable, "-m", "rag_eval.cli", "run", "smoke", "--gold-sets", str(root / "gold_sets"), "--home", str(root / home), "--reports", str(root / f"{home}-reports")]
    with (root / f"{home}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, cwd=root, env=env)


def took_home(process: "subprocess.Popen[bytes]", root: Path, home: str) -> None:
    """Wait until the process holds the home, whose lock file then names it."""
    lock = root / home / "lock"
    while process.poll() is None and not (lock.is_file() and lock.read_text() == str(process.pid)):
        time.sleep(0.005)


def killed(root: Path, home: str, after: float) -> bool:
    """Kill a run some seconds after it took its home; whether it was still running then."""
    process = start(root, home)
    took_home(process, root, home)
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def finished(root: Path, home: str) -> str:
    """Run to the end; the content_hash of its report. MLflow and Dagster must have recorded it, whatever was killed before."""
    log = root / f"{home}.log"
    before = log.stat().st_size if log.is_file() else 0
    process = start(root, home)
    assert process.wait(timeout=300) == 0, log.read_text()
    assert "warning" not in log.read_text()[before:]
    reports = root / f"{home}-reports"
    assert not list((root / home).rglob(".partial-*"))
    top, own = (json.loads((folder / "retrieval-metrics.json").read_text(encoding="utf-8")) for folder in (reports, reports / "smoke"))
    assert top == own
    return own["content_hash"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, project_root) -> Undisturbed:
    root = tmp_path_factory.mktemp("kill")
    shutil.copytree(project_root / "gold_sets" / "smoke", root / "gold_sets" / "smoke")
    process = start(root, "first")
    took_home(process, root, "first")
    began = time.monotonic()
    assert process.wait(timeout=300) == 0
    seconds = time.monotonic() - began
    report = json.loads((root / "first-reports" / "smoke" / "retrieval-metrics.json").read_text(encoding="utf-8"))
    return Undisturbed(root, report["content_hash"], seconds)


def test_killed_in_fresh_homes(undisturbed):
    rng = random.Random(20_240_229)
    moments = [(i + rng.random()) / KILLS for i in range(KILLS)]

    def once(number: int) -> tuple[bool, str]:
        home = f"home-{number}"
        struck = killed(undisturbed.root, home, moments[number] * undisturbed.seconds)
        result = finished(undisturbed.root, home)
        shutil.rmtree(undisturbed.root / home)
        return struck, result

    with ThreadPoolExecutor(max_workers=2) as pool:
        found = list(pool.map(once, range(KILLS)))
    assert {content_hash for _, content_hash in found} == {undisturbed.content_hash}
    assert sum(struck for struck, _ in found) >= KILLS // 2  # the others had ended before they were struck


def test_killed_again_and_again_in_one_home(undisturbed):
    rng = random.Random(13)
    strikes = [killed(undisturbed.root, "long-lived", rng.uniform(0.0, 0.7) * undisturbed.seconds) for _ in range(KILLS_IN_ONE_HOME)]
    assert finished(undisturbed.root, "long-lived") == undisturbed.content_hash
    assert any(strikes)
    assert finished(undisturbed.root, "long-lived") == undisturbed.content_hash
