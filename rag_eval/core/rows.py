"""Read the rows of untrusted text files and check them against pydantic models.

Sizes are bounded, texts are decoded strictly, and each fault becomes a problem with its place.
"""

import dataclasses
import difflib
import functools
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from rag_eval.core.errors import ProblemList, quoted

MAX_FILE_BYTES = 2 * 1024**3
"""Largest file in bytes. A larger file is refused before it is read."""
MAX_LINE_BYTES = 16 * 1024**2
"""Longest line in bytes. A longer line is reported and never held in memory as a whole."""

MAX_DIGITS = 308
"""Most digits of a whole number. No float holds a number with more digits."""

_BOM = b"\xef\xbb\xbf"
_ONE_OBJECT = "one JSON object a line"

Location = tuple[int | str, ...]
"""Keys and list indices that lead to a value."""


class Fault(NamedTuple):
    """Fault of a line: problem code, sentence and found text."""

    code: str
    message: str
    found: str | None = None

    def report(self, problems: ProblemList, path: Path, line: int, accepted: str) -> None:
        """Add the fault to the problems of a file."""
        code, message, found = self
        problems.add(code, message, file=str(path), line=line, found=found, accepted=accepted)


class _RefusedError(ValueError):
    """A JSON value that the standard library accepts and this package refuses."""

    def __init__(self, *fault: str) -> None:
        super().__init__(*fault)
        self.fault = Fault(*fault)


# ---- Files and lines.


