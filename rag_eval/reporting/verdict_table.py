"""The verdict on a terminal: a table of gates, and the verdict in one sentence."""

from typing import TYPE_CHECKING

from rag_eval.reporting.terminal import STATUS_STYLE
from rag_eval.reporting.verdict_rows import VerdictRows

if TYPE_CHECKING:
    from rich.console import Console


def show_verdict(console: "Console", verdict: VerdictRows) -> None:
    """Print the gates with severity, what they ask for and what they found; texts of the report are never read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(f"{verdict.gold_set}: run {verdict.run_id} of {verdict.timestamp}", markup=False)
    if verdict.rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("gate", "severity", "required", "status", "reason", "evidence"):
            table.add_column(name, overflow="fold", ratio=1 if name == "evidence" else None)
        for row in verdict.rows:
            status = Text(
                row.status.replace("_", " "),
                style=STATUS_STYLE.get(row.status, "")
                if row.required or row.status == "pass"
                else "yellow",
            )
            table.add_row(
                Text(row.id),
                row.severity,
                "yes" if row.required else "no",
                status,
                Text(row.reason_code),
                Text(row.evidence),
            )
        console.print(table)
    console.print(verdict.headline, markup=False)
