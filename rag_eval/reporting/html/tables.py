"""Tables of the page: the same cells as HTML, CSV and LaTeX.

Belongs here: cells, and how a table is written in each of the three. CSV holds figures as the report has them, one column each for value and
bounds; HTML and LaTeX hold them as people read them.
"""

import abc
import csv
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from markupsafe import Markup

from rag_eval.reporting.html.figures import (
    Cursor,
    bounds,
    denominator,
    interval,
    letters,
    number,
    text,
    with_marks,
    written,
)
from rag_eval.reporting.html.latex import tex
from rag_eval.reporting.html.panels.parts import in_words
from rag_eval.reporting.html.untrusted import visible

FEW_REASONS = 4
"""Up to so many reasons of dashes stand open below a table; more are folded."""
SHORT = 34
"""Texts of up to so many characters stand on one line."""
_CLASS = re.compile(r"[a-z_]{1,30}")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Spreadsheets read the full-width signs as these, and skip white space before them."""
_AFTER_BREAK = ("[", "*")
"""What LaTeX reads as an argument of the line break before it."""


def plain(value: str) -> str:
    """Write a text for a spreadsheet: one that would be read as a formula stands behind an apostrophe."""
    shown = visible(value).replace("\n", " ")
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) or shown.startswith("\t") else shown


def _raw(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


class Cell(abc.ABC):
    """What stands in a table."""

    @abc.abstractmethod
    def html(self) -> Markup:
        """Write it for the page."""

    @abc.abstractmethod
    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV: column name -> text."""

    @abc.abstractmethod
    def tex(self) -> str:
        """Write it for LaTeX."""


@dataclasses.dataclass(frozen=True)
class Words(Cell):
    """A text, of the report or of the page itself."""

    of: Cursor | str | None
    kind: Literal["plain", "chip", "code"] = "plain"

    def _text(self) -> str:
        return (
            ""
            if self.of is None
            else self.of
            if isinstance(self.of, str)
            else str(self.of.value if self.of.value is not None else "")
        )

    def html(self) -> Markup:
        """Write it for the page; a short text is kept on one line, a long one may break anywhere."""
        said = self._text()
        shown, short = text(self.of), Markup(' class="nb"') if len(said) <= SHORT else Markup()
        if not said:
            return shown
        if self.kind == "chip":
            return Markup('<span class="chip {}">{}</span>').format(
                said if _CLASS.fullmatch(said) else "", shown
            )
        return Markup("<{0}{1}>{2}</{0}>").format(
            "code" if self.kind == "code" else "span", short, shown
        )

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV."""
        return {key: plain(self._text())}

    def tex(self) -> str:
        """Write it for LaTeX."""
        return tex(visible(self._text()))


@dataclasses.dataclass(frozen=True)
class Series(Cell):
    """Name of a strategy with its colour, as `Page.swatch` writes it."""

    of: Cursor
    shown: Markup

    def html(self) -> Markup:
        """Write it for the page."""
        return self.shown

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV."""
        return {key: plain(str(self.of.value))}

    def tex(self) -> str:
        """Write it for LaTeX."""
        return tex(visible(str(self.of.value)))


@dataclasses.dataclass(frozen=True)
class Number(Cell):
    """One figure."""

    of: Cursor | None
    digits: int = 3
    percent: bool = False
    signed: bool = False

    def html(self) -> Markup:
        """Write it for the page."""
        return number(self.of, self.digits, percent=self.percent, signed=self.signed)

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV."""
        return {key: _raw(None if self.of is None else self.of.value)}

    def tex(self) -> str:
        """Write it for LaTeX."""
        return (
            "--"
            if self.of is None or self.of.value is None
            else tex(written(self.of.value, self.digits, percent=self.percent))
        )


@dataclasses.dataclass(frozen=True)
class Estimate(Cell):
    """A figure with its interval and, where asked, its denominator."""

    of: Cursor | None
    digits: int = 3
    percent: bool = False
    signed: bool = False
    n: bool = False
    key: str = "value"

    def html(self) -> Markup:
        """Write it for the page."""
        shown = interval(
            self.of, self.digits, percent=self.percent, signed=self.signed, key=self.key
        )
        return Markup("{} {}").format(shown, denominator(self.of)) if self.n else shown

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV."""
        there = self.of is not None and self.of.value is not None
        found = {
            key: _raw(self.of[self.key].value) if there and self.of is not None else "",
            f"{key}_low": "",
            f"{key}_high": "",
        }
        ends = bounds(self.of) if there and self.of is not None else None
        if ends is not None:
            found |= {f"{key}_low": _raw(ends[0].value), f"{key}_high": _raw(ends[1].value)}
        if self.n and self.of is not None:
            scored = self.of.get("n_scored") or self.of.get("n") if there else None
            groups = self.of.get("n_groups") if there else None
            found |= {
                f"{key}_n": _raw(None if scored is None else scored.value),
                f"{key}_groups": _raw(None if groups is None else groups.value),
            }
        return found

    def tex(self) -> str:
        """Write it for LaTeX."""
        if self.of is None or self.of.value is None or self.of[self.key].value is None:
            return "--"
        ends, middle = (
            bounds(self.of),
            tex(written(self.of[self.key].value, self.digits, percent=self.percent)),
        )
        if ends is None:
            return middle
        low, high = (tex(written(end.value, self.digits, percent=self.percent)) for end in ends)
        return f"{middle} [{low}, {high}]"


