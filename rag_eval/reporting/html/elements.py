"""Elements of the page: places in the report, written figures and texts, cells and tables.

A `Cursor` knows its place in the report. Every figure on the page carries its place as a JSON
pointer, and a null carries its reason.
"""

import dataclasses
import functools
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import pandas as pd
from markupsafe import Markup, escape

from rag_eval.core.records import FEW_EFFECTIVE, HARDLY_SUPPORTED
from rag_eval.reporting.metrics_report import csv_text

if TYPE_CHECKING:
    from jinja2 import Environment

# ---- Untrusted texts: invisible characters and direction marks are written out

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Controls except tab and line feed, zero-width and bidirectional characters, fillers, tags."""
_WEB: Final = re.compile(r"https?://[^\s\x00-\x20\\\"'<>`{}|^]{1,2000}", re.IGNORECASE)


def visible(text: str) -> str:
    r"""Write out every character that is invisible or that changes the order of other characters.

    Examples
    --------
    >>> visible("pay\u202eload")
    'pay[U+202E]load'
    """
    return _HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


def web_address(address: str) -> str:
    """Return an http or https address that a browser may follow, else an empty text.

    Examples
    --------
    >>> web_address("https://example.org/a"), web_address("javascript:alert(1)")
    ('https://example.org/a', '')
    """
    return address if _WEB.fullmatch(address) and visible(address) == address else ""


# ---- Places in a report, and how figures and texts are written.

LOWS, HIGHS = ("ci_low", "low"), ("ci_high", "high")
DENOMINATORS = ("n_scored", "n")
NOT_COMPUTED = "not computed"
_ABSENT: Final = re.compile(r'<span class="absent" title="([^"]*)">–')
"""Markup that `absent` writes. Escaped texts of a report cannot match this pattern."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """A place in a report: its JSON value, its path from the top, and the place above."""

    value: Any
    path: tuple[str | int, ...] = ()
    parent: "Cursor | None" = None

    def __getitem__(self, key: str | int) -> "Cursor":
        return Cursor(self.value[key], (*self.path, key), self)

    def __iter__(self) -> Iterator["Cursor"]:
        if not isinstance(self.value, list):
            raise TypeError(f"{self.pointer} is no list")
        return (self[at] for at in range(len(self.value)))

    def __len__(self) -> int:
        return len(self.value)

    def __contains__(self, key: object) -> bool:
        if isinstance(self.value, list):
            return isinstance(key, int) and -1 < key < len(self.value)
        return isinstance(self.value, dict) and key in self.value

    def __bool__(self) -> bool:
        return bool(self.value)

    def down(self, *keys: str | int) -> "Cursor | None":
        """Walk down to a value, or to a null on the way; None if a key is absent."""
        found = self
        for key in keys:
            if found.value is None:
                return found
            if key not in found:
                return None
            found = found[key]
        return found

    def get(self, *keys: str | int) -> "Cursor | None":
        """Walk down to a value; None if a key is absent or a value on the way is null."""
        found = self.down(*keys)
        return None if found is None or found.value is None else found

    def items(self) -> list[tuple[str, "Cursor"]]:
        """Return the names and places below an object, in the order of the file."""
        return [(name, self[name]) for name in self.value]

    def where(self, **equal: Any) -> "Cursor | None":
        """Return the first object of a list with these values under these keys, or None."""
        wanted = equal.items()
        found = (entry for entry in self if all(entry.value.get(k) == v for k, v in wanted))
        return next(found, None)

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer (RFC 6901)."""
        return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in self.path)

    @property
    def reason(self) -> str:
        """Reason of the null: the nearest reason in the objects around the null."""
        place: Cursor | None = self
        while place is not None:
            above, key = place.parent, str(place.path[-1]) if place.path else ""
            if above is not None and isinstance(above.value, dict):
                for name in (f"{key}_reason", "value_reason", "reason"):
                    if isinstance(above.value.get(name), str) and above.value[name]:
                        return str(above.value[name])
            place = above
        return NOT_COMPUTED

    @property
    def reason_beside(self) -> "Cursor | str":
        """Place of the field `<name>_reason` beside the null, else the reason as a text."""
        beside = None if self.parent is None else self.parent.get(f"{self.path[-1]}_reason")
        return self.reason if beside is None else beside


