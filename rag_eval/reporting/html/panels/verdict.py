"""Verdict strip: does the run pass, on which gates, on what, and whether it can be compared with the run before it."""

import dataclasses

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor, interval, number
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words, plain

STATES = {"pass": "pass", "fail": "fail", "insufficient_evidence": "not enough evidence"}


@dataclasses.dataclass(frozen=True)
class Fallen(Cell):
    """What a regression gate found: the relative drop, which is what it is held against, then the paired difference now - baseline with its interval."""

    of: Cursor

    def html(self) -> Markup:
        """Write it for the page."""
        difference = Markup("difference {}").format(interval(self.of, signed=True))
        return (
            Markup("drop {}<br>{}").format(number(self.of["relative_drop"]), difference)
            if "relative_drop" in self.of
            else difference
        )

    def csv(self, key: str) -> dict[str, str]:
        """Write it for CSV; the difference, the baseline's run and what else differs have columns of their own."""
        drop = (
            Number(self.of["relative_drop"]).csv(key) if "relative_drop" in self.of else {key: ""}
        )
        different = "; ".join(
            f"{name}: {part['before'].value} before, {part['now'].value} now"
            for name, part in _different(self.of)
        )
        return (
            drop
            | Estimate(self.of).csv("difference")
            | {
                "baseline_run": plain(str(self.of["baseline_run"].value)),
                "different": plain(different),
            }
        )

    def tex(self) -> str:
        """Write it for LaTeX."""
        difference = f"difference {Estimate(self.of).tex()}"
        return (
            f"drop {Number(self.of['relative_drop']).tex()}; {difference}"
            if "relative_drop" in self.of
            else difference
        )


def _different(evidence: Cursor) -> list[tuple[str, Cursor]]:
    return evidence["different"].items() if "different" in evidence else []


def _found(gate: Cursor) -> Cell:
    evidence = gate["evidence"]
    if "baseline_run" in evidence and "value" in evidence:
        return Fallen(evidence)
    if "ci_low" in evidence:
        return Estimate(evidence)
    for key in ("value", "delta"):
        if key in evidence and not isinstance(evidence[key].value, str):
            return Number(evidence[key])
    return Words("")


def _table(gates: Cursor) -> Table:
    columns = [
        Column("gate", "gate", figures=False),
        Column("status", "status", figures=False),
        Column(
            "required",
            "required",
            "a required gate that does not pass fails the run",
            figures=False,
        ),
        Column("severity", "severity", figures=False),
        Column("found", "found"),
        Column("accepted", "accepted", figures=False),
        Column("reason_code", "reason", figures=False),
        Column("groups", "groups", "independent groups of questions that the figure rests on"),
    ]
    rows: list[list[Cell]] = []
    for gate in gates:
        evidence = gate["evidence"]
        required = "required" if gate["required"].value else "advisory"
        words: list[Cell] = [
            Words(gate["id"]),
            Words(gate["status"], "chip"),
            Words(required),
            Words(gate["severity"]),
        ]
        rows.append(
            [
                *words,
                _found(gate),
                Words(evidence.get("accepted")),
                Words(gate["reason_code"], "code"),
                Number(evidence["n_groups"]) if "n_groups" in evidence else Words(""),
            ]
        )
    return Table("gates", "Gates: what was asked, what was found, and why", columns, rows)


def panel(page: Page) -> Panel:
    """Make the panel."""
    gates = page.report["gates"]
    bad = [gate for gate in gates if gate["required"].value and gate["status"].value != "pass"]
    by_status = {
        status: [gate for gate in gates if gate["status"].value == status] for status in STATES
    }
    measures, trust = page.report.get("answers", "measures"), page.report["trust"]
    table = _table(gates)
    held = [gate["evidence"] for gate in gates if "baseline_run" in gate["evidence"]]
    baseline = next(
        (evidence for evidence in held if "value" in evidence), held[0] if held else None
    )
    context = {
        "required": any(gate["required"].value for gate in gates),
        "failed": bad,
        "by_status": by_status,
        "states": STATES,
        "table": table,
        "previous": page.report.get("previous"),
        "baseline": baseline,
        "different": [] if baseline is None else _different(baseline),
        "grounded": None if measures is None else measures.where(name="groundedness"),
        "trusted": trust["retrieved"][page.primary]["avg_trust"],
        "guard": trust["poisoning"],
    }
    return Panel("Verdict", "verdict.html", context, (table,))
