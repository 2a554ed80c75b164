"""The SQL store: tables that stages declare, in SQLite in the home or in PostgreSQL by address.

Belongs here: the only use of sqlalchemy. A stage describes its table as a `TableSpec` (`sql_tables`) and hands over rows; which columns a table has and what
they mean is the stage's matter.
"""

import contextlib
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.sql_tables import Row, TableSpec, batches, cleaned

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnElement, Connection, Engine, Table

FILE_NAME = "rag_eval.db"
ACCEPTED = "sqlite:///<file>, postgresql://<user>:<password>@<host>:<port>/<database> with special characters in the password as %XX"
BUSY_SECONDS = 60
CONNECT_SECONDS = 10


def _parsed(address: str) -> "URL":
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # its text may quote a part of the password
        url = None
    if url is None or "@" in (
        url.host or ""
    ):  # an unescaped @ in a password moves its tail into the host
        raise InputError(
            Problem(
                "database_url",
                "the address of the SQL store cannot be read",
                field="database_url",
                accepted=ACCEPTED,
            )
        )
    names = {
        "sqlite": "sqlite",
        "sqlite+pysqlite": "sqlite",
        "postgres": "postgresql+psycopg",
        "postgresql": "postgresql+psycopg",
        "postgresql+psycopg": "postgresql+psycopg",
    }
    if url.drivername not in names:
        raise InputError(
            Problem(
                "database_url",
                "no such kind of SQL store",
                field="database_url",
                found=url.drivername,
                accepted=ACCEPTED,
            )
        )
    if names[url.drivername] == "sqlite" and url.database in {None, "", ":memory:"}:
        raise InputError(
            Problem(
                "database_url",
                "a store in memory would forget what it is given",
                field="database_url",
                found=address,
                accepted=ACCEPTED,
            )
        )
    return url.set(drivername=names[url.drivername])