def format_number(value: float, digits: int, *, percent: bool = False) -> str:
    """Write a number with separated thousands, a real minus sign, and decimals for floats."""
    if isinstance(value, int) and not percent:
        return f"{value:,}".replace("-", "−")
    text = f"{value * 100:,.{max(digits - 2, 0)}f} %" if percent else f"{value:,.{digits}f}"
    if not text.strip("-0., %"):
        text = text.removeprefix("-")
    return text.replace("-", "−")


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


def bounds(cursor: Cursor) -> tuple[Cursor, Cursor] | None:
    """Find the two ends of the interval of an estimate; None if the estimate has no interval."""
    for low, high in zip(LOWS, HIGHS, strict=True):
        ends = cursor.get(low), cursor.get(high)
        if ends[0] is not None and ends[1] is not None:
            return ends[0], ends[1]
    return None


def interval(
    cursor: Cursor | None,
    digits: int = 3,
    *,
    percent: bool = False,
    signed: bool = False,
    key: str = "value",
) -> Markup:
    """Write an estimate with its interval: value [low, high]."""
    if cursor is None or cursor.value is None:
        return absent(NOT_COMPUTED if cursor is None else cursor.reason)
    ends, middle = bounds(cursor), number(cursor[key], digits, percent=percent, signed=signed)
    if ends is None:
        return Markup('<span class="est">{}</span>').format(middle)
    low, high = (number(end, digits, percent=percent, signed=signed) for end in ends)
    return Markup('<span class="est">{} <span class="ci">[{}, {}]</span></span>').format(
        middle, low, high
    )


def denominator(cursor: Cursor | None) -> Markup:
    """Write the denominators of an estimate: scored and attempted questions, and their worth."""
    if cursor is None or cursor.value is None:
        return Markup()
    parts: list[Markup] = []
    scored = next((cursor[name] for name in DENOMINATORS if name in cursor), None)
    if scored is not None:
        tried = cursor.get("n_attempted")
        parts.append(Markup("n = {}").format(number(scored)))
        if tried is not None and tried.value != scored.value:
            parts[0] += Markup(" of {}").format(number(tried))
    if (effective := cursor.get("n_effective")) is not None and effective.value is not None:
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


# ---- Cells: one value as HTML, as columns of CSV, and as plain text for LaTeX.

SHORT: Final = 34
"""Largest number of characters of a text that is kept on one line."""
_CLASS: Final = re.compile(r"[a-z_]{1,30}")
ABSENT_TEXT: Final = "--"


def one_line(value: str) -> str:
    """Write a text for a table file: on one line, with invisible characters written out."""
    return visible(value).replace("\n", " ")


