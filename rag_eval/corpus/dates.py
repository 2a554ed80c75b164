"""Dates of documents: what stands in metadata -> a day.

Belongs here: which spellings are read. A document whose date cannot be read has none, and that is counted, since its age then counts as unknown.
"""

import datetime as dt
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

_MAX_CHARS = 64
_ISO = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}|[0-9]{4}-?W[0-9]{2}-?[0-9])"
    r"(?:[T ](?P<time>[0-9][0-9:.,]*)(?: ?(?P<offset>Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?))?)?"
)
_YEARS = range(1, dt.MAXYEAR + 1)
_WRITTEN_DAYS = range(1900_01_01, 2100_01_01)


class Dated(NamedTuple):
    """The latest day of several dates, `YYYY-MM-DD`, empty where none could be read; and how many could not."""

    day: str
    unreadable: int


def _utc_day(moment: dt.datetime) -> str:
    try:
        return (moment if moment.tzinfo is None else moment.astimezone(dt.UTC)).date().isoformat()
    except (OverflowError, ValueError):  # outside the years 1 to 9999
        return ""


def of_seconds(seconds: float) -> str:
    """Day in UTC of seconds since 1970 began, `YYYY-MM-DD`; empty outside the years 1 to 9999."""
    try:
        return (
            (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds))
            .date()
            .isoformat()
        )
    except (OverflowError, ValueError):
        return ""


def _of_text(text: str) -> str:
    found = _ISO.fullmatch(text.upper()) if len(text) <= _MAX_CHARS else None
    if found is None:
        return ""
    offset = "+00:00" if found["offset"] in {"Z", "UTC"} else found["offset"] or ""
    try:
        return _utc_day(
            dt.datetime.fromisoformat(
                found["day"] + (f"T{found['time']}{offset}" if found["time"] else "")
            )
        )
    except ValueError:  # no such day or time
        return ""


def day_of(value: object) -> str:
    """Read a date or time.

    Parameters
    ----------
    value
        An ISO 8601 date or date-time in text, with `T` or a space before the time; a date or date-time as YAML, TOML and Arrow give them; or
        seconds since 1970 as a number. A whole number is a day where its eight digits spell one of the years 1900 to 2099, as YAML reads
        `20240131`; up to 9999 it is a year, which names no day.

    Returns
    -------
    str
        `YYYY-MM-DD`; that of UTC where the time has an offset; empty where it cannot be read or is not in the years 1 to 9999.

    Examples
    --------
    >>> day_of("2024-01-31T23:30:00-02:00"), day_of("2024-01-31 08:00:00"), day_of(1706659200), day_of("last week")
    ('2024-02-01', '2024-01-31', '2024-01-31', '')
    """
    if isinstance(value, dt.datetime):
        return _utc_day(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, str):
        return _of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, int) and value in _WRITTEN_DAYS and (written := _of_text(str(value))):
        return written
    return "" if isinstance(value, int) and value in _YEARS else of_seconds(value)


def _stated(value: object) -> bool:
    """Whether anything is said: not null, an empty text or the NaN that stands for a missing number."""
    return not (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )


def latest(values: Iterable[object]) -> Dated:
    """Latest of the dates that are stated; null, empty texts and NaN state none."""
    days = [day_of(value) for value in values if _stated(value)]
    return Dated(max(days, default=""), days.count(""))
