"""One part of the page."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rag_eval.reporting.report_tables import Page
from rag_eval.reporting.tables import Cursor, Table, panel_words

__all__ = ["Page", "Panel", "lost_steps"]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One part of the page: heading, template, variables of the template, and tables by name."""

    title: str
    template: str
    context: Mapping[str, Any]
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)

    @property
    def exports(self) -> tuple[Table, ...]:
        """Tables of the panel that have rows and can be downloaded, in order."""
        return tuple(table for table in self.tables.values() if table)


def lost_steps(misses: Cursor) -> list[tuple[str, Cursor]]:
    """Return (words, number of questions) of each step that lost gold, the most frequent first."""
    lost, words = misses["lost"], panel_words()["lost"]
    steps = [(words[step], lost[step]) for step in words if lost.value.get(step)]
    return sorted(steps, key=lambda pair: -pair[1].value)
