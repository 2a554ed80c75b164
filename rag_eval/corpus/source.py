"""Shared parts of loaders: refused ids, titles and texts, and authors and dates of documents."""

import datetime as dt
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator

from rag_eval.core.errors import InputError, Problem, ProblemList, quoted
from rag_eval.core.rows import Fault, refuse
from rag_eval.storage.hashing import text_hash

# ---- Ids and texts.

MAX_ID_CHARS = 1000
MAX_QUERY_ID_CHARS = 200
ACCEPTED_ID = (
    f"a string of 1 to {MAX_ID_CHARS} characters without control characters, "
    "`..` path parts or a leading slash"
)
ACCEPTED_QUERY_ID = (
    f"1 to {MAX_QUERY_ID_CHARS} characters, no white space, no control characters, "
    "no / or \\, not . or .."
)
_BAD_ID = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_TRAVERSAL = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)|^[/\\]|^[A-Za-z]:[/\\](?![/\\])")
_QUERY_ID = re.compile(
    r"[^\s/\\\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]"
    rf"{{1,{MAX_QUERY_ID_CHARS}}}"
)


def is_query_id(text: str) -> bool:
    """Return whether a text may be the id of a query: safe as a file name, in a log and in TREC."""
    return bool(_QUERY_ID.fullmatch(text)) and text not in {".", ".."}


def _check_query_id(value: object) -> object:
    if isinstance(value, str) and not is_query_id(value):
        raise refuse("bad_id", "this is not an id", ACCEPTED_QUERY_ID)
    return value


QueryId = Annotated[str, BeforeValidator(_check_query_id)]
"""The id of a query or paraphrase, as a field of a row."""


def id_fault(value: object) -> Fault | None:
    """Return the fault of a value as a document's id; None for a valid id."""
    found = None if value is None else quoted(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        return Fault("missing_id", "the document has no id", found)
    if not isinstance(value, str):
        return Fault("bad_id", "the id is not a string", found)
    if len(value) > MAX_ID_CHARS or _BAD_ID.search(value):
        return Fault("bad_id", "the id is too long or has control characters", found)
    if _TRAVERSAL.search(value):
        return Fault("path_traversal", "the id would lead out of a folder", found)
    return None


def _check_doc_id(value: object) -> object:
    if (fault := id_fault(value)) is not None:
        raise refuse(fault.code, fault.message, ACCEPTED_ID)
    return value


def _check_text(value: str) -> str:
    if "\x00" in value:
        raise refuse("nul_byte", "this holds a NUL byte", "a string without NUL bytes")
    return value


DocId = Annotated[str, BeforeValidator(_check_doc_id)]
"""The id of a document or section, as a field of a row."""
DocumentText = Annotated[str, AfterValidator(_check_text)]


class DocumentRow(BaseModel):
    """A document in a row of a file."""

    id: DocId
    title: DocumentText = ""
    text: DocumentText


class SeenIds:
    """Reports ids of documents that an earlier row has."""

    def __init__(self, problems: ProblemList) -> None:
        self._problems = problems
        self._first: dict[str, str] = {}

    def add(self, doc_id: str, file: str, line: int, field: str) -> bool:
        """Remember an id, and return whether it is new."""
        place = f"{file}:{line}"
        first = self._first.setdefault(doc_id, place)
        if first != place:
            message, found = f"the id was already used at {first}", quoted(doc_id)
            problem = Problem("duplicate_id", message, file, line, field, found, "every id once")
            self._problems.extend([problem])
        return first == place


def resolve(path: str, base: Path) -> Path:
    """Return the path of a configuration, relative to the gold set's folder."""
    return (base / path).absolute()


def missing_input(found: str, accepted: str) -> InputError:
    """Make the error for a missing input; `found` is the configured path."""
    message = "the corpus was not found"
    return InputError.of(
        "missing_input", message, field="corpus.path", found=found, accepted=accepted
    )


def empty_corpus(message: str, found: str | None, accepted: str) -> InputError:
    """Make the error for a corpus without documents."""
    return InputError.of("empty_corpus", message, field="corpus", found=found, accepted=accepted)


# ---- Authors.

MAX_AUTHORS = 100
MAX_AUTHOR_CHARS = 10_000
"""Most characters of all names of a document together, before hashing."""
MAX_SHOWN_CHARS = 200


def read_author(value: object) -> str:
    """Return the author of a metadata value; at most 100 authors are joined by `, `.

    A value is a text, an object with a `name`, or a list of these. Other values give an empty text.
    """
    names = []
    for item in value[:MAX_AUTHORS] if isinstance(value, list | tuple) else [value]:
        name = item.get("name") if isinstance(item, Mapping) else item
        names.append(name.strip() if isinstance(name, str) else "")
    return ", ".join(filter(None, names))[:MAX_AUTHOR_CHARS]


def find_author(values: Mapping[str, object]) -> str:
    """Return the author of the metadata of a document; empty without an author."""
    return read_author(values.get("author")) or read_author(values.get("authors"))


def author_hash(author: str) -> str:
    """Hash a name without regard to case and runs of white space; empty for an empty name.

    Examples
    --------
    >>> author_hash("Jane  Doe ") == author_hash("jane doe"), author_hash(" ")
    (True, '')
    """
    compared = " ".join(author.casefold().split())
    return text_hash(compared) if compared else ""


def one_line(author: str) -> str:
    """Write a name on one line: control characters become spaces, invisible characters go."""
    kinds = {character: unicodedata.category(character) for character in set(author)}
    spaced = (
        " " if kinds[character] in {"Cc", "Zl", "Zp"} else character
        for character in author
        if kinds[character] == "Cc" or not kinds[character].startswith("C")
    )
    return " ".join("".join(spaced).split())


# ---- Dates.

_MAX_DATE_CHARS = 64
_ZULU = re.compile(r" ?(?:Z|UTC)$", re.IGNORECASE)
_YEARS = range(1, dt.MAXYEAR + 1)
_WRITTEN_DAYS = range(1900_01_01, 2100_01_01)


class LatestDay(NamedTuple):
    """Latest of several dates (empty if no date is readable), and number of unreadable dates."""

    day: str
    unreadable: int


def day_of_seconds(seconds: float) -> str:
    """Write the day in UTC of seconds since 1970; empty outside the years 1 to 9999."""
    try:
        return str((dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)).date())  # noqa: DTZ001 - only its date counts
    except (OverflowError, ValueError):
        return ""


