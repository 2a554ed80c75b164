"""Lines of untrusted text files: bounded in size, decoded strictly, every fault with its line.

Belongs here: bytes -> lines -> JSON objects. What the objects mean is in `rows`, `files` and `answers`.
"""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import quoted

MAX_FILE_BYTES = 512 * 1024 * 1024
"""A gold file of more bytes is refused unread."""
MAX_LINE_BYTES = 10_000_000
"""A longer line is reported and skipped without being held in memory."""

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class _RowError(ValueError):
    """A JSON value that the standard library takes and we do not."""

    def __init__(self, code: str, message: str, found: str) -> None:
        super().__init__(message)
        self.code, self.found = code, found


def readable(path: Path, problems: ProblemList) -> bool:
    """Whether a path is a regular file of acceptable size; otherwise one problem says why."""
    try:
        status = path.stat()
    except FileNotFoundError:
        problems.add("missing_file", "the file does not exist", file=str(path))
        return False
    except (OSError, ValueError) as error:
        problems.add(
            "unreadable_file", f"the file cannot be read: {quoted(str(error))}", file=str(path)
        )
        return False
    if not stat.S_ISREG(status.st_mode):
        problems.add(
            "not_a_file", "this is not a regular file", file=str(path), accepted="a text file"
        )
        return False
    if status.st_size > MAX_FILE_BYTES:
        problems.add(
            "file_too_large",
            "the file is too large to be a gold file",
            file=str(path),
            found=f"{status.st_size} bytes",
            accepted=f"at most {MAX_FILE_BYTES} bytes",
        )
        return False
    return True


def _raw_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Lines with their numbers; None stands for a line that is too long."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) <= MAX_LINE_BYTES or line.endswith(b"\n"):
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(1 << 20)
        yield number, None


def _decode(raw: bytes | None, file: str, number: int, problems: ProblemList) -> str | None:
    if raw is None:
        problems.add(
            "line_too_long",
            "the line is too long",
            file=file,
            line=number,
            accepted=f"at most {MAX_LINE_BYTES} bytes",
        )
        return None
    if b"\x00" in raw:
        problems.add(
            "nul_byte",
            "the line holds a NUL byte",
            file=file,
            line=number,
            found=f"at byte {raw.index(0) + 1} of the line",
            accepted="UTF-8 text",
        )
        return None
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        problems.add(
            "bad_encoding",
            "the line is not UTF-8",
            file=file,
            line=number,
            found=f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line",
            accepted="UTF-8",
        )
        return None


def read_lines(path: Path, problems: ProblemList) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers from 1, without line ends. A UTF-8 byte-order mark and CRLF are tolerated.

    Faults go into `problems` (`missing_file`, `unreadable_file`, `not_a_file`, `file_too_large`, `line_too_long`, `nul_byte`,
    `bad_encoding`) and their lines are left out.
    """
    if not readable(path, problems):
        return
    file = str(path)
    try:
        with path.open("rb") as stream:
            for number, raw in _raw_lines(stream):
                body = raw
                if number == 1 and raw is not None:
                    if raw.startswith(_UTF16):
                        problems.add(
                            "bad_encoding",
                            "the file is UTF-16",
                            file=file,
                            line=1,
                            accepted="UTF-8",
                        )
                        return
                    body = raw.removeprefix(_BOM)
                text = _decode(body, file, number, problems)
                if text is not None and text.strip():
                    yield number, text
    except OSError as error:
        problems.add("unreadable_file", f"the file cannot be read: {quoted(str(error))}", file=file)


def _no_constant(name: str) -> NoReturn:
    raise _RowError("bad_number", "NaN and infinity are not JSON", name)


def _finite(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise _RowError("bad_number", "the number is out of range", text)
    return number


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RowError("duplicate_key", "a key stands twice in one object", key)
            seen.add(key)
    return row


def read_objects(path: Path, problems: ProblemList) -> Iterator[tuple[int, dict[str, Any]]]:
    """JSON objects of a .jsonl file with their line numbers.

    Besides the faults of `read_lines`: `bad_json`, `too_deep`, `bad_number`, `duplicate_key`, `not_an_object`.
    """
    file = str(path)
    for number, text in read_lines(path, problems):
        try:
            value = json.loads(
                text,
                parse_constant=_no_constant,
                parse_float=_finite,
                object_pairs_hook=_no_duplicates,
            )
        except RecursionError:
            problems.add(
                "too_deep",
                "the JSON is nested too deeply",
                file=file,
                line=number,
                accepted="one flat object a line",
            )
        except _RowError as error:
            problems.add(error.code, str(error), file=file, line=number, found=quoted(error.found))
        except json.JSONDecodeError as error:
            problems.add(
                "bad_json",
                f"not JSON: {error.msg} at column {error.colno}",
                file=file,
                line=number,
                found=quoted(text),
                accepted="one JSON object a line",
            )
        except ValueError as error:  # an integer of more digits than Python converts
            problems.add("bad_number", quoted(str(error)), file=file, line=number)
        else:
            if isinstance(value, dict):
                yield number, value
            else:
                problems.add(
                    "not_an_object",
                    "the line is JSON but not an object",
                    file=file,
                    line=number,
                    found=quoted(text),
                    accepted="one JSON object a line",
                )
