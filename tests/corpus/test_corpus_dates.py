"""Dates of documents: which spellings are read, and what is counted as unreadable."""

import datetime as dt
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus.dates import Dated, day_of, latest, of_seconds

EAST = dt.timezone(dt.timedelta(hours=14))


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2024-01-31", "2024-01-31"),
        (" 20240131 ", "2024-01-31"),
        ("2024-W05-3", "2024-01-31"),
        ("2024-01-31T08:15", "2024-01-31"),
        ("2024-01-31 23:59:59", "2024-01-31"),
        ("2024-01-31T23:30:00.123456789-02:00", "2024-02-01"),
        ("2024-01-31T01:00:00+0200", "2024-01-30"),
        ("2024-01-31 01:00:00 +02", "2024-01-30"),
        ("2024-01-31t01:00:00z", "2024-01-31"),
        ("2024-01-31 01:00:00 UTC", "2024-01-31"),
        ("0001-01-01", "0001-01-01"),
        ("9999-12-31", "9999-12-31"),
        (1706745600, "2024-02-01"),
        (1706745599.9, "2024-01-31"),
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (20240131, "2024-01-31"),
        (20241399, "1970-08-23"),  # no day is spelt so: seconds
        (dt.date(2024, 1, 31), "2024-01-31"),
        (dt.datetime(2024, 1, 31, 23), "2024-01-31"),  # noqa: DTZ001 - a time without offset is the day it says
        (dt.datetime(2024, 2, 1, 1, tzinfo=EAST), "2024-01-31"),
    ],
)
def test_read(value, day):
    assert day_of(value) == day


@pytest.mark.parametrize(
    "value",
    [
        "yesterday", "2024", "2024-01", "2024-02-30", "2024-13-01", "31.01.2024", "1706745600", "2024-01-31T25:00", "2024-01-31T", "2024-01-31Z", "0000-01-01",
        "0001-01-01T00:00+14:00", "9999-12-31T23:00-02:00", "\u0662\u0660\u0662\u0664-01-31", "2024-01-31" + " " * 100 + "x", "2" * 1_000_000,
        2024, True, math.inf, 1e300, 10**400, 1706745600000, -(10**12), [2024, 1, 31], {"year": 2024}, dt.time(1), dt.datetime(1, 1, 1, tzinfo=EAST),
    ],
)  # fmt: skip
def test_unreadable(value):
    assert day_of(value) == ""
    assert latest([value, "2024-01-31"]) == Dated("2024-01-31", 1)


def test_the_latest_counts_and_what_says_nothing_is_not_unreadable():
    assert latest(["2024-01-31", 1735689600, dt.date(2023, 5, 1)]) == Dated("2025-01-01", 0)
    assert latest([None, "", "  ", math.nan]) == Dated("", 0)
    assert latest(["soon", "later"]) == Dated("", 2)


@given(st.datetimes(timezones=st.timezones()))
def test_written_times_are_read_back_as_the_day_in_utc(moment):
    try:
        expected = moment.astimezone(dt.UTC).date().isoformat()
    except OverflowError:
        expected = ""
    assert day_of(moment) == expected
    offset = moment.utcoffset()
    if (
        offset is not None and not offset.total_seconds() % 60
    ):  # seconds in offsets are not ISO 8601
        assert day_of(moment.isoformat()) == expected


@given(
    st.one_of(
        st.text(max_size=80),
        st.integers(),
        st.floats(),
        st.binary(),
        st.none(),
        st.booleans(),
        st.text("0123456789-:T Z+.W", max_size=40),
    )
)
def test_anything_is_a_day_or_nothing(value):
    assert re.fullmatch(r"(?!0000)\d{4}-\d\d-\d\d|", day_of(value), re.ASCII)


@given(st.integers(-62135596800, 253402300799))
def test_seconds_are_days_of_the_calendar(seconds):
    assert of_seconds(seconds) == str(dt.date(1970, 1, 1) + dt.timedelta(days=seconds // 86400))


@pytest.mark.parametrize("seconds", [-62135596801, 253402300800, math.nan])
def test_seconds_outside_the_calendar(seconds):
    assert of_seconds(seconds) == ""
