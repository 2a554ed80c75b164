"""Small pictures as SVG: one pair of axes with lines, points and bars in the colours of the page.

The package has a writer of its own because a plotting library is slow. matplotlib needs 4 to 10
seconds for a page of 27 pictures, and this writer hundredths of a second. The `var(--...)` colours
follow the reader's light, dark or printed page.
"""

import dataclasses
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from markupsafe import Markup

from rag_eval.reporting.html.elements import Cursor, bounds, visible

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
MARKERS: Final = "osD^vx"
"""Markers of the series: circle, square, diamond, two triangles and cross."""
_CORNERS: Final = {
    "s": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "D": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "^": ((0, -1.2), (1.2, 1), (-1.2, 1)),
    "v": ((0, 1.2), (1.2, -1), (-1.2, -1)),
    ">": ((1.2, 0), (-1, 1.2), (-1, -1.2)),
}
_TOP, _RIGHT, _LINE_HEIGHT, _SWATCH = 30.0, 14.0, 18.0, 20.0
_COLOURS: Final = (
    "--bg:#fff;--panel:#fff;--fg:#1b1f24;--muted:#59636e;--line:#d5dae0;--good:#17702f;"
    "--bad:#b3232a;--warn:#8a5a00;--s1:#1f5a8c;--s2:#b84e1a;--s3:#3f7a33;--s4:#8a4f9e;"
    "--s5:#8f6d0c;--s6:#1f7f80;--s7:#a83a4a;--s8:#5f6b7a"
)
"""Style-sheet variables with the colours of a picture in a separate file."""


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


def _points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_short(x)},{_short(y)}" for x, y in pairs)


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup().join(parts)


