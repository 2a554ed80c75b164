"""Elements of the page: written figures, texts and tables, and the templates' environment.

Every figure on the page carries its place in the report as a JSON pointer, and a null its reason.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from rag_eval.core.records import FEW_EFFECTIVE, HARDLY_SUPPORTED
from rag_eval.reporting.tables import (
    NOT_COMPUTED,
    Column,
    Cursor,
    Table,
    bounds,
    format_number,
    is_number,
    visible,
    words,
)

if TYPE_CHECKING:
    from jinja2 import Environment

# ---- The report as panels read it


@dataclasses.dataclass(frozen=True)
class Page:
    """The report as panels and tables read it.

    `has_questions`: whether the page holds the questions of the run.
    """

    report: Cursor
    has_questions: bool = False

    @functools.cached_property
    def _entries(self) -> dict[str, Cursor]:
        return {str(entry["name"].value): entry for entry in self.report["strategies"]}

    @property
    def strategies(self) -> list[str]:
        """Names of the strategies, in the order of the report."""
        return list(self._entries)

    @property
    def primary(self) -> str:
        """Name of the strategy with the headline figures."""
        return str(self.report["strategy"].value)

    def strategy(self, name: str) -> Cursor:
        """Return the place of one strategy in the report."""
        return self._entries[name]

    def measure(self, name: str, label: str, level: str = "") -> Cursor | None:
        """Return the record of a strategy's measure, at the headline level unless named."""
        level = level or self.report["evaluation"]["level"].value
        return self.strategy(name)["measures"].where(label=label, level=level)

    def by_strategy(self, *path: str) -> list[tuple[str, Cursor]]:
        """Return (strategy, entry) of an object by strategy; absent strategies are left out."""
        place = self.report.get(*path) or Cursor({})
        return [(name, place[name]) for name in self.strategies if name in place]

    def measures_of_answers(self) -> dict[str, Cursor]:
        """Return the measures of answers and citations by name, without failure rates of codes."""
        return {
            record.value["name"]: record
            for part in ("citations", "answers")
            for record in self.report.get(part, "measures") or ()
            if not record.value["name"].startswith("failure_rate_")
        }

    def rows(self, *path: str) -> list[dict[str, Any]]:
        """Return a row of a table for each strategy in an object by strategy."""
        return [{"strategy": name, "entry": entry} for name, entry in self.by_strategy(*path)]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One part of the page: heading, template, variables of the template, and tables by name."""

    title: str
    template: str
    context: Mapping[str, Any]
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)


# ---- Figures and texts


def absent(reason: str) -> Markup:
    """Write a dash for an absent figure, with its reason."""
    return Markup(
        '<span class="absent" title="{0}">–<span class="sr"> not available: {0}</span></span>'
    ).format(visible(reason))


def _why_absent(cursor: Cursor | None) -> Markup:
    return absent(NOT_COMPUTED if cursor is None else cursor.reason)


def number(
    cursor: Cursor | None, digits: int = 3, *, percent: bool = False, signed: bool = False
) -> Markup:
    """Write one figure with its place in the report; a dash with the reason for a null."""
    if cursor is None or cursor.value is None:
        return _why_absent(cursor)
    if not is_number(cursor.value):
        raise TypeError(f"{cursor.pointer} is no number")
    return Markup('<data value="{}" data-at="{}">{}{}</data>').format(
        json.dumps(cursor.value),
        cursor.pointer,
        "+" if signed and cursor.value > 0 else "",
        format_number(cursor.value, digits, percent=percent),
    )


def interval(
    cursor: Cursor | None, digits: int = 3, *, signed: bool = False, key: str = "value"
) -> Markup:
    """Write an estimate with its interval: value [low, high]."""
    if cursor is None or cursor.value is None:
        return _why_absent(cursor)
    ends, figure = bounds(cursor), number(cursor[key], digits, signed=signed)
    if ends is None:
        return Markup('<span class="est">{}</span>').format(figure)
    low, high = (number(end, digits, signed=signed) for end in ends)
    return Markup('<span class="est">{} <span class="ci">[{}, {}]</span></span>').format(
        figure, low, high
    )


def denominator(cursor: Cursor | None) -> Markup:
    """Write the denominators of an estimate: scored and attempted questions, and their worth."""
    if cursor is None or cursor.value is None:
        return Markup()
    parts: list[Markup] = []
    if scored := cursor.get("n_scored") or cursor.get("n"):
        parts.append(Markup("n = {}").format(number(scored)))
        if (tried := cursor.get("n_attempted")) and tried.value != scored.value:
            parts[0] += Markup(" of {}").format(number(tried))
    if (effective := cursor.get("n_effective")) is not None:
        parts.append(Markup("worth {}").format(number(effective, 1)))
        if effective.value < FEW_EFFECTIVE:
            parts.append(escape(HARDLY_SUPPORTED))
    return Markup('<span class="n">{}</span>').format(Markup(", ").join(parts))


def text(cursor: Cursor | str | None) -> Markup:
    """Write a text with invisible characters written out; a dash where it is null."""
    if isinstance(cursor, str):
        return escape(visible(cursor))
    if cursor is None or cursor.value is None:
        return _why_absent(cursor)
    if not cursor.path:
        return escape(visible(str(cursor.value)))
    return Markup('<bdi data-at="{}">{}</bdi>').format(cursor.pointer, visible(str(cursor.value)))


def texts(cursors: Sequence[Cursor]) -> Markup:
    """Write several texts, comma-separated."""
    return Markup(", ").join(text(cursor) for cursor in cursors)


# ---- Tables

_SHORT: Final = 34
"""Largest number of characters of a text that is kept on one line."""
_CODES: Final = frozenset({"code", "setting", "library"})
"""Headings of columns whose texts are names in code."""
_CLASS: Final = re.compile(r"[a-z_]{1,30}")


def write_cell(column: Column, cell: Cursor) -> Markup:
    """Write a cell of a table."""
    value, is_signed = cell.value, column.is_signed(cell)
    if isinstance(value, Mapping):
        key = "delta" if "delta" in cell else "value"
        written = interval(cell, column.digits, signed=is_signed, key=key)
        return written + Markup(" ") + denominator(cell) if "n" in column.flags else written
    if value is None or is_number(value):
        return number(cell, column.digits, percent="%" in column.flags, signed=is_signed)
    shown = texts(list(cell)) if isinstance(value, list) else text(cell)
    if column.heading == "status":
        name = value if _CLASS.fullmatch(str(value)) else ""
        return Markup('<span class="chip {}">{}</span>').format(name, shown)
    if column.heading in _CODES:
        return Markup("<code>{}</code>").format(shown)
    if len(words(cell)) <= _SHORT:
        return Markup('<span class="nb">{}</span>').format(shown)
    return Markup("<span>{}</span>").format(shown)


def table(shown: Table) -> Markup:
    """Write a table with reasons of dashes and meanings of columns; nothing without rows.

    A wide table scrolls in its own region.
    """
    if not shown:
        return Markup()
    rendered = environment().get_template("table.html").render(table=shown)
    return Markup(rendered)  # noqa: S704 - escaped by the environment


# ---- Jinja2 of the page: everything is escaped; a bare number is an error.


def _check_output(value: object) -> object:
    """Return markup and texts for a template; figures must be written by `number` first.

    Raises
    ------
    TypeError
        The value is a number, a null, or any other value that is not a text.
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return visible(value)
    raise TypeError(f"a template writes a bare {type(value).__name__}")


@functools.cache
def environment() -> "Environment":
    """Return the Jinja2 environment of the report templates."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("rag_eval.reporting.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_check_output,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    writers = (number, interval, denominator, text, texts, table, write_cell)
    made.globals.update({writer.__name__: writer for writer in writers})
    return made
