"""A report as panels and tables read it.

The tables of a panel stand beside it. Columns are declared as
`heading = place in the row :decimals`; the meanings of headings stand in `words.toml`.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from markupsafe import Markup

from rag_eval.reporting.html.drawing import colour
from rag_eval.reporting.html.elements import series
from rag_eval.reporting.tables import Cursor, Table, panel_words

UNKNOWN: Final = "not described in this version"
"""Meaning of a code or state that `words.toml` does not list."""
Rows = Iterable[Mapping[str, Any] | Cursor]


@dataclasses.dataclass(frozen=True)
class Page:
    """The report as tables and panels read it.

    `has_questions`: whether the page holds the questions of the run.
    """

    report: Cursor
    has_questions: bool = False

    @functools.cached_property
    def _entries(self) -> dict[str, Cursor]:
        return {str(entry["name"].value): entry for entry in self.report["strategies"]}

    @functools.cached_property
    def strategies(self) -> list[str]:
        """Names of the strategies, in the order of the report."""
        return list(self._entries)

    @property
    def primary(self) -> str:
        """Name of the strategy with the headline figures."""
        return str(self.report["strategy"].value)

    @property
    def level(self) -> str:
        """Level (document, section or span) of the headline figures."""
        return str(self.report["evaluation"]["level"].value)

    def strategy(self, name: str) -> Cursor:
        """Return the place of one strategy in the report."""
        return self._entries[name]

    def measure(self, name: str, label: str, level: str | None = None) -> Cursor | None:
        """Return the record of a strategy's measure; None where the strategy has none."""
        return self.strategy(name)["measures"].where(label=label, level=level or self.level)

    def by_strategy(self, *path: str) -> list[tuple[str, Cursor]]:
        """Return (strategy, entry) of an object by strategy; absent strategies are left out."""
        place = self.report.down(*path)
        if place is None:
            return []
        return [(name, place[name]) for name in self.strategies if name in place]

    def rows_by_strategy(self, *path: str) -> list[dict[str, Any]]:
        """Return a row for each strategy in an object by strategy: its name and its entry."""
        return [{"strategy": name, "entry": entry} for name, entry in self.by_strategy(*path)]

    def colour(self, name: str) -> str:
        """Return the colour of a strategy; every picture of the page uses this colour."""
        return colour(self.strategies.index(name))

    def swatch(self, name: str) -> Markup:
        """Write the name of a strategy with its colour; the primary one is marked."""
        place, is_primary = self._series[name]
        return series(self.strategy(name)["name"], place, is_primary=is_primary)

    def group_alike(
        self, reasons: Iterable[tuple[str, Cursor | str]]
    ) -> list[tuple[Markup, Cursor | str]]:
        """Join the names of strategies with equal sentences; return (names, sentence) of each."""
        groups: dict[str, tuple[list[Markup], Cursor | str]] = {}
        for name, sentence in reasons:
            words = str(sentence.value if isinstance(sentence, Cursor) else sentence)
            groups.setdefault(words, ([], sentence))[0].append(self.swatch(name))
        return [(Markup(", ").join(names), sentence) for names, sentence in groups.values()]

    @functools.cached_property
    def _series(self) -> dict[str, tuple[int, bool]]:
        return {name: (at, name == self.primary) for at, name in enumerate(self.strategies)}

    def table(self, name: str, caption: str, columns: str, rows: Rows) -> Table:
        """Make a table; names of strategies have their colours."""
        return Table.of(name, caption, columns, rows, self._series)


# ---- Gates, runs, cost


def gates(page: Page, chosen: Iterable[Cursor] | None = None) -> Table:
    """Show each gate, or the chosen ones, with its figure, its bound and its reason."""
    rows = [
        {
            "gate": gate,
            "required": "required" if gate["required"].value else "advisory",
            "found": gate["evidence"] if {"value", "delta"} & gate["evidence"].value.keys() else "",
            "evidence": gate["evidence"],
        }
        for gate in (page.report["gates"] if chosen is None else chosen)
    ]
    columns = """gate = gate.id | status = gate.status | required | severity = gate.severity | found
        | relative drop = evidence.relative_drop | accepted = evidence.accepted
        | reason = gate.reason_code | effective = evidence.n_effective :1
        | catches a drop of = evidence.catches_drop"""
    return page.table("gates", "Gates: what was asked, and what was found", columns, rows)


PAIRED: Final = """difference = . | better = n_better | worse = n_worse | tied = n_tied
    | effective = n_effective :1"""
"""Columns of a paired difference."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One part of the page: heading, template, variables of the template, and tables by name."""

    title: str
    template: str
    context: Mapping[str, Any]
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)


def lost_steps(misses: Cursor) -> list[tuple[str, Cursor]]:
    """Return (words, number of questions) of each step that lost gold, the most frequent first."""
    lost, words = misses["lost"], panel_words()["lost"]
    steps = [(words[step], lost[step]) for step in words if lost.value.get(step)]
    return sorted(steps, key=lambda pair: -pair[1].value)