def raw(cursor: Cursor | None) -> str:
    """Write a figure for CSV as in the report; empty if it is missing."""
    value = None if cursor is None else cursor.value
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of a table: markup, plain text, and CSV.

    `csv` maps names to texts. An empty name, or a name with a leading underscore ("_low"), is
    appended to the key of the column. Any other name is the whole key of a CSV column.
    """

    html: Markup
    text: str
    csv: Mapping[str, str]


def words_cell(
    value: Cursor | str | None, kind: Literal["plain", "chip", "code"] = "plain"
) -> Cell:
    """Make a cell of a text, or of a list of texts; `value` is a place or a text of the page."""
    words, shown = value if isinstance(value, str) else "", Markup()
    if isinstance(value, Cursor) and isinstance(value.value, list):
        words, shown = ", ".join(str(one) for one in value.value), texts(list(value))
    elif isinstance(value, Cursor) and value.value is not None:
        words = str(value.value)
    shown = shown or text(value)
    if words and kind == "chip":
        shown = Markup('<span class="chip {}">{}</span>').format(
            words if _CLASS.fullmatch(words) else "", shown
        )
    elif words:
        shown = Markup("<{0}{1}>{2}</{0}>").format(
            "code" if kind == "code" else "span",
            Markup(' class="nb"') if len(words) <= SHORT else "",
            shown,
        )
    return Cell(shown, visible(words), {"": one_line(words)})


def number_cell(
    value: Cursor | None, digits: int = 3, *, percent: bool = False, signed: bool = False
) -> Cell:
    """Make a cell of one figure."""
    if value is None or value.value is None:
        return Cell(number(value), ABSENT_TEXT, {"": ""})
    html = number(value, digits, percent=percent, signed=signed)
    return Cell(html, format_number(value.value, digits, percent=percent), {"": raw(value)})


def estimate_cell(
    value: Cursor | None,
    digits: int = 3,
    *,
    signed: bool = False,
    with_n: bool = False,
    key: str = "value",
) -> Cell:
    """Make a cell of a figure with its interval and, where asked, its denominator."""
    html = interval(value, digits, signed=signed, key=key)
    if with_n:
        html = Markup("{} {}").format(html, denominator(value))
    middle = None if value is None else value.get(key)
    ends = None if value is None or value.value is None else bounds(value)
    low, high = ends or (None, None)
    columns = {"": raw(middle), "_low": raw(low), "_high": raw(high)}
    if with_n and value is not None:
        scored = raw(value.get("n_scored") or value.get("n"))
        columns |= {"_n": scored, "_effective": raw(value.get("n_effective"))}
    plain_text = ABSENT_TEXT if middle is None else format_number(middle.value, digits)
    if middle is not None and low is not None and high is not None:
        ends_text = ", ".join(format_number(end.value, digits) for end in (low, high))
        plain_text += f" [{ends_text}]"
    return Cell(html, plain_text, columns)


def limited_cell(value: Cursor | None) -> Cell:
    """Make a cell of a calibration error and its limit under chance."""
    figure = None if value is None else value.down("value")
    if value is None or figure is None or figure.value is None:
        return Cell(number(figure), ABSENT_TEXT, {"": "", "_limit": ""})
    limit, inside = value["null_limit"], bool(value["inside"].value)
    sign = "≤" if inside else ">"
    html = Markup('<span class="limited{}">{} <span class="ci">{} {}</span></span>').format(
        "" if inside else " over", number(figure), sign, number(limit)
    )
    shown = f"{format_number(figure.value, 3)} {sign} {format_number(limit.value, 3)}"
    return Cell(html, shown, {"": str(figure.value), "_limit": str(limit.value)})


# ---- Tables: the same cells as HTML, CSV and LaTeX.


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: key in CSV, heading, meaning, and whether the column holds figures."""

    key: str
    heading: str
    means: str = ""
    figures: bool = True


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: name (of files and downloads), caption, columns and rows of cells."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    @property
    def count(self) -> str:
        """Number of rows with its unit ("1 row")."""
        return "1 row" if len(self.rows) == 1 else f"{len(self.rows):,} rows"

    def csv(self) -> str:
        """Write the table as CSV with a heading line; figures are not rounded."""
        rows = [
            {
                f"{column.key}{name}" if not name or name.startswith("_") else name: value
                for column, cell in zip(self.columns, row, strict=True)
                for name, value in cell.csv.items()
            }
            for row in self.rows
        ]
        columns = None if rows else [column.key for column in self.columns]
        return csv_text(pd.DataFrame(rows, columns=columns))

    def tex(self) -> str:
        """Write the table as a LaTeX tabular of the package booktabs; every text is escaped."""
        rows = [[" ".join(cell.text.split()) for cell in row] for row in self.rows]
        frame = pd.DataFrame(rows, columns=[column.heading for column in self.columns])
        form = "".join("r" if column.figures else "l" for column in self.columns)
        text = frame.to_latex(index=False, escape=True, column_format=form)
        # LaTeX reads [ or * after a line break as an argument of the line break.
        return re.sub(r"^(?=[\[*])", "{}", text, flags=re.MULTILINE)

    def html(self) -> Markup:
        """Write the table as HTML with reasons of dashes, meanings of columns, and downloads.

        A script shows the buttons of the downloads. A wide table scrolls in its own region.
        """
        body = environment().get_template("table_rows.html").render(table=self)
        reasons = list(dict.fromkeys(_ABSENT.findall(body)))
        letters = string.ascii_lowercase
        letter = {reason: letters[at % 26] * (at // 26 + 1) for at, reason in enumerate(reasons)}
        marked = _ABSENT.sub(
            lambda dash: f'{dash[0]}<sup aria-hidden="true">{letter[dash[1]]}</sup>', body
        )
        # The reasons were escaped when the dashes were written.
        notes = [(letter[reason], Markup(reason)) for reason in reasons]  # noqa: S704
        rows = Markup(marked)  # noqa: S704 - escaped by the environment
        template = environment().get_template("table.html")
        rendered = template.render(table=self, rows=rows, notes=notes)
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
    writers = (number, interval, denominator, text, texts)
    made.globals.update({writer.__name__: writer for writer in writers})
    return made
