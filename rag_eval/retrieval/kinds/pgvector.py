"""The kind `pgvector`: vector search in a table of PostgreSQL with pgvector."""

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rag_eval.core.settings import PgvectorEngine, Settings
from rag_eval.retrieval.engines import Engine, EngineSource
from rag_eval.retrieval.outside import QueryError, RetryableError, too_late
from rag_eval.storage.hashing import digest

if TYPE_CHECKING:
    from psycopg import Connection, sql

OPERATORS = {"cosine": "<=>", "l2": "<->", "inner_product": "<#>"}
_COLUMNS = """\
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_INDEXES = """\
SELECT pg_get_indexdef(indexrelid) AS definition FROM pg_index
WHERE indrelid = %s::regclass ORDER BY definition"""
_VERSION = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
# An update gives a row another xmin, so the sum changes with every write. A sum needs no order.
_ROWS = """\
SELECT count(*), coalesce(sum(hashtextextended({id}::text || ' ' || xmin::text, 0)), 0)::text
FROM {table} WHERE {filters}"""
_SEARCH = """\
SELECT {columns}, {vector} {operator} %s::vector AS distance
FROM {table} WHERE {vector} IS NOT NULL AND {filters}
ORDER BY {vector} {operator} %s::vector LIMIT %s"""


class PgvectorSource(EngineSource):
    """A table. Each thread has a connection while it asks."""

    engine: PgvectorEngine

    def __init__(self, spec: Engine, engine: PgvectorEngine, settings: Settings) -> None:
        from psycopg import sql

        super().__init__(spec, engine, settings)
        self._idle: list[Connection[Any]] = []
        self._table = sql.Identifier(*engine.index.split("."))
        self._id = self.engine.fields.id or "id"
        self._columns = list(dict.fromkeys([self._id, *self.names.values()]))
        self._parts = {
            "table": self._table,
            "id": sql.Identifier(self._id),
            "vector": sql.Identifier(self.engine.fields.vector or "embedding"),
            "operator": sql.SQL(OPERATORS[engine.distance]),
            "columns": sql.SQL(", ").join(map(sql.Identifier, self._columns)),
            "filters": sql.SQL(" AND ").join(
                [sql.SQL("true")]
                + [sql.SQL("{} = ANY(%s)").format(sql.Identifier(name)) for name in self.accepted]
            ),
        }
        self._values = list(self.accepted.values())

    def close(self) -> None:
        """Close the connections. The next query opens new ones."""
        while self._idle:
            self._idle.pop().close()

    @contextlib.contextmanager
    def _connection(self) -> "Iterator[Connection[Any]]":
        """Lend a connection, and map the errors of PostgreSQL to failures of a query."""
        import psycopg

        connection = None
        try:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
            connection = connection or self._connect()
            yield connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.ConnectionTimeout):
                raise too_late(self.limits) from error
            if isinstance(error, psycopg.OperationalError):  # Its text may hold host and user.
                raise RetryableError("connection", f"no reply ({type(error).__name__})") from error
            if isinstance(error, psycopg.Error):
                message = f"{type(error).__name__}: {error.diag.message_primary or ''}"
                raise QueryError("refused", message) from error
            raise
        self._idle.append(connection)

    def _connect(self) -> "Connection[Any]":
        import psycopg

        connection = psycopg.connect(
            self.engine.url.get_secret_value(),
            password=self.key or None,
            autocommit=True,
            connect_timeout=math.ceil(self.limits.timeout_s),
            application_name="rag_eval",
        )
        limit = str(math.ceil(1000 * self.limits.timeout_s))
        session = {"statement_timeout": limit, "default_transaction_read_only": "on"}
        for name, value in (session | self.engine.session).items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        return connection

    def _compose(self, template: str) -> "sql.Composed":
        from psycopg import sql

        return sql.SQL(template).format(**self._parts)

    def describe(self) -> dict[str, object]:
        """Hash columns and indexes, count the rows, and add up the versions of all rows."""
        with self._connection() as connection:
            table = (self._table.as_string(connection),)
            layout = [connection.execute(asked, table).fetchall() for asked in (_COLUMNS, _INDEXES)]
            extension = connection.execute(_VERSION).fetchone()
            count, versions = connection.execute(self._compose(_ROWS), self._values).fetchone() or (
                0,
                "",
            )
        return {
            "settings_hash": digest([layout, extension, self.engine.distance, self.engine.session]),
            "n_documents": count,
            "generation": versions,
        }

    def search(self, query: str, top_k: int) -> list[dict[str, object]]:
        """Order the rows by distance; the score is the negative distance."""
        vector = str(self.vector(query))
        values = (vector, *self._values, vector, top_k)
        with self._connection() as connection:
            rows = connection.execute(self._compose(_SEARCH), values).fetchall()
        # A zero vector has no cosine distance. Rows of equal distance have no order in PostgreSQL.
        ranked = [row for row in rows if not math.isnan(row[-1])]
        ranked.sort(key=lambda row: (row[-1], [str(cell) for cell in row]))
        return [
            self.chunk(dict(zip(self._columns, cells, strict=True)), cells[0], -distance)
            for *cells, distance in ranked
        ]


class Pgvector(Engine):
    """A strategy that ranks the rows of a table by the distance of their vectors."""

    kind: Literal["pgvector"]
    source_type: ClassVar = PgvectorSource
