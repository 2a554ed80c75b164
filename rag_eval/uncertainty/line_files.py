"""Files of JSON lines that people bring: read whole or refused, every fault told with its line and field.

Belongs here: what files of claims and of outcomes share. What their lines mean is `claims` and `outcome_lines`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from rag_eval.corpus.json_lines import lines, object_of
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import InputError, Problem, quoted

MAX_LINE_BYTES: Final = 1_000_000
MAX_FILE_BYTES: Final = 256_000_000
MAX_LINES: Final = 100_000

Record = TypeVar("Record", bound=BaseModel)


def objects(
    path: Path, problems: ProblemList, *, accepted: str, field: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of each line that is one; blank lines are passed over.

    Parameters
    ----------
    path
        A file of at most `MAX_LINES` lines and `MAX_FILE_BYTES` bytes.
    problems
        Takes every line that is no JSON object, and what is too large.
    accepted, field
        What a line looks like, and what named the file, for the error messages.

    Raises
    ------
    InputError
        `file_missing`.
    """
    if not path.is_file():
        raise InputError(
            Problem(
                "file_missing",
                "no such file",
                file=str(path),
                field=field,
                accepted=f"JSON lines: {accepted}",
            )
        )
    count = size = 0
    with path.open("rb") as stream:
        for number, line in lines(stream, MAX_LINE_BYTES):
            size += MAX_LINE_BYTES if line is None else len(line)
            if line is not None and not line.strip():
                continue
            count += 1
            if count > MAX_LINES or size > MAX_FILE_BYTES:
                problems.add(
                    "too_large",
                    "the file is too large",
                    file=str(path),
                    line=number,
                    accepted=f"at most {MAX_LINES} lines and {MAX_FILE_BYTES} bytes; cut it into several files",
                )
                return
            row = object_of(line, strict=True)
            if isinstance(row, tuple):
                problems.add(row[0], row[1], file=str(path), line=number, accepted=accepted)
            else:
                yield number, row


def record_of(
    kind: type[Record],
    row: dict[str, Any],
    problems: ProblemList,
    *,
    file: str | None,
    line: int | None,
) -> Record | None:
    """Make a record of a line's object; None, with every fault told, where it is none."""
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            name = ".".join(str(part) for part in item["loc"])
            code = {"missing": "missing_field", "extra_forbidden": "unknown_key"}.get(
                item["type"], "bad_value"
            )
            found = None if code != "bad_value" or not item["loc"] else quoted(item["input"])
            message = (
                "no such key"
                if code == "unknown_key"
                else item["msg"].removeprefix("Value error, ")
            )
            problems.add(
                code,
                message,
                file=file,
                line=line,
                field=quoted(name) if name else None,
                found=found,
                accepted=_accepted(kind, item["loc"], code),
            )
        return None


def _accepted(kind: type[BaseModel], place: tuple[int | str, ...], code: str) -> str | None:
    if code == "unknown_key":
        return ", ".join(kind.model_fields)
    field = kind.model_fields.get(str(place[0])) if place else None
    return None if field is None else field.description
