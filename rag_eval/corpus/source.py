"""Shared parts of loaders: texts of rows, paths, authors and dates of documents."""

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from rag_eval.core.errors import InputError, Place
from rag_eval.core.types import Id, PlainText, Title
from rag_eval.storage.hashing import text_hash

# ---- Rows and paths

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


# ---- Authors

MAX_AUTHORS = 100
MAX_AUTHOR_CHARS = 10_000
"""Most characters of all names of a document together, before hashing."""
MAX_SHOWN_CHARS = 200
MAX_DOMAIN_CHARS = 253
"""Bound of the DNS (RFC 1035, section 2.3.4), without the root's dot."""


def find_author(values: Mapping[str, object]) -> str:
    """Return the `author` of a document's metadata, else the `authors`, joined by `, `.

    A value is a text, an object with a `name`, or a list of these. Other values give an empty text.
    """
    for value in (values.get("author"), values.get("authors")):
        items = value[:MAX_AUTHORS] if isinstance(value, list | tuple) else [value]
        names = (item.get("name") if isinstance(item, Mapping) else item for item in items)
        texts = (name.strip() for name in names if isinstance(name, str))
        if author := ", ".join(filter(None, texts)):
            return author[:MAX_AUTHOR_CHARS]
    return ""


def author_hash(author: str) -> str:
    """Hash a name without regard to case and runs of white space; empty for an empty name."""
    compared = " ".join(author.casefold().split())
    return text_hash(compared) if compared else ""


# ---- Dates

_MIN_SECONDS = 100_000_000
"""Numbers below this are no seconds since 1970, but years or days such as 20240131."""


def day_of(value: object) -> str:
    """Return the UTC day of a date or time as `YYYY-MM-DD`; empty for a value without a day.

    A value is an ISO 8601 text, a date or time object (from YAML, TOML or Arrow), or seconds since
    1970, also as text.
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
