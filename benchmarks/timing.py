"""Shared parts of the benchmarks: the folder of public data, timed repeats, and JSON lines."""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path | None:
    """Find the public data in RAG_EVAL_TEST_DATA or `../shared/data`; None if it is absent."""
    folder = Path(os.environ.get("RAG_EVAL_TEST_DATA", ROOT.parent / "shared" / "data"))
    return folder if (folder / "scifact" / "corpus.jsonl").is_file() else None


def emit(bench: str, **figures: object) -> None:
    """Print one JSON line."""
    print(json.dumps({"bench": bench, **figures}), flush=True)


def skipped(bench: str, reason: str) -> None:
    """Print the reason why nothing was measured."""
    emit(bench, skipped=reason)


def json_lines(path: Path) -> list[dict[str, str]]:
    """Read the rows of a .jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def indexed_text(document: dict[str, str]) -> str:
    """Return the indexed text of a BEIR document."""
    return f"{document['title']} {document['text']}".strip()


def alternate(
    runs: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each run.

    The runs take turns, so that a busy machine slows all of them. The first turn is a warm-up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            started = clock()
            run()
            if turn:
                seconds[name].append(clock() - started)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def report(bench: str, seconds: dict[str, float], bar: float, **more: object) -> None:
    """Print the JSON line of a benchmark of the runs `ours` and `reference`."""
    ratio = round(seconds["ours"] / seconds["reference"], 3)
    rounded = {f"{name}_s": round(value, 4) for name, value in seconds.items()}
    emit(bench, **rounded, ratio=ratio, bar=bar, **more)
