"""Read a report's verdict and write it as a terminal table, JUnit XML and Markdown.

Reports are untrusted, so this file escapes and shortens every text of a report once.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree as ET

from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.report import SCHEMA_VERSION, GatePart, Report, first_fault
from rag_eval.core.rows import Fault, parse_object
from rag_eval.reporting.metrics_report import content_hash
from rag_eval.reporting.terminal import SHOWN, STATUS_STYLE, estimate
from rag_eval.storage.artifacts import write_bytes, write_text

if TYPE_CHECKING:
    from rich.console import Console

MAX_TEXT, MAX_EVIDENCE = 200, 1000
_MAX_COUNT = 10**15  # A larger integer is no count, and may overflow a float.
_DEPTH, _MAX_ITEMS = 2, 5  # shown levels of nested evidence, and shown items of a list

Outcome = Literal["pass", "failure", "warning", "note"]
"""A required gate that did not pass is a failure. An advisory gate is a warning or a note."""

_NOT_TEXT = re.compile(
    r"[\u061c\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ud800-\udfff\ufe00-\ufe0f\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)


def safe_text(value: object, limit: int = MAX_TEXT) -> str:
    r"""Make one printable line of at most `limit` characters of an untrusted text.

    Controls, invisible characters and characters that XML forbids are escaped.

    Examples
    --------
    >>> print(safe_text("a" + chr(27) + "[2J" + chr(0xD800)))
    a\u001b[2J\ud800
    """
    return _NOT_TEXT.sub(lambda match: f"\\u{ord(match.group()):04x}", quoted(str(value), limit))


@dataclasses.dataclass(frozen=True)
class GateRow:
    """One gate of a verdict.

    `id`, `gate`, `severity`, `required`, `status`, `reason_code`: as in the report, printable.
    `outcome`: effect of the gate on the run.
    `evidence`: figures of the gate in one line, with denominators and intervals.
    """

    id: str
    gate: str
    severity: str
    required: bool
    status: str
    reason_code: str
    outcome: Outcome
    evidence: str


@dataclasses.dataclass(frozen=True)
class VerdictRows:
    """The verdict of a report.

    `gold_set`, `run_id`, `timestamp`, `content_hash`: as in the report, printable.
    `rows`: the gates in the report's order, with required failures first.
    `failed`: ids of the required gates that did not pass.
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
        """The verdict in one sentence, with the numbers of gates."""
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


def verdict_rows(report: Report, gold_set: str | None = None) -> VerdictRows:
    """Make the rows of a verdict; `gold_set` replaces the name in the report unless empty."""
    rows = sorted(map(_row, report.gates), key=lambda row: row.outcome != "failure")
    return VerdictRows(
        safe_text(gold_set or report.gold.name),
        report.run_id,
        report.timestamp,
        report.content_hash,
        tuple(rows),
        tuple(row.id for row in map(_row, report.gates) if row.outcome == "failure"),
    )


def _row(gate: GatePart) -> GateRow:
    advisory: Outcome = "warning" if gate.status == "fail" else "note"
    outcome: Outcome = "failure" if gate.required else advisory
    return GateRow(
        safe_text(gate.id),
        safe_text(gate.gate),
        gate.severity,
        gate.required,
        gate.status,
        safe_text(gate.reason_code),
        "pass" if gate.status == "pass" else outcome,
        evidence_text(gate.evidence),
    )


def _figure(value: object, *, signed: bool = False) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, int) and abs(value) > _MAX_COUNT):
        return safe_text(value)
    return f"{value:+.3f}" if signed else str(value) if isinstance(value, int) else f"{value:.4g}"


def _with_interval(evidence: Mapping[str, Any], *, signed: bool = False) -> str:
    value, low, high = (
        None if evidence.get(name) is None else _figure(evidence[name], signed=signed)
        for name in ("value", "ci_low", "ci_high")
    )
    return f"{value}" if low is None or high is None else f"{value} [{low}, {high}]"


