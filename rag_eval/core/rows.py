"""Read the rows of untrusted text files and check them against pydantic models.

A text file is UTF-8, with or without byte-order mark, with line feeds or CRLF, and may be
compressed by gzip. Sizes are bounded, and each fault becomes a problem with its place.
Pydantic is imported where a model is met, because the API reads runs without a model.
"""

import csv
import difflib
import gzip
import io
import json
import math
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, NamedTuple, TypeVar, get_args

from rag_eval.core.errors import Place, ProblemList, quoted

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

MAX_FILE_BYTES = 2 * 1024**3
"""Largest file in bytes, also after decompression. A larger file is refused."""
MAX_LINE_BYTES = 16 * 1024**2
"""Longest line in bytes. A longer line is reported and never held in memory as a whole."""

_BOM = b"\xef\xbb\xbf"

Location = tuple[int | str, ...]
"""Keys and list indices that lead to a value."""


class Fault(NamedTuple):
    """Fault of a line: problem code, sentence and found text."""

    code: str
    message: str
    found: str | None = None

    def report(self, problems: ProblemList, path: Path, line: int, accepted: str) -> None:
        """Add the fault to the problems of a file."""
        code, message, text = self
        problems.add(code, message, file=str(path), line=line, found=text, accepted=accepted)


class _RefusedError(ValueError):
    """A file or JSON value that the standard library accepts and this package refuses."""

    def __init__(self, *fault: str) -> None:
        super().__init__(*fault)
        self.fault = Fault(*fault)


# ---- Files and lines.

_GZIP_ENDING, _GZIP_MARK = ".gz", b"\x1f\x8b"
_READ_ERRORS = (OSError, EOFError, ValueError, zlib.error)
"""Errors of paths, of damaged gzip files, and of files that are larger than the limit."""


def find_file(path: Path) -> Path:
    """Return the path of a text file: as given, or with `.gz` where only that file exists."""
    packed = path.with_name(path.name + _GZIP_ENDING)
    return packed if not path.exists() and packed.exists() else path


def ending_of(path: Path) -> str:
    """Return the ending of a file name in lower case, without `.gz`: `.trec` of `run.TREC.gz`."""
    return Path(path.name.lower().removesuffix(_GZIP_ENDING)).suffix


def _report_unreadable(error: Exception, path: Path, problems: ProblemList, limit: int) -> None:
    fault = Fault("unreadable_file", f"the file cannot be read: {quoted(str(error))}")
    if isinstance(error, FileNotFoundError):
        fault = Fault("missing_file", "the file does not exist")
    elif isinstance(error, _RefusedError):
        fault = error.fault
    accepted = f"at most {limit} bytes" if fault.code == "file_too_large" else None
    problems.add(fault.code, fault.message, path, found=fault.found, accepted=accepted)


def _check_size(size: int, limit: int, found: str) -> None:
    if size > limit:
        raise _RefusedError("file_too_large", "the file is too large", found)


