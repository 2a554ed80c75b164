"""The SQL store keeps tables in a SQLite file of the home, or in PostgreSQL by address.

No other file imports sqlalchemy. A stage declares its table as a `TableSpec` and passes rows. The
stage decides the columns and their meaning.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.storage.home import open_home
from rag_eval.storage.secrets import without_secrets

if TYPE_CHECKING:
    from sqlalchemy import URL, Column, ColumnElement, Connection, Engine, Table

# ---- Declared tables, and values in the form that every database keeps

Kind = Literal["text", "integer", "float", "boolean", "json", "jsonb", "timestamp"]
Row = Sequence[Any]
"""Values in the order of the table's columns."""
Ask = Callable[[str, Mapping[str, object]], list[tuple[Any, ...]]]
"""Runs one statement of `SqlStore.session` with its parameters, and returns the rows."""

_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


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
    """A table that a stage declares, or that another program made.

    Such a table may have the columns in any order, beside further columns, of like types (INT,
    REAL, VARCHAR), and without the columns that are not required. Names are written without quotes,
    so their case does not matter.
    """

    name: str
    columns: tuple[ColumnSpec, ...]
    indexes: tuple[tuple[str, ...], ...] = ()
    """Columns of each index. PostgreSQL refuses indexed text of more than about 2,700 bytes."""
    unique: tuple[tuple[str, ...], ...] = ()
    """Columns of each unique index. They must be required, because null equals no value in SQL."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns in order."""
        return tuple(column.name for column in self.columns)


def _cleaned(text: str) -> str:
    """Replace NUL and lone surrogates, which not every database can store."""
    return text if text.isascii() and "\x00" not in text else _NOT_TEXT.sub("\ufffd", text)


