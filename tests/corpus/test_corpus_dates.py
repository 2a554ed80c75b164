"""Dates of documents: the spellings that are read."""

import datetime as dt
import math

import pytest

from rag_eval.corpus.source import day_of, latest_day

EAST = dt.timezone(dt.timedelta(hours=14))


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2024-01-31", "2024-01-31"),
        (" 20240131 ", "2024-01-31"),
        ("2024-01-31 23:59:59", "2024-01-31"),
        ("2024-01-31T23:30:00.123456789-02:00", "2024-02-01"),
        ("2024-01-31T01:00:00+0200", "2024-01-30"),
        ("2024-01-31T01:00:00Z", "2024-01-31"),
        (1706745600, "2024-02-01"),
        (dt.date(2024, 1, 31), "2024-01-31"),
        (dt.datetime(2024, 1, 31, 23), "2024-01-31"),  # noqa: DTZ001 - without a zone
        (dt.datetime(2024, 2, 1, 1, tzinfo=EAST), "2024-01-31"),
    ],
)
def test_read(value, day):
    assert day_of(value) == day


WORDS = "yesterday 2024 2024-01 2024-02-30 2024-13-01 31.01.2024 1706745600 2024-01-31T25:00"
NUMBERS = [2024, 20240131, True, math.nan, math.inf, 1e300, 10**400, 1706745600000, -(10**12)]


@pytest.mark.parametrize("value", [*WORDS.split(), *NUMBERS, None, "", [2024, 1, 31], dt.time(1)])
def test_unreadable(value):
    assert day_of(value) == ""
    assert latest_day([value, "2024-01-31"]) == "2024-01-31"


def test_the_latest_counts():
    assert latest_day(["2024-01-31", 1735689600, dt.date(2023, 5, 1)]) == "2025-01-01"
    assert latest_day(["soon", "later"]) == latest_day([]) == ""
