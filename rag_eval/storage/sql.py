"""The SQL store keeps tables in a SQLite file of the home, or in PostgreSQL by address.

No other file imports sqlalchemy. A stage declares its table as a `TableSpec` and passes rows. The
stage decides the columns and their meaning.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rag_eval.core.errors import InputError, Problem
from rag_eval.core.settings import Settings
from rag_eval.storage.home import open_home
from rag_eval.storage.secrets import without_secrets

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnElement, Connection, Engine, Table
    from sqlalchemy.engine.interfaces import ReflectedIndex
    from sqlalchemy.types import TypeEngine

# ---- Declared tables, and values in the form that every database keeps

BATCH = 10_000
"""Number of rows in one call to the database."""

Kind = Literal["text", "integer", "float", "boolean", "json", "jsonb", "timestamp"]
Row = Sequence[Any]
"""Values in the order of the table's columns."""
Ask = Callable[[str, Mapping[str, object]], list[tuple[Any, ...]]]
"""Runs one statement of `SqlStore.session` with its parameters, and returns the rows."""

_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_JSON_NUL = re.compile(r"\\(?:u0000|.)")


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column. Integers have 64 bits and floats are double.

    `json` is text with a JSON value. `jsonb` is JSONB on PostgreSQL and JSON on SQLite.
    `timestamp` is a datetime in UTC without its zone.
    """

    name: str
    kind: Kind
    required: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class TableSpec:
    """A table that a stage declares.

    Names have letters, digits and underscores. They are written without quotes, so their case
    does not matter: PostgreSQL keeps small letters, SQLite keeps the name as it is.
    """

    name: str
    columns: tuple[ColumnSpec, ...]
    indexes: tuple[tuple[str, ...], ...] = ()
    """Columns of each index. PostgreSQL refuses indexed text of more than about 2,700 bytes."""
    unique: tuple[tuple[str, ...], ...] = ()
    """Columns of each unique index. They must be required, because null equals no value in SQL."""
    is_shared: bool = False
    """Whether another program may make the table: with its columns in any order, beside further
    columns, of like types (INT, REAL, VARCHAR), and without the columns that are not required."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns in order."""
        return tuple(column.name for column in self.columns)


def cleaned(text: str) -> str:
    """Replace NUL and lone surrogates, which not every database can store."""
    return text if text.isascii() and "\x00" not in text else _NOT_TEXT.sub("\ufffd", text)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity in a JSON value by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _json_text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        text = _JSON(value)
    except ValueError:
        text = _JSON(_finite(value))
    if "\\u0000" in text:
        text = _JSON_NUL.sub(
            lambda match: "\ufffd" if match.group() == "\\u0000" else match.group(), text
        )
    return cleaned(text)


def _convert_values(kind: Kind, values: Sequence[Any]) -> Sequence[Any]:
    if kind in {"json", "jsonb"}:
        return [_json_text(value) for value in values]
    if kind == "text":
        return [None if value is None else cleaned(value) for value in values]
    if kind == "float":
        return [
            None if value is None or not math.isfinite(value) else value + 0.0 for value in values
        ]
    return values


def _batches(table: TableSpec, rows: Iterable[Row]) -> Iterator[list[dict[str, object]]]:
    """Yield rows in the form that every database keeps, up to `BATCH` at once."""
    left = iter(rows)
    while batch := list(itertools.islice(left, BATCH)):
        # zip raises ValueError if a row is too short or too long
        columns = zip(table.columns, zip(*batch, strict=True), strict=True)
        values = [_convert_values(column.kind, column_values) for column, column_values in columns]
        yield [dict(zip(table.column_names, row, strict=True)) for row in zip(*values, strict=True)]


# ---- The store and its connections