@dataclasses.dataclass(frozen=True)
class Column:
    """One column: its key in CSV, its heading, what the heading means (a title), and whether it is aligned as figures are."""

    key: str
    heading: str
    means: str = ""
    figures: bool = True


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with its name (of files and downloads), caption, columns and rows of cells.

    Raises
    ------
    ValueError
        A row has another number of cells than there are columns.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(
                f"table {self.name}: a row with another number of cells than there are columns"
            )

    def csv(self) -> str:
        """Write as CSV with a heading line; figures as the report has them."""
        rows = [
            {
                name: value
                for column, cell in zip(self.columns, row, strict=True)
                for name, value in cell.csv(column.key).items()
            }
            for row in self.rows
        ]
        names = list(dict.fromkeys(name for row in rows for name in row)) or [
            column.key for column in self.columns
        ]
        out = io.StringIO()
        writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def tex(self) -> str:
        """Write as a LaTeX table of package booktabs."""
        lines = [
            r"\begin{table}",
            rf"\caption{{{tex(visible(self.caption))}}}",
            rf"\label{{tab:{self.name}}}",
            rf"\begin{{tabular}}{{{''.join('r' if column.figures else 'l' for column in self.columns)}}}",
            r"\toprule",
        ]
        lines += [" & ".join(tex(column.heading) for column in self.columns) + r" \\", r"\midrule"]
        rows = [" & ".join(cell.tex().replace("\n", " ") for cell in row) for row in self.rows]
        lines += [
            ("{}" if row.lstrip().startswith(_AFTER_BREAK) else "") + row + r" \\" for row in rows
        ]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def html(self) -> Markup:
        """Write for the page: caption, headings, why dashes are dashes, what columns mean, the buttons of its exports, which a script shows; it scrolls in its own region where it is too wide."""
        headings = Markup().join(
            Markup('<th scope="col"{}{}>{}</th>').format(
                Markup(' class="num"') if column.figures else "",
                Markup(' title="{}"').format(column.means) if column.means else "",
                column.heading,
            )
            for column in self.columns
        )
        rows = Markup("\n").join(
            Markup("<tr>{}</tr>").format(
                Markup().join(
                    Markup('<th scope="row">{}</th>').format(cell.html())
                    if at == 0
                    else Markup("<td{}>{}</td>").format(
                        Markup(' class="num"') if column.figures else "", cell.html()
                    )
                    for at, (column, cell) in enumerate(zip(self.columns, row, strict=True))
                )
            )
            for row in self.rows
        )
        rows, reasons = with_marks(rows)
        buttons = Markup().join(
            Markup(
                '<button type="button" data-download data-name="{}" data-format="{}" aria-label="{} as {}">{}</button>'
            ).format(self.name, form, self.caption, label, label)
            for form, label in (("csv", "CSV"), ("tex", "LaTeX"))
        )
        return Markup(
            '<div class="table" data-table="{}"><div class="scroll" role="region" tabindex="0" aria-label="{}"><table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>\n{}\n</tbody></table></div>{}{}<p class="exports" hidden>{}</p></div>'
        ).format(
            self.name,
            self.caption,
            self.caption,
            headings,
            rows,
            _why(reasons),
            self._means(),
            buttons,
        )

    def _means(self) -> Markup:
        """Say what the columns mean, for who cannot point at their headings."""
        said = Markup().join(
            Markup("<dt>{}</dt><dd>{}</dd>").format(column.heading, column.means)
            for column in self.columns
            if column.means
        )
        return (
            Markup(
                '<details class="means prose"><summary>What the columns say</summary><dl>{}</dl></details>'
            ).format(said)
            if said
            else Markup()
        )


def _why(reasons: Sequence[Markup]) -> Markup:
    """Say why there are dashes, a line a reason with the letter that stands beside the dash."""
    if len(reasons) < 2:  # noqa: PLR2004 - one reason needs no letter
        return (
            Markup('<p class="why prose">A dash: {}</p>').format(reasons[0])
            if reasons
            else Markup()
        )
    lines = Markup().join(
        Markup("<li><sup>{}</sup> {}</li>").format(letters(at), reason)
        for at, reason in enumerate(reasons)
    )
    if len(reasons) <= FEW_REASONS:
        return Markup('<div class="why prose">A dash: <ul>{}</ul></div>').format(lines)
    return Markup(
        '<details class="why prose"><summary>What the dashes say: {} reasons</summary><ul>{}</ul></details>'
    ).format(in_words(len(reasons)), lines)