class Chart:
    """One picture. Make the axes, draw marks in data coordinates, then call `svg` or `figure`.

    `x` and `y` are the limits of the axes (y from bottom to top). `x_ticks` and `y_ticks` are pairs
    of value and label; None chooses round values. With `log`, the x axis is logarithmic.
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
        grid: Literal["x", "y", "xy", ""] = "y",
        frame: bool = True,
    ) -> None:
        self._log, self._limits_x, self._limits_y = log, x, y
        self._x_ticks = round_ticks(*x) if x_ticks is None else list(x_ticks)
        self._y_ticks = round_ticks(*y) if y_ticks is None else list(y_ticks)
        widest = max((text_width(words) for _, words in self._y_ticks), default=0.0)
        self._left = min(widest + 10 + (18 if y_label else 0), WIDTH * 0.55)
        self._bottom = _TOP + height
        self._title, self._x_label, self._y_label = title, x_label, y_label
        self._parts: list[Markup] = []
        self._key: list[tuple[Markup, str]] = []
        self._axes(grid, frame=frame)

    @classmethod
    def of_rows(
        cls,
        title: str,
        names: Sequence[str],
        *,
        x: tuple[float, float] = (0.0, 1.0),
        x_label: str = "",
        row: float = ROW,
        grid: bool = True,
    ) -> "Chart":
        """Make a picture with a row for each name, the first on top at y = 0."""
        return cls(
            title,
            x=x,
            y=(len(names) - 0.4, -0.6),
            height=row * len(names) + 6,
            y_ticks=[(at, name) for at, name in enumerate(names)],
            x_label=x_label,
            grid="x" if grid else "",
            frame=False,
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

    def _draw(self, markup: str, *values: object) -> None:
        self._parts.append(Markup(markup).format(*values))  # noqa: S704 - our own constant

    def _write(  # noqa: PLR0917 - what a text looks like
        self,
        place: tuple[float, float],
        text: str,
        anchor: str = "middle",
        size: float = TEXT,
        fill: str = MUTED,
        turn: str = "",
    ) -> None:
        self._draw(
            '<text x="{}" y="{}" text-anchor="{}" font-size="{}" fill="{}"{}>{}</text>',
            *(_short(value) for value in place),
            anchor,
            _short(size),
            fill,
            Markup(' transform="{}"').format(turn) if turn else "",
            text,
        )

    def _axes(self, grid: str, *, frame: bool) -> None:
        for value, words in self._x_ticks:
            if "x" in grid:
                self.vertical(value, LINE)
            self._write((self.x(value), self._bottom + 16), words)
        for value, words in self._y_ticks:
            if "y" in grid:
                self.horizontal(value, LINE)
            self._write((self._left - 7, self.y(value) + 4), words, "end")
        if frame:
            self._draw(
                '<path d="M{0},{1}V{2}" stroke="{3}" fill="none"/>',
                *(_short(value) for value in (self._left, _TOP, self._bottom)),
                MUTED,
            )
        self._draw(
            '<path d="M{0},{2}H{1}" stroke="{3}" fill="none"/>',
            *(_short(value) for value in (self._left, WIDTH - _RIGHT, self._bottom)),
            MUTED,
        )
        self._parts.append(
            Markup('<text x="2" y="16" font-size="{}" fill="{}">{}</text>').format(
                _short(TITLE), FOREGROUND, self._title
            )
        )
        if self._x_label:
            middle = (self._left + WIDTH - _RIGHT) / 2
            half = text_width(self._x_label) / 2
            place = min(max(middle, half + 2), WIDTH - half - 2)
            self._write((place, self._bottom + 34), self._x_label)
        if self._y_label:
            middle = (_TOP + self._bottom) / 2
            self._write((12, middle), self._y_label, turn=f"rotate(-90 12 {_short(middle)})")

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
        self._draw(
            '<polyline points="{}" fill="none" stroke="{}" stroke-width="{}"{}{}/>',
            _points((self.x(x), self.y(y)) for x, y in points),
            colour,
            _short(width),
            Markup(' stroke-dasharray="{}"').format(dash) if dash else "",
            Markup(' stroke-opacity="{}"').format(opacity) if opacity < 1 else "",
        )

    def vertical(self, value: float, colour: str, dash: str = "", width: float = 1.0) -> None:
        """Draw a line from the bottom to the top of the axes."""
        self.line([(value, limit) for limit in self._limits_y], colour, width, dash=dash)

    def horizontal(self, value: float, colour: str, dash: str = "") -> None:
        """Draw a line from the left to the right end of the axes."""
        self.line([(limit, value) for limit in self._limits_x], colour, 1.0, dash=dash)

    def band(
        self, places: Sequence[float], ends: Sequence[tuple[float, float]], colour: str
    ) -> None:
        """Tint the area between two lines; `ends` holds (lower, upper) for each place."""
        lower = [(self.x(x), self.y(low)) for x, (low, _) in zip(places, ends, strict=True)]
        upper = [(self.x(x), self.y(high)) for x, (_, high) in zip(places, ends, strict=True)]
        self._draw(
            '<polygon points="{}" fill="{}" fill-opacity="0.15"/>',
            _points([*lower, *reversed(upper)]),
            colour,
        )

    def box(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        colour: str,
        opacity: float = 1.0,
    ) -> None:
        """Draw a filled rectangle."""
        left, right = sorted(self.x(value) for value in x)
        top, bottom = sorted(self.y(value) for value in y)
        self._draw(
            '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"{}/>',
            *(_short(value) for value in (left, top, right - left, bottom - top)),
            colour,
            Markup(' fill-opacity="{}"').format(f"{opacity:.3g}") if opacity < 1 else "",
        )

    def point(
        self,
        x: float,
        y: float,
        colour: str,
        marker: str = "o",
        *,
        hollow: bool = False,
        size: float = 3.6,
    ) -> None:
        """Draw one point."""
        self._parts.append(_shape((self.x(x), self.y(y)), colour, marker, hollow=hollow, size=size))

    def words(self, x: float, y: float, text: str, colour: str, size: float = SMALL) -> None:
        """Write a text centred on a point; a line break in the text begins a new line."""
        lines = text.split("\n")
        for at, line in enumerate(lines):
            shift = (at - (len(lines) - 1) / 2) * (size + 2) + size / 3
            self._write((self.x(x), self.y(y) + shift), line, size=size, fill=colour)

    def head(self, x: float, text: str) -> None:
        """Write a short text above the axes."""
        self._write((self.x(x), _TOP - 3), text, size=10.0)

    def estimate(
        self,
        cursor: Cursor | None,
        row: float,
        colour: str,
        *,
        marker: str = "o",
        hollow: bool = False,
        key: str = "value",
        size: float = 3.6,
    ) -> None:
        """Draw the interval and the point of an estimate in a row; draw nothing for a null."""
        value = value_of(cursor, key)
        if cursor is None or value is None:
            return
        ends = ends_of(cursor, value)
        self.line([(end, row) for end in ends], colour, 1.6 if hollow else 2.6)
        self.point(value, row, colour, marker, hollow=hollow, size=size)

    def key(
        self, words: str, colour: str, marker: str = "o", *, hollow: bool = False, dash: str = ""
    ) -> None:
        """Add an entry to the key below the picture; marker "-" is a line, "#" a bar."""
        if marker == "-":
            mark = Markup(
                '<path d="M-7,0H7" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>'
            ).format(colour, dash or "none")
        elif marker == "#":
            mark = Markup('<rect x="-6" y="-5" width="12" height="10" fill="{}"{}/>').format(
                colour, Markup(' fill-opacity="0.5"') if hollow else ""
            )
        else:
            mark = _shape((0.0, 0.0), colour, marker, hollow=hollow)
        self._key.append((mark, label(words, 40)))

    def svg(
        self, slug: str, title: str, description: str, at: tuple[float, float] = (0, 0)
    ) -> Markup:
        """Write the picture.

        `slug` (letters, digits, hyphens) makes the ids of the picture unique on a page. A screen
        reader says the title and the description. `at` is the place of the picture in a sheet.
        """
        parts = list(self._parts)
        for (left, top), (mark, words) in zip(self._key_places(), self._key, strict=True):
            parts.append(
                Markup(
                    '<g transform="translate({} {})">{}<text x="12" y="4" font-size="{}" fill="{}">'
                    "{}</text></g>"
                ).format(_short(left + 6), _short(top), mark, _short(TEXT), MUTED, words)
            )
        place = Markup('x="{}" y="{}" ').format(*map(_short, at)) if any(at) else ""
        return Markup(
            '<svg class="plot" role="img" aria-labelledby="{0}-title {0}-desc" {5}'
            'viewBox="0 0 {1} {2}" width="{1}" height="{2}"><title id="{0}-title">{3}</title>'
            '<desc id="{0}-desc">{4}</desc>{6}</svg>'
        ).format(
            slug,
            _short(WIDTH),
            _short(self.height),
            visible(title),
            visible(description),
            place,
            _join(parts),
        )

    def _key_places(self) -> list[tuple[float, float]]:
        """Place the entries of the key side by side, in as many lines as they need."""
        found, left, top = list[tuple[float, float]](), 8.0, self._bottom_of_axes + 8
        for _, words in self._key:
            width = _SWATCH + text_width(words) + 12
            if found and left + width > WIDTH:
                left, top = 8.0, top + _LINE_HEIGHT
            found.append((left, top))
            left += width
        return found

    @property
    def _bottom_of_axes(self) -> float:
        return self._bottom + (42 if self._x_label else 26)

    @property
    def height(self) -> float:
        """Height of the picture with its key, in pixels."""
        places = self._key_places()
        return places[-1][1] + 10 if places else self._bottom_of_axes

    def figure(self, slug: str, title: str, description: str, caption: Markup | str = "") -> Markup:
        """Write the picture as a figure of the page, with an optional caption."""
        below = Markup('<figcaption class="prose">{}</figcaption>').format(caption)
        return Markup("<figure>{}{}</figure>").format(
            self.svg(slug, title, description), below if caption else ""
        )


def _shape(
    place: tuple[float, float], colour: str, marker: str, *, hollow: bool = False, size: float = 3.6
) -> Markup:
    x, y = place
    if marker == "x":
        return Markup('<path d="M{0},{1}L{2},{3}M{0},{3}L{2},{1}" stroke="{4}"/>').format(
            *map(_short, (x - size, y - size, x + size, y + size)), colour
        )
    fill, stroke = (PANEL, colour) if hollow else (colour, "none")
    if marker == "o":
        return Markup('<circle cx="{}" cy="{}" r="{}" fill="{}" stroke="{}"/>').format(
            *map(_short, (x, y, size)), fill, stroke
        )
    corners = _points((x + size * right, y + size * down) for right, down in _CORNERS[marker])
    return Markup('<polygon points="{}" fill="{}" stroke="{}"/>').format(corners, fill, stroke)


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
    return Markup('<div class="plots">{}</div>').format(_join(found)) if found else Markup()


def sheet(charts: Sequence[tuple[Chart, str]], title: str, columns: int = 3) -> str:
    """Write several pictures with their names as one SVG file, which needs no style sheet."""
    columns = max(1, min(columns, len(charts)))
    parts, top = list[Markup](), 34.0
    for first in range(0, len(charts), columns):
        row = charts[first : first + columns]
        parts += [
            chart.svg(f"picture-{first + at}", name, title, (at * (WIDTH + 12) + 0.1, top))
            for at, (chart, name) in enumerate(row)
        ]
        top += max(chart.height for chart, _ in row) + 16
    return str(
        Markup(
            '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}"'
            ' font-family="system-ui, sans-serif"><style>svg{{{2}}}</style><rect width="100%"'
            ' height="100%" fill="var(--bg)"/><text x="8" y="22" font-size="15" fill="var(--fg)">'
            "{3}</text>{4}</svg>\n"
        ).format(
            _short(max(columns * (WIDTH + 12), text_width(title, 15) + 16)),
            _short(top),
            _COLOURS,
            visible(title),
            _join(parts),
        )
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """One estimate of a forest; `target` is drawn as a short stroke."""

    name: str
    record: Cursor | None
    colour: str
    key: str = "value"
    strong: bool = False
    target: float | None = None


def _describe_rows(rows: Sequence[Row]) -> str:
    """Describe a picture of estimates in words."""
    parts = []
    for row in rows:
        value = value_of(row.record, row.key)
        ends = None if row.record is None or value is None else bounds(row.record)
        parts.append(
            f"{label(row.name)}: "
            + ("none" if value is None else f"{value:.3f}")
            + ("" if ends is None else f", interval {ends[0].value:.3f} to {ends[1].value:.3f}")
        )
    return "; ".join(parts)


def forest(
    rows: Sequence[Row],
    slug: str,
    title: str,
    axis: str = "",
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    reference: float | None = None,
    head: str = "",
) -> Markup:
    """Draw each estimate in a row with its 95 % interval, as a figure of the page.

    `reference` is a dotted line. Returns empty markup if no row has a value.
    """
    if all(value_of(row.record, row.key) is None for row in rows):
        return Markup()
    names = [label(row.name) for row in rows]
    chart = Chart.of_rows(head or title, names, x=limits, x_label=axis)
    if reference is not None:
        chart.vertical(reference, MUTED, DOTTED)
    for at, row in enumerate(rows):
        if row.target is not None:
            chart.line([(row.target, at - 0.36), (row.target, at + 0.36)], MUTED)
        size = 4.6 if row.strong else 3.6
        chart.estimate(row.record, at, row.colour, key=row.key, size=size)
    return chart.figure(slug, title, _describe_rows(rows))


def stacked(
    title: str,
    names: Sequence[str],
    parts: Sequence[tuple[str, str, float, Sequence[float]]],
) -> Chart:
    """Draw shares that add up to one as a bar for each row.

    `parts` holds (words of the key, colour, opacity, share of each row).
    """
    chart = Chart.of_rows(title, [label(name) for name in names], grid=False)
    left = [0.0] * len(names)
    for words, fill, opacity, shares in parts:
        for row, share in enumerate(shares):
            chart.box((left[row], left[row] + share), (row - 0.33, row + 0.33), fill, opacity)
            if share >= 0.09:  # noqa: PLR2004 - narrower bars have no room for their figure
                chart.words(left[row] + share / 2, row, f"{share:.2f}", FOREGROUND)
            left[row] += share
        chart.key(words, fill, "#", hollow=opacity < 1)
    return chart