FILE_NAME = "rag_eval.db"
ACCEPTED = (
    "sqlite:///<file>, postgresql://<user>:<password>@<host>:<port>/<database> "
    "with special characters in the password as %XX"
)
BUSY_SECONDS = 60
_SQLITE_OPTIONS: dict[str, object] = {"timeout": BUSY_SECONDS}
_POSTGRESQL_OPTIONS: dict[str, object] = {
    "connect_timeout": 10,
    "application_name": "rag_eval",
    "client_encoding": "UTF8",
}

_KEPT_ALIVE = {
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "15",
    "tcp_keepalives_count": "4",
}

_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


def _refuse_address(message: str, address: str | None = None) -> InputError:
    return InputError.of(
        "database_url", message, field="database_url", found=address, accepted=ACCEPTED
    )


def _parse_address(address: str) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # the text of the error may quote a part of the password
        url = None
    # an unescaped @ in a password moves its tail into the host
    if url is None or "@" in (url.host or ""):
        raise _refuse_address("the address of the SQL store cannot be read")
    if url.drivername not in _DRIVERS:
        raise _refuse_address("no such kind of SQL store", url.drivername)
    if _DRIVERS[url.drivername] == "sqlite" and url.database in {None, "", ":memory:"}:
        raise _refuse_address("a store in memory keeps nothing after the run", address)
    return url.set(drivername=_DRIVERS[url.drivername])


def _refuse_emptied(path: Path) -> None:
    """Refuse an empty database file in a home with runs: SQLite would accept it as new."""
    if path.is_file() and not path.stat().st_size and any((path.parent / "runs").glob("*.json")):
        message = (
            "the database of this home is empty although runs are kept here, "
            "so its outcomes are lost"
        )
        accepted = "the file from a backup; or remove it, and the next run starts without outcomes"
        raise InputError.of("database_empty", message, path, found="0 bytes", accepted=accepted)


def _into_wal(connection: sqlite3.Connection) -> None:
    """Set up a SQLite connection with WAL and explicit transactions.

    Readers do not wait for the writer. Writers wait for one another. SQLite refuses two processes
    that turn a new file to WAL at the same time, so this function tries again until the time is
    up. A file system without shared memory keeps another journal, which is slower and as safe.
    """
    connection.isolation_level = None
    until = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def _decode(raw: str | bytes | bytearray) -> str:
    return raw if isinstance(raw, str) else raw.decode()


def _make_engine(url: "URL") -> "Engine":
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    is_sqlite = url.drivername == "sqlite"
    connect_args = _SQLITE_OPTIONS if is_sqlite else _POSTGRESQL_OPTIONS
    engine = create_engine(
        url,
        poolclass=NullPool,
        hide_parameters=True,
        connect_args={name: value for name, value in connect_args.items() if name not in url.query},
        # JSON columns take and give text, as the text columns with JSON do
        json_serializer=str,
        json_deserializer=_decode,
    )
    if not is_sqlite:
        return engine
    event.listen(engine, "connect", lambda connection, _: _into_wal(connection))
    # BEGIN IMMEDIATE takes the write lock at once. SQLite refuses without waiting if a transaction
    # reads first and asks for the lock later.
    event.listen(
        engine,
        "begin",
        lambda connection: connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN"
        ),
    )
    return engine


def _column_types() -> "dict[Kind, TypeEngine[Any]]":
    from sqlalchemy import JSON, TIMESTAMP, BigInteger, Boolean, Double, Text
    from sqlalchemy.dialects.postgresql import JSONB

    return {
        "text": Text(),
        "integer": BigInteger(),
        "float": Double(),
        "boolean": Boolean(),
        "json": Text(),
        "jsonb": JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql"),
        "timestamp": TIMESTAMP(),
    }


def _is_like(column_type: "TypeEngine[Any]", kind: Kind) -> bool:
    """Tell whether a column of a shared table takes values of a kind."""
    from sqlalchemy import JSON, Boolean, DateTime, Float, Integer, Numeric, String

    like: dict[Kind, tuple[type, ...]] = {
        "text": (String,),
        "integer": (Integer,),
        "float": (Numeric, Float),
        "boolean": (Boolean,),
        "json": (String,),
        "jsonb": (JSON,),
        "timestamp": (DateTime,),
    }
    # PostgreSQL would shift a time without its zone into the zone of the session
    return isinstance(column_type, like[kind]) and not getattr(column_type, "timezone", False)


