"""Tables of figures, and every form in which they are printed but HTML.

A cell is a place in a report, so a figure keeps its interval, its denominators and the reason of a
null. `rag_eval.reporting.elements` writes tables as HTML.
"""

import dataclasses
import functools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import pandas as pd

from rag_eval.core.errors import quoted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable
    from rich.text import Text

# ---- Untrusted texts

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Controls except tab and line feed, zero-width and bidirectional characters, fillers, tags."""
_ACTIVE: Final = re.compile(r"[|`\r\n]|\\(?=$)|<(?=[A-Za-z/!?])|@(?=\w)")
"""Characters that end a code span of Markdown, begin HTML, or name a person."""


def visible(text: str) -> str:
    r"""Write out every character that is invisible or that changes the order of other characters.

    Examples
    --------
    >>> visible("pay\u202eload")
    'pay[U+202E]load'
    """
    return _HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


def code(text: str) -> str:
    r"""Write a text as a code span of Markdown, and escape every character that could end it.

    Examples
    --------
    >>> print(code("a|b`c <b>@team"))
    `a\u007cb\u0060c \u003cb>\u0040team`
    """
    escaped = _ACTIVE.sub(lambda match: f"\\u{ord(match.group()):04x}", text).strip()
    return f"`{escaped or '-'}`"


# ---- Places in a report

NOT_COMPUTED: Final = "not computed"


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
        return isinstance(self.value, dict) and key in self.value

    def __bool__(self) -> bool:
        return bool(self.value)

    def down(self, *keys: str) -> "Cursor | None":
        """Walk down to a value, or to a null on the way; None if a key is absent."""
        place = self
        for key in keys:
            if place.value is None:
                return place
            if key not in place:
                return None
            place = place[key]
        return place

    def get(self, *keys: str) -> "Cursor | None":
        """Walk down to a value; None if a key is absent or a value on the way is null."""
        place = self.down(*keys)
        return None if place is None or place.value is None else place

    def items(self) -> list[tuple[str, "Cursor"]]:
        """Return the names and places below an object, in the order of the file."""
        return [(name, self[name]) for name in self.value]

    def where(self, **equal: Any) -> "Cursor | None":
        """Return the first object of a list with these values under these keys, or None."""
        wanted = equal.items()
        entries = (entry for entry in self if all(entry.value.get(k) == v for k, v in wanted))
        return next(entries, None)

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer (RFC 6901)."""
        return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in self.path)

    @property
    def reason(self) -> str:
        """Reason of the null: the nearest reason in the objects around the null."""
        place: Cursor | None = self
        while place is not None:
            above, key = place.parent, place.path[-1] if place.path else ""
            for name in (f"{key}_reason", "value_reason", "reason"):
                if above is not None and name in above and isinstance(above.value[name], str):
                    return str(above.value[name])
            place = above
        return NOT_COMPUTED


# ---- How figures are written in plain text

ABSENT_TEXT: Final = "-"


def format_number(value: float, digits: int, *, percent: bool = False) -> str:
    """Write a number with separated thousands, a real minus sign, and decimals for floats."""
    if isinstance(value, int) and not percent:
        return f"{value:,}".replace("-", "−")
    text = f"{value * 100:,.{max(digits - 2, 0)}f} %" if percent else f"{value:,.{digits}f}"
    if not text.strip("-0., %"):
        text = text.removeprefix("-")
    return text.replace("-", "−")


def interval(value: float | None, low: float | None, high: float | None, sign: str = "") -> str:
    """Write a figure with its interval; a dash for None. `sign` is "+" for differences."""
    if value is None:
        return ABSENT_TEXT
    ends = ""
    if low is not None and high is not None:
        ends = f" [{low:{sign}.2f}, {high:{sign}.2f}]"
    return f"{round(value, 3) + 0.0:{sign}.3f}{ends}"  # + 0.0: no -0.000


def bounds(estimate: Cursor) -> tuple[Cursor, Cursor] | None:
    """Find the two ends of the interval of an estimate; None if the estimate has no interval."""
    for names in (("ci_low", "ci_high"), ("low", "high")):
        low, high = (estimate.get(name) for name in names)
        if low is not None and high is not None:
            return low, high
    return None


# ---- CSV and LaTeX

_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of a formula. Spreadsheets also accept full-width signs and leading space."""
_NUMBER: Final = re.compile(r"-?[0-9.]+(?:e[+-]?[0-9]+)?")


def _cell(value: Any) -> Any:
    """Make a text harmless for a spreadsheet: an apostrophe before a formula makes it a text.

    Line breaks become LF, because the writer leaves a bare CR without quotes.
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    is_formula = text.lstrip().startswith(_FORMULA) or text.startswith("\t")
    return f"'{text}" if is_formula and not _NUMBER.fullmatch(text) else text


