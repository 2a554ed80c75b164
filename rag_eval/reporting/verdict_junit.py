"""The verdict as JUnit XML: one test case a gate, so that CI shows it as it shows tests.

A required gate that did not pass, for whatever reason, is a failure. An advisory one that did not pass is shown as skipped with its
reason: a failure would end the job, and a pass would hide it.
"""

from xml.etree import ElementTree as ET

from rag_eval.reporting.verdict_rows import GateRow, VerdictRows

FILE_NAME = "gate-verdict.xml"


def junit_xml(verdict: VerdictRows) -> bytes:
    """Write the verdict as a JUnit file, UTF-8."""
    failures, skipped = (
        sum(row.outcome in outcomes for row in verdict.rows)
        for outcomes in ({"failure"}, {"warning", "note"})
    )
    counts = {
        "tests": str(len(verdict.rows)),
        "failures": str(failures),
        "errors": "0",
        "skipped": str(skipped),
        "time": "0",
    }
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
    told = f"{row.status}: {row.reason_code}"
    if row.outcome == "failure":
        failure = ET.SubElement(
            case, "failure", {"message": f"{row.severity} {told}", "type": row.reason_code}
        )
        failure.text = row.evidence
    elif row.outcome != "pass":
        ET.SubElement(
            case, "skipped", {"message": f"advisory, {row.severity} {told}: {row.evidence}"}
        )
    out = ET.SubElement(case, "system-out")
    out.text = f"severity {row.severity}, {'required' if row.required else 'advisory'}, {told}\n{row.evidence}\n"