def _day_of_text(text: str) -> str:
    if len(text) > _MAX_DATE_CHARS:
        return ""
    plain = re.sub(r" (?=[+-][0-9]{2})", "", _ZULU.sub("+00:00", text))
    try:
        return day_of(dt.datetime.fromisoformat(plain))
    except ValueError:  # no date, or no such day or time
        return ""


def day_of(value: object) -> str:
    """Return the UTC day of a date or time as `YYYY-MM-DD`; empty for a value without a day.

    A value is an ISO 8601 text, a date or time object (from YAML, TOML or Arrow), or seconds since
    1970. A whole number is a day if its eight digits spell a day, because YAML
    reads `20240131` as a number. A whole number up to 9999 is a year, which has no day.

    Examples
    --------
    >>> day_of("2024-01-31T23:30:00-02:00"), day_of(1706659200), day_of("last week")
    ('2024-02-01', '2024-01-31', '')
    """
    if isinstance(value, dt.datetime):
        try:
            return (value if value.tzinfo is None else value.astimezone(dt.UTC)).date().isoformat()
        except (OverflowError, ValueError):  # outside the years 1 to 9999
            return ""
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, str):
        return _day_of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _YEARS:
        return ""
    written = _day_of_text(str(value)) if value in _WRITTEN_DAYS else ""
    return written or day_of_seconds(value)


def latest_day(values: Iterable[object]) -> LatestDay:
    """Return the latest of several dates; null, empty texts and NaN do not count."""
    days = [
        day_of(value)
        for value in values
        if not (
            value is None
            or (isinstance(value, str) and not value.strip())
            or (isinstance(value, float) and math.isnan(value))
        )
    ]
    return LatestDay(max(days, default=""), days.count(""))
