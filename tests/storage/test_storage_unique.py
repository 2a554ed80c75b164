"""Unique indexes refuse stored rows from any writer, and the caller learns which rows were new."""

import pytest

from rag_eval.core.errors import InputError
from rag_eval.storage.sql import ColumnSpec, SqlStore, TableSpec

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


def test_what_a_block_that_raises_added_is_not_there(store):
    def half():
        with store.transaction() as transaction:
            assert transaction.insert_new(PAIRS, [("x", 1, "b", None)], "id") == {"x"}
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert ids(store) == []
    assert add(store, ("x", 1, "b", None)) == {"x"}


def test_a_table_without_its_unique_index_is_refused(store):
    bare = TableSpec("bare", COLUMNS, unique=(("id",),))
    store.create(bare)
    with pytest.raises(InputError) as caught:
        SqlStore.create(store, TableSpec("bare", COLUMNS, unique=(("id",), ("a", "b"))))
    (problem,) = caught.value.problems
    assert (problem.code, problem.found, problem.accepted) == ("table_differs", "id", "a, b")
