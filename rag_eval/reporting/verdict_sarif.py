"""The verdict as SARIF 2.1.0, for code scanning: a rule for every gate, a result for every gate that did not pass.

Gates that passed have their rule and no result: consumers show every result as something to be mended, whatever its kind. The
fingerprint is that of the gate, so that a gate that fails night after night is one alert and not one a night.
"""

import json
from typing import Any

from rag_eval import __version__
from rag_eval.reporting.metrics_report import FILE_NAME as REPORT
from rag_eval.reporting.verdict_rows import GateRow, VerdictRows

FILE_NAME = "gate-verdict.sarif"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"pass": "none", "failure": "error", "warning": "warning", "note": "note"}
DESCRIPTIONS = {
    "acceptance": "A figure keeps the floor of the gold set, judged by the bound of its interval.",
    "regression": "No measure fell against the accepted baseline by more than the gold set allows, question by question.",
    "stability": "Questions find the same evidence however they are put, and it is close to them.",
    "trust": "The mean trust of what was retrieved reaches the gold set's floor.",
    "poisoning": "Nothing that the poisoning guard blocks is among what was retrieved.",
    "answer_contract": "Every answer kept its contract.",
}


def sarif(verdict: VerdictRows) -> str:
    """Write the verdict as a SARIF log of one run, UTF-8 JSON."""
    rules: dict[str, dict[str, Any]] = {}
    for row in verdict.rows:
        rules.setdefault(row.id, _rule(row))
    places = {rule: at for at, rule in enumerate(rules)}
    run = {
        "tool": {
            "driver": {
                "name": "rag-eval",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": list(rules.values()),
            }
        },
        "automationDetails": {"id": f"rag-eval/{verdict.gold_set}/"},
        "columnKind": "unicodeCodePoints",
        "results": [_result(row, places[row.id]) for row in verdict.rows if row.outcome != "pass"],
        "properties": {
            "runId": verdict.run_id,
            "contentHash": verdict.content_hash,
            "timestamp": verdict.timestamp,
            "verdict": verdict.headline,
        },
    }
    return (
        json.dumps(
            {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]},
            sort_keys=True,
            indent=2,
            ensure_ascii=False,
            allow_nan=False,
        )
        + "\n"
    )


def message(text: str) -> dict[str, str]:
    """Give a plain text message; what the standard would read as a placeholder or a link stays text (3.11.5, 3.11.6)."""
    return {"text": text.replace("{", "{{").replace("}", "}}").replace("](", "] (")}


def _rule(row: GateRow) -> dict[str, Any]:
    text = DESCRIPTIONS.get(row.gate, "A gate of the gold set.")
    return {
        "id": row.id,
        "shortDescription": {"text": text},
        "defaultConfiguration": {"level": "error" if row.required else "warning"},
        "properties": {"gate": row.gate, "severity": row.severity, "required": row.required},
    }


def _result(row: GateRow, rule: int) -> dict[str, Any]:
    return {
        "ruleId": row.id,
        "ruleIndex": rule,
        "level": LEVELS[row.outcome],
        "kind": "fail",
        "message": message(f"{row.status}: {row.reason_code}. {row.evidence}"),
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": REPORT}, "region": {"startLine": 1}}}
        ],
        "partialFingerprints": {"gate/v1": row.fingerprint},
        "properties": {
            "status": row.status,
            "reasonCode": row.reason_code,
            "severity": row.severity,
            "required": row.required,
        },
    }
