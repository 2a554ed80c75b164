"""Tables of figures, and every form in which they are printed but HTML.

A cell holds a value with its place in the report, its interval and its denominators. A table is
written on the terminal, and as Markdown, CSV and LaTeX here; `rag_eval.reporting.html.elements`
writes it as HTML.
"""

import dataclasses
import functools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Literal

import pandas as pd

from rag_eval.core.errors import quoted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable
    from rich.text import Text

# ---- Untrusted texts: invisible characters and direction marks are written out

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Controls except tab and line feed, zero-width and bidirectional characters, fillers, tags."""
_ACTIVE: Final = re.compile(r"[|`\r\n]|\\(?=$)|<(?=[A-Za-z/!?])|@(?=\w)")
"""Characters that end a code span of Markdown, begin HTML, or name a person."""
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

NOT_COMPUTED = "not computed"


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
        place = self
        for key in keys:
            if place.value is None:
                return place
            if key not in place:
                return None
            place = place[key]
        return place

    def get(self, *keys: str | int) -> "Cursor | None":
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


def interval(
    value: float | None, low: float | None, high: float | None, sign: str = "", digits: int = 2
) -> str:
    """Write a figure with its interval; a dash for None.

    `sign` is "+" for differences. `digits` is the number of decimals of the bounds.
    """
    if value is None:
        return ABSENT_TEXT
    bounds = ""
    if low is not None and high is not None:
        bounds = f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"
    return f"{round(value, 3) + 0.0:{sign}.3f}{bounds}"  # + 0.0: no -0.000


def bounds(cursor: Cursor) -> tuple[Cursor, Cursor] | None:
    """Find the two ends of the interval of an estimate; None if the estimate has no interval."""
    for names in (("ci_low", "ci_high"), ("low", "high")):
        low, high = (cursor.get(name) for name in names)
        if low is not None and high is not None:
            return low, high
    return None


# ---- CSV

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


# ---- Cells

Kind = Literal["text", "code", "chip", "number", "estimate", "limited"]
CHIPS: Final = frozenset({"status", "earned", "needed for", "before", "now"})
CODES: Final = frozenset({"code", "reason code", "question", "chunk", "run", "setting", "library"})
"""Headings of columns whose texts are states, and whose texts are ids or codes."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A value of a table.

    `value` is a place in a report, a text of our own, or None for a missing figure. `series` is the
    number of the strategy that the cell names, and whether it is the primary one.
    """

    value: Cursor | str | None
    kind: Kind = "text"
    digits: int = 3
    flags: str = ""
    series: tuple[int, bool] | None = None

    @property
    def is_figure(self) -> bool:
        """Whether the cell holds a figure, not a null, whose kind is not known."""
        is_null = self.value is None or (
            isinstance(self.value, Cursor) and self.value.value is None
        )
        return self.kind in {"number", "estimate", "limited"} and not is_null

    @property
    def middle(self) -> Cursor | None:
        """Place of the figure of an estimate."""
        place = self.value if isinstance(self.value, Cursor) else None
        return place and place.down("delta" if "delta" in place else "value")

    @property
    def signed(self) -> bool:
        """Whether the figure is a difference, written with its sign."""
        place = self.value
        is_difference = isinstance(place, Cursor) and ("delta" in place or "baseline_run" in place)
        return "+" in self.flags or is_difference

    @property
    def words(self) -> str:
        """The text of a cell, as it is; several texts are joined by commas."""
        value = self.value.value if isinstance(self.value, Cursor) else self.value
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return "" if value is None else str(value)

    @property
    def text(self) -> str:
        """The cell in plain text, rounded."""
        place = self.value if isinstance(self.value, Cursor) else None
        if self.kind == "number":
            if place is None or place.value is None:
                return ABSENT_TEXT
            sign = "+" if self.signed and place.value > 0 else ""
            return sign + format_number(place.value, self.digits, percent="%" in self.flags)
        if self.kind in {"estimate", "limited"}:
            if place is None or self.middle is None or self.middle.value is None:
                return ABSENT_TEXT
            if self.kind == "limited":
                sign = "≤" if place["inside"].value else ">"
                return f"{self.middle.value:.3f} {sign} {place['null_limit'].value:.3f}"
            low, high = (end.value for end in bounds(place) or (Cursor(None), Cursor(None)))
            written = interval(self.middle.value, low, high, "+" if self.signed else "")
            scored = place.get("n_scored") or place.get("n")
            return f"{written} of {scored.value:,}" if scored and "n" in self.flags else written
        words = visible(self.words)
        return words.replace("_", " ") if self.kind == "chip" else words

    @property
    def csv(self) -> dict[str, str]:
        """Fields of CSV by the ending of their names; figures are not rounded."""
        place = self.value if isinstance(self.value, Cursor) else None
        if self.kind == "number":
            return {"": _raw(place)}
        if self.kind == "limited":
            return {"": _raw(self.middle), "_limit": _raw(place and place.get("null_limit"))}
        if self.kind == "estimate":
            low, high = (place is not None and bounds(place)) or (None, None)
            fields = {"": _raw(self.middle), "_low": _raw(low), "_high": _raw(high)}
            if "n" in self.flags and place is not None:
                fields["_n"] = _raw(place.get("n_scored") or place.get("n"))
                fields["_effective"] = _raw(place.get("n_effective"))
            return fields
        return {"": visible(self.words).replace("\n", " ")}


def _raw(cursor: Cursor | None) -> str:
    value = None if cursor is None else cursor.value
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


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
    """One column: its heading, its place in a row, and how its figures are written."""

    heading: str
    path: tuple[str, ...]
    digits: int = 3
    flags: str = ""
    figures: bool = True
    """Whether the column holds figures, which are aligned at the right."""

    @classmethod
    def read(cls, text: str) -> "Column":
        """Read "heading = path.in.the.row :2+"; the path is the key of the heading by default."""
        match = _COLUMN.fullmatch(text)
        if match is None:
            raise ValueError(f"no column: {text}")
        heading, digits = match["heading"], int(match["digits"] or 3)
        path = tuple((match["path"] or column_key(heading)).split("."))
        return cls(heading, tuple(filter(None, path)), digits, match["flags"] or "")

    @property
    def key(self) -> str:
        """Name of the column in CSV."""
        return column_key(self.heading)

    @property
    def means(self) -> str:
        """What the column says, if its heading does not."""
        return str(panel_words()["columns"].get(self.heading, ""))

    def cell(self, row: Mapping[str, Any] | Cursor, series: Mapping[str, tuple[int, bool]]) -> Cell:
        """Make the cell of a row; the value decides on its kind."""
        value: Any = row
        for name in self.path:
            if isinstance(value, Cursor):
                value = value.down(name)
            else:
                value = None if value is None else value[name]
        if isinstance(value, Cell):
            return value
        plain = value.value if isinstance(value, Cursor) else value
        if isinstance(plain, str | list | bool):
            kind: Kind = "chip" if self.heading in CHIPS else "text"
            kind = "code" if self.heading in CODES else kind
            words = value if isinstance(value, Cursor | str) else str(value)
            named = series.get(str(plain)) if self.heading in {"strategy", "against"} else None
            return Cell(words, kind, series=named)
        place = value if isinstance(value, Cursor) or value is None else Cursor(value)
        if not isinstance(plain, Mapping):
            return Cell(place, "number", self.digits, self.flags)
        kind = "limited" if "null_limit" in plain else "estimate"
        return Cell(place, kind, self.digits, self.flags)


def column_key(heading: str) -> str:
    """Make the name of a heading in CSV ("R@10" -> "r_at_10")."""
    return re.sub(r"\W+", "_", heading.lower().replace("@", "_at_")).strip("_")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: name (of files and downloads), caption, columns and rows of cells."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(
        cls,
        name: str,
        caption: str,
        columns: str,
        rows: Iterable[Mapping[str, Any] | Cursor],
        series: Mapping[str, tuple[int, bool]] | None = None,
    ) -> "Table":
        """Make a table; `columns` are written as `Column.read` takes them, with | between."""
        declared = [Column.read(" ".join(text.split())) for text in columns.split("|")]
        cells = [[column.cell(row, series or {}) for column in declared] for row in rows]
        figured = [
            dataclasses.replace(
                column,
                figures=any(row[at].is_figure for row in cells),
            )
            for at, column in enumerate(declared)
        ]
        return cls(name, caption, figured, cells)

    @classmethod
    def plain(cls, caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
        """Make a table of written texts; a heading that starts with > has figures below it."""
        columns = [
            Column(name.removeprefix(">"), (), figures=name.startswith(">")) for name in headings
        ]
        return cls("", caption, columns, [[Cell(text) for text in row] for row in rows])

    def __bool__(self) -> bool:
        """Whether the table has rows."""
        return bool(self.rows)

    def select(self, *headings: str, rows: int | None = None) -> "Table":
        """Return the table with only some columns and the first rows."""
        places = [at for at, column in enumerate(self.columns) if column.heading in headings]
        cells = [[row[at] for at in places] for row in self.rows[:rows]]
        return dataclasses.replace(self, columns=[self.columns[at] for at in places], rows=cells)

    @property
    def count(self) -> str:
        """Number of rows with its unit ("1 row")."""
        return "1 row" if len(self.rows) == 1 else f"{len(self.rows):,} rows"

    @property
    def texts(self) -> list[list[str]]:
        """The cells of every row in plain text, each on one line."""
        return [[" ".join(cell.text.split()) for cell in row] for row in self.rows]

    def csv(self) -> str:
        """Write the table as CSV with a heading line; figures are not rounded."""
        rows = [
            {
                f"{column.key}{ending}": value
                for column, cell in zip(self.columns, row, strict=True)
                for ending, value in cell.csv.items()
            }
            for row in self.rows
        ]
        columns = None if rows else [column.key for column in self.columns]
        return csv_text(pd.DataFrame(rows, columns=columns))

    def tex(self) -> str:
        """Write the table as a LaTeX tabular of the package booktabs; every text is escaped."""
        frame = pd.DataFrame(self.texts, columns=[column.heading for column in self.columns])
        form = "".join("r" if column.figures else "l" for column in self.columns)
        text = frame.to_latex(index=False, escape=True, column_format=form)
        # LaTeX reads [ or * after a line break as an argument of the line break.
        return re.sub(r"^(?=[\[*])", "{}", text, flags=re.MULTILINE)

    def markdown(self) -> str:
        """Write the table as GitHub-flavoured Markdown; every cell is a code span."""
        head = [column.heading for column in self.columns]
        rows = [[code(text) for text in row] for row in self.texts]
        lines = [head, ["---"] * len(head), *rows]
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
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        texts = [
            [quoted(text, MAX_CELL).replace(" [", bracket) for text in row] for row in self.texts
        ]
        least = 2 * len(self.columns) - 1
        for at, column in enumerate(self.columns):
            cells = [column.heading, *(row[at] for row in texts)]
            width = max(cell_len(line) for cell in cells for line in cell.split("\n"))
            is_fixed = column.figures or at == 0 or width <= _SHORT
            width = width if is_fixed else min(width, _FOLDED)
            least += width
            justify: Any = "right" if column.figures else "left"
            table.add_column(
                column.heading, justify=justify, no_wrap=is_fixed, overflow="fold", min_width=width
            )
        for row, cells in zip(self.rows, texts, strict=True):
            styles = [STATUS_STYLE.get(cell.words, "") for cell in row]
            table.add_row(*map(Text, cells, styles))
        return table, least


MAX_CELL: Final = 300
"""Largest number of characters of a text in a table on the terminal."""
_FOLDED, _SHORT = 12, 22
"""Least width of a longer text that may be folded, and largest width of a text that is not."""
STATUS_STYLE: Final = {
    "pass": "green",
    "fail": "red",
    "insufficient_evidence": "yellow",
    "not_applicable": "dim",
}


def print_parts(console: "Console", parts: Iterable[str | Table], *, wrap: bool = False) -> None:
    """Print tables and lines. Lines are not read as markup, and nothing is cut.

    `wrap`: whether long lines end at the width of the console, so that a screen can be counted.
    """
    for part in parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False, soft_wrap=not wrap)
        else:
            console.print(part, crop=False)
