"""Records of rollouts on disk: `<home>/rollouts/<gold set>/<candidate>.json`, written whole or not at all, events only ever added."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from rag_eval.gates.rollout_record import Abandoned, Decided, Planned, RolloutRecord
from rag_eval.gold.set_names import gold_set_name
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.atomic import write_text
from rag_eval.storage.hashing import canonical_json

MAX_BYTES: Final = 50_000_000


def record_path(home: Path, gold_set: str, candidate: str) -> Path:
    """Place of a rollout's record. Both names are one part of a path each, never a way out of the home."""
    return home / "rollouts" / gold_set_name(gold_set) / f"{gold_set_name(candidate)}.json"


def read_record(home: Path, gold_set: str, candidate: str) -> RolloutRecord | None:
    """Read a record, None where nothing was planned.

    Raises
    ------
    InputError
        It is not as it was written.
    """
    path = record_path(home, gold_set, candidate)
    if not path.is_file():
        return None
    problem = "too large", f"{path.stat().st_size} bytes"
    if path.stat().st_size <= MAX_BYTES:
        try:
            record = RolloutRecord.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            problem = ".".join(map(str, first["loc"])), first["msg"]
        else:
            if (record.gold_set, record.candidate) == (gold_set, candidate):
                return record
            problem = "candidate", f"{record.gold_set}/{record.candidate}"
    raise InputError(
        Problem(
            "rollout_damaged",
            "not a record as rag-eval rollout wrote it; move it away and plan anew",
            file=str(path),
            field=problem[0],
            found=problem[1],
        )
    )


def append_events(
    home: Path,
    record: RolloutRecord | None,
    gold_set: str,
    candidate: str,
    events: Sequence[Planned | Decided | Abandoned],
) -> None:
    """Write a record with further events at its end; the caller holds the home and has read `record` under the same lock."""
    before = () if record is None else record.events
    whole = RolloutRecord(gold_set=gold_set, candidate=candidate, events=(*before, *events))
    write_text(
        record_path(home, gold_set, candidate), f"{canonical_json(whole.model_dump(mode='json'))}\n"
    )
