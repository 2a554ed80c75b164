"""Gates, and the runs before this one, in the report."""

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field, StrictBool

from rag_eval.core.fields import Name
from rag_eval.core.records import (
    Hash,
    IndexHash,
    Open,
    PairedDelta,
    Record,
    RunId,
    ShortText,
    Timestamp,
    Unit,
)

# ---- Gates, drift from the baseline, history.


GateStatus = Literal["pass", "fail", "insufficient_evidence", "not_applicable"]
"""Status of a gate. A gate that does not apply to a run is neither met nor failed."""


class GatePart(Record):
    """The judgement of one gate, with its evidence."""

    id: str
    gate: str
    severity: Literal["P0", "P1", "P2"]
    required: StrictBool
    status: GateStatus
    reason_code: str = Field(pattern=r"^[a-z_]+$")
    evidence: Open

    @property
    def is_fine(self) -> bool:
        """Whether the gate passed or does not apply."""
        return self.status in {"pass", "not_applicable"}


def count_gates(gates: Iterable[tuple[bool, str]]) -> str:
    """Count the gates that are met among those that apply; each is (whether required, status).

    Examples
    --------
    >>> count_gates([(True, "pass"), (False, "fail"), (False, "insufficient_evidence")])
    'required 1 of 1 met, advisory 0 of 2 met (1 without enough evidence)'
    """
    counted, parts = list(gates), []
    for word, required in (("required", True), ("advisory", False)):
        states = [
            status for kind, status in counted if kind == required and status != "not_applicable"
        ]
        if states:
            unknown = states.count("insufficient_evidence")
            more = f" ({unknown} without enough evidence)" if unknown else ""
            parts.append(f"{word} {states.count('pass')} of {len(states)} met{more}")
    return ", ".join(parts)


ChangeCode = Literal[
    "gold_changed",
    "chunks_changed",
    "index_changed",
    "configuration_changed",
    "strategies_changed",
    "code_changed",
]
Changes = dict[ChangeCode, ShortText]
"""Changed inputs of a run since another run, as code -> sentence."""


class StrategyInputs(Record):
    """Inputs of the figures of a strategy: its index and a hash of its configuration."""

    index_hash: IndexHash
    configuration: Hash


class RunInputs(Record):
    """Inputs of the figures of a run.

    `settings` is a hash of levels, cutoffs, seeds and of the definition of a miss.
    """

    gold_hash: Hash
    chunks_hash: Hash
    settings: Hash
    code: Hash
    strategies: Mapping[Name, StrategyInputs]


class NightDelta(PairedDelta):
    """Difference between two nights, over the questions that both scored."""

    strategy: Name
    measure: Literal["R@10", "RR", "nDCG@10"]
    before: Unit | None
    after: Unit | None


class PreviousPart(Record):
    """The last kept run of the gold set before this one."""

    run_id: RunId
    timestamp: Timestamp
    comparable: StrictBool
    changes: Changes
    deltas: list[NightDelta] | None
