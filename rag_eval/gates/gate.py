"""Types of a gate, its inputs and its judgements. `rag_eval.gates.verdict` lists the gates."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from rag_eval.core.config import GoldSetConfig
from rag_eval.gates.gate_report import Changes, GatePart, GateStatus
from rag_eval.measures.overlap import NamedGold
from rag_eval.trust.trust_report import TrustFactor

FIRST_RUN = "judged from the second run on"
"""Reason why the cache hit rate of a first run is not judged."""
Priority = Literal["P0", "P1", "P2"]
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
    """Inputs of all gates: parts of the report, and the accepted baseline.

    `figures`: Figures of the primary strategy by the names of floors.
    `answers`: Part `answers` of the report. It has no `outcomes` if no answers were made.
    `trust`: Strategy -> part `trust.retrieved` of the report.
    `gold`: Gold of the questions, for intervals and tests.
    `per_query`: One row for each (strategy, level, query, wording, seed), one column for each
      measure, NaN where the question is not eligible. Also a part of the baseline.
    `baseline`: None without a baseline, or if it cannot be used for `baseline_fault`.
    `is_first`: Whether no earlier run of the gold set is kept.
    `trust_factors`: Part `trust.factors` of the report.
    `n_quarantined`: Number of chunks that are not indexed, of all `n_chunks`.
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
    trust_factors: Sequence[TrustFactor] = ()


class Gate(ABC):
    """A rule over the figures of a run. `gates` of the gold set says whether it is required."""

    name: str
    severity: Priority

    def is_required(self, config: GoldSetConfig) -> bool:
        """Whether a failure ends the run."""
        return self.name in config.gates.required

    def is_configured(self, config: GoldSetConfig) -> bool:
        """Whether the gold set lists this gate, as required or as advisory."""
        return self.is_required(config) or self.name in config.gates.advisory

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
                    "required": self.is_required(inputs.config),
                    "status": status,
                    "reason_code": reason_code,
                    "evidence": evidence,
                }
            )


def known_figures(figure: Figure, *names: str) -> dict[str, object]:
    """Return the named parts of a figure that have a value."""
    return {name: figure[name] for name in names if figure.get(name) is not None}
