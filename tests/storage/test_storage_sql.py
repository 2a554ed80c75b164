import os
import sqlite3
import subprocess
import sys

import postgres_server
import pytest
import sqlalchemy

from rag_eval.core.errors import InputError
from rag_eval.storage.sql import ColumnSpec, SqlStore, TableSpec

NOTES = TableSpec(
    "notes",
    (
        ColumnSpec("id", "integer", required=True),
        ColumnSpec("deltaS", "float"),
        ColumnSpec("text", "text"),
        ColumnSpec("done", "boolean"),
        ColumnSpec("more", "json"),
    ),
    indexes=(("id",), ("text", "id")),
)
INT64 = 2**63 - 1


@pytest.fixture
def store(place) -> SqlStore:
    store = SqlStore(place)
    store.create(NOTES)
    return store


def add(store: SqlStore, *rows: tuple[object, ...]) -> None:
    with store.transaction() as transaction:
        transaction.insert(NOTES, rows)


def notes(store: SqlStore, where=None) -> list[dict[str, object]]:
    with store.reading() as transaction:
        return transaction.select(NOTES, where, ["id"])


def test_rows_come_back_with_their_types_and_columns_in_order(store):
    add(
        store,
        (INT64, 0.1, "naïve\n'\"", True, {"a": [1, 2.5, None, "ü"]}),
        (-INT64 - 1, None, None, None, None),
    )
    assert notes(store) == [
        {"id": -INT64 - 1, "deltaS": None, "text": None, "done": None, "more": None},
        {
            "id": INT64,
            "deltaS": 0.1,
            "text": "naïve\n'\"",
            "done": True,
            "more": {"a": [1, 2.5, None, "ü"]},
        },
    ]
    assert notes(store)[1]["done"] is True
    engine = sqlalchemy.create_engine(store._engine.url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        found = sqlalchemy.inspect(connection).get_columns("notes")
    # names are written without quotes, so PostgreSQL keeps small letters
    assert [column["name"].lower() for column in found] == "id deltas text done more".split()


def test_values_that_one_of_the_databases_cannot_hold_become_the_same_in_both(store):
    nan, infinity = float("nan"), float("inf")
    hostile = "a\x00b\ud800c"
    add(
        store,
        (1, nan, hostile, False, [hostile, "\\u0000", nan, {"x": (infinity, 1.5)}]),
        (2, -0.0, "", None, []),
    )
    first, second = notes(store)
    more = ["a\ufffdb\ufffdc", "\\u0000", None, {"x": [None, 1.5]}]
    text = "a\ufffdb\ufffdc"
    assert first == {"id": 1, "deltaS": None, "text": text, "done": False, "more": more}
    assert (str(second["deltaS"]), second["text"], second["more"]) == ("0.0", "", [])
    assert notes(store, {"text": hostile}) == [first]


@pytest.mark.parametrize(
    "text",
    [
        "'; DROP TABLE notes; --",
        '"; DROP TABLE notes; -- %s %(id)s :id ? {0}',
    ],
)
def test_hostile_text_is_only_ever_a_value(store, text):
    add(store, (1, 0.0, text, True, text), (2, 0.0, "other", True, None))
    assert [row["text"] for row in notes(store, {"text": text})] == [text]
    assert notes(store, {"text": [text, "absent"]})[0]["more"] == text
    with store.transaction() as transaction:
        assert transaction.delete(NOTES, {"text": text}) == 1
    assert [row["id"] for row in notes(store)] == [2]


def test_where_takes_one_value_several_none_or_null(store):
    texts = ["even", None] * 3
    add(store, *((number, None, text, True, None) for number, text in enumerate(texts)))
    assert [row["id"] for row in notes(store, {"id": {1, 4, 9}})] == [1, 4]
    assert [row["id"] for row in notes(store, {"id": [2, 3], "text": "even"})] == [2]
    assert [row["id"] for row in notes(store, {"text": None})] == [1, 3, 5]
    assert notes(store, {"id": []}) == []
    with pytest.raises(KeyError):
        notes(store, {"id; DROP TABLE notes": 1})


def test_a_block_that_raises_leaves_nothing(store):
    add(store, (1, None, "kept", None, None))

    def half():
        with store.transaction() as transaction:
            transaction.delete(NOTES, {"id": 1})
            transaction.insert(NOTES, [(2, None, "half", None, None)])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    with pytest.raises(ValueError, match="argument"), store.transaction() as transaction:
        transaction.insert(NOTES, iter([(3, None, "good", None, None), (4, None)]))
    with pytest.raises(InputError, match="database_failed"):
        add(store, (5, None, "good", None, None), (None, None, "no id", None, None))
    assert [row["id"] for row in notes(store)] == [1]


@pytest.mark.parametrize(
    "other",
    [
        TableSpec("notes", (*NOTES.columns, ColumnSpec("extra", "text", required=True))),
        TableSpec("notes", (ColumnSpec("id", "text"), *NOTES.columns[1:])),
    ],
)
def test_a_table_with_other_columns_is_refused_and_both_are_named(store, place, other):
    with pytest.raises(InputError) as caught:
        SqlStore(place).create(other)
    (problem,) = caught.value.problems
    assert problem.code == "table_differs"
    assert "id BIGINT, deltas DOUBLE" in problem.found.replace("deltaS", "deltas")
    assert problem.accepted.startswith(("id BIGINT", "id TEXT"))
    assert postgres_server.quote(postgres_server.PASSWORD, safe="") not in str(caught.value)


_WRITER = """
import sys
from test_storage_sql import NOTES, SqlStore
print("ready", flush=True)
sys.stdin.readline()
store = SqlStore(sys.argv[1])
store.create(NOTES)
for run in range(5):
    with store.transaction("notes") as transaction:
        before = len(transaction.select(NOTES))
        rows = [(before + number, None, sys.argv[2], True, [run]) for number in range(50)]
        transaction.insert(NOTES, rows)
"""


def test_processes_that_start_at_once_all_write(place, project_root):
    folders = (project_root, project_root / "tests/storage", project_root / "tests/reference")
    options = {
        "text": True,
        "env": {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
    }
    command = [sys.executable, "-c", _WRITER, place]
    writers = [subprocess.Popen([*command, f"writer {number}"], **options) for number in range(3)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n", writer.stderr.read()
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    results = [(*writer.communicate(), writer.returncode) for writer in writers]
    assert [result[2] for result in results] == [0] * 3, results
    # every process saw all rows of the other processes
    assert [row["id"] for row in notes(SqlStore(place))] == list(range(3 * 5 * 50))


def test_a_reader_does_not_wait_for_a_writer(store):
    add(store, (1, None, None, None, None))
    with store.transaction() as transaction:
        transaction.insert(NOTES, [(2, None, None, None, None)])
        assert [row["id"] for row in notes(store)] == [1]
    assert [row["id"] for row in notes(store)] == [1, 2]


def test_sqlite_keeps_a_write_ahead_log_and_makes_its_folder(tmp_path):
    path = tmp_path / "a ?#%" / "home" / "store.db"
    store = SqlStore(path)
    store.create(NOTES)
    assert path.is_file()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/db", "database_failed"),
        ("postgres://me@127.0.0.1:1/db?password=hunter2", "database_failed"),
        ("postgresql://me:hunt@er2@127.0.0.1/db", "database_url"),
        ("postgresql://me:hunter2@127.0.0.1:hunter2/db", "database_url"),
        ("mysql://me:hunter2@127.0.0.1/db", "database_url"),
        ("hunter2", "database_url"),
        ("sqlite://", "database_url"),
        ("sqlite:///:memory:", "database_url"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_without_its_password(url, code):
    with pytest.raises(InputError) as caught:
        SqlStore(url).create(NOTES)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert problem.field == "database_url"
    assert "hunter" not in f"{caught.value}{caught.value!r}"
    assert "er2" not in str(caught.value)
    assert problem.found or problem.accepted


def test_what_is_no_sqlite_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, this is no database. " * 100)
    before = path.read_bytes()
    for place in (path, path / "below.db"):
        with pytest.raises(InputError, match="database_failed"):
            SqlStore(place).create(NOTES)
    assert path.read_bytes() == before


def test_an_emptied_database_of_a_home_with_runs_is_refused(tmp_path):
    path = tmp_path / "rag_eval.db"
    path.touch()  # without a kept run, the file may come from a killed process
    SqlStore(path).create(NOTES)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "20260101T000000000Z-00000000.json").write_text("{}")
    SqlStore(path).create(NOTES)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="database_empty"):
        SqlStore(path)


COLUMNS = (
    ColumnSpec("id", "text", required=True),
    ColumnSpec("a", "integer", required=True),
    ColumnSpec("b", "text", required=True),
    ColumnSpec("more", "json"),
)
PAIRS = TableSpec("pairs", COLUMNS, indexes=(("a",),), unique=(("id",), ("a", "b")))


def test_only_what_is_new_under_every_unique_index_is_added(place):
    store = SqlStore(place)
    store.create(PAIRS)
    later = [("x", 9, "new", None), ("z", 1, "b", None), *[("w", 2, "b", None)] * 2]
    for rows, added in (
        ([("x", 1, "b", {"k": [1, None]}), ("y", 1, "c", None)], {"x", "y"}),
        (later, {"w"}),
        ([], set()),
    ):
        with store.transaction() as transaction:
            assert transaction.insert_new(PAIRS, rows, "id") == added
    with store.reading() as transaction:
        found = transaction.select(PAIRS, order=["id"])
    assert [row["id"] for row in found] == ["w", "x", "y"]
    assert found[1] == {"id": "x", "a": 1, "b": "b", "more": {"k": [1, None]}}
