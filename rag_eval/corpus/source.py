"""Shared parts of loaders: ids and texts of rows, authors, dates and domains of documents."""

import datetime as dt
import os
import re
import unicodedata
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from rag_eval.core.errors import InputError, Place, ProblemList
from rag_eval.core.loader import PathLoader, RawDocument
from rag_eval.core.rows import SeenIds, check_row
from rag_eval.core.types import Id, PlainText, Title
from rag_eval.storage.hashing import canonical_json, text_hash

# ---- Ids and texts.

Page = (
    Annotated[int, Field(strict=True, ge=0, le=10**9)]
    | Annotated[str, Field(min_length=1, max_length=20, pattern=r"^\S+$")]
)
"""The page of a passage in its source, as a field of a row: a number, or a text such as `iv`."""


class DocumentRow(BaseModel):
    """A document in a row of a file; a null text is empty where the row has a title."""

    id: Id
    title: Title = ""
    text: PlainText

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_title_alone(cls, values: dict[str, Any]) -> dict[str, Any]:
        is_title = "text" in values and values["text"] is None and values.get("title")
        return {**values, "text": ""} if is_title else values


def resolve(path: str, base: Path) -> Path:
    """Return the path of a configuration, relative to the gold set's folder."""
    return (base / path).absolute()


def is_address(path: str) -> bool:
    """Tell whether a path is the address of an object store, such as `s3://bucket/corpus`."""
    return "://" in path


def list_files(root: Path) -> Iterator[Path]:
    """Yield every entry below a folder that is no folder; links to folders are not followed.

    The depth of folders is not bounded by Python's stack. Raises InputError: `unreadable_folder`.
    """
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    path = folder / entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    else:
                        yield path
        except OSError as error:
            message = f"the folder cannot be read: {error.strerror}"
            raise InputError.of("unreadable_folder", message, folder) from error


def missing_input(path: str, accepted: str) -> InputError:
    """Make the error for a missing input; `found` is the configured path."""
    more: Place = {"field": "corpus.path", "found": path, "accepted": accepted}
    return InputError.of("missing_input", "the corpus was not found", **more)


def empty_corpus(message: str, source: str, accepted: str) -> InputError:
    """Make the error for a corpus without documents."""
    return InputError.of("empty_corpus", message, field="corpus", found=source, accepted=accepted)


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

_MIN_SECONDS = 100_000_000
"""Numbers below this are no seconds since 1970, but years or days such as 20240131."""


def day_of(value: object) -> str:
    """Return the UTC day of a date or time as `YYYY-MM-DD`; empty for a value without a day.

    A value is an ISO 8601 text, a date or time object (from YAML, TOML or Arrow), or seconds since
    1970, also as text.

    Examples
    --------
    >>> day_of("2024-01-31T23:30:00-02:00"), day_of(1706659200), day_of("last week")
    ('2024-02-01', '2024-01-31', '')
    """
    try:
        if isinstance(value, str):
            text = value.strip()
            is_seconds = text.isdecimal() and int(text) >= _MIN_SECONDS
            value = int(text) if is_seconds else dt.datetime.fromisoformat(text)
        if isinstance(value, int | float) and value >= _MIN_SECONDS:
            value = dt.datetime.fromtimestamp(value, dt.UTC)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
    except (OverflowError, ValueError, OSError):  # no such day, or outside the years 1 to 9999
        return ""
    if isinstance(value, dt.datetime):
        value = value.date()
    return value.isoformat() if isinstance(value, dt.date) else ""


def latest_day(values: Iterable[object]) -> str:
    """Return the latest day of several dates; empty if no date is readable."""
    return max(map(day_of, values), default="")


# ---- Addresses of documents.

MAX_DOMAIN_CHARS = 253
"""Bound of the DNS (RFC 1035, section 2.3.4), without the root's dot."""