def csv_text(frame: pd.DataFrame) -> str:
    """Write a frame as CSV (RFC 4180 quoting, LF). All CSV files of the product come from here.

    No text of a cell can act as a formula of a spreadsheet. A missing value is an empty field.
    """
    escaped = {
        str(name): pd.Series(map(_cell, values), frame.index, dtype=object)
        for name, values in frame.select_dtypes(exclude=["number", "bool"]).items()
    }
    return frame.assign(**escaped).to_csv(index=False, lineterminator="\n")


def latex_text(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write texts as a LaTeX tabular of the package booktabs; every text is escaped."""
    frame = pd.DataFrame(list(rows), columns=list(headings))
    text = frame.to_latex(index=False, escape=True, column_format="l" * len(headings))
    # LaTeX reads [ or * after a line break as an argument of the line break.
    return re.sub(r"^(?=[\[*])", "{}", text, flags=re.MULTILINE)


# ---- Columns and tables


@functools.cache
def panel_words() -> dict[str, Any]:
    """Read `words.toml`: the meanings of columns, codes, measures, states and methods."""
    path = resources.files("rag_eval.reporting").joinpath("words.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


_COLUMN: Final = re.compile(
    r"(?P<heading>.+?)(?: = (?P<path>\S+))?(?: :(?P<digits>\d?)(?P<flags>\S*))?"
)
"""A column as a table declares it: heading, place in the row, decimals with flags + % n."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: its heading, its place in a row, and how its figures are written.

    `flags` holds "+" for differences, "%" for shares in per cent, and "n" for estimates with their
    denominators. `is_numeric`: whether the column holds figures, which are aligned at the right.
    """

    heading: str
    path: tuple[str, ...] = ()
    digits: int = 3
    flags: str = ""
    is_numeric: bool = False

    @classmethod
    def read(cls, text: str) -> "Column":
        """Read "heading = path.in.the.row :2+"; the path is the key of the heading by default."""
        match = _COLUMN.fullmatch(" ".join(text.split()))
        if match is None:
            raise ValueError(f"no column: {text}")
        path = (match["path"] or column_key(match["heading"])).split(".")
        digits, flags = int(match["digits"] or 3), match["flags"] or ""
        return cls(match["heading"], tuple(filter(None, path)), digits, flags)

    @property
    def key(self) -> str:
        """Name of the column in CSV."""
        return column_key(self.heading)

    @property
    def meaning(self) -> str:
        """What the column says, if its heading does not."""
        return str(panel_words()["columns"].get(self.heading, ""))

    def place(self, row: Mapping[str, Any] | Cursor) -> Cursor:
        """Find the cell of a row; a value that is in no report is a place without a path."""
        value: Any = row
        for name in self.path:
            if isinstance(value, Cursor):
                value = value.down(name)
            else:
                value = None if value is None else value[name]
        return value if isinstance(value, Cursor) else Cursor(value)

    def is_signed(self, cell: Cursor) -> bool:
        """Whether a figure is a difference, written with its sign."""
        return "+" in self.flags or "delta" in cell or "baseline_run" in cell

    def text(self, cell: Cursor) -> str:
        """Write a cell in plain text on one line, rounded."""
        value, sign = cell.value, "+" if self.is_signed(cell) else ""
        if isinstance(value, Mapping):
            ends = [end.value for end in bounds(cell) or ()] or [None, None]
            written = interval(middle(cell).value, ends[0], ends[1], sign)
            scored = cell.get("n_scored") or cell.get("n")
            return f"{written} of {scored.value:,}" if scored and "n" in self.flags else written
        if value is None:
            return ABSENT_TEXT
        if is_number(value):
            sign = sign if value > 0 else ""
            return sign + format_number(value, self.digits, percent="%" in self.flags)
        return " ".join(visible(words(cell)).split())

    def csv(self, cell: Cursor) -> dict[str, str]:
        """Return the fields of CSV by name; figures are not rounded."""
        if not isinstance(cell.value, Mapping):
            is_text = not is_number(cell.value)
            text = visible(words(cell)).replace("\n", " ") if is_text else json.dumps(cell.value)
            return {self.key: text}
        low, high = bounds(cell) or (None, None)
        fields = {"": middle(cell), "_low": low, "_high": high}
        if "n" in self.flags:
            fields["_n"] = cell.get("n_scored") or cell.get("n")
            fields["_effective"] = cell.get("n_effective")
        return {
            f"{self.key}{ending}": "" if place is None or place.value is None else str(place.value)
            for ending, place in fields.items()
        }


def column_key(heading: str) -> str:
    """Make the name of a heading in CSV ("R@10" -> "r_at_10")."""
    return re.sub(r"\W+", "_", heading.lower().replace("@", "_at_")).strip("_")


def middle(estimate: Cursor) -> Cursor:
    """Return the place of the figure of an estimate or of a difference."""
    place = estimate.down("delta" if "delta" in estimate else "value")
    return Cursor(None) if place is None else place


def is_number(value: object) -> TypeGuard[float]:
    """Whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def words(cell: Cursor) -> str:
    """Return the text of a cell as it is; several texts are joined by commas."""
    value = cell.value
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: name (of files and downloads), caption, columns and rows of cells."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cursor]]

    @classmethod
    def of(
        cls, name: str, caption: str, columns: str, rows: Iterable[Mapping[str, Any] | Cursor]
    ) -> "Table":
        """Make a table; `columns` are written as `Column.read` takes them, with | between."""
        declared = [Column.read(text) for text in columns.split("|")]
        cells = [[column.place(row) for column in declared] for row in rows]
        numeric = [
            any(isinstance(row[at].value, Mapping) or is_number(row[at].value) for row in cells)
            for at in range(len(declared))
        ]
        aligned = [
            dataclasses.replace(column, is_numeric=is_numeric)
            for column, is_numeric in zip(declared, numeric, strict=True)
        ]
        return cls(name, caption, aligned, cells)

    @classmethod
    def plain(cls, caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
        """Make a table of written texts."""
        cells = [[Cursor(text) for text in row] for row in rows]
        return cls("", caption, [Column(heading) for heading in headings], cells)

    def __bool__(self) -> bool:
        """Whether the table has rows."""
        return bool(self.rows)

    @property
    def count(self) -> str:
        """Number of rows with its unit ("1 row")."""
        return "1 row" if len(self.rows) == 1 else f"{len(self.rows):,} rows"

    @property
    def headings(self) -> list[str]:
        """The headings of the columns."""
        return [column.heading for column in self.columns]

    @property
    def texts(self) -> list[list[str]]:
        """The cells of every row in plain text."""
        return [
            [column.text(cell) for column, cell in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    @property
    def reasons(self) -> list[str]:
        """The reasons of all nulls, each once."""
        nulls = (
            middle(cell) if isinstance(cell.value, Mapping) else cell
            for row in self.rows
            for cell in row
        )
        return list(dict.fromkeys(cell.reason for cell in nulls if cell.value is None))

    def csv(self) -> str:
        """Write the table as CSV with a heading line; figures are not rounded."""
        rows = [
            dict(
                field
                for column, cell in zip(self.columns, row, strict=True)
                for field in column.csv(cell).items()
            )
            for row in self.rows
        ]
        columns = None if rows else [column.key for column in self.columns]
        return csv_text(pd.DataFrame(rows, columns=columns))

    def tex(self) -> str:
        """Write the table as a LaTeX tabular of the package booktabs."""
        return latex_text(self.headings, self.texts)

    def markdown(self) -> str:
        """Write the table as GitHub-flavoured Markdown; every cell is a code span."""
        rows = [[code(text) for text in row] for row in self.texts]
        lines = [self.headings, ["---"] * len(self.columns), *rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def __rich_console__(
        self, _: "Console", options: "ConsoleOptions"
    ) -> Iterator["RichTable | Text"]:
        """Yield the table for a width, as rich asks for it.

        Figures and the first column are never cut. Where the terminal is too narrow, the bounds of
        intervals move to a second line.
        """
        from rich.text import Text

        if self.caption:
            yield Text(self.caption, "bold")
        table, width = self._rich(" [")
        if width > options.max_width:
            table, width = self._rich("\n[")
            if width > options.max_width:  # rich would drop whole columns
                table.width = width
        yield table

    def _rich(self, bracket: str) -> tuple["RichTable", int]:
        """Make the table, and the width below which a figure or a name would be cut.

        `bracket` stands before the bounds of an interval.
        """
        from rich import box
        from rich.cells import cell_len
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
        )
        texts = [
            [quoted(text, MAX_CELL).replace(" [", bracket) for text in row] for row in self.texts
        ]
        least = 2 * len(self.columns) - 1
        for at, column in enumerate(self.columns):
            lines = [line for row in texts for line in row[at].split("\n")]
            width = max(map(cell_len, [column.heading, *lines]))
            is_fixed = column.is_numeric or at == 0 or width <= _SHORT
            width = width if is_fixed else _FOLDED
            least += width
            table.add_column(
                column.heading,
                justify="right" if column.is_numeric else "left",
                no_wrap=is_fixed,
                overflow="fold",
                min_width=width,
            )
        for row in texts:
            table.add_row(*(Text(text, STATUS_STYLE.get(text, "")) for text in row))
        return table, least


MAX_CELL: Final = 300
"""Largest number of characters of a text in a table on the terminal."""
_FOLDED, _SHORT = 12, 22
"""Least width of a longer text that may be folded, and largest width of a text that is not."""
STATUS_STYLE: Final = {"pass": "green", "fail": "red", "insufficient_evidence": "yellow"}


def print_parts(console: "Console", parts: Iterable[str | Table], *, wrap: bool = False) -> None:
    """Print tables and lines. Lines are not read as markup, and nothing is cut.

    `wrap`: whether long lines end at the width of the console, so that a screen can be counted.
    """
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False, soft_wrap=not wrap)
        else:
            console.print(part, crop=False)