def check_file(path: Path, problems: ProblemList, limit: int = MAX_FILE_BYTES) -> bool:
    """Tell whether a path is a regular file of at most `limit` bytes; else report a problem."""
    file = str(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        problems.add("missing_file", "the file does not exist", file=file)
        return False
    except (OSError, ValueError) as error:
        problems.add("unreadable_file", f"the file cannot be read: {quoted(str(error))}", file=file)
        return False
    if not stat.S_ISREG(status.st_mode):
        problems.add("not_a_file", "this is not a regular file", file=file, accepted="a text file")
        return False
    if status.st_size > limit:
        found, accepted = f"{status.st_size} bytes", f"at most {limit} bytes"
        problems.add(
            "file_too_large", "the file is too large", file=file, found=found, accepted=accepted
        )
        return False
    return True


def split_lines(
    stream: BinaryIO, limit: int = MAX_LINE_BYTES
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number of each line, from 1, and its bytes; None stands for a line over `limit`."""
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        if len(line) <= limit or line.endswith(b"\n"):
            yield number, line.removeprefix(_BOM) if number == 1 else line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(1 << 20)
        yield number, None


def decode_text(data: bytes | None) -> str | Fault:
    """Decode UTF-8 without NUL, or return the fault; `data` None means a line over the limit."""
    if data is None:
        return Fault("line_too_long", "the line is too long", f"over {MAX_LINE_BYTES} bytes")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Fault("bad_encoding", "the text is UTF-16, not UTF-8")
    if b"\x00" in data:
        return Fault("nul_byte", "the text holds a NUL byte", f"at byte {data.index(0) + 1}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at byte {error.start + 1}"
        return Fault("bad_encoding", "the text is not UTF-8", found)


def read_text(path: Path, problems: ProblemList, limit: int) -> str | None:
    """Read a small file whole; None after one problem. A byte-order mark is left out."""
    if not check_file(path, problems, limit):
        return None
    try:
        data = path.read_bytes().removeprefix(_BOM)
    except OSError as error:
        message = f"the file cannot be read: {quoted(str(error))}"
        problems.add("unreadable_file", message, file=str(path))
        return None
    for number, line in enumerate(data.split(b"\n"), 1):
        if isinstance(fault := decode_text(line), Fault):
            fault.report(problems, path, number, "text in UTF-8")
            return None
    return data.decode("utf-8")


def read_lines(path: Path, problems: ProblemList) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank, without its line end.

    A byte-order mark and CRLF are tolerated. Lines with a fault are reported and left out:
    `line_too_long`, `nul_byte`, `bad_encoding`; of the file `missing_file`, `unreadable_file`,
    `not_a_file` and `file_too_large`.
    """
    if not check_file(path, problems):
        return
    try:
        with path.open("rb") as stream:
            for number, data in split_lines(stream):
                text = decode_text(data)
                if isinstance(text, Fault):
                    text.report(problems, path, number, "text in UTF-8")
                    if data is not None and data[:1] in (b"\xff", b"\xfe"):
                        return  # Stop: in UTF-16 each further line would be a fault too.
                elif text.strip():
                    yield number, text.rstrip("\r\n")
    except OSError as error:
        message = f"the file cannot be read: {quoted(str(error))}"
        problems.add("unreadable_file", message, file=str(path))


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedError("bad_number", "NaN and infinity are not JSON", name)


def _read_finite(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise _RefusedError("bad_number", "the number is out of range", text)
    return number


def _read_whole(text: str) -> int:
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise _RefusedError("bad_number", "the number is out of range", f"{len(text)} digits")
    return int(text)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _RefusedError("duplicate_key", "a key occurs twice in one object", twice)
    return row


def parse_object(data: bytes | str | None, *, strict: bool = True) -> dict[str, Any] | Fault:
    """Parse one line to a JSON object.

    With `strict`, NaN, infinity, whole numbers that no float holds, and keys that stand twice are
    refused.
    """
    text = data if isinstance(data, str) else decode_text(data)
    if isinstance(text, Fault):
        return text
    try:
        value = (
            json.loads(
                text,
                parse_constant=_refuse_constant,
                parse_float=_read_finite,
                parse_int=_read_whole,
                object_pairs_hook=_refuse_duplicates,
            )
            if strict
            else json.loads(text)
        )
    except RecursionError:
        return Fault("too_deep", "the JSON is nested too deeply")
    except _RefusedError as error:
        return error.fault
    except json.JSONDecodeError as error:
        return Fault("bad_json", f"not JSON: {error.msg} at column {error.colno}", quoted(text))
    except ValueError as error:  # an integer of more digits than Python converts
        return Fault("bad_number", quoted(str(error)))
    return (
        value
        if isinstance(value, dict)
        else Fault("not_an_object", "the line is JSON but not an object", quoted(text))
    )


def read_objects(
    path: Path, problems: ProblemList, *, strict: bool = True, accepted: str = _ONE_OBJECT
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a .jsonl file with their line numbers; faults become problems."""
    for number, text in read_lines(path, problems):
        value = parse_object(text, strict=strict)
        if isinstance(value, Fault):
            value.report(problems, path, number, accepted)
        else:
            yield number, value


# ---- Errors of pydantic models as problems that name field, found and accepted.

_CODES = {
    "missing": "missing_key",
    "extra_forbidden": "unknown_key",
    "union_tag_not_found": "missing_key",
}
_KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "pattern": "of the form {}",
    "minItems": "with at least {} items",
    "maxItems": "with at most {} items",
    "minLength": "with at least {} characters",
    "maxLength": "with at most {} characters",
}


def refuse(code: str, message: str, accepted: str, field: str = "") -> PydanticCustomError:
    """Make the error that a validator raises: code, sentence and accepted values.

    `field` names the faulty key if the validator checks several keys.
    """
    context = {"accepted": accepted, "field": field, "sentence": message}
    return PydanticCustomError(code, "{sentence}", context)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldFault:
    """One error of a model: code, sentence, location, found value and accepted values."""

    code: str
    message: str
    location: Location
    found: str | None
    accepted: str
    is_rule: bool
    """Whether a rule over several keys was broken; `location` is then their mapping."""


def format_location(location: Sequence[int | str]) -> str:
    """Write a location as text.

    Examples
    --------
    >>> format_location(("strategies", 1, "rerank", "lambda"))
    'strategies[1].rerank.lambda'
    """
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def suggest(found: str, accepted: Sequence[str]) -> str:
    """Return `; did you mean bm25?` if an accepted word is similar, else an empty text."""
    near = difflib.get_close_matches(found[:100], accepted, n=1)
    return f"; did you mean {near[0]}?" if near else ""


@functools.cache
def _schema_of(model: type[BaseModel]) -> "_Schema":
    return _Schema(model)


class _Schema:
    """JSON Schema of a model, to look up the accepted values of a location."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._root = model.model_json_schema()

    def _members(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        while "$ref" in schema:
            schema = self._root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        options = schema.get("anyOf") or schema.get("oneOf")
        if options is None or "discriminator" in schema:
            return [schema]
        return [member for option in options for member in self._members(option)]

    def find(self, location: Location) -> tuple[Location, list[Mapping[str, Any]]]:
        """Return a location without the names of union members, and its schemas."""
        here, place = self._members(self._root), []
        for part in location:
            below: list[Mapping[str, Any]] = []
            tagged: list[Mapping[str, Any]] = []
            for schema in here:
                mapping = schema.get("discriminator", {}).get("mapping", {})
                if part in mapping:
                    tagged += self._members({"$ref": mapping[part]})
                elif isinstance(part, int):
                    below += self._members(schema["items"]) if "items" in schema else []
                elif isinstance(
                    inner := schema.get("properties", {}).get(part)
                    or schema.get("additionalProperties"),
                    Mapping,
                ):
                    below += self._members(inner)
            if below:
                place.append(part)
            here = tagged or below or here
        return tuple(place), here

    def describe(self, schema: Mapping[str, Any]) -> str:
        """Describe the values that a schema accepts: literal values, or kind and bounds."""
        if "discriminator" in schema:
            choices = ", ".join(schema["discriminator"]["mapping"])
            return f"a mapping with {schema['discriminator']['propertyName']}: {choices}"
        if "enum" in schema or "const" in schema:
            return ", ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
        if schema.get("properties"):
            return f"a mapping with the keys {', '.join(schema['properties'])}"
        given = (words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema)
        bounds = " and ".join(given)
        items = ""
        if isinstance(schema.get("items"), Mapping):
            inner = dict.fromkeys(map(self.describe, self._members(schema["items"])))
            items = f" of: {' or '.join(inner)}"
        note = f" ({schema['description']})" if "description" in schema else ""
        kind = _KINDS.get(str(schema.get("type")), "a value")
        return f"{kind}{items}{' ' if bounds else ''}{bounds}{note}"


def _show(value: object) -> str | None:
    if isinstance(value, dict | list | tuple):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    if isinstance(value, str):
        return quoted(value) if value else "nothing"
    return "nothing" if value is None else quoted(json.dumps(value, default=repr))


def field_faults(error: ValidationError, model: type[BaseModel]) -> Iterator[FieldFault]:
    """Yield the faults that a model found; locations hold no names of union members.

    Codes: `missing_key`, `unknown_key`, `wrong_type`, `bad_value`, and those of `refuse`.
    """
    schema = _schema_of(model)
    errors = error.errors(include_url=False)
    deeper = {item["loc"][:end] for item in errors for end in range(len(item["loc"]))}
    for item in errors:
        kind, context = item["type"], item.get("ctx", {})
        if kind == "too_short" and item["loc"] in deeper:
            continue  # the list is too short because its only item is at fault
        unknown = kind == "extra_forbidden"
        location, schemas = schema.find(item["loc"][:-1] if unknown else item["loc"])
        code = _CODES.get(kind, "wrong_type" if kind.endswith("_type") else "bad_value")
        message = item["msg"].removeprefix("Value error, ").replace("tuple", "list")
        found = None if kind == "missing" else _show(item["input"])
        accepted = " or ".join(dict.fromkeys(map(schema.describe, schemas))) or "nothing"
        if unknown:
            keys = list(dict.fromkeys(key for one in schemas for key in one.get("properties", {})))
            location = (*location, item["loc"][-1])
            found, accepted = quoted(str(location[-1])), ", ".join(keys)
            message = f"the key is not known{suggest(str(location[-1]), keys)}"
        elif kind.startswith("union_tag"):
            tag = context["discriminator"].strip("'")
            mappings = (one.get("discriminator", {}).get("mapping", ()) for one in schemas)
            accepted = ", ".join(choice for mapping in mappings for choice in mapping)
            location = (*location, tag)
            found = quoted(str(context["tag"])) if "tag" in context else None
            near = suggest(found or "", accepted.split(", "))
            message = f"{tag} is not one of the known ones{near}" if found else f"{tag} is missing"
        elif kind == "missing":
            message = f"{item['loc'][-1]} is missing"
        elif kind in {"literal_error", "enum"}:
            message += suggest(found or "", accepted.split(", "))
        elif kind == "value_error":
            accepted = message
        elif "accepted" in context:
            code, accepted = kind, context["accepted"]
            if context["field"]:
                location = (*location, context["field"])
                found = (
                    _show(item["input"].get(context["field"]))
                    if isinstance(item["input"], dict)
                    else None
                )
        message = message[:1].lower() + message[1:]
        yield FieldFault(code, message, location, found, accepted, kind == "value_error")


Model = TypeVar("Model", bound=BaseModel)


def report_faults(
    error: ValidationError,
    model: type[BaseModel],
    problems: ProblemList,
    file: str | None,
    line: int | None,
) -> None:
    """Add the faults that a model found in one line to the problems."""
    for fault in field_faults(error, model):
        problems.add(
            fault.code,
            fault.message,
            file=file,
            line=line,
            field=format_location(fault.location) or None,
            found=fault.found,
            accepted=fault.accepted,
        )


def check_row(
    values: Mapping[str, Any],
    model: type[Model],
    problems: ProblemList,
    file: str | None,
    line: int | None,
) -> Model | None:
    """Make a record of the values of one line, or report each fault and return None."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        report_faults(error, model, problems, file, line)
        return None


def read_rows(path: Path, model: type[Model], problems: ProblemList) -> Iterator[tuple[int, Model]]:
    """Yield line number and record of each row of a .jsonl file; faults become problems."""
    for number, values in read_objects(path, problems):
        row = check_row(values, model, problems, str(path), number)
        if row is not None:
            yield number, row
