"""After a kill at any moment, the next run ends with the report of an undisturbed run.

The moments cover a whole process from its start to its exit. The process imports, takes the home,
reads, indexes, retrieves, measures, and writes reports, MLflow and lineage. A process that ended
before its moment does not count, so the test draws other moments until enough have counted.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HOMES, ATTEMPTS = 4, 24
"""Homes with a killed run, and the most homes to try.

Each quarter of a run has a kill. A home is struck again before its run may end.
"""


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
    command = [
        sys.executable,
        "-m",
        "rag_eval.cli",
        "run",
        "smoke",
        "--gold-sets",
        str(root / "gold_sets"),
        "--home",
        str(root / home),
        "--reports",
        str(root / f"{home}-reports"),
    ]
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


def moments(rng: random.Random) -> Iterator[float]:
    """Yield shares of the undisturbed duration, first one in each quarter, in random order."""
    quarters = [(i + rng.random()) / HOMES for i in range(HOMES)]
    rng.shuffle(quarters)
    yield from quarters
    while True:
        yield rng.random()


def test_killed_twice_in_one_home(undisturbed):
    rng = random.Random(20_240_229)
    drawn = list(enumerate(itertools.islice(moments(rng), ATTEMPTS)))
    again = [rng.random() for _ in drawn]
    root = undisturbed.root

    def once(attempt: tuple[int, float]) -> tuple[frozenset[str], str] | None:
        number, moment = attempt
        home = f"home-{number}"
        result = None
        if killed(root, home, moment * undisturbed.seconds):
            reached = frozenset(folder.name for folder in (root / home / "artifacts").glob("*"))
            killed(root, home, again[number] * undisturbed.seconds)
            result = (reached, finished(root, home))
        shutil.rmtree(root / home, ignore_errors=True)
        return result

    struck: list[tuple[frozenset[str], str]] = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        while len(struck) < HOMES and (batch := drawn[: HOMES - len(struck)]):
            drawn = drawn[len(batch) :]
            struck += [result for result in pool.map(once, batch) if result is not None]
    assert len(struck) == HOMES, f"only {len(struck)} of {ATTEMPTS} runs were struck"
    assert {content_hash for _, content_hash in struck} == {undisturbed.content_hash}
    assert len({reached for reached, _ in struck}) >= 3  # the kills struck different stages
