"""Small pictures as SVG: one pair of axes with lines, points and boxes in the colours of the page.

The package has a writer of its own because a plotting library is slow: the first picture of
matplotlib or vl-convert costs seconds, and this writer costs hundredths of a second. The
`var(--...)` colours follow the reader's light, dark or printed page.
"""

import dataclasses
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from markupsafe import Markup

from rag_eval.reporting.tables import Cursor, bounds, visible

SERIES: Final = tuple(f"var(--s{number})" for number in range(1, 9))
FOREGROUND, MUTED, LINE, PANEL, GOOD, BAD, WARN = (
    f"var(--{name})" for name in ("fg", "muted", "line", "panel", "good", "bad", "warn")
)
WIDTH: Final = 360.0
"""Width of a picture in pixels; three pictures fit side by side on a wide screen."""
ROW: Final = 26.0
TEXT, TITLE, SMALL = 12.5, 14.0, 11.0
"""Font sizes in pixels of texts, titles and small texts."""
MAX_LABEL: Final = 26
DASHED, DOTTED = "4 3", "2 2"
_SHAPES: Final = {
    "o": "M-1,0a1,1 0 1 0 2,0a1,1 0 1 0 -2,0",
    "s": "M-1,-1H1V1H-1Z",
    "D": "M0,-1.3L1.3,0L0,1.3L-1.3,0Z",
    "^": "M0,-1.2L1.2,1H-1.2Z",
    "v": "M0,1.2L1.2,-1H-1.2Z",
    "x": "M-1,-1L1,1M-1,1L1,-1",
}
"""Outlines of the markers of radius 1: circle, square, diamond, two triangles and cross."""
MARKERS: Final = "".join(_SHAPES)
_TOP, _RIGHT, _LINE_HEIGHT, _SWATCH = 30.0, 14.0, 18.0, 20.0


def colour(at: int) -> str:
    """Return the colour of the series at a place; the places 0 to 7 have distinct colours."""
    return SERIES[at % len(SERIES)]


