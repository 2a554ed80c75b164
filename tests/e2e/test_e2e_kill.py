"""After a kill at any moment, the next run ends with the report of an undisturbed run.

The moments cover a whole process from its start to its exit. The process imports, takes the home,
reads, indexes, retrieves, measures, and writes reports, MLflow and lineage. A process that ended
before its moment does not count, so the test draws other moments until enough have counted.
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HOMES = 4
"""Homes with a killed run. A home is struck again before its run may end."""


class Undisturbed(NamedTuple):
    """Project folder, content_hash and seconds of an undisturbed process.

    The seconds count from the start to the exit of a process while two processes run.
    """

    root: Path
    content_hash: str
    seconds: float


def start(root: Path, home: str) -> "subprocess.Popen[bytes]":
    env = {
        name: value for name, value in os.environ.items() if not name.startswith("RAG_EVAL_")
    } | {"RAG_EVAL_PRIMARY_GOLD_SET": "smoke"}
    folders = {"gold-sets": "gold_sets", "home": home, "reports": f"{home}-reports"}
    options = (part for name, path in folders.items() for part in (f"--{name}", str(root / path)))
    command = [sys.executable, "-m", "rag_eval", "run", "smoke", *options]
    with (root / f"{home}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, cwd=root, env=env)


def killed(root: Path, home: str, after: float) -> bool:
    """Kill a run some seconds after its start; return whether it was still running then.

    A run that ended earlier must have exit status 0.
    """
    process = start(root, home)
    try:
        process.wait(timeout=after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    status = process.wait()
    assert status in {0, -signal.SIGKILL}, (root / f"{home}.log").read_text()
    return status == -signal.SIGKILL


def finished(root: Path, home: str) -> str:
    """Run to the end and return the content_hash of the report.

    MLflow and Dagster must have recorded the run, no matter which process was killed before.
    """
    log = root / f"{home}.log"
    before = log.stat().st_size if log.is_file() else 0
    process = start(root, home)
    assert process.wait(timeout=900) == 0, log.read_text()
    assert "warning" not in log.read_text()[before:]
    reports = root / f"{home}-reports"
    assert not list((root / home).rglob(".partial-*"))
    top, own = (
        json.loads((folder / "retrieval-metrics.json").read_text(encoding="utf-8"))
        for folder in (reports, reports / "smoke")
    )
    assert top == own
    return own["content_hash"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, project_root) -> Undisturbed:
    root = tmp_path_factory.mktemp("kill")
    shutil.copytree(project_root / "gold_sets" / "smoke", root / "gold_sets" / "smoke")
    began = time.monotonic()
    side_by_side = [
        start(root, home) for home in ("first", "second")
    ]  # The killed runs also run in parallel, which slows each run.
    assert [process.wait(timeout=900) for process in side_by_side] == [0, 0], (
        root / "first.log"
    ).read_text()
    seconds = time.monotonic() - began
    report = json.loads(
        (root / "first-reports" / "smoke" / "retrieval-metrics.json").read_text(encoding="utf-8")
    )
    return Undisturbed(root, report["content_hash"], seconds)


def test_killed_twice_in_one_home(undisturbed):
    rng, root = random.Random(20_240_229), undisturbed.root
    # The first kills fall into all parts of a run. Later ones replace kills that came too late.
    first = [(at + rng.random()) / HOMES for at in range(HOMES)]
    drawn = [(moment, rng.random()) for moment in [*first, *(rng.random() for _ in range(20))]]

    def once(attempt: tuple[int, tuple[float, float]]) -> tuple[frozenset[str], str] | None:
        number, (moment, again) = attempt
        home, result = f"home-{number}", None
        if killed(root, home, moment * undisturbed.seconds):
            reached = frozenset(folder.name for folder in (root / home / "artifacts").glob("*"))
            killed(root, home, again * undisturbed.seconds)
            result = (reached, finished(root, home))
        shutil.rmtree(root / home, ignore_errors=True)
        return result

    struck: list[tuple[frozenset[str], str]] = []
    left = list(enumerate(drawn))
    with ThreadPoolExecutor(max_workers=2) as pool:
        while len(struck) < HOMES and (batch := left[: HOMES - len(struck)]):
            left = left[len(batch) :]
            struck += [result for result in pool.map(once, batch) if result is not None]
    assert len(struck) == HOMES, f"only {len(struck)} of {len(drawn)} runs were struck"
    assert {content_hash for _, content_hash in struck} == {undisturbed.content_hash}
    assert len({reached for reached, _ in struck}) >= 3  # the kills struck different stages
