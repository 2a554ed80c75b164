"""Kept runs in short: the figures that a history shows and what they rest on, read from files that anybody may have changed.

Belongs here: what is taken from a kept run, its checks, and the summary beside it that spares the next night the reading. What is said of several
runs together is `history_steps` and `previous_steps`.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rag_eval.corpus.masking import mask
from rag_eval.evaluation.comparing import run_ids
from rag_eval.records.problems import InputError, quoted
from rag_eval.records.uncertainty import Status
from rag_eval.reporting.verdict_reading import read_object
from rag_eval.storage.atomic import write_text
from rag_eval.storage.hashing import canonical_json, digest

SUMMARY_VERSION: Final = 2
MAX_SUMMARY_BYTES: Final = 2_000_000
MAX_UNREADABLE: Final = 20
NOT_KEPT: Final = "not a run as it was kept"
CANNOT: Final = "it cannot be read"
MAX_STRATEGIES: Final = 1000
MAX_KNOWN: Final = 10_000
FIGURES: Final = {"recall": "R@10", "mrr": "RR"}

GateStatus = Literal["pass", "fail", "insufficient_evidence"]
Count = Annotated[int, Field(ge=0, le=10**12)]
Rate = Annotated[float, Field(ge=0, le=1)]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32,64}$")]
IndexHash = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}:[0-9a-f]{32}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
REVISION: Final = r"^[A-Za-z0-9][A-Za-z0-9_.,:=+@/-]{0,199}$"
Revision = Annotated[str, StringConstraints(pattern=REVISION)]


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class PastFigure(_Checked):
    """A figure with its 95 % interval over groups."""

    value: Rate | None
    ci_low: Rate | None
    ci_high: Rate | None
    n_scored: Count


class PastSkill(_Checked):
    """Brier skill of predictions for groups that were not fitted, with its interval."""

    value: Annotated[float, Field(le=1)] | None
    ci_low: Annotated[float, Field(le=1)] | None
    ci_high: Annotated[float, Field(le=1)] | None


class PastStrategy(_Checked):
    """One strategy of a kept run; None where the run does not say it. `configuration` is a hash of how it was configured, `fingerprint` what its claims carry."""

    index_hash: IndexHash
    configuration: Hash
    fingerprint: Hash | None
    recall: PastFigure | None
    mrr: PastFigure | None
    miss_any: PastFigure | None
    skill: PastSkill | None
    smece: Rate | None
    status: Status | None
    latency_p95_ms: Annotated[float, Field(ge=0)] | None


class PastRun(_Checked):
    """A kept run.

    `settings` is a hash of levels, cutoffs, seeds and of what a miss is; `code` the version of the code; `ranking` the key of its per-query figures.
    """

    gold_set: Name
    run_id: Annotated[str, StringConstraints(pattern=r"^[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}$")]
    timestamp: Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z$")]
    gold_hash: Hash
    n_groups: Count
    index_hash: IndexHash
    chunks_hash: Hash
    rev: Revision | None
    level: Literal["document", "section", "span"]
    settings: Hash
    code: Hash | None
    strategies: Annotated[dict[Name, PastStrategy], Field(max_length=MAX_STRATEGIES)]
    gates: dict[GateStatus, Count]
    ranking: Hash | None


@dataclasses.dataclass(frozen=True)
class Past:
    """What a home keeps of one gold set.

    Parameters
    ----------
    runs
        Oldest first.
    unreadable
        run_id and reason of runs that cannot be read, newest first; of which gold set they were nobody knows.
    n_unreadable
        How many those are in all.
    n_left_out
        Older runs of the gold set that are not among `runs`.
    """

    runs: list[PastRun]
    unreadable: list[dict[str, str]]
    n_unreadable: int
    n_left_out: int


def past_run(kept: Mapping[str, Any]) -> PastRun:
    """Take from a kept run (gold_set, artifacts, report) what a history needs; parts that earlier versions did not have are None.

    Raises
    ------
    pydantic.ValidationError, KeyError, TypeError, AttributeError
        Something is not as a run is kept.
    """
    report = kept["report"]
    index, evaluation, uncertainty = (
        report["index"],
        report["evaluation"],
        report.get("uncertainty", {}),
    )
    rev = index.get("corpus_rev")
    named = (
        isinstance(rev, str) and re.fullmatch(REVISION, rev) is not None and mask(rev).text == rev
    )
    statuses: tuple[GateStatus, ...] = get_args(GateStatus)
    return PastRun(
        gold_set=kept["gold_set"],
        run_id=report["run_id"],
        timestamp=report["timestamp"],
        gold_hash=report["gold"]["hash"],
        n_groups=report["gold"]["n_groups"],
        index_hash=index["hash"],
        chunks_hash=index["chunks_hash"],
        rev=rev if named else None,
        level=evaluation["level"],
        settings=settings_hash(
            evaluation, report["gold"].get("seeds"), uncertainty.get("target"), uncertainty.get("k")
        ),
        code=report.get("code", {}).get("version"),
        strategies={entry["name"]: _strategy(entry, report) for entry in report["strategies"]},
        gates={
            status: sum(gate["status"] == status for gate in report["gates"]) for status in statuses
        },
        ranking=kept["artifacts"].get("ranking"),
    )


def settings_hash(evaluation: Mapping[str, Any], seeds: object, target: object, k: object) -> str:
    """Hash levels, cutoffs, seeds and what a miss is."""
    return digest([evaluation, seeds, target, k])


def configuration_hash(configuration: Mapping[str, Any]) -> str:
    """Hash how a strategy was configured."""
    return digest(configuration)


def _strategy(entry: Mapping[str, Any], report: Mapping[str, Any]) -> PastStrategy:
    level, name = report["evaluation"]["level"], entry["name"]
    by_label = {record["label"]: record for record in entry["measures"] if record["level"] == level}
    stated = report.get("uncertainty", {}).get("strategies", {}).get(name, {})
    observed = stated.get("observed", {}).get("miss_any")
    calibration = report.get("calibration", {}).get("strategies", {}).get(name, {})
    validation = calibration.get("validation") or {}
    skill, smece = validation.get("skill"), validation.get("smece")
    return PastStrategy(
        index_hash=entry["index_hash"],
        configuration=configuration_hash(entry["configuration"]),
        fingerprint=stated.get("fingerprint"),
        **{key: _figure(by_label.get(label)) for key, label in FIGURES.items()},
        miss_any=_figure(observed),
        skill=None
        if skill is None
        else PastSkill(value=skill["value"], ci_low=skill["low"], ci_high=skill["high"]),
        smece=None if smece is None else smece["value"],
        status=calibration.get("status"),
        latency_p95_ms=entry["latency_ms"]["p95"],
    )


def _figure(record: Mapping[str, Any] | None) -> PastFigure | None:
    return (
        None
        if record is None
        else PastFigure(**{key: record[key] for key in PastFigure.model_fields})
    )


def past_runs(home: Path, gold_set: str, *, before: str, limit: int) -> Past:
    """Read the newest kept runs of a gold set, at most `limit`, whose ids come before `before`.

    A run is read whole once, which takes as long as its file is large; then its summary is.
    """
    found: list[PastRun] = []
    unreadable: list[dict[str, str]] = []
    left_out = 0
    for run_id in reversed(
        [run_id for run_id in run_ids(home) if run_id < before and not run_id.startswith(".")]
    ):
        run = _summary(home, run_id)
        if isinstance(run, str):
            unreadable.append({"run_id": quoted(mask(run_id).text, 100), "reason": run})
        elif run.gold_set == gold_set:
            left_out += len(found) == limit
            found += [run] if len(found) < limit else []
    return Past(found[::-1], unreadable[:MAX_UNREADABLE], len(unreadable), left_out)


def known_fingerprints(home: Path, gold_set: str, strategy: str) -> set[str]:
    """Fingerprints that a strategy's claims had in any kept run of a gold set; which of them is whose, an outcome does not say."""
    entries = [
        run.strategies.get(strategy)
        for run in past_runs(home, gold_set, before="~", limit=MAX_KNOWN).runs
    ]
    return {
        entry.fingerprint
        for entry in entries
        if entry is not None and entry.fingerprint is not None
    }