def label(name: str, length: int = MAX_LABEL) -> str:
    """Write a name as a one-line label, cut to a length, with invisible characters written out.

    Examples
    --------
    >>> label("a strategy with a name that goes on and on", 24)
    'a strategy with a name …'
    """
    line = " ".join(visible(name[: 4 * length]).split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def text_width(text: str, size: float = TEXT) -> float:
    """Estimate the width of a text in pixels; 0.64 em a letter also holds for a wide font."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return size * (0.64 * (len(text) - wide) + wide)


def round_ticks(low: float, high: float, count: int = 5) -> list[tuple[float, str]]:
    """Choose at most `count` + 1 round values between two limits, with their labels."""
    rough = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [(at * step, f"{at * step:.{digits}f}") for at in range(first, last + 1)]
    return [(value, words.replace("-", "−")) for value, words in values]


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tag(name: str, content: object = "", **attributes: object) -> Markup:
    """Write an element; numbers are rounded to tenths, and None leaves an attribute out."""
    written = Markup().join(
        Markup(' {}="{}"').format(
            key.replace("_", "-"), _short(value) if isinstance(value, int | float) else value
        )
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, content)


def _marker(x: float, y: float, size: float, colour: str, shape: str) -> Markup:
    return _tag(
        "path",
        transform=f"translate({x:.1f} {y:.1f}) scale({size:.1f})",
        d=_SHAPES[shape],
        fill=colour,
        stroke=colour if shape == "x" else "none",
        vector_effect="non-scaling-stroke",
    )


class Chart:
    """One picture. Make the axes, draw marks in data coordinates, then call `svg` or `figure`.

    `x` and `y` are the limits of the axes (y from bottom to top). `x_ticks` and `y_ticks` are pairs
    of value and label; None chooses round values. With `log`, the x axis is logarithmic. `grid`
    names the axes ("x", "y", "xy") whose ticks have grid lines.
    """

    def __init__(
        self,
        title: str,
        *,
        x: tuple[float, float] = (0.0, 1.0),
        y: tuple[float, float] = (0.0, 1.0),
        height: float = 190.0,
        log: bool = False,
        x_ticks: Sequence[tuple[float, str]] | None = None,
        y_ticks: Sequence[tuple[float, str]] | None = None,
        x_label: str = "",
        y_label: str = "",
        grid: str = "y",
    ) -> None:
        self._log, self._limits_x, self._limits_y = log, x, y
        self._x_ticks = round_ticks(*x, 5 if x[0] >= 0 else 4) if x_ticks is None else list(x_ticks)
        self._y_ticks = round_ticks(*y) if y_ticks is None else list(y_ticks)
        widest = max((text_width(words) for _, words in self._y_ticks), default=0.0)
        self._left = min(widest + 10 + (18 if y_label else 0), WIDTH * 0.55)
        self._bottom = _TOP + height
        self._below = self._bottom + (42 if x_label else 26)
        self._parts = [_tag("text", title, x=2, y=16, font_size=TITLE, fill=FOREGROUND)]
        self._key: list[tuple[Markup, str]] = []
        self._draw_axes(grid)
        if x_label:
            half = text_width(x_label) / 2
            middle = min(max((self._left + WIDTH - _RIGHT) / 2, half + 2), WIDTH - half - 2)
            self._write(middle, self._bottom + 34, x_label)
        if y_label:
            middle = (_TOP + self._bottom) / 2
            self._write(12, middle, y_label, transform=f"rotate(-90 12 {_short(middle)})")

    @classmethod
    def of_rows(
        cls,
        title: str,
        names: Sequence[str],
        *,
        x: tuple[float, float] = (0.0, 1.0),
        x_label: str = "",
        row: float = ROW,
    ) -> "Chart":
        """Make a picture with a row for each name, the first on top at y = 0."""
        return cls(
            title,
            x=x,
            y=(len(names) - 0.4, -0.6),
            height=row * len(names) + 6,
            y_ticks=[(at, name) for at, name in enumerate(names)],
            x_label=x_label,
            grid="x",
        )

    def x(self, value: float) -> float:
        """Convert a value to pixels from the left; a value beyond the axis stays at its end."""
        low, high = self._limits_x
        if self._log:
            value, low, high = math.log(max(value, 1e-300)), math.log(low), math.log(high)
        share = (value - low) / ((high - low) or 1.0)
        return self._left + min(max(share, 0.0), 1.0) * (WIDTH - _RIGHT - self._left)

    def y(self, value: float) -> float:
        """Convert a value to pixels from the top; a value beyond the axis stays at its end."""
        low, high = self._limits_y
        share = (value - low) / ((high - low) or 1.0)
        return self._bottom - min(max(share, 0.0), 1.0) * (self._bottom - _TOP)

    def _write(self, x: float, y: float, text: str, **look: object) -> None:
        look = {"text_anchor": "middle", "font_size": TEXT, "fill": MUTED} | look
        self._parts.append(_tag("text", text, x=x, y=y, **look))

    def _draw_axes(self, grid: str) -> None:
        for value, words in self._x_ticks:
            if "x" in grid:
                self.vertical(value, LINE)
            self._write(self.x(value), self._bottom + 16, words)
        for value, words in self._y_ticks:
            if "y" in grid:
                self.horizontal(value, LINE)
            self._write(self._left - 7, self.y(value) + 4, words, text_anchor="end")
        if "y" in grid:
            self.vertical(self._limits_x[0], MUTED)
        self.horizontal(self._limits_y[0], MUTED)

    def _points(self, pairs: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{_short(self.x(x))},{_short(self.y(y))}" for x, y in pairs)

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str,
        width: float = 2.0,
        *,
        dash: str = "",
        opacity: float = 1.0,
    ) -> None:
        """Draw a line through points."""
        self._parts.append(
            _tag(
                "polyline",
                points=self._points(points),
                fill="none",
                stroke=colour,
                stroke_width=width,
                stroke_dasharray=dash or None,
                stroke_opacity=f"{opacity:.2g}",
            )
        )

    def vertical(self, value: float, colour: str, dash: str = "") -> None:
        """Draw a line from the bottom to the top of the axes."""
        self.line([(value, limit) for limit in self._limits_y], colour, 1.0, dash=dash)

    def horizontal(self, value: float, colour: str, dash: str = "") -> None:
        """Draw a line from the left to the right end of the axes."""
        self.line([(limit, value) for limit in self._limits_x], colour, 1.0, dash=dash)

    def band(
        self, places: Sequence[float], ends: Sequence[tuple[float, float]], colour: str
    ) -> None:
        """Tint the area between two lines; `ends` holds (lower, upper) for each place."""
        lower = [(x, low) for x, (low, _) in zip(places, ends, strict=True)]
        upper = [(x, high) for x, (_, high) in zip(places, ends, strict=True)]
        points = self._points([*lower, *reversed(upper)])
        self._parts.append(_tag("polygon", points=points, fill=colour, fill_opacity="0.15"))

    def box(
        self, x: tuple[float, float], y: tuple[float, float], colour: str, opacity: float = 1.0
    ) -> None:
        """Draw a filled rectangle."""
        corners = [(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])]
        points = self._points(corners)
        self._parts.append(
            _tag("polygon", points=points, fill=colour, fill_opacity=f"{opacity:.3g}")
        )

    def point(
        self, x: float, y: float, colour: str, marker: str = "o", *, size: float = 3.6
    ) -> None:
        """Draw one point."""
        self._parts.append(_marker(self.x(x), self.y(y), size, colour, marker))

    def words(self, x: float, y: float, text: str) -> None:
        """Write a short text centred on a point."""
        place = self.x(x), self.y(y) + SMALL / 3
        self._write(*place, text, font_size=SMALL, fill=FOREGROUND)

    def key(self, words: str, colour: str, marker: str = "o", *, dash: str = "") -> None:
        """Add an entry to the key below the picture; marker "-" is a line, "#" a tinted area."""
        if marker == "-":
            mark = _tag("path", d="M-7,0H7", stroke=colour, stroke_dasharray=dash or "none")
        elif marker == "#":
            mark = _tag("path", d="M-6,-5H6V5H-6Z", fill=colour, fill_opacity="0.5")
        else:
            mark = _marker(0, 0, 3.6, colour, marker)
        self._key.append((mark, label(words, 40)))

    def svg(self, slug: str, title: str, description: str) -> Markup:
        """Write the picture.

        `slug` (letters, digits, hyphens) makes the ids of the picture unique on a page. A screen
        reader says the title and the description.
        """
        parts = [
            _tag("title", visible(title), id=f"{slug}-title"),
            _tag("desc", visible(description), id=f"{slug}-desc"),
            *self._parts,
        ]
        for (left, top), (mark, words) in zip(self._key_places(), self._key, strict=True):
            text = _tag("text", words, x=12, y=4, font_size=TEXT, fill=MUTED)
            place = f"translate({_short(left + 6)} {_short(top)})"
            parts.append(_tag("g", mark + text, transform=place))
        return _tag(
            "svg",
            Markup().join(parts),
            **{"class": "plot", "aria-labelledby": f"{slug}-title {slug}-desc"},
            role="img",
            viewBox=f"0 0 {_short(WIDTH)} {_short(self.height)}",
            width=WIDTH,
            height=self.height,
        )

    def _key_places(self) -> list[tuple[float, float]]:
        """Place the entries of the key side by side, in as many lines as they need."""
        found, left, top = list[tuple[float, float]](), 8.0, self._below + 8
        for _, words in self._key:
            width = _SWATCH + text_width(words) + 12
            if found and left + width > WIDTH:
                left, top = 8.0, top + _LINE_HEIGHT
            found.append((left, top))
            left += width
        return found

    @property
    def height(self) -> float:
        """Height of the picture with its key, in pixels."""
        places = self._key_places()
        return places[-1][1] + 10 if places else self._below

    def figure(self, slug: str, title: str, description: str, caption: Markup | str = "") -> Markup:
        """Write the picture as a figure of the page, with an optional caption."""
        below = Markup('<figcaption class="prose">{}</figcaption>').format(caption)
        return _tag("figure", self.svg(slug, title, description) + (below if caption else ""))


def value_of(cursor: Cursor | None, *keys: str | int) -> float | None:
    """Read a figure for a picture; None if it is missing."""
    found = None if cursor is None else cursor.down(*keys)
    if found is None or isinstance(found.value, bool) or not isinstance(found.value, int | float):
        return None
    return float(found.value)


def ends_of(cursor: Cursor, value: float) -> tuple[float, float]:
    """Read the interval of an estimate; return the value twice if the estimate has no interval."""
    ends = bounds(cursor)
    return (value, value) if ends is None else (float(ends[0].value), float(ends[1].value))


def plots(pictures: Iterable[Markup | None]) -> Markup:
    """Set pictures side by side if there is room; return empty markup without pictures."""
    found = [picture for picture in pictures if picture]
    return Markup('<div class="plots">{}</div>').format(Markup().join(found)) if found else Markup()


@dataclasses.dataclass(frozen=True)
class Row:
    """One estimate of a forest; `key` names its value in the record."""

    name: str
    record: Cursor | None
    colour: str
    strong: bool = False
    key: str = "value"

    @property
    def value(self) -> float | None:
        """The estimate; None if it is missing."""
        return value_of(self.record, self.key)

    @property
    def ends(self) -> tuple[float, ...]:
        """The interval, or the value alone; empty if the estimate is missing."""
        value = self.value
        return () if self.record is None or value is None else ends_of(self.record, value)

    def describe(self) -> str:
        """Describe the row in words, for readers who do not see the picture."""
        if self.value is None:
            return f"{label(self.name)}: none"
        low, high = self.ends
        return f"{label(self.name)}: {self.value:.3f}, interval {low:.3f} to {high:.3f}"


def forest(rows: Sequence[Row], slug: str, title: str, axis: str = "", *, head: str = "") -> Markup:
    """Draw each estimate in a row with its 95 % interval, as a figure of the page.

    The axis goes from 0 to 1. Where an end is negative, the rows are differences, and the axis has
    a line at 0. Returns empty markup if no row has a value.
    """
    ends = [end for row in rows for end in row.ends]
    if not ends:
        return Markup()
    most = max(map(abs, ends)) * 1.05
    limits = (-most, most) if min(ends) < 0 else (0.0, 1.0)
    chart = Chart.of_rows(head or title, [label(row.name) for row in rows], x=limits, x_label=axis)
    if limits[0] < 0:
        chart.vertical(0.0, MUTED, DASHED)
    for at, row in enumerate(rows):
        if row.value is not None:
            chart.line([(end, at) for end in row.ends], row.colour, 2.6)
            chart.point(row.value, at, row.colour, size=4.6 if row.strong else 3.6)
    return chart.figure(slug, title, "; ".join(row.describe() for row in rows))


def bars(counts: Sequence[tuple[str, int]], slug: str, title: str, *, head: str = "") -> Markup:
    """Draw each count as a bar with its number, as a figure of the page."""
    most = max((count for _, count in counts), default=0)
    if not most:
        return Markup()
    names = [label(name) for name, _ in counts]
    chart = Chart.of_rows(head or title, names, x=(0.0, most * 1.15))
    for at, (_, count) in enumerate(counts):
        chart.box((0.0, count), (at - 0.3, at + 0.3), BAD, 0.75)
        chart.words(count + most * 0.07, at, f"{count:,}")
    return chart.figure(slug, title, "; ".join(f"{name}: {count:,}" for name, count in counts))
