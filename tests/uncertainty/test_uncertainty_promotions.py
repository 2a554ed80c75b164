"""The record of promotions and demotions, in SQLite and in a real PostgreSQL."""

import dataclasses
import datetime as dt
import multiprocessing

import postgres_server
import pytest

from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.promotions import Series, promotions, record_status


@pytest.fixture(scope="module")
def server():
    with postgres_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    return (
        f"sqlite:///{tmp_path}/store.db"
        if request.param == "sqlite"
        else postgres_server.new_database(request.getfixturevalue("server"))
    )


SERIES = Series("scifact", "bm25", "miss_any", 10)
AT = dt.datetime(2026, 3, 1, 2, 0, tzinfo=dt.UTC)


def test_changes_are_appended_with_figures_before_and_after(place):
    store = SqlStore(place)
    steps = [
        "absent",
        "uncalibrated",
        "uncalibrated",
        "provisional",
        "measured",
        "measured",
        "stale",
    ]
    written = [
        record_status(
            store,
            SERIES,
            step,
            strategy_fingerprint=f"f{at}",
            figures={"skill": at},
            reasons=({"name": "n"},),
            calibrator_id=f"c{at}",
            at=AT,
        )
        for at, step in enumerate(steps)
    ]
    assert [change is not None for change in written] == [
        False,
        True,
        False,
        True,
        True,
        False,
        True,
    ]
    rows = promotions(store, SERIES)
    assert rows == [change for change in written if change]
    assert [(row.number, row.old_status, row.new_status) for row in rows] == [
        (1, "absent", "uncalibrated"),
        (2, "uncalibrated", "provisional"),
        (3, "provisional", "measured"),
        (4, "measured", "stale"),
    ]
    assert rows[0].figures_before is None
    assert (rows[3].figures_before, rows[3].figures_after) == ({"skill": 4}, {"skill": 6})
    assert (rows[3].strategy_fingerprint, rows[3].calibrator_id, rows[3].at) == (
        "f6",
        "c6",
        "2026-03-01T02:00:00+00:00",
    )


def test_given_figures_stand_before_a_change_and_series_are_apart(place):
    store = SqlStore(place)
    other = dataclasses.replace(SERIES, k=5)
    record_status(
        store, SERIES, "provisional", strategy_fingerprint="f", figures={"skill": 0.1}, at=AT
    )
    record_status(store, other, "prior", strategy_fingerprint="f", figures=None, at=AT)
    last = record_status(
        store,
        SERIES,
        "stale",
        strategy_fingerprint="f",
        figures=None,
        figures_before={"skill": 0.2},
        at=AT,
    )
    assert last.figures_before == {"skill": 0.2}
    assert [row.number for row in promotions(store, SERIES)] == [1, 2]
    assert [(row.series, row.new_status) for row in promotions(store)] == [
        (other, "prior"),
        (SERIES, "provisional"),
        (SERIES, "stale"),
    ]
    with pytest.raises(ValueError, match="time zone"):
        record_status(
            store,
            SERIES,
            "prior",
            strategy_fingerprint="f",
            figures=None,
            at=AT.replace(tzinfo=None),
        )


def _promote(place, ready):
    store = SqlStore(place)
    ready.wait()
    record_status(store, SERIES, "prior", strategy_fingerprint="f", figures=None, at=AT)


@pytest.mark.slow
def test_writers_at_once_write_a_change_once(place):
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(4)
    writers = [context.Process(target=_promote, args=(place, ready)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert [(row.number, row.new_status) for row in promotions(SqlStore(place))] == [(1, "prior")]
