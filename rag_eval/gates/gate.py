"""Types of a gate, its inputs and its judgements. `rag_eval.gates.verdict` lists the gates."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pandas as pd

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.report import GatePart

Status = Literal["pass", "fail", "insufficient_evidence"]
Priority = Literal["P0", "P1", "P2"]
Figure = Mapping[str, Any]
"""A figure: `value`, and if known ci_low, ci_high, n_scored, n_groups and judged_at_k.

A null value has a `reason`."""


class Judgement(NamedTuple):
    """Judgement of a gate on a figure. Insufficient evidence fails a required gate.

    `reason_code` is a stable name. `evidence` holds the figures behind the status. `part` names
    the figure if the gate judges several figures.
    """

    status: Status
    reason_code: str
    evidence: Mapping[str, object]
    part: str = ""


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """Parts of a run that the regression gate reads."""

    run_id: str
    """Id of a kept run; empty for the run that is being judged."""
    gold_hash: str
    per_query: pd.DataFrame
    """One row for each (strategy, level, query, wording, seed), one column for each measure.

    A value is NaN where the question is not eligible."""
    index_hashes: Mapping[str, str]
    identity: Mapping[str, str]
    """Other inputs of the figures, by name: chunks, corpus, code."""


@dataclasses.dataclass(frozen=True)
class GateInputs:
    """Inputs of all gates: parts of the report, and the accepted baseline."""

    config: GoldSetConfig
    figures: Mapping[str, Figure]
    """Figures of the primary strategy by the names of floors."""
    answers: Mapping[str, Any]
    """Part `answers` of the report. It has no `outcomes` if no answers were made."""
    trust: Mapping[str, Mapping[str, Any]]
    """Strategy -> part `trust.retrieved` of the report."""
    now: MeasuredRun
    before: MeasuredRun | None
    """The accepted baseline; None without a baseline."""
    baseline_fault: str = ""
    """Reason why the baseline cannot be used; empty if it can be used."""


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
