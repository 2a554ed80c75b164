"""Calibrators on disk: each a JSON file that never changes, and which of them was accepted for a strategy.

`<home>/calibrators/<calibrator id>.json` is content-addressed; `<home>/calibrators/accepted/<gold set>/<strategy>/<target>@<k>.json` names one.
Belongs here: files. What a calibrator is good for is decided in `calibration_steps`.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rag_eval.gold.set_names import gold_set_name
from rag_eval.records.problems import InputError, Problem
from rag_eval.records.uncertainty import BinaryTarget, Status
from rag_eval.storage.atomic import write_text
from rag_eval.storage.hashing import canonical_json, digest

MAX_BYTES: Final = 100_000_000
_ID = re.compile(r"[0-9a-f]{16,64}")


class Accepted(BaseModel):
    """Which calibrator a strategy's claims use, and what it has earned."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    calibrator_id: str = Field(pattern=r"^[0-9a-f]{16,64}$")
    strategy_fingerprint: str
    status: Status
    at: str


def calibrator_id(body: dict[str, Any]) -> str:
    """Identity of a calibrator: the hash of all of it but when it was made."""
    return digest({key: value for key, value in body.items() if key not in {"calibrator_id", "fitted_at"}}, 32)


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
        raise InputError(Problem("calibrator_missing", "there is no calibrator of this id", file=str(home / "calibrators"), found=name, accepted="an id that rag-eval calibrate shows"))
    body: Any = None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(body, dict) and body.get("calibrator_id") == name == calibrator_id(body)
    except (ValueError, RecursionError):  # no JSON, numbers that JSON has not, or nested beyond all that is written here
        whole = False
    if not whole:
        raise InputError(Problem("calibrator_damaged", "not as it was written; move it away and run rag-eval calibrate", file=str(path), found=name))
    kept: dict[str, Any] = body
    return kept


def _accepted_path(home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int) -> Path:
    return home / "calibrators" / "accepted" / gold_set_name(gold_set) / gold_set_name(strategy) / f"{target}@{k}.json"


def accept_calibrator(home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int, *, accepted: Accepted) -> None:
    """Name the calibrator that later runs use; the caller holds the home."""
    write_text(_accepted_path(home, gold_set, strategy, target, k), f"{canonical_json(accepted.model_dump(mode='json'))}\n")


def accepted_calibrator(home: Path, gold_set: str, strategy: str, target: BinaryTarget, k: int) -> Accepted | None:
    """Read which calibrator was accepted, None where none was.

    Raises
    ------
    InputError
        The file is not as it was written.
    """
    path = _accepted_path(home, gold_set, strategy, target, k)
    if not path.is_file():
        return None
    try:
        return Accepted.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise InputError(Problem("accepted_damaged", "not as it was written; move it away and run rag-eval calibrate", file=str(path), found=error.errors()[0]["msg"])) from None