def _plain(value: Any) -> Any:
    """Replace NaN, infinity and what is no text in a JSON value."""
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None
    if isinstance(value, str):
        return _cleaned(value)
    if isinstance(value, Mapping):
        return {_cleaned(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _json_text(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


@functools.cache
def _types() -> dict[Kind, tuple[Any, Any]]:
    """Return the type of a column of each kind, and the types of other programs that fit it."""
    import sqlalchemy as sa
    from sqlalchemy.dialects.postgresql import JSONB

    class Plain(sa.TypeDecorator[Any]):
        """Text, or a number without NaN and infinity."""

        impl: Any = sa.Text
        cache_ok = True

        def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002 - signature of SQLAlchemy
            return _plain(value)

    class Number(Plain):
        impl, cache_ok = sa.Double, True

    class JsonText(sa.TypeDecorator[Any]):
        impl, cache_ok = sa.Text, True

        def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002 - signature of SQLAlchemy
            return None if value is None else _json_text(value)

        def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002 - signature of SQLAlchemy
            return None if value is None else json.loads(value)

    jsonb = sa.JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    return {
        "text": (Plain(), sa.String),
        "integer": (sa.BigInteger(), sa.Integer),
        "float": (Number(), (sa.Numeric, sa.Float)),
        "boolean": (sa.Boolean(), sa.Boolean),
        "json": (JsonText(), sa.String),
        "jsonb": (jsonb, sa.JSON),
        "timestamp": (sa.TIMESTAMP(), sa.DateTime),
    }


@functools.cache
def declare(table: TableSpec) -> "Table":
    """Return the table as sqlalchemy describes it."""
    from sqlalchemy import Column, Index, MetaData, Table

    columns = [
        Column(
            column.name,
            _types()[column.kind][0],
            nullable=not column.required,
            quote=None if column.name.islower() else False,
        )
        for column in table.columns
    ]
    indexes = [
        Index(f"{prefix}_{table.name}_{'_'.join(names)}"[:63], *names, unique=prefix == "uq")
        for prefix, group in (("ix", table.indexes), ("uq", table.unique))
        for names in group
    ]
    return Table(table.name, MetaData(), *columns, *indexes)


def _conditions(table: TableSpec, where: Mapping[str, Any]) -> "Iterator[ColumnElement[bool]]":
    columns = declare(table).c
    for name, value in where.items():
        is_several = isinstance(value, list | tuple | set | frozenset)
        yield columns[name].in_(value) if is_several else columns[name] == value


# ---- The store and its connections

FILE_NAME = "rag_eval.db"
_IN_MEMORY = (None, "", ":memory:")
ACCEPTED = (
    "sqlite:///<file>, postgresql://<user>:<password>@<host>:<port>/<database> "
    "with special characters in the password as %XX"
)
BUSY_SECONDS = 60
_DRIVERS = {
    "sqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_OPTIONS: dict[str, dict[str, object]] = {
    "sqlite": {"timeout": BUSY_SECONDS},
    "postgresql+psycopg": {
        "connect_timeout": 10,
        "application_name": "rag_eval",
        "client_encoding": "UTF8",
    },
}


def _parse_address(address: str) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
        url = url.set(drivername=_DRIVERS[url.drivername])
    except (ArgumentError, ValueError, KeyError):  # their texts may quote a part of the password
        url = None
    is_lost = url is not None and url.drivername == "sqlite" and url.database in _IN_MEMORY
    # an unescaped @ in a password moves its tail into the host
    if url is None or is_lost or "@" in (url.host or ""):
        message = "the address of the SQL store cannot be used"
        raise InputError.of("database_url", message, field="database_url", accepted=ACCEPTED)
    return url


def _refuse_emptied(path: Path) -> None:
    """Refuse an empty database file in a home with runs: SQLite would accept it as new."""
    if path.is_file() and not path.stat().st_size and any((path.parent / "runs").glob("*.json")):
        message = (
            "the database of this home is empty although runs are kept here: outcomes are lost"
        )
        accepted = "the file from a backup; or remove it, and the next run starts without outcomes"
        raise InputError.of("database_empty", message, path, found="0 bytes", accepted=accepted)


def _into_wal(connection: sqlite3.Connection) -> None:
    """Give a SQLite connection explicit transactions and WAL, so that readers do not wait."""
    connection.isolation_level = None
    until = time.monotonic() + BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            # SQLite refuses two processes that turn a new file to WAL at the same time
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return  # a file system without shared memory keeps another journal, which is as safe


def _make_engine(url: "URL") -> "Engine":
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    options = _OPTIONS[url.drivername].items()
    engine = create_engine(
        url,
        poolclass=NullPool,
        hide_parameters=True,
        connect_args={name: value for name, value in options if name not in url.query},
        json_serializer=_json_text,
    )
    if url.drivername != "sqlite":
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


class Transaction:
    """Operations inside the `with` block of `SqlStore.transaction` or `SqlStore.reading`."""

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection

    def insert(self, table: TableSpec, rows: Iterable[Row]) -> int:
        """Append rows and return their number."""
        values = [dict(zip(table.column_names, row, strict=True)) for row in rows]
        if values:
            self.connection.execute(declare(table).insert(), values)
        return len(values)

    def insert_new(self, table: TableSpec, rows: Iterable[Row], key: str) -> set[Any]:
        """Append the rows that no unique index of the table holds yet, and skip the others.

        Returns the values of column `key` of the added rows. Sort the rows if other processes may
        write to the same table: rows are sent in the order given, and one order prevents deadlocks.
        """
        from sqlalchemy.dialects import postgresql, sqlite

        is_postgres = self.connection.dialect.name == "postgresql"
        insert: Any = postgresql.insert if is_postgres else sqlite.insert
        declared = declare(table)
        values = [dict(zip(table.column_names, row, strict=True)) for row in rows]
        if not values:
            return set()
        statement = insert(declared).on_conflict_do_nothing().returning(declared.c[key])
        return set(self.connection.execute(statement, values).scalars())

    def delete(self, table: TableSpec, where: Mapping[str, Any]) -> int:
        """Delete the rows that `where` chooses, as in `select`, and return their number."""
        statement = declare(table).delete().where(*_conditions(table, where))
        return self.connection.execute(statement).rowcount

    def select(
        self, table: TableSpec, where: Mapping[str, Any] | None = None, order: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return rows as dictionaries, JSON decoded, sorted by the columns of `order`.

        `where` is the accepted value of each column, or a list, tuple or set of accepted values.
        Values are always sent as parameters. The database's collation orders text.
        """
        rows = self._rows(table, where, table.column_names, order)
        return [dict(zip(table.column_names, row, strict=True)) for row in rows]

    def columns(
        self, table: TableSpec, where: Mapping[str, Any] | None, names: Sequence[str] | None = None
    ) -> dict[str, list[Any]]:
        """Return the values of each column of `names` (all by default); `where` as in `select`."""
        wanted = names or table.column_names
        rows = self._rows(table, where, wanted)
        values = zip(*rows, strict=True) if rows else ([] for _ in wanted)
        return {name: list(column) for name, column in zip(wanted, values, strict=True)}

    def _rows(
        self,
        table: TableSpec,
        where: Mapping[str, Any] | None,
        names: Sequence[str],
        order: Sequence[str] = (),
    ) -> Sequence[Any]:
        from sqlalchemy import select

        columns = declare(table).c
        query = select(*(columns[name] for name in names)).where(*_conditions(table, where or {}))
        return self.connection.execute(query.order_by(*(columns[name] for name in order))).all()

    def size(self, table: TableSpec, where: Mapping[str, Any], newest: str) -> list[Any]:
        """Return the number of rows that `where` chooses, and the largest value of a column.

        Of a table whose rows are never changed, an equal size means equal rows.
        """
        from sqlalchemy import func, select

        declared = declare(table)
        query = select(func.count(), func.max(declared.c[newest])).select_from(declared)
        return list(self.connection.execute(query.where(*_conditions(table, where))).one())


class SqlStore:
    """A database of declared tables, in a SQLite file, whose folder it makes, or at an address.

    Threads may share a store, and it survives forks, because a connection lives only as long as a
    transaction. Raises InputError, without the password: `database_url`, `database_driver` without
    psycopg, `database_empty`, and in every method `database_failed` if the database is unreachable,
    refuses or breaks.
    """

    def __init__(self, place: str | Path) -> None:
        from sqlalchemy import URL

        if isinstance(place, Path):
            _refuse_emptied(place)
            url = URL.create("sqlite", database=str(place))
        else:
            url = _parse_address(place)
        self._address = url.render_as_string(hide_password=False)
        self.address: str = url.set(query={}).render_as_string(hide_password=True)
        """The address without the password and without options."""
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
            raise self._failed(error) from None

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn an error of the database into an `InputError` that shows no secret."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            raise self._failed(error.orig or error) from None

    def _failed(self, error: BaseException) -> InputError:
        return InputError.of(
            "database_failed",
            "the SQL store cannot be used; check its address, that it runs, and your rights",
            self.address,
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
            yield Transaction(connection)

    @contextlib.contextmanager
    def session(self, label: str) -> Iterator[Ask]:
        """Keep a connection to PostgreSQL open, in which each statement is a transaction.

        Yields a function that takes a statement with its parameters and returns rows. `label` is
        the connection's name for administrators. A client whose machine is gone keeps its locks
        for at most two minutes.
        """
        from sqlalchemy import text

        with (
            self._reported(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):

            def ask(statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
                with self._reported():
                    return [tuple(row) for row in connection.execute(text(statement), values)]

            options = {"idle": "60", "interval": "15", "count": "4"}
            options = {f"tcp_keepalives_{name}": value for name, value in options.items()}
            for name, value in {**options, "application_name": label}.items():
                ask("SELECT set_config(:name, :value, false)", {"name": name, "value": value})
            yield ask

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a reading transaction, which does not block a writer."""
        with self._reported(), self._engine.connect() as connection:
            yield Transaction(connection)

    def create(self, table: TableSpec) -> None:
        """Create the table with its indexes if it is absent; several processes may call this.

        A table gets the columns that it lacks. Raises InputError (`table_differs`) if it has
        columns of other types, or lacks one that is required.
        """
        if table in self._created:
            return
        with self.reading() as transaction:
            is_whole = not self._absent_columns(table, transaction)
        if not is_whole:
            with self.transaction("rag_eval.create_table") as transaction:
                self._add(table, transaction)
        self._created.add(table)

    def _absent_columns(self, table: TableSpec, transaction: Transaction) -> "list[Column[Any]]":
        """Return the columns that the table lacks; all columns of an absent table."""
        from sqlalchemy import inspect

        database, columns = inspect(transaction.connection), list(declare(table).columns)
        if not database.has_table(table.name):
            return columns
        present = database.get_columns(table.name)
        type_of = {column["name"].lower(): column["type"] for column in present}
        absent = [column for column in columns if column.name.lower() not in type_of]
        fits = [column.nullable for column in absent]
        for column in table.columns:
            if (kind := type_of.get(column.name.lower())) is not None:
                # PostgreSQL would shift a time without its zone into the zone of the session
                has_zone = getattr(kind, "timezone", False)
                fits.append(isinstance(kind, _types()[column.kind][1]) and not has_zone)
        if all(fits):
            return absent
        raise InputError.of(
            "table_differs",
            f"the table {table.name} has other columns than this version writes; "
            "rename it or give this version its own database",
            self.address,
            found=", ".join(f"{column['name']} {column['type']}" for column in present),
            accepted=", ".join(
                f"{column.name} {column.type.compile(self._engine.dialect)}" for column in columns
            ),
        )

    def _add(self, table: TableSpec, transaction: Transaction) -> None:
        """Create the table, or add the columns that it lacks with the indexes."""
        from sqlalchemy import text
        from sqlalchemy.schema import CreateColumn

        connection, declared = transaction.connection, declare(table)
        declared.create(connection, checkfirst=True)  # another process may have made it since
        for column in self._absent_columns(table, transaction):
            added = CreateColumn(column).compile(dialect=connection.dialect)
            connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {added}"))
        for index in declared.indexes:
            index.create(connection, checkfirst=True)


def open_store(settings: Settings) -> SqlStore:
    """Open the SQL store of the settings, or the SQLite file of the home."""
    address = settings.database_url
    folder = open_home(settings).folder
    return SqlStore(folder / FILE_NAME if address is None else address.get_secret_value())
