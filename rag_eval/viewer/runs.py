"""Kept runs as the viewer shows them: found by name, described in a line, and their parts as they are stored.

Belongs here: reading. No path is made of what a browser says before it matches a pattern in full; what is damaged is named and stops nothing else.
"""

import dataclasses
import functools
import gzip
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rag_eval.evaluation.comparing import run_ids
from rag_eval.evaluation.kept_runs import kept_run
from rag_eval.records.problems import InputError, Problem
from rag_eval.reporting.verdict_reading import read_object
from rag_eval.storage.artifacts import Artifact, ArtifactStore

RUN_ID: Final = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")
PART: Final = re.compile(r"summary|(?:questions|chunks)-[0-9]{4,7}")
_KEY: Final = re.compile(r"[0-9a-f]{8,64}")
PER_PAGE: Final = 50
MEASURE: Final = "R@10"
EXPLORER, CLAIMS, HTML = "explorer", "claims", "html"
"""Stages of the artifacts that are shown, and their names in a kept run."""
HTML_FILE: Final = "index.html"
_NOT_PACKED: Final = (EOFError, gzip.BadGzipFile, zlib.error)
"""What gzip says of a file that was cut off, of one that is none, and of one that was changed."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval and how many questions are behind it."""

    value: float
    low: float | None
    high: float | None
    n: int | None


@dataclasses.dataclass(frozen=True)
class Kept:
    """A kept run in a line.

    Parameters
    ----------
    run_id, gold_set, timestamp, strategy, index_hash
        Which run, of what, when (UTC, ISO 8601), and its primary strategy.
    level
        Where gold is judged.
    recall
        R@10 of the primary strategy; None where none could be measured.
    gates
        How many by status.
    artifacts
        Keys by stage.
    """

    run_id: str
    gold_set: str
    timestamp: str
    strategy: str
    index_hash: str
    level: str
    recall: Estimate | None
    gates: Mapping[str, int]
    artifacts: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Damaged:
    """A kept run that cannot be read, and why."""

    run_id: str
    why: str


@dataclasses.dataclass(frozen=True)
class Page:
    """Some of the kept runs, the newest first, and the run id below which the older ones stand; None where there are none."""

    rows: tuple[Kept | Damaged, ...]
    n_runs: int
    older: str | None


class KeptRuns:
    """The kept runs of a home.

    Parameters
    ----------
    home
        Folder of the stores; read only.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._store = ArtifactStore(home / "artifacts")

    def page(self, before: str | None = None) -> Page:
        """List runs, those older than `before` only where it is given."""
        ids = [run_id for run_id in run_ids(self._home) if RUN_ID.fullmatch(run_id)]
        left = [run_id for run_id in ids if before is None or run_id < before]
        chosen = left[: -PER_PAGE - 1 : -1]
        return Page(
            tuple(self._row(run_id) for run_id in chosen),
            len(ids),
            chosen[-1] if len(left) > len(chosen) else None,
        )

    def _row(self, run_id: str) -> Kept | Damaged:
        try:
            return _kept(self._home, run_id, self._stamp(run_id))
        except (InputError, OSError) as error:
            return Damaged(
                run_id,
                error.problems[0].message
                if isinstance(error, InputError)
                else "the file cannot be read",
            )

    def _stamp(self, run_id: str) -> tuple[int, int]:
        found = (self._home / "runs" / f"{run_id}.json").stat()
        return found.st_mtime_ns, found.st_size

    def run(self, run_id: str) -> Kept | None:
        """Read one run; None where there is none of this name. Runs of earlier versions are read too: what is shown of one is what it has.

        Raises
        ------
        InputError
            It is not as it was kept.
        """
        if not RUN_ID.fullmatch(run_id):
            return None
        try:
            stamp = self._stamp(run_id)
        except FileNotFoundError:
            return None
        return _kept(self._home, run_id, stamp)

    def artifact(self, run: Kept, stage: str) -> Artifact | None:
        """Find what a run made; None where it keeps none or it was removed."""
        key = run.artifacts.get(stage, "")
        return self._store.get(stage, key) if _KEY.fullmatch(key) else None

    def part(self, run: Kept, name: str) -> bytes | None:
        """Read a part of a run's explorer as it is stored, gzip; None where there is none of this name."""
        found = self.artifact(run, EXPLORER) if PART.fullmatch(name) else None
        return None if found is None else _bytes(found.path(f"{name}.json.gz"))

    def html(self, run: Kept) -> bytes:
        """Read the HTML report of a run, or make it of what is kept; takes a second or more, and is not to be called by two threads at once.

        Raises
        ------
        InputError
            The run is not as it was kept.
        """
        found = self.artifact(run, HTML)
        stored = None if found is None else _bytes(found.path(HTML_FILE))
        if stored is not None:
            return stored
        try:
            return _built(
                self._home, run.run_id, self._stamp(run.run_id), run.artifacts.get(EXPLORER)
            )
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            *_NOT_PACKED,
        ) as error:  # a report of its schema that says what no run says, or damaged questions
            raise InputError(
                Problem(
                    "run_unreadable",
                    "no page can be made of its report",
                    file=str(self._home / "runs" / f"{run.run_id}.json"),
                    found=f"{type(error).__name__}: {error}",
                )
            ) from error


