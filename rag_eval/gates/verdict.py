"""The one list of gates, and the verdict over all of them."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.rows import FieldFault, Location, suggest
from rag_eval.core.types import Level
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
from rag_eval.measures.ranking import find_machine_name, labels_at, machine_name

GATES: Final[tuple[Gate, ...]] = (
    AcceptanceGate(),
    StabilityGate(),
    ContractGate(),
    TrustGate(),
    PoisoningGate(),
    RegressionGate(),
)


OTHER_FIGURES = tuple(
    """delta_s latency_p50_ms latency_p95_ms latency_p99_ms cost_per_1k cache_hit_rate
    citation_match_rate citation_precision citation_recall citation_validity_rate
    citation_support coverage groundedness faithfulness supported_share abstention_rate
    answered_anyway refused_answerable failure_rate avg_trust_score convergent_hit_share""".split()
)
"""Figures besides the ranking measures that a floor may ask for.

A floor on a figure that the run does not measure gives insufficient evidence."""


def find_faults(config: GoldSetConfig) -> Iterator[FieldFault]:
    """Find the gates and measures that a gold set names and that do not exist."""
    gates, names = config.gates, _measured_names(config, "document")
    for measure in config.acceptance:
        yield from _unknown(("acceptance", measure), measure, (*names, *OTHER_FIGURES), "measure")
    for key in ("required", "advisory"):
        for gate in getattr(gates, key):
            yield from _unknown(("gates", key), gate, [gate.name for gate in GATES], "gate")
    for measure in gates.regression:
        accepted = (*_measured_names(config, config.level), "delta_s")
        yield from _unknown(("gates", "regression"), measure, accepted, "measure")


def _measured_names(config: GoldSetConfig, level: Level) -> tuple[str, ...]:
    return tuple(machine_name(label) for label in labels_at(level, sorted({*config.k, 10})))


def _unknown(key: Location, name: str, accepted: Iterable[str], kind: str) -> Iterator[FieldFault]:
    """Explain an unknown name; a measure with several cutoffs is listed once, with `_at_`."""
    names = list(accepted)
    if name not in names:
        families = dict.fromkeys(re.sub(r"_at_\d+$", "_at_<k>", name) for name in names)
        near = find_machine_name(name) if kind == "measure" else name  # MRR, recall@10
        message = f"there is no such {kind}{suggest(near, names)}"
        yield FieldFault("bad_value", message, key, name, ", ".join(families), is_rule=False)


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
