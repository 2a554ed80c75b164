"""Unique indexes refuse stored rows from any writer, and the caller learns which rows were new."""

import threading

import pytest

from rag_eval.core.errors import InputError
from rag_eval.storage.sql import BATCH, ColumnSpec, SqlStore, TableSpec

COLUMNS = (
    ColumnSpec("id", "text", required=True),
    ColumnSpec("a", "integer", required=True),
    ColumnSpec("b", "text", required=True),
    ColumnSpec("more", "json"),
)
PAIRS = TableSpec("pairs", COLUMNS, indexes=(("a",),), unique=(("id",), ("a", "b")))


@pytest.fixture
def store(place) -> SqlStore:
    store = SqlStore(place)
    store.create(PAIRS)
    return store


def add(store, *rows):
    with store.transaction() as transaction:
        return transaction.insert_new(PAIRS, rows, "id")


def ids(store):
    with store.reading() as transaction:
        return sorted(row["id"] for row in transaction.select(PAIRS))


def test_only_what_is_new_under_every_unique_index_is_added(store):
    assert add(store, ("x", 1, "b", {"k": [1, None]}), ("y", 1, "c", None)) == {"x", "y"}
    assert add(
        store, ("x", 9, "new", None), ("z", 1, "b", None), ("w", 2, "b", None), ("w", 2, "b", None)
    ) == {"w"}
    assert ids(store) == ["w", "x", "y"]
    with store.reading() as transaction:
        assert transaction.select(PAIRS, {"id": "x"}) == [
            {"id": "x", "a": 1, "b": "b", "more": {"k": [1, None]}}
        ]
    assert add(store) == set()


def test_many_rows_and_a_second_time(store):
    rows = [(f"{number:06}", number, "b", None) for number in range(BATCH + 7)]
    assert len(add(store, *rows)) == BATCH + 7
    assert add(store, *rows, ("one", -1, "b", None)) == {"one"}
    assert len(ids(store)) == BATCH + 8


def test_what_a_block_that_raises_added_is_not_there(store):
    def half():
        with store.transaction() as transaction:
            assert transaction.insert_new(PAIRS, [("x", 1, "b", None)], "id") == {"x"}
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert ids(store) == []
    assert add(store, ("x", 1, "b", None)) == {"x"}


def test_threads_that_offer_the_same_rows_add_each_once(store):
    rows = [(f"{number:03}", number, "b", None) for number in range(200)]
    added: list[str] = []

    def offer() -> None:
        for start in range(0, 200, 20):
            added.extend(add(store, *rows[start : start + 20]))

    threads = [threading.Thread(target=offer) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == [row[0] for row in rows] == ids(store)


def test_a_table_without_its_unique_index_is_refused(store):
    bare = TableSpec("bare", COLUMNS, unique=(("id",),))
    store.create(bare)
    with pytest.raises(InputError) as caught:
        SqlStore.create(store, TableSpec("bare", COLUMNS, unique=(("id",), ("a", "b"))))
    (problem,) = caught.value.problems
    assert (problem.code, problem.found, problem.accepted) == ("table_differs", "id", "a, b")


def test_a_unique_index_over_what_may_be_null_is_a_contradiction():
    with pytest.raises(ValueError, match=r"not required \['more'\]"):
        TableSpec("t", COLUMNS, unique=(("id", "more"),))
    with pytest.raises(ValueError, match="absent columns"):
        TableSpec("t", COLUMNS, unique=(("c",),))