def unpacked(part: bytes) -> bytes:
    """Undo gzip, for a client that cannot.

    Raises
    ------
    InputError
        It is not as it was kept.
    """
    try:
        return gzip.decompress(part)
    except _NOT_PACKED as error:
        raise InputError(
            Problem(
                "run_unreadable",
                "a part of its questions is damaged",
                found=f"{type(error).__name__}: {error}",
            )
        ) from error


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@functools.lru_cache(maxsize=2)
def _built(home: Path, run_id: str, stamp: tuple[int, int], explorer: str | None) -> bytes:  # noqa: ARG001 - the file's time and size say when to build it again
    from rag_eval.evaluation.html_steps import built_page

    bundle = (
        ArtifactStore(home / "artifacts").get(EXPLORER, explorer)
        if explorer is not None and _KEY.fullmatch(explorer)
        else None
    )
    return built_page(kept_run(home, run_id)["report"], bundle).html.encode()


@functools.lru_cache(maxsize=2048)
def _kept(home: Path, run_id: str, stamp: tuple[int, int]) -> Kept:  # noqa: ARG001 - the file's time and size say when to read it again
    path = home / "runs" / f"{run_id}.json"
    kept = read_object(path)
    if (
        not isinstance(kept.get("report"), dict)
        or not isinstance(kept.get("artifacts"), dict)
        or not isinstance(kept.get("gold_set"), str)
    ):
        raise InputError(
            Problem("run_unreadable", "not a run as it was kept", file=str(path), found=run_id)
        )
    report, artifacts = _mapping(kept.get("report")), _mapping(kept.get("artifacts"))
    gates = (
        [str(_mapping(gate).get("status")) for gate in report["gates"]]
        if isinstance(report.get("gates"), list)
        else []
    )
    return Kept(
        run_id=run_id,
        gold_set=_text(kept.get("gold_set")),
        timestamp=_text(report.get("timestamp")),
        strategy=_text(report.get("strategy")),
        index_hash=_text(_mapping(report.get("index")).get("hash")),
        level=_text(_mapping(report.get("evaluation")).get("level")),
        recall=_recall(report),
        gates={status: gates.count(status) for status in ("pass", "fail", "insufficient_evidence")},
        artifacts={str(stage): key for stage, key in artifacts.items() if isinstance(key, str)},
    )


def _recall(report: Mapping[str, Any]) -> Estimate | None:
    level = _mapping(report.get("evaluation")).get("level")
    entries = (
        [_mapping(entry) for entry in report["strategies"]]
        if isinstance(report.get("strategies"), list)
        else []
    )
    own = next((entry for entry in entries if entry.get("name") == report.get("strategy")), {})
    measures = (
        [_mapping(measure) for measure in own["measures"]]
        if isinstance(own.get("measures"), list)
        else []
    )
    found = next(
        (
            measure
            for measure in measures
            if measure.get("label") == MEASURE and measure.get("level") == level
        ),
        {},
    )
    value, n = _number(found.get("value")), _number(found.get("n_scored"))
    return (
        None
        if value is None
        else Estimate(
            value,
            _number(found.get("ci_low")),
            _number(found.get("ci_high")),
            None if n is None else int(n),
        )
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
