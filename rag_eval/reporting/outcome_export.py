"""Outcomes as a file of the field: CSV, JSON lines or Parquet, by the ending of its name.

Belongs here: the files' forms. JSON lines are what `rag-eval outcome import --restore` takes back.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.reporting.tables import write_csv
from rag_eval.storage.atomic import atomic_path, write_text
from rag_eval.uncertainty.outcome_rows import of_frame

RESTORED: Final = ".jsonl"
"""The ending of files that are taken back."""
_OBJECTS: Final = ("gold_strategies", "gold_documents", "signals")


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Lists and objects as JSON text, which any reader of tables takes."""
    return frame.assign(
        **{
            name: [json.dumps(value, sort_keys=True, ensure_ascii=False) for value in frame[name]]
            for name in _OBJECTS
        }
    )


def _jsonl(path: Path, frame: pd.DataFrame) -> None:
    write_text(
        path,
        "".join(
            f"{json.dumps(outcome.model_dump(mode='json'), sort_keys=True, ensure_ascii=True)}\n"
            for outcome in of_frame(frame)
        ),
    )


def _csv(path: Path, frame: pd.DataFrame) -> None:
    plain = _plain(frame)
    rows: list[dict[str, Any]] = [
        {
            str(name): None if value is None or value != value else value
            for name, value in row.items()
        }
        for row in plain.to_dict("records")
    ]  # noqa: PLR0124 - NaN is the value that differs from itself
    write_csv(path, list(plain.columns), rows)


def _parquet(path: Path, frame: pd.DataFrame) -> None:
    with atomic_path(path) as partial:
        _plain(frame).to_parquet(partial, index=False)


WRITERS: Final[Mapping[str, Callable[[Path, pd.DataFrame], None]]] = {
    ".csv": _csv,
    RESTORED: _jsonl,
    ".parquet": _parquet,
}


def write_outcomes(path: Path, frame: pd.DataFrame) -> None:
    """Write outcomes (columns of `RETRIEVAL_OUTCOMES`) to a file, whole or not at all.

    Raises
    ------
    InputError
        `bad_value`: an ending that is not accepted.
    """
    writer = WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputError(
            Problem(
                "bad_value",
                "the ending says which kind of file to write",
                file=str(path),
                found=quoted(path.suffix),
                accepted=", ".join(WRITERS),
            )
        )
    writer(path, frame)
