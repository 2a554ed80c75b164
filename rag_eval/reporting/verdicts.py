"""Write a report's verdict as a terminal table, JUnit XML and Markdown.

Reports are untrusted, so this file escapes and shortens every text of a report once.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal
from xml.etree import ElementTree as ET

from rag_eval.core.errors import quoted
from rag_eval.gates.gate import GatePart, count_gates
from rag_eval.reporting.report import Report
from rag_eval.reporting.tables import Table, code
from rag_eval.storage.home import write_bytes, write_text

_MAX_TEXT, _MAX_EVIDENCE, _MAX_ITEMS = 200, 1000, 10

_NOT_TEXT = re.compile(
    r"[\u061c\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ud800-\udfff\ufe00-\ufe0f\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)


def _safe_text(value: object, limit: int = _MAX_TEXT) -> str:
    r"""Make one printable line of at most `limit` characters of an untrusted text.

    Controls, invisible characters and characters that XML forbids are escaped.

    Examples
    --------
    >>> print(_safe_text("a" + chr(27) + "[2J" + chr(0xD800)))
    a\u001b[2J\ud800
    """
    return _NOT_TEXT.sub(lambda match: f"\\u{ord(match.group()):04x}", quoted(str(value), limit))


@dataclasses.dataclass(frozen=True)
class GateRow:
    """One gate of a verdict: printable texts, and the evidence in one line.

    `outcome`: a required gate that did not pass is a failure, and an advisory one a warning or,
    without enough evidence, a note.
    """

    id: str
    severity: str
    required: bool
    status: str
    reason_code: str
    outcome: Literal["pass", "failure", "warning", "note"]
    evidence: str


@dataclasses.dataclass(frozen=True)
class VerdictRows:
    """The verdict of a report, with the gates that failed the run first."""

    gold_set: str
    run_id: str
    timestamp: str
    content_hash: str
    rows: tuple[GateRow, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the required gates that did not pass."""
        return tuple(row.id for row in self.rows if row.outcome == "failure")

    @property
    def headline(self) -> str:
        """The verdict in one sentence, with the numbers of gates."""
        if not self.rows:
            return "no gate was judged: the gold set configures none"
        counts = count_gates((row.required, row.status) for row in self.rows)
        return f"FAILED: {counts}" if self.failed else counts

    @property
    def table(self) -> Table:
        """The gates as a table."""
        rows = [
            vars(row) | {"required": "yes" if row.required else "no", "reason": row.reason_code}
            for row in self.rows
        ]
        columns = "gate = id | severity | required | status | reason | evidence"
        return Table.of("gates", "", columns, rows)

    @property
    def parts(self) -> list[Table | str]:
        """The parts for a terminal: run, table of the gates, and the verdict in one sentence."""
        tables = [self.table] if self.rows else []
        return [f"{self.gold_set}: run {self.run_id} of {self.timestamp}", *tables, self.headline]

    def write(self, folder: Path) -> None:
        """Write JUnit XML and Markdown, each atomically."""
        junit, markdown = (folder / name for name in VERDICT_FILES)
        write_bytes(junit, _junit_xml(self))
        write_text(markdown, _markdown(self))


def verdict_rows(report: Report, gold_set: str | None = None) -> VerdictRows:
    """Make the rows of a verdict; `gold_set` replaces the name in the report unless empty."""
    rows = sorted(map(_row, report.gates), key=lambda row: row.outcome != "failure")
    name = _safe_text(gold_set or report.gold.name)
    return VerdictRows(name, report.run_id, report.timestamp, report.content_hash, tuple(rows))


def _row(gate: GatePart) -> GateRow:
    if gate.status == "pass":
        outcome: Literal["pass", "failure", "warning", "note"] = "pass"
    elif gate.required and not gate.is_fine:
        outcome = "failure"
    else:
        outcome = "warning" if gate.status == "fail" else "note"
    return GateRow(
        _safe_text(gate.id),
        gate.severity,
        gate.required,
        gate.status,
        _safe_text(gate.reason_code),
        outcome,
        _evidence_text(gate.evidence),
    )


def _figure(value: object, depth: int = 2) -> str:
    """Write any part of the evidence with a bounded length."""
    if isinstance(value, Mapping | list):
        if not depth:
            return f"({len(value)} entries)"
        items = value.items() if isinstance(value, Mapping) else (("", part) for part in value)
        parts = [f"{_safe_text(key)} {_figure(part, depth - 1)}".strip() for key, part in items]
        more = [f"{len(parts) - _MAX_ITEMS} more"] if len(parts) > _MAX_ITEMS else []
        return f"({', '.join(parts[:_MAX_ITEMS] + more)})"
    return f"{value:.4g}" if isinstance(value, float) else _safe_text(value)


_FIRST = ("measure", "value", "ci_low", "ci_high", "accepted", "reason", "n_scored", "n_effective")


def _evidence_text(evidence: Mapping[str, Any]) -> str:
    """Write the evidence of a gate in one line: its figure, the bound, then all else by name.

    Examples
    --------
    >>> floor = {"measure": "mrr", "value": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    >>> _evidence_text({**floor, "accepted": ">= 0.6", "n_scored": 90, "n_effective": 80.0})
    'mrr 0.5 [0.4, 0.6], accepted >= 0.6; 90 scored, worth 80'
    """
    shown = {name: _figure(part) for name, part in evidence.items() if part is not None}
    figure = f"{shown.get('measure', '')} {shown.get('value', '')}".strip()
    if {"ci_low", "ci_high"} <= shown.keys():
        figure += f" [{shown['ci_low']}, {shown['ci_high']}]"
    if "accepted" in shown:
        figure += f", accepted {shown['accepted']}"
    counts = f"{shown['n_scored']} scored" if "n_scored" in shown else ""
    if counts and "n_effective" in shown:
        counts += f", worth {shown['n_effective']}"
    others = [
        f"{_safe_text(name)} {part}"
        for name, part in sorted(shown.items())
        if name not in _FIRST and not name.endswith("_reason")
    ]
    parts = filter(None, [figure.lstrip(", "), shown.get("reason", ""), counts, *others])
    return _safe_text("; ".join(parts), _MAX_EVIDENCE)


# ---- The verdict as JUnit XML, and as Markdown for a job summary or a comment

VERDICT_FILES: Final = ("gate-verdict.xml", "gate-verdict.md")


def _junit_xml(verdict: VerdictRows) -> bytes:
    """Write the verdict as a JUnit file, UTF-8: a test case for each gate."""
    outcomes = [row.outcome for row in verdict.rows]
    failures, passed = outcomes.count("failure"), outcomes.count("pass")
    counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": "0"}
    counts |= {"skipped": str(len(outcomes) - failures - passed), "time": "0"}
    root = ET.Element("testsuites", {"name": "rag-eval gates", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": f"gates of {verdict.gold_set}", **counts})
    for row in verdict.rows:
        names = {"classname": f"gates.{verdict.gold_set}", "name": row.id, "time": "0"}
        case = ET.SubElement(suite, "testcase", names)
        required = "required" if row.required else "advisory"
        message = f"{required}, {row.severity} {row.status}: {row.reason_code}"
        if row.outcome == "failure":
            failure = {"message": message, "type": row.reason_code}
            ET.SubElement(case, "failure", failure).text = row.evidence
        elif row.outcome != "pass":
            ET.SubElement(case, "skipped", {"message": f"{message}; {row.evidence}"})
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _markdown(verdict: VerdictRows) -> str:
    """Write the verdict as a heading, a sentence and a table."""
    is_open = any(row.outcome == "warning" for row in verdict.rows)
    sign = "❌" if verdict.failed else "⚠️" if is_open else "✅"
    text = (
        f"## {sign} Gates of {code(verdict.gold_set)}\n\n"
        f"{verdict.headline}. Run {code(verdict.run_id)} of {code(verdict.timestamp)}, content "
        f"hash {code(verdict.content_hash[:16])}.\n"
    )
    return f"{text}\n{verdict.table.markdown()}" if verdict.rows else text