def _open(path: Path, limit: int) -> BinaryIO | gzip.GzipFile:
    """Open a regular file of at most `limit` bytes; a gzip file may hold more."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _RefusedError("not_a_file", "this is not a regular file")
    _check_size(status.st_size, limit, f"{status.st_size} bytes")
    stream = path.open("rb")
    if not stream.peek(len(_GZIP_MARK)).startswith(_GZIP_MARK):
        return stream
    stream.close()
    return gzip.open(path)


def _split_lines(
    stream: BinaryIO | gzip.GzipFile, limit: int
) -> Iterator[tuple[int, bytes | None]]:
    """Yield line numbers from 1 and bytes, None for a line too long; stop after `limit` bytes."""
    number = size = 0
    is_start, is_whole = True, True
    while part := stream.readline(MAX_LINE_BYTES + 1):
        size += len(part)
        _check_size(size, limit, "more after decompression")
        ends = part.endswith(b"\n") or len(part) <= MAX_LINE_BYTES
        if is_start:
            number, is_whole = number + 1, ends
        is_start = ends
        if ends:
            text = part.removeprefix(_BOM) if number == 1 else part
            yield number, text if is_whole else None
    if not is_start:
        yield number, None


def _decode(data: bytes | None) -> str | Fault:
    """Decode UTF-8 without NUL, or return the fault; `data` None means a line over the limit."""
    if data is None:
        return Fault("line_too_long", "the line is too long", f"over {MAX_LINE_BYTES} bytes")
    zeros = data.count(0)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or (zeros > 1 and len(data) < 3 * zeros):
        return Fault("bad_encoding", "the text is UTF-16 or UTF-32, not UTF-8")
    if zeros:
        return Fault("nul_byte", "the text holds a NUL byte", f"at byte {data.index(0) + 1}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad_byte = f"byte 0x{data[error.start]:02x} at byte {error.start + 1}"
        message = "the text is not UTF-8, perhaps it is Latin-1 or Windows-1252"
        return Fault("bad_encoding", message, bad_byte)


def decode_file(data: bytes, path: Path, problems: ProblemList) -> str | None:
    """Decode a whole file without its byte-order mark; report the first line with a fault."""
    data = data.removeprefix(_BOM)
    for number, line in enumerate(data.split(b"\n"), 1):
        if isinstance(fault := _decode(line), Fault):
            fault.report(problems, path, number, "text in UTF-8")
            return None
    return data.decode("utf-8")


def read_text(path: Path, problems: ProblemList, limit: int) -> str | None:
    """Read a small file whole; None after one problem. A byte-order mark is left out."""
    try:
        with _open(path, limit) as stream:
            data = stream.read(limit + 1)
        _check_size(len(data), limit, "more after decompression")
    except _READ_ERRORS as error:
        _report_unreadable(error, path, problems, limit)
        return None
    return decode_file(data, path, problems)


def read_raw_lines(
    path: Path, problems: ProblemList, limit: int = MAX_FILE_BYTES
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number of each line, from 1, and its bytes; None stands for a line too long.

    Problems of the file: `missing_file`, `unreadable_file`, `not_a_file`, `file_too_large`.
    """
    try:
        with _open(path, limit) as stream:
            yield from _split_lines(stream, limit)
    except _READ_ERRORS as error:
        _report_unreadable(error, path, problems, limit)


def read_lines(
    path: Path, problems: ProblemList, limit: int = MAX_FILE_BYTES
) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank, without its line end.

    Lines with a fault are reported and left out: `line_too_long`, `nul_byte`, `bad_encoding`. The
    problems of the file are those of `read_raw_lines`.
    """
    for number, data in read_raw_lines(path, problems, limit):
        text = _decode(data)
        if isinstance(text, Fault):
            text.report(problems, path, number, "text in UTF-8")
            if data is not None and data[:1] in (b"\xff", b"\xfe"):
                return  # Stop: in UTF-16 each further line would be a fault too.
        elif text and not text.isspace():
            yield number, text.rstrip("\r\n")


# ---- JSON lines.


def _read_number(text: str) -> float:
    if not math.isfinite(float(text)):
        raise _RefusedError("bad_number", "NaN, infinity and larger numbers are refused", text[:40])
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _read_whole(text: str) -> float:
    return int(text) if len(text) < sys.float_info.max_10_exp else math.inf


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _RefusedError("duplicate_key", "a key occurs twice in one object", twice)
    return row


_STRICT: dict[str, Any] = {
    "object_pairs_hook": _refuse_duplicates,
    **dict.fromkeys(("parse_constant", "parse_float", "parse_int"), _read_number),
}


def parse_object(data: bytes | str | None, *, strict: bool = True) -> dict[str, Any] | Fault:
    """Parse one line to a JSON object.

    `strict` refuses NaN, infinity, numbers that no float holds, and keys that stand twice.
    """
    text = data if isinstance(data, str) else _decode(data)
    if isinstance(text, Fault):
        return text
    try:
        value = json.loads(text, **(_STRICT if strict else {}))
    except RecursionError:
        return Fault("too_deep", "the JSON is nested too deeply")
    except _RefusedError as error:
        return error.fault
    except ValueError as error:
        return Fault("bad_json", f"not JSON: {quoted(str(error))}", quoted(text))
    if not isinstance(value, dict):
        return Fault("not_an_object", "the line is JSON but not an object", quoted(text))
    return value


def read_objects(
    path: Path,
    problems: ProblemList,
    accepted: str = "one JSON object a line",
    limit: int = MAX_FILE_BYTES,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a .jsonl file with their line numbers; faults become problems."""
    for number, text in read_lines(path, problems, limit):
        value = parse_object(text)
        if isinstance(value, Fault):
            value.report(problems, path, number, accepted)
        else:
            yield number, value


