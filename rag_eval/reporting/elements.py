"""Elements of the page: written figures, texts, tables and pictures, and their environment.

Every figure on the page carries its place in the report as a JSON pointer, and a null its reason.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
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
    middle,
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


def _absent(reason: str) -> Markup:
    """Write a dash for an absent figure, with its reason."""
    return Markup(
        '<span class="absent" title="{0}">–<span class="sr"> not available: {0}</span></span>'
    ).format(visible(reason))


def _why_absent(cursor: Cursor | None) -> Markup:
    return _absent(NOT_COMPUTED if cursor is None else cursor.reason)


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


def _write_cell(column: Column, cell: Cursor) -> Markup:
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


def _write_table(shown: Table) -> Markup:
    """Write a table with reasons of dashes and meanings of columns; nothing without rows.

    A wide table scrolls in its own region.
    """
    if not shown:
        return Markup()
    rendered = environment().get_template("table.html").render(table=shown)
    return Markup(rendered)  # noqa: S704 - escaped by the environment


# ---- Pictures as SVG: one pair of axes with lines, points, bands and boxes.
# A writer of our own, because the first picture of a plotting library costs seconds. Colours are
# names of the style sheet, which follows the reader's light, dark or printed page.

N_SERIES: Final = 8
WIDTH: Final = 360.0
"""Width of a picture in pixels; three pictures fit side by side on a wide screen."""
MAX_LABEL: Final = 40
_TOP, _RIGHT, _LEFT, _ROW = 30.0, 14.0, 46.0, 34.0
_TEXT, _TITLE = 12.5, 14.0
"""Font sizes in pixels."""
_DASHES: Final = "4 3"


def label(name: str, length: int = MAX_LABEL) -> str:
    """Write a name as a one-line label, cut to a length, with invisible characters written out.

    Examples
    --------
    >>> label("a strategy with a name that goes on and on", 24)
    'a strategy with a name …'
    """
    line = " ".join(visible(name[: 4 * length]).split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def round_ticks(low: float, high: float, count: int = 5) -> list[tuple[float, str]]:
    """Choose at most `count` + 1 round values between two limits, with their labels."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [(at * step, f"{at * step:.{digits}f}") for at in range(first, last + 1)]
    return [(value, words.replace("-", "−")) for value, words in values]


def _tag(name: str, content: object = "", **attributes: object) -> Markup:
    """Write an element; floats are rounded to tenths."""
    written = Markup().join(
        Markup(' {}="{}"').format(
            key.replace("_", "-"),
            f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value,
        )
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, content)


