"""The one list of gates, and the verdict over all of them."""

from collections.abc import Iterable
from typing import Final

from rag_eval.core.config import GoldSetConfig
from rag_eval.gates.floors import (
    AcceptanceGate,
    ContractGate,
    PoisoningGate,
    StabilityGate,
    TrustGate,
)
from rag_eval.gates.gate import Gate, GateInputs
from rag_eval.gates.gate_report import GatePart
from rag_eval.gates.regression import RegressionGate

GATES: Final[tuple[Gate, ...]] = (
    AcceptanceGate(),
    StabilityGate(),
    ContractGate(),
    TrustGate(),
    PoisoningGate(),
    RegressionGate(),
)


def judge_gates(inputs: GateInputs) -> list[GatePart]:
    """Judge every gate that the gold set asks for."""
    configured = (gate for gate in GATES if gate.is_configured(inputs.config))
    return [result for gate in configured for result in gate.results(inputs)]


def check_names(config: GoldSetConfig) -> list[str]:
    """Name the checks of all gates that the gold set asks for."""
    configured = (gate for gate in GATES if gate.is_configured(config))
    return [name for gate in configured for name in gate.check_names(config)]


def required_failures(gates: Iterable[GatePart]) -> list[str]:
    """Name the required gates of a report that did not pass."""
    return [gate.id for gate in gates if gate.required and not gate.is_fine]
