"""Tables of the SQL store as stages declare them, and their values as every database keeps them.

Belongs here: what a table, a column and a value is, whatever database it is in. Text is kept as both databases can keep it: NUL and lone surrogates, which
PostgreSQL refuses, become U+FFFD; a float that is not finite becomes null and -0.0, which SQLite does not know, 0.0; `json` columns are text. So equal rows
give equal tables in both.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

BATCH = 10_000
"""Rows handed to the database at once."""

Kind = Literal["text", "integer", "float", "boolean", "json"]
Row = Sequence[Any]
"""Values in the order of the table's columns."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_JSON_NUL = re.compile(r"\\(?:u0000|.)")


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column. Integers have 64 bits, floats are double, `json` is text that holds a JSON value."""

    name: str
    kind: Kind
    required: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class TableSpec:
    """A table as its stage declares it.

    Parameters
    ----------
    name, columns
        Letters, digits and underscores; the case of letters is kept (in PostgreSQL a name with capitals is written in double quotes).
    indexes
        Columns of each index. PostgreSQL takes no indexed text over some 2,700 bytes: index what is bounded.
    unique
        Columns of each index that holds no two equal rows. Null equals nothing, so these columns must be required.
    """

    name: str
    columns: tuple[ColumnSpec, ...]
    indexes: tuple[tuple[str, ...], ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that would need escaping, columns that stand twice, indexes over absent columns and unique ones over columns that may be null."""
        names = self.column_names
        wrong = [name for name in (self.name, *names) if not _NAME.fullmatch(name)]
        absent = {name for index in (*self.indexes, *self.unique) for name in index} - set(names)
        if wrong or absent or len(set(names)) != len(names):
            raise ValueError(
                f"table {self.name!r}: unfit names {wrong}, absent columns in indexes {sorted(absent)}, columns {names}"
            )
        nullable = {column.name for column in self.columns if not column.required} & {
            name for index in self.unique for name in index
        }
        if nullable:
            raise ValueError(
                f"table {self.name!r}: columns of unique indexes that are not required {sorted(nullable)}"
            )

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns in order."""
        return tuple(column.name for column in self.columns)


def cleaned(text: str) -> str:
    """Return text as every database keeps it."""
    return text if text.isascii() and "\x00" not in text else _NOT_TEXT.sub("\ufffd", text)


def _finite(value: Any) -> Any:
    """Any JSON value with null for numbers that JSON lacks."""
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


def _kept(kind: Kind, values: Sequence[Any]) -> Sequence[Any]:
    """One column's values as every database keeps them; see the module's docstring."""
    if kind == "json":
        return [_json_text(value) for value in values]
    if kind == "text":
        joined = "".join(
            [value for value in values if value is not None]
        )  # one look at all of them is cheaper than one at each
        return (
            values
            if joined.isascii() and "\x00" not in joined
            else [None if value is None else cleaned(value) for value in values]
        )
    if kind == "float":
        return [
            None if value is None or not math.isfinite(value) else value + 0.0 for value in values
        ]
    return values


def batches(table: TableSpec, rows: Iterable[Row]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows as every database keeps them, up to `BATCH` at once."""
    left = iter(rows)
    while batch := list(itertools.islice(left, BATCH)):
        columns = zip(
            table.columns, zip(*batch, strict=True), strict=True
        )  # ValueError where a row is too short or too long
        yield list(zip(*(_kept(column.kind, values) for column, values in columns), strict=True))