_WEB = re.compile(r"(?:https?|ftp)://([^/?#]*)", re.IGNORECASE)
_DOCSTRING = re.compile(r"(python:[A-Za-z_][A-Za-z0-9_]*)(?:\.|\Z)")
_USER_INFO = re.compile(r"(?P<before>(?:[A-Za-z][A-Za-z0-9+.-]*+:)?//)(?P<authority>[^/?#\\]*+)")
_LABEL_OF_HOST = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL_OF_HOST}(?:\.{_LABEL_OF_HOST})*")
_AMBIGUOUS = re.compile("[\\s\\\\\x00-\x1f\x7f\u00df\u1e9e\u03c2\u200c\u200d]")
"""Characters at which programs disagree about the host.

A browser ends it at a backslash. IDNA 2003 (Python) and IDNA 2008 (browsers) encode some letters
differently (RFC 5894)."""


def domain_of(source_url: str) -> str:
    """Return the domain of an address; empty for an address without a domain.

    For http, https and ftp, the domain is the host in lower case, without user, port and final dot.
    Letters beyond ASCII are in xn-- form (RFC 3490). For `python:<package>.<name>`, the domain is
    `python:<package>`. A host that programs read differently and an IPv6 address give an empty
    domain, because they must not pass an allowlist.

    Examples
    --------
    >>> domain_of("https://user@Docs.Example.ORG:8443/a"), domain_of("python:pandas.DataFrame")
    ('docs.example.org', 'python:pandas')
    """
    address = source_url.strip()
    docstring = _DOCSTRING.match(address)
    if docstring:
        return docstring[1]
    web = _WEB.match(address)
    if web is None or _AMBIGUOUS.search(web[1]):
        return ""
    try:
        parts = urllib.parse.urlsplit(address)
        _ = parts.port  # raises ValueError for what is no port
        host = (parts.hostname or "").removesuffix(".").encode("idna").decode("ascii").lower()
    except ValueError:
        return ""
    # Check the encoded name, because look-alikes of / and : are encoded as / and :.
    return host if _HOST.fullmatch(host) and len(host) <= MAX_DOMAIN_CHARS else ""


def without_user(source_url: str) -> str:
    """Drop `user:password@` from an address, because it is no part of a document's place.

    Examples
    --------
    >>> without_user("https://jane:secret@example.org/a@b")
    'https://example.org/a@b'
    """
    match = _USER_INFO.match(source_url)
    if match is None or "@" not in match["authority"]:
        return source_url
    return match["before"] + match["authority"].rpartition("@")[2] + source_url[match.end() :]


# ---- Corpora in the rows of a table. Manifests use the canonical JSON of a document's id, title
# and text as the bytes of the document.

TableRow = tuple[str, int, Sequence[object]]
"""File, line or row from 1, and values of `COLUMNS`."""
COLUMNS = ("id", "text", "title", "url", "author", "date")


class TableLoader(PathLoader):
    """Configuration of a corpus with one document in each row of a table."""

    id_column: str = "id"
    """Id of a document."""
    text_column: str = "text"
    """Text of a document. Columns of the names title, url, author and date are read too."""

    def column_names(self, present: Sequence[str]) -> dict[str, str | None]:
        """Return the names in the table by the names of `COLUMNS`; None stands for no column.

        Raises InputError `unknown_column` if the table has no column for ids or texts.
        """
        configured = {"id": self.id_column, "text": self.text_column}
        for column, name in configured.items():
            if name not in present:
                accepted, message = ", ".join(present), "there is no such column"
                field = f"corpus.{column}_column"
                raise InputError.of(
                    "unknown_column", message, field=field, found=name, accepted=accepted
                )
        optional = {name: name if name in present else None for name in COLUMNS}
        return {**optional, **configured}

    def make_documents(
        self, rows: Iterable[TableRow], problems: ProblemList
    ) -> Iterator[RawDocument]:
        """Make a document of each row, and collect problems."""
        ids = SeenIds(problems)
        for file, line, (doc_id, text, title, url, author, date) in rows:
            values = {"id": doc_id, "title": title, "text": text}
            row = check_row(values, DocumentRow, problems, file, line)
            if row is not None and ids.add(row.id, file, line, "id"):
                yield RawDocument(
                    row.id,
                    row.title,
                    row.text,
                    url if isinstance(url, str) and url else f"{self.path}#{row.id}",
                    "text",
                    canonical_json(row.model_dump()).encode("utf-8", "surrogatepass"),
                    place=f"{file}:{line}",
                    author=read_author(author),
                    date=latest_day([date]),
                )
