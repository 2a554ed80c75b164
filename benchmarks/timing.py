"""What the benchmarks share: where the public data is, alternating repeats with their medians, and the one JSON line."""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path | None:
    """Public data outside the project, from RAG_EVAL_TEST_DATA or `../shared/data`; None where it is absent."""
    folder = Path(os.environ.get("RAG_EVAL_TEST_DATA", ROOT.parent / "shared" / "data"))
    return folder if (folder / "scifact" / "corpus.jsonl").is_file() else None


def skipped(bench: str, reason: str) -> None:
    """Say why nothing was measured."""
    print(json.dumps({"bench": bench, "skipped": reason}))


def json_lines(path: Path) -> list[dict[str, str]]:
    """Rows of a .jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def indexed_text(document: dict[str, str]) -> str:
    """What is indexed of a BEIR document."""
    return f"{document['title']} {document['text']}".strip()


def alternate(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each run, taken in turns so that a busy machine slows all of them; the first turn only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def report(bench: str, ours: float, reference: float, bar: float, **more: object) -> None:
    """Print the one line; `ratio` is ours / reference."""
    print(
        json.dumps(
            {
                "bench": bench,
                "ours_s": round(ours, 4),
                "reference_s": round(reference, 4),
                "ratio": round(ours / reference, 3),
                "bar": bar,
                **more,
            }
        )
    )