class Chart:
    """One picture. Make the axes, draw marks in data coordinates, then call `figure`.

    `x` and `y` are the limits of the axes (y from bottom to top), and `x_ticks` and `y_ticks` pairs
    of value and label; None chooses round values.
    """

    def __init__(
        self,
        title: str,
        *,
        x: tuple[float, float] = (0.0, 1.0),
        y: tuple[float, float] = (0.0, 1.0),
        height: float = 220.0,
        x_ticks: Sequence[tuple[float, str]] | None = None,
        y_ticks: Sequence[tuple[float, str]] | None = None,
        x_label: str = "",
        y_label: str = "",
    ) -> None:
        self._x, self._y, self._bottom = x, y, _TOP + height
        self._height = self._bottom + (42 if x_label else 26)
        self._parts = [_tag("text", title, x=2, y=16, font_size=_TITLE, fill="var(--fg)")]
        self._key: list[Markup] = []
        for value, text in round_ticks(*x) if x_ticks is None else x_ticks:
            self.line([(value, end) for end in y], "line", 1.0)
            self._write(self.x(value), self._bottom + 16, text)
        for value, text in round_ticks(*y) if y_ticks is None else y_ticks:
            self.line([(end, value) for end in x], "line", 1.0)
            self._write(_LEFT - 7, self.y(value) + 4, text, "end")
        self.line([(end, y[0]) for end in x], "muted", 1.0)
        if x_label:
            self._write((_LEFT + WIDTH) / 2, self._bottom + 34, x_label)
        if y_label:
            self._write(2, _TOP - 4, y_label, "start")

    @classmethod
    def of_rows(
        cls, title: str, names: Sequence[str], *, x: tuple[float, float] = (0.0, 1.0)
    ) -> "Chart":
        """Make a picture with a row below each name, the first on top at y = 0."""
        count = len(names)
        chart = cls(title, x=x, y=(count - 0.5, -0.8), height=_ROW * (count + 0.3), y_ticks=())
        for at, name in enumerate(names):
            chart._write(_LEFT, chart.y(at) - 9, label(name), "start")
        return chart

    def x(self, value: float) -> float:
        """Convert a value to pixels from the left; a value beyond the axis stays at its end."""
        low, high = self._x
        share = (value - low) / ((high - low) or 1.0)
        return _LEFT + min(max(share, 0.0), 1.0) * (WIDTH - _RIGHT - _LEFT)

    def y(self, value: float) -> float:
        """Convert a value to pixels from the top; a value beyond the axis stays at its end."""
        low, high = self._y
        share = (value - low) / ((high - low) or 1.0)
        return self._bottom - min(max(share, 0.0), 1.0) * (self._bottom - _TOP)

    def _write(self, x: float, y: float, text: str, anchor: str = "middle") -> None:
        look = {"text_anchor": anchor, "font_size": _TEXT, "fill": "var(--muted)"}
        self._parts.append(_tag("text", text, x=x, y=y, **look))

    def _points(self, pairs: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in pairs)

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        width: float = 2.0,
        *,
        dashed: bool = False,
    ) -> None:
        """Draw a line through points."""
        look = {"fill": "none", "stroke": f"var(--{colour})", "stroke_width": width}
        look |= {"stroke_dasharray": _DASHES} if dashed else {}
        self._parts.append(_tag("polyline", points=self._points(points), **look))

    def area(
        self, points: Iterable[tuple[float, float]], colour: str, opacity: str = "0.15"
    ) -> None:
        """Fill the area inside of points."""
        look = {"fill": f"var(--{colour})", "fill_opacity": opacity}
        self._parts.append(_tag("polygon", points=self._points(points), **look))

    def band(
        self, places: Sequence[float], ends: Sequence[tuple[float, float]], colour: str
    ) -> None:
        """Tint the area between two lines; `ends` holds (lower, upper) for each place."""
        lower = [(x, low) for x, (low, _) in zip(places, ends, strict=True)]
        upper = [(x, high) for x, (_, high) in zip(places, ends, strict=True)]
        self.area([*lower, *reversed(upper)], colour)

    def box(self, x: tuple[float, float], y: tuple[float, float], colour: str) -> None:
        """Draw a filled rectangle."""
        self.area([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])], colour, "0.75")

    def point(self, x: float, y: float, colour: str) -> None:
        """Draw one point."""
        self._parts.append(
            _tag("circle", cx=self.x(x), cy=self.y(y), r=3.6, fill=f"var(--{colour})")
        )

    def key(self, words: str, colour: str) -> None:
        """Add an entry to the key below the picture."""
        entry = Markup('<span class="series {}"><i></i>{}</span>').format(colour, label(words))
        self._key.append(entry)

    def figure(self, slug: str, title: str, description: str, caption: Markup | str = "") -> Markup:
        """Write the picture with its key and a caption as a figure of the page.

        `slug` (letters, digits, hyphens) makes the ids of the picture unique on a page. A screen
        reader says the title and the description.
        """
        picture = _tag(
            "svg",
            _tag("title", visible(title), id=f"{slug}-title")
            + _tag("desc", visible(description), id=f"{slug}-desc")
            + Markup().join(self._parts),
            **{"class": "plot", "aria-labelledby": f"{slug}-title {slug}-desc"},
            role="img",
            viewBox=f"0 0 {WIDTH:.0f} {self._height:.0f}",
            width=WIDTH,
            height=self._height,
        )
        below = Markup(" ").join([*self._key, *([caption] if caption else [])])
        return _tag(
            "figure",
            picture + Markup('<figcaption class="prose">{}</figcaption>').format(below),
        )


def value_of(cursor: Cursor | None) -> float | None:
    """Read the figure of an estimate for a picture; None if it is missing."""
    value = None if cursor is None else middle(cursor).value
    return float(value) if is_number(value) else None


def ends_of(estimate: Cursor, value: float) -> tuple[float, float]:
    """Read the interval of an estimate; return the value twice if the estimate has no interval."""
    ends = bounds(estimate)
    return (value, value) if ends is None else (float(ends[0].value), float(ends[1].value))


def plots(pictures: Iterable[Markup | None]) -> Markup:
    """Set pictures side by side if there is room; return empty markup without pictures."""
    drawn = [picture for picture in pictures if picture]
    return Markup('<div class="plots">{}</div>').format(Markup().join(drawn)) if drawn else Markup()


@dataclasses.dataclass(frozen=True)
class Row:
    """One estimate of a forest."""

    name: str
    record: Cursor | None
    colour: str


def forest(rows: Sequence[Row], slug: str, title: str, head: str) -> Markup:
    """Draw each estimate in a row with its 95 % interval, as a figure of the page.

    The axis goes from 0 to 1. Where an end is negative, the rows are differences, and the axis has
    a line at 0. Returns empty markup if no row has a value.
    """
    drawn = [
        (row, value, ends_of(row.record, value))
        for row in rows
        if row.record is not None and (value := value_of(row.record)) is not None
    ]
    if not drawn:
        return Markup()
    ends = [end for _, _, interval in drawn for end in interval]
    most = max(map(abs, ends)) * 1.05
    chart = Chart.of_rows(
        head, [row.name for row, _, _ in drawn], x=(-most, most) if min(ends) < 0 else (0.0, 1.0)
    )
    if min(ends) < 0:
        chart.line([(0.0, -0.8), (0.0, len(drawn))], "muted", 1.0, dashed=True)
    words = []
    for at, (row, value, (low, high)) in enumerate(drawn):
        chart.line([(low, at), (high, at)], row.colour, 2.6)
        chart.point(value, at, row.colour)
        words.append(f"{label(row.name)}: {value:.3f}, interval {low:.3f} to {high:.3f}")
    return chart.figure(slug, title, "; ".join(words))


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
        loader=PackageLoader("rag_eval.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_check_output,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        number=number,
        interval=interval,
        denominator=denominator,
        text=text,
        texts=texts,
        table=_write_table,
        write_cell=_write_cell,
    )
    return made