def _into_wal(connection: sqlite3.Connection) -> None:
    """Set up a SQLite connection: we begin transactions ourselves, readers do not wait for the writer, writers wait for one another.

    Two processes that turn a new file to WAL at once are refused without waiting, so this is tried until the time is up. A file system
    without shared memory keeps another journal, which is slower and no less safe.
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


def _opened(url: "URL") -> "Engine":
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    if url.drivername != "sqlite":
        more = {
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "rag_eval",
            "client_encoding": "UTF8",
        }
        return create_engine(
            url,
            poolclass=NullPool,
            hide_parameters=True,
            connect_args={name: value for name, value in more.items() if name not in url.query},
        )
    engine = create_engine(
        url, poolclass=NullPool, hide_parameters=True, connect_args={"timeout": BUSY_SECONDS}
    )
    event.listen(engine, "connect", lambda connection, _: _into_wal(connection))
    # a transaction that writes takes the lock when it begins: one that read first and then wants to write would be refused without waiting
    event.listen(
        engine,
        "begin",
        lambda connection: connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN"
        ),
    )
    return engine


class Transaction:
    """What can be done within a transaction; it ends with the `with` block of `SqlStore.transaction` or `SqlStore.reading`."""

    def __init__(self, store: "SqlStore", connection: "Connection") -> None:
        self._store = store
        self._connection = connection

    def insert(self, table: TableSpec, rows: Iterable[Row]) -> int:
        """Append rows and return how many; a generator is taken in batches."""
        count = 0
        for batch in batches(table, rows):
            self._append(table, batch)
            count += len(batch)
        return count

    def insert_new(self, table: TableSpec, rows: Iterable[Row], key: str) -> set[Any]:
        """Append the rows that no unique index of the table holds yet; the others change nothing.

        Rows are handed over in the order given: callers that may meet in a table sort theirs, so that no two wait for each other.

        Returns
        -------
        set
            The values of column `key` of the rows that were added; once the transaction has ended, they are kept.
        """
        from sqlalchemy.dialects import postgresql, sqlite

        insert: Any = (
            postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
        )
        declared = self._store.table(table)
        statement = insert(declared).on_conflict_do_nothing().returning(declared.c[key])
        added: set[Any] = set()
        for batch in batches(table, rows):
            added.update(
                self._connection.execute(
                    statement, [dict(zip(table.column_names, row, strict=True)) for row in batch]
                ).scalars()
            )
        return added

    def _append(self, table: TableSpec, rows: list[tuple[Any, ...]]) -> None:
        names, declared = self._connection.dialect.identifier_preparer, self._store.table(table)
        if (
            self._connection.dialect.name == "postgresql"
        ):  # COPY takes less than half the time of INSERT
            columns = ", ".join([names.format_column(column) for column in declared.columns])
            cursor: Any = self._connection.connection.cursor()
            with (
                cursor,
                cursor.copy(f"COPY {names.format_table(declared)} ({columns}) FROM STDIN") as copy,
            ):
                for row in rows:
                    copy.write_row(row)
        else:
            self._connection.exec_driver_sql(str(declared.insert().compile(self._connection)), rows)

    def delete(self, table: TableSpec, where: Mapping[str, Any]) -> int:
        """Delete the rows that `where` chooses, as in `select`, and return how many."""
        return self._connection.execute(
            self._store.table(table).delete().where(*self._chosen(table, where))
        ).rowcount

    def select(
        self, table: TableSpec, where: Mapping[str, Any] | None = None, order: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Return rows as dictionaries, JSON decoded.

        Parameters
        ----------
        where
            Column -> its value, or a list, tuple or set of accepted values. Values are only ever sent as parameters.
        order
            Columns to sort by; text sorts as the database collates it.
        """
        declared = self._store.table(table)
        query = (
            declared.select()
            .where(*self._chosen(table, where or {}))
            .order_by(*(declared.c[name] for name in order))
        )
        rows = [dict(row) for row in self._connection.execute(query).mappings()]
        for name in [column.name for column in table.columns if column.kind == "json"]:
            for row in rows:
                row[name] = None if row[name] is None else json.loads(row[name])
        return rows

    def columns(
        self,
        table: TableSpec,
        where: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
    ) -> dict[str, list[Any]]:
        """Return the values of each column, JSON decoded, in no order: faster than `select` for many rows.

        Parameters
        ----------
        where
            As in `select`.
        names
            Columns; None is all of them.
        """
        from sqlalchemy import select

        declared, wanted = self._store.table(table), names or table.column_names
        rows = self._connection.execute(
            select(*(declared.c[name] for name in wanted)).where(*self._chosen(table, where or {}))
        ).all()
        found = (
            {
                name: list(values)
                for name, values in zip(wanted, zip(*rows, strict=True), strict=True)
            }
            if rows
            else {name: [] for name in wanted}
        )
        for name in [
            column.name
            for column in table.columns
            if column.kind == "json" and column.name in found
        ]:
            found[name] = json.loads(
                f"[{','.join(['null' if text is None else text for text in found[name]])}]"
            )  # one look at all is faster than one at each
        return found

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
    """A database of declared tables. Connections live as long as a transaction, so a store may be shared by threads and kept across forks.

    Parameters
    ----------
    place
        A file for SQLite (its folder is made), or an address: `sqlite:///...`, `postgresql://...`.

    Raises
    ------
    InputError
        `database_url`: the address cannot be read or is of no accepted kind; `database_driver`: psycopg is not installed. Every method
        raises `database_failed` when the database cannot be reached, refuses or breaks. No message shows the password.
    """

    def __init__(self, place: str | Path) -> None:
        from sqlalchemy import URL

        url = (
            URL.create("sqlite", database=str(place)) if isinstance(place, Path) else _parsed(place)
        )
        self._secrets = {
            value
            for value in (
                url.password,
                *(str(value) for name, value in url.query.items() if "pass" in name.lower()),
            )
            if value
        }
        self.address: str = url.set(query={}).render_as_string(hide_password=True)
        """The address without the password and without options."""
        self._tables: dict[TableSpec, Table] = {}
        self._created: set[TableSpec] = set()
        try:
            if url.drivername == "sqlite":
                Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
            self._engine = _opened(url)
        except ModuleNotFoundError:
            raise InputError(
                Problem(
                    "database_driver",
                    "PostgreSQL needs psycopg: pip install 'rag-eval[postgresql]'",
                    field="database_url",
                    found=self.address,
                )
            ) from None
        except OSError as error:
            raise InputError(self._failed(error)) from None

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn what the database refuses into an `InputError` that shows no secret."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            raise InputError(self._failed(error.orig or error)) from None
        except (
            self._engine.dialect.loaded_dbapi.Error
        ) as error:  # of COPY, which sqlalchemy does not know
            raise InputError(self._failed(error)) from None

    def _failed(self, error: BaseException) -> Problem:
        reason = " ".join(str(error).split())
        for secret in self._secrets:
            reason = reason.replace(secret, "***")
        return Problem(
            "database_failed",
            "the SQL store cannot be used; check its address, that it runs, and your rights",
            file=self.address,
            field="database_url",
            found=reason,
        )

    @contextlib.contextmanager
    def transaction(self, *locks: str) -> Iterator[Transaction]:
        """Write: all of the block is done, or nothing when it raises or the process dies.

        Parameters
        ----------
        locks
            Names; transactions that share one run one after another. SQLite has one writer at a time in any case.
        """
        from sqlalchemy import func, select

        with (
            self._reported(),
            self._engine.connect().execution_options(writes=True) as connection,
            connection.begin(),
        ):
            if self._engine.dialect.name == "postgresql":
                for lock in sorted(
                    set(locks)
                ):  # one order for all, so that two never wait for each other
                    connection.execute(
                        select(
                            func.pg_advisory_xact_lock(
                                int.from_bytes(
                                    hashlib.sha256(lock.encode()).digest()[:8], signed=True
                                )
                            )
                        )
                    )
            yield Transaction(self, connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Read without keeping a writer from its work."""
        with self._reported(), self._engine.connect() as connection:
            yield Transaction(self, connection)

    def table(self, table: TableSpec) -> "Table":
        """The table for sqlalchemy."""
        from sqlalchemy import BigInteger, Boolean, Column, Double, Index, MetaData, Table, Text

        if table not in self._tables:
            types = {
                "text": Text,
                "integer": BigInteger,
                "float": Double,
                "boolean": Boolean,
                "json": Text,
            }
            columns = [
                Column(column.name, types[column.kind](), nullable=not column.required)
                for column in table.columns
            ]
            indexes = [
                Index(f"ix_{table.name}_{'_'.join(names)}"[:63], *names) for names in table.indexes
            ]
            unique = [
                Index(f"uq_{table.name}_{'_'.join(names)}"[:63], *names, unique=True)
                for names in table.unique
            ]
            self._tables[table] = Table(table.name, MetaData(), *columns, *indexes, *unique)
        return self._tables[table]

    def create(self, table: TableSpec) -> None:
        """Create the table with its indexes where it is absent; several processes may do so at once.

        Raises
        ------
        InputError
            `table_differs`: it exists with other columns, or without a unique index.
        """
        if table in self._created:
            return
        with self.reading() as transaction:
            there = self._is_there(table, transaction)
        if not there:
            with self.transaction("rag_eval.create_table") as transaction:
                if not self._is_there(table, transaction):  # another process may have made it since
                    self.table(table).create(transaction._connection)  # noqa: SLF001 - the two classes are one adapter
        self._created.add(table)

    def _is_there(self, table: TableSpec, transaction: Transaction) -> bool:
        from sqlalchemy import BigInteger, Boolean, Double, Float, Integer, Text, inspect

        database = inspect(transaction._connection)  # noqa: SLF001 - likewise
        if not database.has_table(table.name):
            return False
        accepted = {
            "text": Text,
            "integer": Integer,
            "float": Float,
            "boolean": Boolean,
            "json": Text,
        }
        found = database.get_columns(table.name)
        fits = [
            isinstance(column["type"], accepted[wanted.kind])
            for column, wanted in zip(found, table.columns, strict=False)
        ]
        if [column["name"] for column in found] != list(table.column_names) or not all(fits):
            named = {
                "text": Text(),
                "integer": BigInteger(),
                "float": Double(),
                "boolean": Boolean(),
                "json": Text(),
            }
            raise InputError(
                Problem(
                    "table_differs",
                    f"the table {table.name} has other columns than this version writes; rename it or give this version its own database",
                    file=self.address,
                    found=", ".join(f"{column['name']} {column['type']}" for column in found),
                    accepted=", ".join(
                        f"{column.name} {named[column.kind]}" for column in table.columns
                    ),
                )
            )
        unique = (
            {
                tuple(index["column_names"])
                for index in database.get_indexes(table.name)
                if index["unique"]
            }
            if table.unique
            else set()
        )
        absent = [", ".join(names) for names in table.unique if names not in unique]
        if absent:
            raise InputError(
                Problem(
                    "table_differs",
                    f"the table {table.name} has no unique index over columns that need one, so rows could stand twice in it; make the index or rename the table",
                    file=self.address,
                    found="; ".join(", ".join(map(str, names)) for names in sorted(unique, key=str))
                    or "no unique index",
                    accepted="; ".join(absent),
                )
            )
        return True
