"""The verdict of a report as bounded, printable rows: what every form of it (table, JUnit, Markdown, SARIF) is made from.

A report may come from anywhere: every text of it is escaped and cut here, once, so that no form has to trust it.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

from rag_eval.gates.verdicts import required_failures
from rag_eval.records.problems import quoted
from rag_eval.storage.hashing import digest

MAX_TEXT, MAX_EVIDENCE = 200, 1000
_MAX_COUNT = 10**15  # beyond it a whole number is no count, and may be too large for a float
_DEPTH = 2  # how far evidence is looked into

Outcome = Literal["pass", "failure", "warning", "note"]
"""pass; failure: a required gate that did not pass; warning: an advisory one that failed; note: an advisory one without enough evidence."""

_NOT_TEXT = re.compile(
    r"[\u061c\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ud800-\udfff\ufe00-\ufe0f\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)


def safe_text(value: object, limit: int = MAX_TEXT) -> str:
    r"""One printable line of an untrusted text, at most `limit` characters of it: no controls, nothing invisible, nothing XML forbids.

    Examples
    --------
    >>> print(safe_text("a" + chr(27) + "[2J" + chr(0xD800)))
    a\u001b[2J\ud800
    """
    return _NOT_TEXT.sub(lambda match: f"\\u{ord(match.group()):04x}", quoted(str(value), limit))


@dataclasses.dataclass(frozen=True)
class GateRow:
    """One gate of a verdict.

    Parameters
    ----------
    id, gate, severity, required, status, reason_code
        As in the report, printable.
    outcome
        What it means for the run.
    evidence
        The figures it rests on, in one line, with denominators and intervals.
    fingerprint
        The same for this gate of this gold set in every run.
    """

    id: str
    gate: str
    severity: str
    required: bool
    status: str
    reason_code: str
    outcome: Outcome
    evidence: str
    fingerprint: str


@dataclasses.dataclass(frozen=True)
class VerdictRows:
    """A whole verdict.

    Parameters
    ----------
    gold_set, run_id, timestamp, content_hash
        Of the report, printable.
    rows
        Its gates: required failures first, else in the report's order.
    failed
        Ids of the required gates that did not pass.
    """

    gold_set: str
    run_id: str
    timestamp: str
    content_hash: str
    rows: tuple[GateRow, ...]
    failed: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every required gate passed."""
        return not self.failed

    @property
    def headline(self) -> str:
        """The verdict in one sentence, with what it is counted over."""
        required = [row for row in self.rows if row.required]
        if not self.rows:
            return "no gate was judged: the gold set configures none"
        counts = [
            f"{sum(row.outcome == 'pass' for row in rows)} of {len(rows)} {kind}"
            for rows, kind in (
                (required, "required"),
                ([row for row in self.rows if not row.required], "advisory"),
            )
            if rows
        ]
        return f"{'passed' if self.passed else 'FAILED'}: {' and '.join(counts)} gates passed"


def verdict_rows(report: Mapping[str, Any], gold_set: str | None = None) -> VerdictRows:
    """Read the verdict of a report that `read_report` accepted.

    Parameters
    ----------
    report
        The report, whole.
    gold_set
        What the verdict is called; default: the name of its gold.
    """
    name = safe_text(report["gold"]["name"] if gold_set is None else gold_set)
    rows = [_row(gate, name) for gate in report["gates"]]
    rows.sort(key=lambda row: row.outcome != "failure")
    failed = tuple(safe_text(gate) for gate in required_failures(report["gates"]))
    return VerdictRows(
        name,
        safe_text(report["run_id"]),
        safe_text(report["timestamp"]),
        safe_text(report["content_hash"]),
        tuple(rows),
        failed,
    )


def _row(gate: Mapping[str, Any], gold_set: str) -> GateRow:
    status, required = str(gate["status"]), bool(gate["required"])
    advisory: Outcome = "warning" if status == "fail" else "note"
    outcome: Outcome = "pass" if status == "pass" else "failure" if required else advisory
    fingerprint = digest([gold_set, gate["id"]])
    return GateRow(
        safe_text(gate["id"]),
        safe_text(gate["gate"]),
        safe_text(gate["severity"]),
        required,
        safe_text(status),
        safe_text(gate["reason_code"]),
        outcome,
        evidence_text(gate["evidence"]),
        fingerprint,
    )


def _figure(value: object, *, signed: bool = False) -> str:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, int) and abs(value) > _MAX_COUNT)
    ):
        return safe_text(value)
    return f"{value:+.3f}" if signed else str(value) if isinstance(value, int) else f"{value:.4g}"


