"""Types of a gate, its inputs and its results. `rag_eval.gates.verdict` lists the gates."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from rag_eval.core.config import GoldSetConfig

Status = Literal["pass", "fail", "insufficient_evidence"]
Severity = Literal["P0", "P1", "P2"]
Figure = Mapping[str, Any]
"""value, and where they apply ci_low, ci_high, n_scored, n_groups, judged_at_k.

A null value has a `reason`."""


@dataclasses.dataclass(frozen=True)
class GateResult:
    """One verdict of a gate; insufficient evidence fails closed where the gate is required."""

    id: str
    gate: str
    severity: Severity
    required: bool
    status: Status
    reason_code: str
    """Stable name of the reason."""
    evidence: dict[str, Any]
    """Figures that the verdict rests on."""

    def as_json(self) -> dict[str, Any]:
        """Return the form of the report."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """Parts of a run that the regression gate reads."""

    run_id: str
    """Empty while the run is judged."""
    gold_hash: str
    per_query: pd.DataFrame
    """One row for each (strategy, level, query, wording, seed), one column for each measure.

    A value is NaN where the question is not eligible."""
    index_hashes: Mapping[str, str]
    identity: Mapping[str, str]
    """Other inputs of the figures, by name: chunks, corpus, code."""


@dataclasses.dataclass(frozen=True)
class GateInputs:
    """All that gates judge: parts of the report, and the accepted baseline."""

    config: GoldSetConfig
    figures: Mapping[str, Figure]
    """Figures of the primary strategy by the names of floors."""
    answers: Mapping[str, Any]
    """Part `answers` of the report; without `outcomes` where no answers were made."""
    trust: Mapping[str, Mapping[str, Any]]
    """Strategy -> part `trust.retrieved` of the report."""
    now: MeasuredRun
    before: MeasuredRun | None
    """The accepted baseline; None without a baseline."""
    baseline_fault: str = ""
    """Why the baseline cannot be used; empty where it can."""


class Gate(ABC):
    """A rule over the figures of a run. `gates` of the gold set says whether it is required."""

    name: str
    severity: Severity

    def is_required(self, config: GoldSetConfig) -> bool:
        """Whether a failure ends the run."""
        return self.name in config.gates.required

    def is_configured(self, config: GoldSetConfig) -> bool:
        """Whether the gold set asks for this gate at all."""
        return self.is_required(config) or self.name in config.gates.advisory

    def check_names(self, config: GoldSetConfig) -> list[str]:
        """Name the checks that Dagster shows for this gate."""
        del config
        return [self.name]

    @abstractmethod
    def judge(self, inputs: GateInputs) -> list[GateResult]:
        """Judge a run that is configured for this gate."""

    def result(
        self,
        config: GoldSetConfig,
        verdict: tuple[Status, str],
        evidence: dict[str, Any],
        part: str = "",
    ) -> GateResult:
        """Make a result of this gate, or of one part of it."""
        name = f"{self.name}.{part}" if part else self.name
        return GateResult(
            name, self.name, self.severity, self.is_required(config), *verdict, evidence
        )


NOT_MEASURED: tuple[Status, str] = ("insufficient_evidence", "not_measured")
TOO_FEW: tuple[Status, str] = ("insufficient_evidence", "too_few_queries")


def known_figures(figure: Figure, *names: str) -> dict[str, Any]:
    """Return the named parts of a figure that have a value."""
    return {name: figure[name] for name in names if figure.get(name) is not None}
