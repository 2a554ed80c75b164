"""The verdict says the same in every form, and no text of a report can change it."""

import re
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from rag_eval.core.errors import InputError
from rag_eval.gates.gate import GatePart
from rag_eval.gold.lint import GoldPart
from rag_eval.reporting.report import Report, content_hash, read_object, whole_report
from rag_eval.reporting.tables import print_parts
from rag_eval.reporting.verdicts import (
    _evidence_text,
    _junit_xml,
    _markdown,
    verdict_rows,
)

HOSTILE = (
    "a|b`c``d <script>alert(1)</script> <!-- x --> @team #1 [x](https://evil.example) "
    "![y](https://evil.example/p.png) \\| &lt; ]]> \x00\x0b\x1b[2J\x9b\r\n\n# h\n"
    "| z |\u202e\u2028\ufffe\ud800\U000e0041 {0} {{1}} [bold]x[/bold]"
)
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parsed(data):
    return ET.fromstring(data)  # noqa: S314 - what was just written here


def gate(name="acceptance.mrr", status="pass", *, code="met", severity="P2", **evidence):
    return GatePart.model_construct(
        id=name,
        gate=name.partition(".")[0],
        severity=severity,
        required=evidence.pop("required", True),
        status=status,
        reason_code=code,
        evidence=evidence,
    )


def rows(*gates, name="tiny"):
    report = Report.model_construct(
        gold=GoldPart.model_construct(name=name),
        run_id="20260101T000000000Z-0123abcd",
        timestamp="2026-01-01T00:00:00Z",
        content_hash="a" * 64,
        gates=list(gates),
    )
    return verdict_rows(report)


ESTIMATE = {"value": 0.7, "ci_low": 0.61, "ci_high": 0.8, "n_scored": 90, "n_effective": 80}
WORSE = {"measure": "delta_s", "value": 0.4, "ci_high": 0.5, "ci_low": 0.3, "accepted": "<= 0.45"}
BLOCKED = {"measure": "blocked", "value": 2, "n_scored": 900, "accepted": "<= 0"}
NOBODY = "nothing says whom to trust"
MIXED = (
    gate("trust", "insufficient_evidence", code="not_measured", required=False, reason=NOBODY),
    gate("acceptance.mrr", measure="mrr", accepted=">= 0.6", **ESTIMATE),
    gate("stability.delta_s", "fail", code="bound_not_met", required=False, **WORSE),
    gate("poisoning", "fail", code="blocked_retrieved", severity="P0", **BLOCKED),
    gate("regression.mrr", "insufficient_evidence", code="no_baseline", measure="mrr"),
)


def test_required_failures_come_first_and_fail_the_verdict():
    verdict = rows(*MIXED)
    assert [(row.id, row.outcome) for row in verdict.rows] == [
        ("poisoning", "failure"),
        ("regression.mrr", "failure"),
        ("trust", "note"),
        ("acceptance.mrr", "pass"),
        ("stability.delta_s", "warning"),
    ]
    assert verdict.failed == ("poisoning", "regression.mrr")
    assert verdict.headline == (
        "FAILED: required 1 of 3 met (1 without enough evidence), "
        "advisory 0 of 2 met (1 without enough evidence)"
    )
    assert rows(MIXED[1]).headline == "required 1 of 1 met"
    assert not rows(MIXED[0]).failed
    assert "no gate was judged" in rows().headline


def test_evidence_has_its_interval_and_what_it_is_counted_over():
    evidence = rows(*MIXED).rows[3].evidence
    assert evidence == "mrr 0.7 [0.61, 0.8], accepted >= 0.6; 90 scored, worth 80"
    drop = {"measure": "mrr", "value": -0.08, "ci_low": -0.13, "ci_high": -0.03, "n_scored": 200}
    assert _evidence_text({**drop, "now": 0.72, "different": ["the index differs"]}) == (
        "mrr -0.08 [-0.13, -0.03]; 200 scored; different (the index differs); now 0.72"
    )
    assert _evidence_text({}) == ""


def test_junit_counts_what_it_shows():
    root = parsed(_junit_xml(rows(*MIXED)))
    suite = root.find("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "2",
        "errors": "0",
        "skipped": "2",
    }
    found = {case.get("name"): [part.tag for part in case] for case in suite.iter("testcase")}
    assert found == {
        "poisoning": ["failure"],
        "regression.mrr": ["failure"],
        "trust": ["skipped"],
        "acceptance.mrr": [],
        "stability.delta_s": ["skipped"],
    }
    failure = suite.find("testcase[@name='poisoning']/failure")
    assert failure.get("type") == "blocked_retrieved"
    assert failure.get("message") == "required, P0 fail: blocked_retrieved"
    assert "2, accepted <= 0; 900 scored" in failure.text


def cells(text):
    """Return the numbers of table rows and cells, all other token types, and the texts."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inline = [token for token in tokens if token.type == "inline"]
    kinds = {child.type for token in inline for child in token.children} | {
        token.type
        for token in tokens
        if token.type
        in {"html_block", "fence", "code_block", "blockquote_open", "bullet_list_open", "hr"}
    }
    return (
        sum(token.type == "tr_open" for token in tokens),
        sum(token.type == "td_open" for token in tokens),
        kinds,
        [child.content for token in inline for child in token.children if child.type == "text"],
    )


def hostile_rows(text):
    return rows(
        gate(
            text,
            "fail",
            code="c",
            measure=text,
            value=1.0,
            accepted=text,
            reason=text,
            examples=[{text: [text] * 3}] * 3,
            **{text: text},
        ),
        gate("b", "insufficient_evidence", required=False, reason=text),
        name=text,
    )


def only_ours(text):
    verdict = hostile_rows(text)
    table = _markdown(verdict)
    n_rows, n_cells, kinds, texts = cells(table)
    assert (n_rows, n_cells) == (3, 12)
    assert kinds <= {"text", "code_inline", "softbreak"}
    assert all("@" not in part and "<" not in part and "evil" not in part for part in texts)
    data = _junit_xml(verdict)
    root = parsed(data)
    assert [element.tag for element in root.iter()] == [
        *("testsuites", "testsuite", "testcase", "failure", "testcase", "skipped"),
    ]
    assert not NOT_XML.search(data.decode())
    for form in (table, data.decode()):
        assert not re.search(
            r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", form
        )
        assert len(form) < 40_000


def test_texts_of_a_report_stay_texts():
    only_ours(HOSTILE)
    only_ours(HOSTILE * 1000)
    assert "\\u0040team" in _markdown(hostile_rows(HOSTILE))


def test_the_table_reads_no_markup_of_a_report():
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), width=200, no_color=True)
    print_parts(console, hostile_rows("[red]x[/red] [/] \x1b[2J").parts)
    shown = console.file.getvalue()
    assert "[red]x[/red]" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 10_000 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "\xff",
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / "retrieval-metrics.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="run_unreadable"):
        read_object(path)


def test_what_is_no_whole_report_is_refused(tmp_path):
    path = tmp_path / "r.json"
    for report in (
        {},
        {"schema_version": 2},
        {"schema_version": 2, "gates": [], "content_hash": content_hash({"gates": []})},
    ):
        with pytest.raises(InputError, match="run_unreadable"):
            whole_report(report, path)
    with pytest.raises(InputError, match=r"this version of rag-eval.*found: 1.*version 2"):
        whole_report({"schema_version": 1}, path)
    with pytest.raises(InputError, match="run_not_found"):
        read_object(path)