def _with_interval(evidence: Mapping[str, Any], *, signed: bool = False) -> str:
    low, high = evidence.get("ci_low"), evidence.get("ci_high")
    bounds = (
        ""
        if low is None or high is None
        else f" [{_figure(low, signed=signed)}, {_figure(high, signed=signed)}]"
    )
    return f"{_figure(evidence['value'], signed=signed)}{bounds}"


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Write the evidence of a gate in one line: the figure with its interval, what is accepted, what it is counted over, then the rest.

    Examples
    --------
    >>> evidence_text({"measure": "mrr", "value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "accepted": ">= 0.6", "n_scored": 90, "n_groups": 80})
    'mrr 0.5 [0.4, 0.6], accepted >= 0.6; 90 scored in 80 groups'
    """
    used = {"measure", "value", "ci_low", "ci_high", "accepted", "reason"}
    measure = safe_text(evidence.get("measure", ""))
    if "baseline" in evidence and "now" in evidence and "value" in evidence:
        used |= {"baseline", "now", "relative_drop", "n_better", "n_worse", "n_tied"}
        drop = (
            f", relative drop {100 * evidence['relative_drop']:.1f} %"
            if isinstance(evidence.get("relative_drop"), float)
            else ""
        )
        first = f"{measure} {_figure(evidence['now'])} against {_figure(evidence['baseline'])}: difference {_with_interval(evidence, signed=True)}{drop}"
        first += f" ({', '.join(f'{_figure(evidence[key])} {key[2:]}' for key in ('n_better', 'n_worse', 'n_tied') if key in evidence)})"
    elif evidence.get("value") is not None:
        first = f"{measure} {_with_interval(evidence)}"
    else:
        first = measure
    parts = [
        f"{first}, accepted {safe_text(evidence['accepted'])}" if "accepted" in evidence else first
    ]
    if "reason" in evidence:
        parts.append(safe_text(evidence["reason"]))
    if "n_scored" in evidence:
        used |= {"n_scored", "n_groups"}
        groups = f" in {_figure(evidence['n_groups'])} groups" if "n_groups" in evidence else ""
        parts.append(f"{_figure(evidence['n_scored'])} scored{groups}")
    if isinstance(evidence.get("strategies"), Mapping):
        used.add("strategies")
        parts.append(
            ", ".join(
                f"{safe_text(name)} {_figure(counts.get('n_blocked'))} of {_figure(counts.get('n_retrieved'))}"
                for name, counts in evidence["strategies"].items()
                if isinstance(counts, Mapping)
            )
        )
    parts += [
        f"{safe_text(key)} {_rest(value)}"
        for key, value in sorted(evidence.items())
        if key not in used and value is not None and not key.endswith("_reason")
    ]
    return safe_text("; ".join(part for part in parts if part.strip()), MAX_EVIDENCE)


def _rest(value: object, depth: int = _DEPTH) -> str:
    """Write any other part of the evidence, bounded."""
    if isinstance(value, Mapping):
        if not depth:
            return f"({len(value)} entries)"
        return (
            "("
            + ", ".join(
                f"{safe_text(key)} {_rest(part, depth - 1)}"
                for key, part in list(value.items())[:10]
            )
            + ")"
        )
    if isinstance(value, list):
        if not depth:
            return f"({len(value)} entries)"
        return (
            "("
            + ", ".join(_rest(part, depth - 1) for part in value[:5])
            + (f", {len(value) - 5} more" if len(value) > 5 else "")
            + ")"
        )  # noqa: PLR2004 - as many as are shown
    return _figure(value)
