"""Cells of tables that more than one panel has: several texts, and a figure beside its limit."""

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, number, texts, written
from rag_eval.reporting.html.latex import tex
from rag_eval.reporting.html.tables import Cell, plain
from rag_eval.reporting.html.untrusted import visible


@dataclasses.dataclass(frozen=True)
class Several(Cell):
    """Several texts of the report, comma-separated."""

    of: Sequence[Cursor]

    def html(self) -> Markup:
        """Write them for the page."""
        return texts(self.of)

    def _plain(self) -> str:
        return ", ".join(str(one.value) for one in self.of)

    def csv(self, key: str) -> dict[str, str]:
        """Write them for CSV."""
        return {key: plain(self._plain())}

    def tex(self) -> str:
        """Write them for LaTeX."""
        return tex(visible(self._plain()))


@dataclasses.dataclass(frozen=True)
class Limited(Cell):
    """A figure beside its limit, with the sign of whether it holds.

    Parameters
    ----------
    of
        The place of the object that holds both.
    key, limit, holds
        Keys of the figure, of its limit, and of whether the limit holds.
    """

    of: Cursor | None
    key: str = "value"
    limit: str = "null_limit"
    holds: str = "inside"
    digits: int = 3

    def _there(self) -> Cursor | None:
        return (
            None
            if self.of is None or self.of.value is None or self.of[self.key].value is None
            else self.of
        )

    def html(self) -> Markup:
        """Write it for the page."""
        there = self._there()
        if there is None:
            return number(
                self.of if self.of is None or self.of.value is None else self.of[self.key]
            )
        sign = "≤" if there[self.holds].value else ">"
        return Markup('<span class="limited{}">{} <span class="ci">{} {}</span></span>').format(
            "" if there[self.holds].value else " over",
            number(there[self.key], self.digits),
            sign,
            number(there[self.limit], self.digits),
        )

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV."""
        there = self._there()
        return {
            key: "" if there is None else str(there[self.key].value),
            f"{key}_limit": "" if there is None else str(there[self.limit].value),
        }

    def tex(self) -> str:
        """Write it for LaTeX."""
        there = self._there()
        if there is None:
            return "--"
        sign = r"$\leq$" if there[self.holds].value else "$>$"
        return f"{tex(written(there[self.key].value, self.digits))} {sign} {tex(written(there[self.limit].value, self.digits))}"
