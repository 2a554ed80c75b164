"""What a gate says, and what the whole verdict is."""

import dataclasses
from typing import Any, Literal

from rag_eval.records.gold_set import GateName, Gates

Status = Literal["pass", "fail", "insufficient_evidence"]
Severity = Literal["P0", "P1", "P2"]

SEVERITIES: dict[str, Severity] = {
    "poisoning": "P0",
    "trust": "P1",
    "acceptance": "P2",
    "regression": "P2",
    "stability": "P2",
    "answer_contract": "P1",
}


@dataclasses.dataclass(frozen=True)
class GateResult:
    """One gate's verdict.

    Parameters
    ----------
    id
        `acceptance.recall_at_10`, `stability.delta_s`, ...
    gate
        The gate it belongs to; whether that one is required decides what a failure does.
    status
        insufficient_evidence fails closed where the gate is required.
    reason_code
        Stable machine name of the reason.
    evidence
        The figures that the verdict rests on.
    """

    id: str
    gate: GateName
    status: Status
    reason_code: str
    evidence: dict[str, Any]
    required: bool

    def as_json(self) -> dict[str, Any]:
        """Return the form of the report."""
        return {
            "id": self.id,
            "gate": self.gate,
            "severity": SEVERITIES[self.gate],
            "required": self.required,
            "status": self.status,
            "reason_code": self.reason_code,
            "evidence": self.evidence,
        }


def required_failures(gates: list[dict[str, Any]]) -> list[str]:
    """Name the required gates of a report that did not pass."""
    return [gate["id"] for gate in gates if gate["required"] and gate["status"] != "pass"]


def is_required(gates: Gates, gate: GateName) -> bool:
    """Tell whether a failure of this gate ends the run."""
    return gate in gates.required


def is_configured(gates: Gates, gate: GateName) -> bool:
    """Tell whether the gold set asks for this gate at all."""
    return gate in gates.required or gate in gates.advisory