def keep_summary(home: Path, run_id: str) -> PastRun | str:
    """Read a kept run and write its summary beside it; returns the run, or what is wrong with it."""
    path = home / "runs" / f"{run_id}.json"
    try:
        of = _identity(path)
    except OSError:
        return CANNOT
    run = _read(path, run_id)
    body = (
        {"run": None, "reason": run}
        if isinstance(run, str)
        else {"run": run.model_dump(), "reason": None}
    )
    write_text(_place(home, run_id), canonical_json({"version": SUMMARY_VERSION, "of": of, **body}))
    return run


def _place(home: Path, run_id: str) -> Path:
    return home / "runs" / f"{run_id}.summary"


def _identity(path: Path) -> list[int]:
    """What changes when a file is written anew: its size and its time."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]


def _summary(home: Path, run_id: str) -> PastRun | str:
    """Return a kept run from its summary where there is one of this very file, else from the file."""
    path = _place(home, run_id)
    try:
        loaded = (
            json.loads(path.read_text(encoding="utf-8"))
            if path.is_file() and path.stat().st_size <= MAX_SUMMARY_BYTES
            else None
        )
        if (
            isinstance(loaded, dict)
            and loaded["version"] == SUMMARY_VERSION
            and loaded["of"] == _identity(home / "runs" / f"{run_id}.json")
        ):
            return (
                PastRun.model_validate(loaded["run"])
                if loaded["reason"] is None
                else quoted(mask(loaded["reason"][:1000]).text, 200)
            )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):  # a summary is only a copy: the run itself is read again
        return keep_summary(home, run_id)
    return keep_summary(home, run_id)


def _read(path: Path, run_id: str) -> PastRun | str:
    try:
        run = past_run(read_object(path))
    except ValidationError as error:
        names = {*PastRun.model_fields, *PastStrategy.model_fields, *PastFigure.model_fields}
        return f"{NOT_KEPT}: {'.'.join(str(part) for part in error.errors()[0]['loc'] if part in names)}"
    except InputError as error:
        return quoted(error.problems[0].message, 200)
    except OSError:
        return CANNOT
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return NOT_KEPT
    return run if run.run_id == run_id else f"{NOT_KEPT}: it is another run's file"
