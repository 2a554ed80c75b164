"""Checks fail where the part that they guard is broken."""

import dagster as dg
import pytest

from rag_eval.defs.assets import gate_results
from rag_eval.gates.gate import GatePart
from rag_eval.reporting.report import Report

asset = dg.AssetKey.from_user_string


@pytest.mark.parametrize(
    ("status", "required", "passed"),
    [
        ("pass", False, True),
        ("fail", False, False),
        ("insufficient_evidence", False, True),
        ("insufficient_evidence", True, False),
    ],
)
def test_a_gate_is_shown_with_its_status(status, required, passed):
    entries = [
        {
            "id": f"stability.{at}",
            "gate": "stability",
            "status": each,
            "severity": "P2",
            "required": required,
            "reason_code": "why",
            "evidence": {},
        }
        for at, each in enumerate(("pass", status))
    ]
    report = Report.model_construct(gates=[GatePart.model_validate(one) for one in entries])
    (found,) = gate_results(report, ["stability"], asset("reporting/report"))
    assert (found.passed, found.check_name, found.severity) == (
        passed,
        "stability",
        dg.AssetCheckSeverity.WARN,
    )
    assert found.metadata["status"].value == status
    assert found.description.startswith(status)
