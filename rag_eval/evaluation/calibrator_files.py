"""Calibrators on disk: each a JSON file that never changes, which of them was accepted for a strategy, and the watch over what it states.

`<home>/calibrators/<calibrator id>.json` is content-addressed; `<home>/calibrators/accepted/<gold set>/<strategy>/<target>@<k>.json` names one,
`<home>/calibrators/watches/<gold set>/<strategy>/<target>@<k>.json` is the state of its drift watch.
Belongs here: files. What a calibrator is good for is decided in `calibration_steps`, what is watched in `drift_watch`.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_eval.gold.set_names import gold_set_name
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.records.uncertainty import BinaryTarget, Status
from rag_eval.storage.atomic import write_text
from rag_eval.storage.hashing import canonical_json, digest
from rag_eval.uncertainty.drift import Drift
from rag_eval.uncertainty.drift_state import NAME_DIGITS, WatchState

MAX_BYTES: Final = 100_000_000
_ID = re.compile(r"[0-9a-f]{16,64}")
_MOMENT: Final = r"^([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,15}Z)?$"
"""A time as outcomes have it, or none."""


class Accepted(BaseModel):
    """Which calibrator a strategy's claims use, and what it has earned."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calibrator_id: str = Field(pattern=r"^[0-9a-f]{16,64}$")
    strategy_fingerprint: str
    status: Status
    at: str


def calibrator_id(body: dict[str, Any]) -> str:
    """Identity of a calibrator: the hash of all of it but when it was made."""
    return digest(
        {
            key: value
            for key, value in body.items()
            if key not in {"calibrator_id", "fitted_at", "fitted_until"}
        },
        32,
    )


def keep_calibrator(home: Path, body: dict[str, Any]) -> str:
    """Write a calibrator where it is not there already, and return its id."""
    name = calibrator_id(body)
    path = home / "calibrators" / f"{name}.json"
    if not path.is_file():
        write_text(path, f"{canonical_json({**body, 'calibrator_id': name})}\n")
    return name


def read_calibrator(home: Path, name: str) -> dict[str, Any]:
    """Read a calibrator.

    Raises
    ------
    InputError
        It is not there, or not as it was written.
    """
    path = home / "calibrators" / f"{name}.json"
    if not _ID.fullmatch(name) or not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise InputError(
            Problem(
                "calibrator_missing",
                "there is no calibrator of this id",
                file=str(home / "calibrators"),
                found=name,
                accepted="an id that rag-eval calibrate shows",
            )
        )
    body: Any = None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(body, dict) and body.get("calibrator_id") == name == calibrator_id(body)
    except (
        ValueError,
        RecursionError,
    ):  # no JSON, numbers that JSON has not, or nested beyond all that is written here
        whole = False
    if not whole:
        raise InputError(
            Problem(
                "calibrator_damaged",
                "not as it was written; move it away and run rag-eval calibrate",
                file=str(path),
                found=name,
            )
        )
    kept: dict[str, Any] = body
    return kept


def _path(
    home: Path,
    folder: Literal["accepted", "watches"],
    gold_set: str,
    strategy: str,
    target: BinaryTarget,
    k: int,
) -> Path:  # noqa: PLR0917 - the parts of a path, in their order
    return (
        home
        / "calibrators"
        / folder
        / gold_set_name(gold_set)
        / gold_set_name(strategy)
        / f"{target}@{k}.json"
    )


def accept_calibrator(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int, *, accepted: Accepted
) -> None:
    """Name the calibrator that later runs use; the caller holds the home."""
    write_text(
        _path(home, "accepted", gold_set, strategy, target, k),
        f"{canonical_json(accepted.model_dump(mode='json'))}\n",
    )


def accepted_calibrator(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int
) -> Accepted | None:
    """Read which calibrator was accepted, None where none was.

    Raises
    ------
    InputError
        The file is not as it was written.
    """
    path = _path(home, "accepted", gold_set, strategy, target, k)
    if not path.is_file():
        return None
    try:
        return Accepted.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(
            Problem(
                "accepted_damaged",
                "not as it was written; move it away and run rag-eval calibrate",
                file=str(path),
                found=error.errors()[0]["msg"],
            )
        ) from None


class _Watch(BaseModel):
    """The state of a drift watch as it is kept; fields as in `WatchState`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    fingerprint: str = Field(min_length=1)
    drift: dict[str, Any]
    since: str = Field(pattern=_MOMENT)
    fed: frozenset[Annotated[str, Field(pattern=rf"^[0-9a-f]{{{NAME_DIGITS}}}$")]]
    demoted_at: str = Field(pattern=_MOMENT)


def keep_watch(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int, *, state: WatchState
) -> None:
    """Keep the state of a drift watch, whole or as it was before; the caller holds the home."""
    body = {
        "schema_version": 1,
        "fingerprint": state.fingerprint,
        "drift": state.drift.to_json(),
        "since": state.since,
        "fed": sorted(state.fed),
        "demoted_at": state.demoted_at,
    }
    write_text(_path(home, "watches", gold_set, strategy, target, k), f"{canonical_json(body)}\n")


def kept_watch(
    home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int
) -> WatchState | None:
    """Read the state of a drift watch, None where none was kept.

    Raises
    ------
    InputError
        The file is not as it was written.
    """
    path = _path(home, "watches", gold_set, strategy, target, k)
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_BYTES:
        raise _watch_damaged(path, f"more than {MAX_BYTES:,} bytes")
    try:
        read = _Watch.model_validate_json(path.read_bytes())
        drift = Drift.from_json(read.drift)
    except ValidationError as error:
        raise _watch_damaged(path, error.errors()[0]["msg"]) from None
    except InputError as error:
        raise _watch_damaged(path, error.problems[0].found or "") from None
    if not read.fed.issuperset(drift.groups):
        raise _watch_damaged(path, "groups that were never fed")
    return WatchState(read.fingerprint, drift, read.since, read.fed, read.demoted_at)


def _watch_damaged(path: Path, found: str) -> InputError:
    return InputError(
        Problem(
            "drift_damaged",
            "not as it was written; move it away, and the watch starts anew from the outcomes",
            file=str(path),
            found=quoted(found, 200),
        )
    )