_BETWEEN_VALUES = re.compile(r"[\s,\[\]]*")


def read_values(
    path: Path, problems: ProblemList, limit: int = MAX_FILE_BYTES, *, strict: bool = True
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a file with the lines where they begin; faults become problems.

    The file holds one object a line, one object, or a list of objects, and is read whole. `strict`
    is that of `parse_object`; without it, numbers that no float holds are infinite.
    """
    accepted = "JSON lines, a JSON object, or a list of objects"
    text = read_text(path, problems, limit) or ""
    decoder = json.JSONDecoder(**(_STRICT if strict else {"parse_int": _read_whole}))
    at, line = 0, 1
    # The pattern matches the empty text too, so there always is a match.
    while (start := _BETWEEN_VALUES.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        line += text.count("\n", at, start)
        value, fault = None, Fault("not_an_object", "the value is JSON but not an object")
        try:
            value, at = decoder.raw_decode(text, start)
        except RecursionError:
            fault = Fault("too_deep", "the JSON is nested too deeply")
        except _RefusedError as error:
            fault = error.fault
        except json.JSONDecodeError as error:
            line, fault = error.lineno, Fault("bad_json", f"not JSON: {quoted(error.msg)}")
        if not isinstance(value, dict):
            fault.report(problems, path, line, accepted)
            return
        yield line, value
        line += text.count("\n", start, at)


TEXT_TABLES = (".jsonl", ".json", ".csv", ".tsv")
"""Endings of files of records, each of which may be compressed."""


def read_records(path: Path, problems: ProblemList) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line and the values of each record of a file with an ending of TEXT_TABLES.

    Values of .csv and .tsv are texts. Faults become problems.
    """
    ending = ending_of(path)
    if ending == ".jsonl":
        yield from read_objects(path, problems)
    elif ending == ".json":
        yield from read_values(path, problems)
    else:
        yield from _read_table(path, problems, "\t" if ending == ".tsv" else ",")


def _read_table(
    path: Path, problems: ProblemList, separator: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and cells of each row under a header; report rows of another width."""
    text = read_text(path, problems, MAX_FILE_BYTES) or ""
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    accepted = 'UTF-8; text with a separator or a line break stands in "quotation marks"'
    line, header = 1, list[str]()
    try:
        for cells in reader:
            first, line = line, reader.line_num + 1
            if not header:
                header = cells
                if len(set(header)) < len(header):
                    message, names = "two columns have one name", quoted(", ".join(header))
                    problems.add("duplicate_column", message, path, line=first, found=names)
                    return
            elif len(cells) == len(header):
                yield first, dict(zip(header, cells, strict=True))
            elif any(map(str.strip, cells)):
                message = f"this row has {len(cells)} columns where {len(header)} are due"
                problems.add("bad_columns", message, path, line=first, accepted=accepted)
    except csv.Error as error:
        message = f"not CSV: {quoted(str(error))}"
        problems.add("bad_csv", message, path, line=line, accepted=accepted)


class SeenIds:
    """Ids, or tuples of ids, with the place of their first use; a second use is a problem."""

    def __init__(self, problems: ProblemList) -> None:
        self._problems = problems
        self._first: dict[object, str] = {}

    def add(
        self, key: object, file: str, line: int, field: str, code: str = "duplicate_id"
    ) -> bool:
        """Remember an id, and return whether it is new."""
        place = f"{file}:{line}"
        first = self._first.setdefault(key, place)
        if first != place:
            key_text = quoted(", ".join(key) if isinstance(key, tuple) else key)
            more: Place = {"line": line, "field": field, "found": key_text, "accepted": "each once"}
            self._problems.add(code, f"this was already used at {quoted(first, 400)}", file, **more)
        return first == place


# ---- Errors of pydantic models as problems that name field, found and accepted.

_IN_QUOTES = re.compile(r"'([^']*)'")
_UNFIT = "this value is not accepted"


class FieldFault(NamedTuple):
    """One error of a model: code, sentence, location, found value and accepted values."""

    code: str
    message: str
    location: Location
    found: str | None
    accepted: str | None
    is_rule: bool
    """Whether a rule over several keys was broken; `location` is then their mapping."""


def format_location(location: Sequence[int | str]) -> str:
    """Write a location as text, such as `strategies[1].rerank.lambda`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def suggest(word: str, accepted: Sequence[str]) -> str:
    """Return `; did you mean bm25?` if an accepted word is similar, else an empty text."""
    near = difflib.get_close_matches(word[:100], accepted, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _models_in(annotation: object) -> Iterator[type["BaseModel"]]:
    from pydantic import BaseModel

    from rag_eval.core.parts import AnyClass

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for part in get_args(annotation):
        yield from part.load().values() if isinstance(part, AnyClass) else _models_in(part)


def _fields_at(model: type["BaseModel"], location: Location) -> list[tuple[str, "FieldInfo"]]:
    """List the fields of the mapping at a location, which may hold tags of union members."""
    models = [model]
    for part in location:
        below = [
            inner
            for option in models
            for name, field in option.model_fields.items()
            if part == (field.alias or name)
            for inner in _models_in(Annotated[(field.annotation, *field.metadata, None)])
        ]
        tagged = [
            option
            for option in models
            if any(part in get_args(field.annotation) for field in option.model_fields.values())
        ]
        models = below or tagged or models
    fields = (field for option in models for field in option.model_fields.items())
    return [(field.alias or name, field) for name, field in fields]


def _find_keys(location: Location, values: object) -> Location:
    """Leave out the parts of a location that are no keys of `values` but tags of union members."""
    if values is None:
        return location
    place: list[int | str] = []
    for part in location:
        try:
            values = values[part]  # type: ignore[index]  # another type is an error
        except (TypeError, LookupError):
            continue
        place.append(part)
    return tuple(place)


def _show(value: object) -> str | None:
    if isinstance(value, dict | list | tuple):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    if isinstance(value, str):
        return quoted(value) if value else "nothing"
    return "nothing" if value is None else quoted(json.dumps(value, default=repr))


REMOVED_KEYS: Final = {
    "answers.embedding": "the deterministic mode compares words; delete the key",
    "answers.fail_closed": "put `answer_contract` under `gates.required`",
    "answers.retry_on_schema_fail": "set `schema_retry_attempts` to 0",
    "answers.preflights.patterns": "list literal `terms`",
    "answers.max_sentences": "the deterministic mode cites up to three sentences; delete the key",
    "description": "nothing shows it; write a comment",
    "answers.preflights.max_sections": "two sections are read; list `sections` for others",
    "gates.min_convergent_hit": "half of the questions must be convergent and hit",
    "corpus.pattern": "all files of known formats are read; `exclude` leaves files out",
    **dict.fromkeys(
        (f"corpus.{name}_column" for name in ("title", "url", "author", "date")),
        "columns of the names title, url, author and date are read",
    ),
    "trust.about_injection": "`rag-eval trust allow` lets pages that quote attacks in",
    "trust.signatures": "name a `manifest`, which `rag-eval trust sign` signs",
    "trust.unsigned": "a document that the manifest does not record has a warning",
    "uncertainty.also": "copy the gold set under another name and change `uncertainty.target`",
}
"""Keys of earlier versions without the positions of lists, each with what to use instead."""


def field_faults(
    error: "ValidationError", model: type["BaseModel"], values: object
) -> Iterator[FieldFault]:
    """Yield the faults that a model found in `values`.

    Codes: `missing_key`, `unknown_key`, `removed_key`, `wrong_type`, `bad_value`, and those of
    `refuse`.
    """
    errors = error.errors(include_url=False)
    deeper = {item["loc"][:end] for item in errors for end in range(len(item["loc"]))}
    for item in errors:
        kind, context, path = item["type"], item.get("ctx", {}), item["loc"]
        if kind == "too_short" and path in deeper:
            continue  # the list is too short because its only item is at fault
        tag = context.get("discriminator", "").strip("'")
        above, key = (path, tag) if tag else (path[:-1], str((*path, "")[len(path) - 1]))
        fields = _fields_at(model, above)
        note = next((field.description for name, field in fields if name == key), None)
        location, shown = _find_keys(path, values), _show(item["input"])
        code = "wrong_type" if kind.endswith("_type") else "bad_value"
        message, _, need = item["msg"].removeprefix("Value error, ").partition(" should ")
        accepted = " ".join(filter(None, (need.removeprefix("be "), note and f"({note})"))) or None
        message = _UNFIT if need else message
        words = _IN_QUOTES.findall(context.get("expected") or context.get("expected_tags", ""))
        if kind in {"missing", "extra_forbidden", "union_tag_not_found"}:
            keys = list(dict.fromkeys(name for name, _ in fields))
            if kind == "extra_forbidden":
                code, shown, note = "unknown_key", quoted(key), None
                message = f"the key is not known{suggest(key, keys)}"
                dotted = ".".join(part for part in location if isinstance(part, str))
                if advice := REMOVED_KEYS.get(dotted):
                    code, message = "removed_key", f"the key was removed; {advice}"
            else:
                code, message, shown = "missing_key", f"{key} is missing", None
                location = (*_find_keys(above, values), key)
                kinds = (field.annotation for name, field in fields if name == tag)
                keys = sorted(word for kind in kinds for word in get_args(kind)) or keys
            accepted = note or ", ".join(keys)
        elif words:
            if tag:
                location, shown = (*location, tag), quoted(str(context["tag"]))
            message, accepted = f"{_UNFIT}{suggest(shown or '', words)}", ", ".join(sorted(words))
        elif "accepted" in context:
            code, accepted = kind, context["accepted"]
            if field := context["field"]:
                location = (*location, field)
                shown = _show(item["input"].get(field)) if isinstance(item["input"], dict) else None
        yield FieldFault(code, message, location, shown, accepted, kind == "value_error")


Model = TypeVar("Model", bound="BaseModel")


def _report_faults(  # noqa: PLR0917 - an error, its model, and the place of the faults
    error: "ValidationError",
    model: type["BaseModel"],
    problems: ProblemList,
    file: str | None,
    line: int | None,
    values: object = None,
) -> None:
    """Add the faults that a model found in one line to the problems."""
    for code, message, place, shown, accepted, _ in field_faults(error, model, values):
        field = format_location(place) or None
        more: Place = {"line": line, "field": field, "found": shown, "accepted": accepted}
        problems.add(code, message, file, **more)


def check_row(
    values: Mapping[str, Any],
    model: type[Model],
    problems: ProblemList,
    file: str | None,
    line: int | None,
    *,
    strict: bool = False,
) -> Model | None:
    """Make a record of the values of one line, or report each fault and return None."""
    from pydantic import ValidationError

    try:
        if not strict:
            return model.model_validate(values)
        # strict validation accepts a list for a tuple only from JSON
        return model.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        _report_faults(error, model, problems, file, line, values)
        return None


def read_rows(path: Path, model: type[Model], problems: ProblemList) -> Iterator[tuple[int, Model]]:
    """Yield line number and record of each row of a .jsonl file; faults become problems."""
    for number, values in read_objects(path, problems):
        row = check_row(values, model, problems, str(path), number)
        if row is not None:
            yield number, row
