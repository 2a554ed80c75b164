"""Verdict strip: does the run pass, on which gates, on what, and whether it can be compared with the run before it."""

from typing import Any

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.tables import Column, Estimate, Number, Table, Words

STATES = {"pass": "pass", "fail": "fail", "insufficient_evidence": "not enough evidence"}


def _found(gate: Cursor) -> Any:
    evidence = gate["evidence"]
    if "ci_low" in evidence:
        return Estimate(evidence)
    for key in ("value", "relative_drop", "delta"):
        if key in evidence and not isinstance(evidence[key].value, str):
            return Number(evidence[key])
    return Words("")


def _table(gates: Cursor) -> Table:
    columns = [
        Column("gate", "gate", figures=False),
        Column("status", "status", figures=False),
        Column("required", "required", "a required gate that does not pass fails the run", figures=False),
        Column("severity", "severity", figures=False),
        Column("found", "found"),
        Column("accepted", "accepted", figures=False),
        Column("reason_code", "reason", figures=False),
        Column("groups", "groups", "independent groups of questions that the figure rests on"),
    ]
    rows = []
    for gate in gates:
        evidence = gate["evidence"]
        required = "required" if gate["required"].value else "advisory"
        words = [Words(gate["id"]), Words(gate["status"], "chip"), Words(required), Words(gate["severity"])]
        rows.append([*words, _found(gate), Words(evidence.get("accepted")), Words(gate["reason_code"], "code"), Number(evidence["n_groups"]) if "n_groups" in evidence else Words("")])
    return Table("gates", "Gates: what was asked, what was found, and why", columns, rows)


def panel(page: Page) -> Panel:
    """Make the panel."""
    gates = page.report["gates"]
    bad = [gate for gate in gates if gate["required"].value and gate["status"].value != "pass"]
    by_status = {status: [gate for gate in gates if gate["status"].value == status] for status in STATES}
    table, measures, trust = _table(gates), page.report.get("answers", "measures"), page.report["trust"]
    context = {
        "required": any(gate["required"].value for gate in gates),
        "failed": bad,
        "by_status": by_status,
        "states": STATES,
        "table": table,
        "previous": page.report.get("previous"),
        "grounded": None if measures is None else measures.where(name="groundedness"),
        "trusted": trust["retrieved"][page.primary]["avg_trust"],
        "guard": trust["poisoning"],
    }
    return Panel("Verdict", "verdict.html", context, (table,))