_SHOWN_FIRST = frozenset(
    "measure value ci_low ci_high accepted reason baseline now relative_drop n_better n_worse "
    "n_tied n_scored n_groups strategies".split()
)


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Write the evidence of a gate in one line.

    The line holds the figure with its interval, the accepted values, the denominators, and then
    all other evidence.

    Examples
    --------
    >>> floor = {"measure": "mrr", "value": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    >>> evidence_text({**floor, "accepted": ">= 0.6", "n_scored": 90, "n_groups": 80})
    'mrr 0.5 [0.4, 0.6], accepted >= 0.6; 90 scored in 80 groups'
    """
    first = safe_text(evidence.get("measure", ""))
    if {"baseline", "now", "value"} <= evidence.keys():
        drop = evidence.get("relative_drop")
        words = f", relative drop {100 * drop:.1f} %" if isinstance(drop, float) else ""
        counts = ", ".join(
            f"{_figure(evidence[key])} {key[2:]}"
            for key in ("n_better", "n_worse", "n_tied")
            if key in evidence
        )
        first += (
            f" {_figure(evidence['now'])} against {_figure(evidence['baseline'])}: "
            f"difference {_with_interval(evidence, signed=True)}{words} ({counts})"
        )
    elif evidence.get("value") is not None:
        first += f" {_with_interval(evidence)}"
    if "accepted" in evidence:
        first += f", accepted {safe_text(evidence['accepted'])}"
    parts = [first, safe_text(evidence.get("reason", ""))]
    if "n_scored" in evidence:
        groups = f" in {_figure(evidence['n_groups'])} groups" if "n_groups" in evidence else ""
        parts.append(f"{_figure(evidence['n_scored'])} scored{groups}")
    strategies = evidence.get("strategies")
    if isinstance(strategies, Mapping):
        parts.append(
            ", ".join(
                f"{safe_text(name)} {_figure(counts.get('n_blocked'))} of "
                f"{_figure(counts.get('n_retrieved'))}"
                for name, counts in strategies.items()
                if isinstance(counts, Mapping)
            )
        )
    parts += [
        f"{safe_text(key)} {_rest(value)}"
        for key, value in sorted(evidence.items())
        if key not in _SHOWN_FIRST and value is not None and not key.endswith("_reason")
    ]
    return safe_text("; ".join(part for part in parts if part.strip()), MAX_EVIDENCE)


def _rest(value: object, depth: int = _DEPTH) -> str:
    """Write any other part of the evidence with a bounded length."""
    if not isinstance(value, (Mapping, list)):
        return _figure(value)
    if not depth:
        return f"({len(value)} entries)"
    if isinstance(value, Mapping):
        shown = list(value.items())[:10]
        parts = [f"{safe_text(key)} {_rest(part, depth - 1)}" for key, part in shown]
    else:
        parts = [_rest(part, depth - 1) for part in value[:_MAX_ITEMS]]
        parts += [f"{len(value) - _MAX_ITEMS} more"] if len(value) > _MAX_ITEMS else []
    return f"({', '.join(parts)})"


# ---- The accepted baseline on a terminal, with its figures and its history

MAX_SHOWN = 50


def baseline_lines(
    gold_set: str, report: Report | None, records: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Describe the accepted baseline and its history as lines of text.

    `report`: the report of the baseline; None if there is no baseline.
    `records`: the history, oldest first; the newest is the baseline.
    """
    name = safe_text(gold_set)
    if report is None or not records:
        advice = "accept one with rag-eval baseline accept"
        return [f"{name}: no run was accepted as the baseline yet; {advice}"]
    level = report.evaluation.level
    lines = [
        (
            f"{name}: the baseline is run {report.run_id}; strategy {report.strategy}, "
            f"{level} level, gold {report.gold.hash[:12]}"
        ),
        f"  index {report.primary.index_hash}",
    ]
    lines += [
        f"  {measure.label} {estimate(measure)} over {measure.n_scored}/{measure.n_attempted} "
        "questions"
        for measure in report.primary.measures
        if measure.level == level and measure.label in SHOWN
    ]
    times = f"{len(records)} time{'s' if len(records) != 1 else ''}"
    lines.append(f"accepted {times}, the newest first:")
    for record in list(reversed(records))[:MAX_SHOWN]:
        failed = safe_text(", ".join(map(str, record.get("failed_gates", []))))
        lines.append(
            f"  {safe_text(record['accepted_at'])} {safe_text(record['run_id'])} by "
            f"{safe_text(record['who'])}: {safe_text(record['why'], 400)}"
            f"{f' FORCED past {failed}' if record.get('forced') else ''}"
        )
    return lines


# ---- The verdict as JUnit XML: CI shows each gate as a test case

JUNIT_FILE = "gate-verdict.xml"


def junit_xml(verdict: VerdictRows) -> bytes:
    """Write the verdict as a JUnit file, UTF-8."""
    outcomes = [row.outcome for row in verdict.rows]
    failures, passed = outcomes.count("failure"), outcomes.count("pass")
    counts = {"tests": str(len(outcomes)), "failures": str(failures), "errors": "0"}
    counts |= {"skipped": str(len(outcomes) - failures - passed), "time": "0"}
    root = ET.Element("testsuites", {"name": "rag-eval gates", **counts})
    suite = ET.SubElement(
        root,
        "testsuite",
        {
            "name": f"gates of {verdict.gold_set}",
            "timestamp": verdict.timestamp.removesuffix("Z"),
            **counts,
        },
    )
    properties = ET.SubElement(suite, "properties")
    for name in ("run_id", "content_hash"):
        ET.SubElement(properties, "property", {"name": name, "value": getattr(verdict, name)})
    for row in verdict.rows:
        _case(suite, row, verdict.gold_set)
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _case(suite: ET.Element, row: GateRow, gold_set: str) -> None:
    case = ET.SubElement(
        suite, "testcase", {"classname": f"gates.{gold_set}", "name": row.id, "time": "0"}
    )
    summary = f"{row.status}: {row.reason_code}"
    if row.outcome == "failure":
        failure = ET.SubElement(
            case, "failure", {"message": f"{row.severity} {summary}", "type": row.reason_code}
        )
        failure.text = row.evidence
    elif row.outcome != "pass":
        ET.SubElement(
            case, "skipped", {"message": f"advisory, {row.severity} {summary}: {row.evidence}"}
        )
    out = ET.SubElement(case, "system-out")
    out.text = (
        f"severity {row.severity}, {'required' if row.required else 'advisory'}, {summary}\n"
        f"{row.evidence}\n"
    )


# ---- The verdict as GitHub-flavoured Markdown, for a job summary or a comment.

MARKDOWN_FILE = "gate-verdict.md"
SIGNS = {
    "pass": "✅ pass",
    "failure": "❌ fails the run",
    "warning": "⚠️ advisory",
    "note": "➖ advisory",
}

MAX_LINES = 200
"""Rows of the table; more could exceed the megabyte that a job summary holds."""

_ACTIVE = re.compile(r"[|`\r\n]|\\(?=$)|<(?=[A-Za-z/!?])|@(?=\w)")


def code(text: str) -> str:
    r"""Write a text of the report as a code span, and escape every character that could end it.

    Examples
    --------
    >>> print(code("a|b`c <b>@team"))
    `a\u007cb\u0060c \u003cb>\u0040team`
    """
    escaped = _ACTIVE.sub(lambda match: f"\\u{ord(match.group()):04x}", text).strip()
    return f"`{escaped or '-'}`"


def markdown(verdict: VerdictRows) -> str:
    """Write the verdict as a heading, a sentence and a table."""
    lines = [
        f"## {'✅' if verdict.passed else '❌'} Gates of {code(verdict.gold_set)}",
        "",
        (
            f"{verdict.headline}. Run {code(verdict.run_id)} of {code(verdict.timestamp)}, content "
            f"hash {code(verdict.content_hash[:16])}."
        ),
    ]
    if verdict.rows:
        lines += [
            "",
            "| gate | severity | required | status | reason | evidence |",
            "|---|---|---|---|---|---|",
            *map(_line, verdict.rows[:MAX_LINES]),
        ]
    if len(verdict.rows) > MAX_LINES:
        lines += ["", f"{len(verdict.rows) - MAX_LINES} more gates are not shown."]
    return "\n".join(lines) + "\n"


def _line(row: GateRow) -> str:
    status = SIGNS[row.outcome] + ("" if row.outcome == "pass" else f": {code(row.status)}")
    required = "yes" if row.required else "no"
    cells = (
        *(code(row.id), code(row.severity), required, status),
        *(code(row.reason_code), code(row.evidence)),
    )
    return f"| {' | '.join(cells)} |"


# ---- Every file of a verdict, written beside its report.

VERDICT_FILES = (JUNIT_FILE, MARKDOWN_FILE)


def write_verdict(verdict: VerdictRows, folder: Path) -> tuple[Path, ...]:
    """Write JUnit XML and Markdown, each atomically; return their paths."""
    xml_path, markdown_path = (folder / name for name in VERDICT_FILES)
    write_bytes(xml_path, junit_xml(verdict))
    write_text(markdown_path, markdown(verdict))
    return xml_path, markdown_path


# ---- Reading reports: a report must be whole and unchanged

MAX_GATES = 1000
MAX_BYTES = 200_000_000


def _unreadable(
    path: Path,
    field: str | None,
    found: str | None,
    message: str = "not a whole report as rag-eval wrote it",
) -> InputError:
    accepted = f"a retrieval-metrics.json of schema_version {SCHEMA_VERSION}, unchanged"
    return InputError(
        Problem(
            "run_unreadable",
            message,
            file=str(path),
            field=field,
            found=found,
            accepted=accepted,
        )
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises
    ------
    InputError
        The file is missing, too large, or holds something else.
    """
    if not path.is_file():
        raise InputError(
            Problem(
                "run_not_found",
                "no such report",
                file=str(path),
                accepted="the report of a run: rag-eval run writes it",
            )
        )
    if path.stat().st_size > MAX_BYTES:
        raise _unreadable(path, None, f"{path.stat().st_size} bytes")
    value = parse_object(path.read_bytes(), only_floats=True)
    if isinstance(value, Fault):
        raise _unreadable(path, None, value.message)
    return value


def whole_report(report: Mapping[str, Any], path: Path) -> None:
    """Refuse a report that is damaged; the error names `path`.

    Raises
    ------
    InputError
        The report breaks its schema, was changed after it was written, or has too many gates.
    """
    version = report.get("schema_version")
    if version != SCHEMA_VERSION:
        if not isinstance(version, int):
            raise _unreadable(path, "schema_version", str(version))
        message = "the report is of another version of rag-eval"
        raise _unreadable(path, "schema_version", str(version), message)
    fault = first_fault(report)
    if fault is not None:
        raise _unreadable(path, *fault)
    if report["content_hash"] != content_hash(report):
        raise _unreadable(path, "content_hash", report["content_hash"])
    if len(report["gates"]) > MAX_GATES:
        raise InputError(
            Problem(
                "too_many_gates",
                "no gold set asks for so many gates",
                file=str(path),
                field="gates",
                found=str(len(report["gates"])),
                accepted=f"at most {MAX_GATES}",
            )
        )


def read_report(path: Path) -> dict[str, Any]:
    """Read a report, and check that the report is complete and unchanged.

    Raises
    ------
    InputError
        The report is missing, unreadable or damaged.
    """
    report = read_object(path)
    whole_report(report, path)
    return report


# ---- The verdict on a terminal


def show_verdict(console: "Console", verdict: VerdictRows) -> None:
    """Print a table of the gates, and the verdict in one sentence.

    Texts of the report are never read as markup.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(f"{verdict.gold_set}: run {verdict.run_id} of {verdict.timestamp}", markup=False)
    if verdict.rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("gate", "severity", "required", "status", "reason", "evidence"):
            table.add_column(name, overflow="fold", ratio=1 if name == "evidence" else None)
        for row in verdict.rows:
            decides = row.required or row.status == "pass"
            style = STATUS_STYLE.get(row.status, "") if decides else "yellow"
            status = Text(row.status.replace("_", " "), style=style)
            required = "yes" if row.required else "no"
            texts = (Text(row.reason_code), Text(row.evidence))
            table.add_row(Text(row.id), row.severity, required, status, *texts)
        console.print(table)
    console.print(verdict.headline, markup=False)