class Transaction:
    """Operations inside the `with` block of `SqlStore.transaction` or `SqlStore.reading`."""

    def __init__(self, store: "SqlStore", connection: "Connection") -> None:
        self._store = store
        self._connection = connection

    def insert(self, table: TableSpec, rows: Iterable[Row]) -> int:
        """Append rows in batches and return their number."""
        statement, count = self._store.table(table).insert(), 0
        for batch in _batches(table, rows):
            self._connection.execute(statement, batch)
            count += len(batch)
        return count

    def insert_new(self, table: TableSpec, rows: Iterable[Row], key: str) -> set[Any]:
        """Append the rows that no unique index of the table holds yet, and skip the others.

        Returns the values of column `key` of the added rows. Sort the rows if other processes may
        write to the same table: rows are sent in the order given, and one order prevents deadlocks.
        """
        from sqlalchemy.dialects import postgresql, sqlite

        insert: Any = (
            postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
        )
        declared = self._store.table(table)
        statement = insert(declared).on_conflict_do_nothing().returning(declared.c[key])
        added: set[Any] = set()
        for batch in _batches(table, rows):
            added.update(self._connection.execute(statement, batch).scalars())
        return added

    def delete(self, table: TableSpec, where: Mapping[str, Any]) -> int:
        """Delete the rows that `where` chooses, as in `select`, and return their number."""
        return self._connection.execute(
            self._store.table(table).delete().where(*self._chosen(table, where))
        ).rowcount

    def select(
        self, table: TableSpec, where: Mapping[str, Any] | None = None, order: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return rows as dictionaries, JSON decoded, sorted by the columns of `order`.

        `where` is the accepted value of each column, or a list, tuple or set of accepted values.
        Values are always sent as parameters. The database's collation orders text.
        """
        columns = self.columns(table, where, order=order)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def columns(
        self,
        table: TableSpec,
        where: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
        order: Sequence[str] = (),
    ) -> dict[str, list[Any]]:
        """Return the values of each column of `names` (all by default), JSON decoded.

        `where` and `order` are as in `select`. For many rows this is faster than `select`.
        """
        from sqlalchemy import select

        declared, wanted = self._store.table(table), names or table.column_names
        query = select(*(declared.c[name] for name in wanted))
        query = query.where(*self._chosen(table, where or {}))
        rows = self._connection.execute(query.order_by(*(declared.c[name] for name in order))).all()
        values = zip(*rows, strict=True) if rows else ([] for _ in wanted)
        values_of = {name: list(column) for name, column in zip(wanted, values, strict=True)}
        for column in table.columns:
            if column.kind in {"json", "jsonb"} and column.name in values_of:
                # one call for all values is faster than a call for each value
                texts = ["null" if text is None else text for text in values_of[column.name]]
                values_of[column.name] = json.loads(f"[{','.join(texts)}]")
        return values_of

    def size(self, table: TableSpec, where: Mapping[str, Any], newest: str) -> list[Any]:
        """Return the number of rows that `where` chooses, and the largest value of a column.

        Of a table whose rows are never changed, an equal size means equal rows.
        """
        from sqlalchemy import func, select

        declared = self._store.table(table)
        query = select(func.count(), func.max(declared.c[newest])).select_from(declared)
        (row,) = self._connection.execute(query.where(*self._chosen(table, where))).all()
        return list(row)

    def _chosen(
        self, table: TableSpec, where: Mapping[str, Any]
    ) -> "Iterator[ColumnElement[bool]]":
        columns = self._store.table(table).c
        for name, value in where.items():
            several = isinstance(value, list | tuple | set | frozenset)
            accepted = [
                cleaned(item) if isinstance(item, str) else item
                for item in (value if several else [value])
            ]
            yield columns[name].in_(accepted) if several else columns[name] == accepted[0]


class SqlStore:
    """A database of declared tables, in a SQLite file or at an address.

    Threads may share a store, and it survives forks, because a connection lives only as long as a
    transaction. The store makes the folder of a SQLite file.

    Raises InputError, without the password: `database_url` for an address that is unreadable or of
    no accepted kind, `database_driver` without psycopg, `database_empty` for the empty file of a
    home with runs, and in every method `database_failed` if the database is unreachable, refuses
    or breaks.
    """

    def __init__(self, place: str | Path) -> None:
        from sqlalchemy import URL

        if isinstance(place, Path):
            _refuse_emptied(place)
        url = (
            URL.create("sqlite", database=str(place))
            if isinstance(place, Path)
            else _parse_address(place)
        )
        self._address = url.render_as_string(hide_password=False)
        self.address: str = url.set(query={}).render_as_string(hide_password=True)
        """The address without the password and without options."""
        self._tables: dict[TableSpec, Table] = {}
        self._created: set[TableSpec] = set()
        try:
            if url.drivername == "sqlite":
                Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
            self._engine = _make_engine(url)
        except ModuleNotFoundError:
            raise InputError.of(
                "database_driver",
                "PostgreSQL needs psycopg: pip install 'rag-eval[postgresql]'",
                field="database_url",
                found=self.address,
            ) from None
        except OSError as error:
            raise InputError(self._failed(error)) from None

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn an error of the database into an `InputError` that shows no secret."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            raise InputError(self._failed(error.orig or error)) from None

    def _failed(self, error: BaseException) -> Problem:
        return Problem(
            "database_failed",
            "the SQL store cannot be used; check its address, that it runs, and your rights",
            file=self.address,
            field="database_url",
            found=without_secrets(" ".join(str(error).split()), self._address),
        )

    @contextlib.contextmanager
    def transaction(self, *locks: str) -> Iterator[Transaction]:
        """Open a writing transaction; if the block raises or the process dies, nothing is written.

        Transactions that share the name of a lock run one after another. SQLite always runs one
        writer at a time.
        """
        from sqlalchemy import func, select

        with (
            self._reported(),
            self._engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            if self._engine.dialect.name == "postgresql":
                # all processes take locks in the same order, which prevents deadlocks
                for lock in sorted(set(locks)):
                    number = hashlib.sha256(lock.encode()).digest()[:8]
                    lock_call = func.pg_advisory_xact_lock(int.from_bytes(number, signed=True))
                    connection.execute(select(lock_call))
            yield Transaction(self, connection)

    @contextlib.contextmanager
    def session(self, label: str) -> Iterator[Ask]:
        """Keep a connection to PostgreSQL open, in which each statement is a transaction.

        Yields a function that takes a statement with its parameters and returns rows. `label` is
        the connection's name for administrators. A client whose machine is gone keeps its locks
        for at most two minutes.
        """
        from sqlalchemy import text

        options = {**_KEPT_ALIVE, "application_name": label}
        with (
            self._reported(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):

            def ask(statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
                with self._reported():
                    return [tuple(row) for row in connection.execute(text(statement), values)]

            for name, value in options.items():
                ask("SELECT set_config(:name, :value, false)", {"name": name, "value": value})
            yield ask

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a reading transaction, which does not block a writer."""
        with self._reported(), self._engine.connect() as connection:
            yield Transaction(self, connection)

    def table(self, table: TableSpec) -> "Table":
        """Return the table as sqlalchemy describes it."""
        from sqlalchemy import Column, Index, MetaData, Table

        if table not in self._tables:
            types = _column_types()
            columns = [
                Column(
                    column.name,
                    types[column.kind],
                    nullable=not column.required,
                    quote=None if column.name.islower() else False,
                )
                for column in table.columns
            ]
            indexes = [
                Index(f"{prefix}_{table.name}_{'_'.join(names)}"[:63], *names, unique=unique)
                for prefix, unique, group in (
                    ("ix", False, table.indexes),
                    ("uq", True, table.unique),
                )
                for names in group
            ]
            self._tables[table] = Table(table.name, MetaData(), *columns, *indexes)
        return self._tables[table]

    def create(self, table: TableSpec) -> None:
        """Create the table with its indexes if it is absent; several processes may call this.

        A shared table gets the columns that it lacks.

        Raises InputError (`table_differs`) if it exists with other columns or without a unique
        index.
        """
        if table in self._created:
            return
        with self.reading() as transaction:
            state = self._state(table, transaction)
        if state != "ready":
            with self.transaction("rag_eval.create_table") as transaction:
                # another process may have changed the state since
                self._make(table, transaction, self._state(table, transaction))
        self._created.add(table)

    def _state(
        self, table: TableSpec, transaction: Transaction
    ) -> Literal["absent", "narrow", "ready"]:
        from sqlalchemy import inspect

        database = inspect(transaction._connection)  # noqa: SLF001 - the two classes are one adapter
        if not database.has_table(table.name):
            return "absent"
        types, columns = _column_types(), database.get_columns(table.name)
        type_of = {column["name"].lower(): column["type"] for column in columns}
        wanted = {column.name.lower(): column for column in table.columns}
        if table.is_shared:
            absent = wanted.keys() - type_of.keys()
            if not any(wanted[name].required for name in absent) and all(
                _is_like(type_of[name], wanted[name].kind) for name in wanted.keys() - absent
            ):
                return "narrow" if absent else "ready"
        elif list(type_of) == list(wanted) and all(
            isinstance(type_of[name], type(types[column.kind])) for name, column in wanted.items()
        ):
            self._check_unique(table, database.get_indexes(table.name) if table.unique else [])
            return "ready"
        raise self._differs(
            f"the table {table.name} has other columns than this version writes; "
            "rename it or give this version its own database",
            ", ".join(f"{column['name']} {column['type']}" for column in columns),
            ", ".join(
                f"{column.name} {types[column.kind].compile(self._engine.dialect)}"
                for column in table.columns
            ),
        )

    def _check_unique(self, table: TableSpec, indexes: "Iterable[ReflectedIndex]") -> None:
        unique = {tuple(index["column_names"]) for index in indexes if index["unique"]}
        absent = [", ".join(names) for names in table.unique if names not in unique]
        if absent:
            present = [", ".join(map(str, names)) for names in sorted(unique, key=str)]
            raise self._differs(
                f"the table {table.name} has no unique index over columns that need one, so rows "
                "could stand twice in it; make the index or rename the table",
                "; ".join(present) or "no unique index",
                "; ".join(absent),
            )

    def _make(self, table: TableSpec, transaction: Transaction, state: str) -> None:
        """Create the table, or add the columns that it lacks."""
        from sqlalchemy import inspect, text
        from sqlalchemy.schema import CreateColumn

        connection, declared = transaction._connection, self.table(table)  # noqa: SLF001 - likewise
        if state == "absent":
            declared.create(connection)
        elif state == "narrow":
            present = {row["name"].lower() for row in inspect(connection).get_columns(table.name)}
            for column in declared.columns:
                if column.name.lower() not in present:
                    added = CreateColumn(column).compile(dialect=connection.dialect)
                    connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {added}"))
            for index in declared.indexes:
                index.create(connection, checkfirst=True)

    def _differs(self, message: str, present: str, accepted: str) -> InputError:
        return InputError.of(
            "table_differs", message, self.address, found=present, accepted=accepted
        )


def open_store(settings: Settings) -> SqlStore:
    """Open the SQL store of the settings, or the SQLite file of the home."""
    address = settings.database_url
    folder = open_home(settings).folder
    return SqlStore(folder / FILE_NAME if address is None else address.get_secret_value())
