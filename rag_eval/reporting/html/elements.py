"""Elements of the page: written figures, texts and tables, and the templates' environment.

Every figure on the page carries its place in the report as a JSON pointer, and a null its reason.
"""

import functools
import json
import re
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from rag_eval.core.records import FEW_EFFECTIVE, HARDLY_SUPPORTED
from rag_eval.reporting.tables import (
    NOT_COMPUTED,
    Cell,
    Cursor,
    Table,
    bounds,
    format_number,
    visible,
)

if TYPE_CHECKING:
    from jinja2 import Environment

_ABSENT: Final = re.compile(r'<span class="absent" title="([^"]*)">–')
"""Markup that `absent` writes. Escaped texts of a report cannot match this pattern."""
SHORT: Final = 34
"""Largest number of characters of a text that is kept on one line."""
_CLASS: Final = re.compile(r"[a-z_]{1,30}")

# ---- Figures and texts


def absent(reason: str) -> Markup:
    """Write a dash for an absent figure, with its reason."""
    return Markup(
        '<span class="absent" title="{0}">–<span class="sr"> not available: {0}</span></span>'
    ).format(visible(reason))


def number(
    cursor: Cursor | None, digits: int = 3, *, percent: bool = False, signed: bool = False
) -> Markup:
    """Write one figure with its place in the report; a dash with the reason for a null."""
    if cursor is None or cursor.value is None:
        return absent(NOT_COMPUTED if cursor is None else cursor.reason)
    if isinstance(cursor.value, bool) or not isinstance(cursor.value, (int, float)):
        raise TypeError(f"{cursor.pointer} is no number")
    text = format_number(cursor.value, digits, percent=percent)
    return Markup('<data value="{}" data-at="{}">{}{}</data>').format(
        json.dumps(cursor.value), cursor.pointer, "+" if signed and cursor.value > 0 else "", text
    )


def interval(
    cursor: Cursor | None, digits: int = 3, *, signed: bool = False, key: str = "value"
) -> Markup:
    """Write an estimate with its interval: value [low, high]."""
    if cursor is None or cursor.value is None:
        return absent(NOT_COMPUTED if cursor is None else cursor.reason)
    ends, middle = bounds(cursor), number(cursor[key], digits, signed=signed)
    if ends is None:
        return Markup('<span class="est">{}</span>').format(middle)
    low, high = (number(end, digits, signed=signed) for end in ends)
    return Markup('<span class="est">{} <span class="ci">[{}, {}]</span></span>').format(
        middle, low, high
    )


def denominator(cursor: Cursor | None) -> Markup:
    """Write the denominators of an estimate: scored and attempted questions, and their worth."""
    if cursor is None or cursor.value is None:
        return Markup()
    parts: list[Markup] = []
    scored = next((cursor[name] for name in ("n_scored", "n") if name in cursor), None)
    if scored is not None:
        tried = cursor.get("n_attempted")
        parts.append(Markup("n = {}").format(number(scored)))
        if tried is not None and tried.value != scored.value:
            parts[0] += Markup(" of {}").format(number(tried))
    if (effective := cursor.get("n_effective")) is not None:
        parts.append(Markup("worth {}").format(number(effective, 1)))
        if effective.value < FEW_EFFECTIVE:
            parts.append(escape(HARDLY_SUPPORTED))
    elif (groups := cursor.get("n_groups")) is not None:
        parts.append(Markup("{} groups").format(number(groups)))
    if not parts:
        return Markup()
    return Markup('<span class="n">{}</span>').format(Markup(", ").join(parts))


def text(cursor: Cursor | str | None) -> Markup:
    """Write a text with invisible characters written out; a dash where it is null."""
    if isinstance(cursor, str):
        return escape(visible(cursor))
    if cursor is None or cursor.value is None:
        return absent(NOT_COMPUTED if cursor is None else cursor.reason)
    return Markup('<bdi data-at="{}">{}</bdi>').format(cursor.pointer, visible(str(cursor.value)))


def texts(cursors: Sequence[Cursor]) -> Markup:
    """Write several texts, comma-separated."""
    return Markup(", ").join(text(cursor) for cursor in cursors)


def series(name: Cursor | str | None, place: int, *, is_primary: bool) -> Markup:
    """Write the name of a strategy with its colour; the primary one is marked."""
    shown = text(name)
    mark = Markup(' <abbr title="the primary strategy: the headline figures are its">*</abbr>')
    return Markup('<span class="series s{}{}"><i></i>{}{}</span>').format(
        str(place % 8 + 1),
        " long" if len(shown.striptags()) > SHORT else "",
        shown,
        mark if is_primary else "",
    )


# ---- Tables


def write_cell(cell: Cell) -> Markup:
    """Write a cell of a table."""
    place = cell.value if isinstance(cell.value, Cursor) else None
    percent, signed = "%" in cell.flags, cell.signed
    if cell.kind == "number":
        return number(place, cell.digits, percent=percent, signed=signed)
    if cell.kind == "estimate" and place is not None:
        key = "delta" if "delta" in place else "value"
        written = interval(place, cell.digits, signed=signed, key=key)
        return written + Markup(" ") + denominator(place) if "n" in cell.flags else written
    if cell.kind == "limited" and place is not None:
        inside = bool(place["inside"].value)
        return Markup('<span class="limited{}">{} <span class="ci">{} {}</span></span>').format(
            "" if inside else " over",
            number(place["value"]),
            "≤" if inside else ">",
            number(place["null_limit"]),
        )
    return _write_words(cell, place)


def _write_words(cell: Cell, place: Cursor | None) -> Markup:
    if cell.series is not None:
        return series(cell.value, cell.series[0], is_primary=cell.series[1])
    is_list = place is not None and isinstance(place.value, list)
    shown = texts(list(place)) if is_list and place is not None else text(cell.value)
    if not cell.words:
        return shown
    if cell.kind == "chip":
        name = cell.words if _CLASS.fullmatch(cell.words) else ""
        return Markup('<span class="chip {}">{}</span>').format(name, shown)
    return Markup("<{0}{1}>{2}</{0}>").format(
        "code" if cell.kind == "code" else "span",
        Markup(' class="nb"') if len(cell.words) <= SHORT else "",
        shown,
    )


def table(shown: Table) -> Markup:
    """Write a table with reasons of dashes and meanings of columns; nothing without rows.

    A wide table scrolls in its own region.
    """
    if not shown:
        return Markup()
    body = environment().get_template("table_rows.html").render(table=shown)
    reasons = list(dict.fromkeys(_ABSENT.findall(body)))
    letters = string.ascii_lowercase
    letter = {reason: letters[at % 26] * (at // 26 + 1) for at, reason in enumerate(reasons)}
    marked = _ABSENT.sub(
        lambda dash: f'{dash[0]}<sup aria-hidden="true">{letter[dash[1]]}</sup>', body
    )
    # The reasons were escaped when the dashes were written.
    notes = [(letter[reason], Markup(reason)) for reason in reasons]  # noqa: S704
    rows = Markup(marked)  # noqa: S704 - escaped by the environment
    rendered = environment().get_template("table.html").render(table=shown, rows=rows, notes=notes)
    return Markup(rendered)  # noqa: S704 - escaped by the environment


# ---- Jinja2 of the page and the viewer: everything is escaped; a bare number is an error.


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
