"""The guard's findings on a terminal. All text of documents goes through `shown`, addresses through `shown_address`, the rest through `quoted`."""

import json
import math
from typing import TYPE_CHECKING, Any

from rag_eval.corpus.outgoing import shown, shown_address
from rag_eval.records.problems import quoted
from rag_eval.reporting.terminal import cell, new_table

if TYPE_CHECKING:
    from rich.console import Console

MAX_ID, MAX_REASONS = 200, 600
SHORT_ID = 12
"""Characters of a chunk_id in a table: the commands take the start of one."""


def listing_lines(found: Any) -> list[str]:
    """JSON lines of a listing (`HeldBack`), one a chunk."""
    return [
        json.dumps(
            {**row, "trust": None if math.isnan(row["trust"]) else row["trust"]},
            sort_keys=True,
            ensure_ascii=True,
            allow_nan=False,
        )
        for row in found.rows
    ]


def show_listing(console: "Console", found: Any) -> None:
    """Print what is held back, with its denominator."""
    console.print(
        f"{quoted(found.gold_set)}: {found.n_blocked} of {found.n_chunks:,} chunks blocked, {found.n_warned} warned about",
        markup=False,
    )
    if found.note:
        console.print(found.note, markup=False, soft_wrap=True)
    if not found.rows:
        return
    from rich.text import Text

    table = new_table(
        "",
        [
            ("verdict", "left"),
            ("chunk", "left"),
            ("document", "left"),
            ("trust", "right"),
            ("reasons", "left"),
        ],
    )
    for row in found.rows:
        trust = "-" if math.isnan(row["trust"]) else f"{row['trust']:.2f}"
        by = f"(allowed by {quoted(row['allowed_by'], 60)}) " if row["allowed_by"] else ""
        table.add_row(
            row["verdict"],
            cell(row["chunk_id"][:SHORT_ID]),
            cell(row["doc_id"][:MAX_ID]),
            trust,
            Text(quoted(by + ", ".join(row["reasons"]), MAX_REASONS)),
        )
    console.print(table)


def show_chunk(console: "Console", facts: dict[str, Any]) -> None:
    """Print everything known of one chunk."""

    def line(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    line(
        f"chunk     {quoted(facts['chunk_id'])}: {facts['verdict']}"
        + (f", allowed by {quoted(facts['allowed_by'], MAX_ID)}" if facts["allowed_by"] else "")
    )
    line(
        f"document  {quoted(facts['doc_id'], MAX_ID)} at {quoted(facts['rev'], MAX_ID)}, characters {facts['start']} to {facts['end']}"
    )
    line(f"link      {quoted(shown_address(facts['source_url']), MAX_ID)}")
    trust = "not configured" if math.isnan(facts["trust"]) else f"{facts['trust']:.3f}"
    line(f"trust     {trust}")
    for name, factor in facts["factors"].items():
        line(
            f"          {name}: "
            + ", ".join(f"{key} {quoted(str(value))}" for key, value in factor.items())
        )
    for finding in facts["findings"]:
        place = (
            "" if finding["start"] < 0 else f" at characters {finding['start']} to {finding['end']}"
        )
        line(
            f"{finding['severity']:<9} {finding['check']}.{quoted(finding['rule'])}{place}: {shown(finding['detail'])}"
        )
    for decision in facts["decisions"]:
        line(
            f"{decision.action:<9} {decision.at:%Y-%m-%d %H:%M} by {quoted(decision.who, MAX_ID)}: {quoted(decision.why, 400)}"
        )
    line(f"text      {shown(facts['text'])}")
