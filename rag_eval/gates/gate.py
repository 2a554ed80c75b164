"""A gate, its inputs and its judgement. `gates.verdict` lists the gates."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pandas as pd
from pydantic import Field, StrictBool

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.parts import Name
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
from rag_eval.measures.overlap import NamedGold

GateStatus = Literal["pass", "fail", "insufficient_evidence", "not_applicable"]
"""Status of a gate. A gate that does not apply to a run is neither met nor failed."""
Priority = Literal["P0", "P1", "P2"]


class GatePart(Record):
    """The judgement of one gate, with its evidence."""

    id: str
    gate: str
    severity: Priority
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


FIRST_RUN = "judged from the second run on"
"""Reason why the cache hit rate of a first run is not judged."""
Figure = Mapping[str, Any]
"""A figure: `value`, and if known ci_low, ci_high, n_scored, n_effective and judged_at_k.

A null value has a `reason`."""


class Judgement(NamedTuple):
    """Judgement of a gate on a figure. Insufficient evidence fails a required gate.

    `reason_code` is a stable name. `evidence` holds the figures behind the status. `part` names
    the figure if the gate judges several figures.
    """

    status: GateStatus
    reason_code: str
    evidence: Mapping[str, object]
    part: str = ""


@dataclasses.dataclass(frozen=True)
class AcceptedRun:
    """The accepted baseline. `changes`: its changed inputs until now, as code -> sentence."""

    run_id: str
    per_query: pd.DataFrame
    changes: Changes


@dataclasses.dataclass(frozen=True)
class GateInputs:
    """Parts of the report, and the accepted baseline.

    `figures` are those of the primary strategy by the names of floors, `answers` is the part of
    the report, without `outcomes` if no answers were made, and `trust` has the part
    `trust.retrieved` by strategy. `per_query` has one row for each (strategy, level, query,
    wording, seed) and one column for each measure, NaN where the question is not eligible. There
    is no baseline either if it cannot be used for `baseline_fault`. `is_first`: no earlier run of
    the gold set is kept. `n_quarantined` of all `n_chunks` are not indexed.
    """

    config: GoldSetConfig
    figures: Mapping[str, Figure]
    answers: Mapping[str, Any]
    trust: Mapping[str, Mapping[str, Any]]
    gold: NamedGold
    per_query: pd.DataFrame
    baseline: AcceptedRun | None
    n_chunks: int
    n_quarantined: int
    baseline_fault: str = ""
    is_first: bool = False


class Gate(ABC):
    """A rule over the figures of a run. `gates` of the gold set says whether it is required."""

    name: str
    severity: Priority

    def is_configured(self, config: GoldSetConfig) -> bool:
        """Whether the gold set lists this gate, as required or as advisory."""
        return self.name in {*config.gates.required, *config.gates.advisory}

    def check_names(self, config: GoldSetConfig) -> list[str]:
        """Name the checks that Dagster shows for this gate."""
        del config
        return [self.name]

    @abstractmethod
    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge a run that is configured for this gate."""

    def results(self, inputs: GateInputs) -> Iterator[GatePart]:
        """Judge a run and yield the judgements as parts of the report."""
        for status, reason_code, evidence, part in self.judge(inputs):
            yield GatePart.model_validate(
                {
                    "id": f"{self.name}.{part}" if part else self.name,
                    "gate": self.name,
                    "severity": self.severity,
                    "required": self.name in inputs.config.gates.required,
                    "status": status,
                    "reason_code": reason_code,
                    "evidence": evidence,
                }
            )
