"""Input and output of panels: the report, colours of strategies, and tables by name."""

import dataclasses
import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final, TypeAlias

from markupsafe import Markup

from rag_eval.reporting.html.drawing import colour
from rag_eval.reporting.html.elements import (
    SHORT,
    Cell,
    Column,
    Cursor,
    Table,
    estimate_cell,
    limited_cell,
    number_cell,
    text,
    words_cell,
)

UNKNOWN: Final = "not described in this version"
"""Meaning of a code or state that `words.toml` does not list."""
TableRow: TypeAlias = Mapping[str, Any]
"""Values of a table row by name: each is a place, a finished cell, a text or None."""
ColumnSpec: TypeAlias = Mapping[str, Any]
"""Specification of a column in `tables.toml`."""


@functools.cache
def _read_toml(name: str) -> dict[str, Any]:
    path = resources.files("rag_eval.reporting.html").joinpath(name)
    return tomllib.loads(path.read_text(encoding="utf-8"))


def table_specs() -> dict[str, Any]:
    """Read `tables.toml`: caption and columns of every table, by name."""
    return _read_toml("tables.toml")


def panel_words() -> dict[str, Any]:
    """Read `words.toml`, the meanings of outcomes, codes, measures, states and methods."""
    return _read_toml("words.toml")


def lost_steps(misses: Cursor) -> list[tuple[str, Cursor]]:
    """Return (words, number of questions) of each step that lost gold, the most frequent first."""
    lost, words = misses["lost"], panel_words()["lost"]
    found = [(words[step], lost[step]) for step in words if lost.value.get(step)]
    return sorted(found, key=lambda pair: -pair[1].value)


@dataclasses.dataclass(frozen=True)
class Page:
    """Input of every panel: the report, and whether the page holds the questions of the run."""

    report: Cursor
    has_questions: bool = False

    @functools.cached_property
    def _entries(self) -> dict[str, Cursor]:
        return {str(entry["name"].value): entry for entry in self.report["strategies"]}

    @functools.cached_property
    def strategies(self) -> list[str]:
        """Names of the strategies, in the order of the report."""
        return list(self._entries)

    @property
    def primary(self) -> str:
        """Name of the strategy with the headline figures."""
        return str(self.report["strategy"].value)

    @property
    def level(self) -> str:
        """Level (document, section or span) of the headline figures."""
        return str(self.report["evaluation"]["level"].value)

    def strategy(self, name: str) -> Cursor:
        """Return the place of one strategy in the report."""
        return self._entries[name]

    def measure(self, name: str, label: str, level: str | None = None) -> Cursor | None:
        """Return the record of a strategy's measure; None where the strategy has none."""
        return self.strategy(name)["measures"].where(label=label, level=level or self.level)

    def by_strategy(self, *path: str) -> list[tuple[str, Cursor]]:
        """Return (strategy, entry) of an object by strategy; absent strategies are left out."""
        place = self.report.down(*path)
        if place is None:
            return []
        return [(name, place[name]) for name in self.strategies if name in place]

    def colour(self, name: str) -> str:
        """Return the colour of a strategy; every picture of the page uses this colour."""
        return colour(self.strategies.index(name))

    def swatch(self, name: str) -> Markup:
        """Write the name of a strategy with its colour; the primary one is marked."""
        mark = Markup(' <abbr title="the primary strategy: the headline figures are its">*</abbr>')
        return Markup('<span class="series s{}{}"><i></i>{}{}</span>').format(
            str(self.strategies.index(name) % 8 + 1),
            " long" if len(name) > SHORT else "",
            text(self.strategy(name)["name"]),
            mark if name == self.primary else "",
        )

    def group_alike(
        self, reasons: Iterable[tuple[str, Cursor | str]]
    ) -> list[tuple[Markup, Cursor | str]]:
        """Join the names of strategies with equal sentences; return (names, sentence) of each."""
        groups: dict[str, tuple[list[Markup], Cursor | str]] = {}
        for name, sentence in reasons:
            words = str(sentence.value if isinstance(sentence, Cursor) else sentence)
            groups.setdefault(words, ([], sentence))[0].append(self.swatch(name))
        return [(Markup(", ").join(names), sentence) for names, sentence in groups.values()]

    def table(
        self,
        spec: str,
        rows: Iterable[TableRow | Cursor],
        *,
        name: str = "",
        inserts: Mapping[str, Sequence[ColumnSpec]] | None = None,
        **words: str,
    ) -> Table:
        """Make a table of `tables.toml`. A row that is one place has the name `row`.

        `inserts` holds the columns that depend on the report; `words` fills the braces of caption,
        headings and meanings; `name` names the table when several tables share a specification.
        """
        columns: list[ColumnSpec] = []
        for column in table_specs()[spec]["columns"]:
            columns += (inserts or {})[column["insert"]] if "insert" in column else [column]
        named = [{"row": row} if isinstance(row, Cursor) else row for row in rows]
        cells = [[self._cell(column, row) for column in columns] for row in named]
        caption = table_specs()[spec]["caption"].format(**words)
        return Table(name or spec, caption, [_column(column, words) for column in columns], cells)

    def optional_table(
        self, spec: str, rows: Iterable[TableRow | Cursor], **more: Any
    ) -> Table | None:
        """Make a table; None if there are no rows."""
        found = list(rows)
        return self.table(spec, found, **more) if found else None

    def _cell(self, column: ColumnSpec, row: TableRow) -> Cell:
        kind = column.get("as", "number")
        first, *rest = column.get("at", column["key"]).split(".")
        value = row[first]
        if isinstance(value, Cursor):
            value = value.down(*rest)
        if isinstance(value, Cell):
            return value
        if kind == "series":
            return self._series(value)
        if isinstance(value, str) or kind in {"text", "code", "chip"}:
            return words_cell(value, kind if kind in {"code", "chip"} else "plain")
        if kind == "limited":
            return limited_cell(value)
        digits, signed = column.get("digits", 3), column.get("signed", False)
        if kind == "estimate":
            key, with_n = column.get("value", "value"), column.get("with_n", False)
            return estimate_cell(value, digits, signed=signed, with_n=with_n, key=key)
        return number_cell(value, digits, percent=column.get("percent", False), signed=signed)

    def _series(self, value: Cursor | str | None) -> Cell:
        """Make a cell of a name, with a colour if the name is a strategy of this run."""
        cursor = self.strategy(value)["name"] if isinstance(value, str) else value
        words = words_cell(cursor)
        if cursor is None or cursor.value not in self._entries:
            return words
        return dataclasses.replace(words, html=self.swatch(str(cursor.value)))


def _column(spec: ColumnSpec, words: Mapping[str, str]) -> Column:
    heading = spec.get("heading", spec["key"].replace("_", " ")).format(**words)
    figures = spec.get("figures", spec.get("as", "number") in {"number", "estimate", "limited"})
    return Column(spec["key"], heading, spec.get("means", "").format(**words), figures)


@dataclasses.dataclass(frozen=True)
class Panel:
    """One part of the page: heading, template, variables of the template, and tables by name."""

    title: str
    template: str
    context: Mapping[str, Any]
    tables: Mapping[str, Table | None] = dataclasses.field(default_factory=dict)

    @property
    def exports(self) -> tuple[Table, ...]:
        """Tables of the panel that are shown and can be downloaded, in order."""
        return tuple(table for table in self.tables.values() if table is not None)
