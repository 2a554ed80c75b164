"""The gates `acceptance` and `stability`: floors held by the bound that could prove them wrong."""

from typing import Any

from rag_eval.core.config import Floor, GoldSetConfig
from rag_eval.gates.gate import (
    NOT_MEASURED,
    TOO_FEW,
    Figure,
    Gate,
    GateInputs,
    GateResult,
    Severity,
    Status,
    known_figures,
)

MIN_JUDGED = 0.5
DELTA_S = Floor(measure="delta_s", direction="<=", bound=0.45)
CONVERGENT_HIT = "convergent_hit_share"
_FIGURES = ("value", "ci_low", "ci_high", "n_scored", "n_groups", "judged_at_k")


def judge_floor(
    floor: Floor, figure: Figure | None, min_queries: int
) -> tuple[tuple[Status, str], dict[str, Any]]:
    """Compare one figure with its floor: (status, reason code) and the evidence."""
    accepted = {"measure": floor.measure, "accepted": f"{floor.direction} {floor.bound:g}"}
    figure = figure or {}
    if figure.get("value") is None:
        reason = figure.get("reason") or figure.get("value_reason")
        return NOT_MEASURED, {**accepted, "reason": reason or "this run does not measure it"}
    evidence = accepted | known_figures(figure, *_FIGURES)
    if figure.get("n_groups") is not None and figure["n_groups"] < min_queries:
        return TOO_FEW, {**evidence, "min_queries": min_queries}
    at_least = floor.direction == ">="
    judged = figure.get("judged_at_k")
    needs_judgements = at_least and floor.measure.startswith(("precision", "ndcg"))
    if needs_judgements and judged is not None and judged < MIN_JUDGED:
        verdict: tuple[Status, str] = ("insufficient_evidence", "too_few_judged")
        return verdict, {**evidence, "min_judged": MIN_JUDGED}

    def meets(value: float) -> bool:
        return value >= floor.bound if at_least else value <= floor.bound

    bound = figure.get("ci_low" if at_least else "ci_high")
    if meets(figure["value"] if bound is None else bound):
        return ("pass", "met"), evidence
    code = "bound_not_met" if meets(figure["value"]) else "value_not_met"
    return ("fail", code), evidence


class AcceptanceGate(Gate):
    """Every floor under `acceptance` of the gold set."""

    name = "acceptance"
    severity: Severity = "P2"

    def check_names(self, config: GoldSetConfig) -> list[str]:
        """Name one check for each floor."""
        return [f"{self.name}.{measure}" for measure in config.acceptance]

    def judge(self, inputs: GateInputs) -> list[GateResult]:
        """Judge each floor by itself."""
        config = inputs.config
        return [
            self.result(
                config,
                *judge_floor(floor, inputs.figures.get(floor.measure), config.gates.min_queries),
                floor.measure,
            )
            for floor in config.floors
        ]


class StabilityGate(Gate):
    """The target of delta_s, and the share of questions that every wording and seed hits.

    A question that is always missed can be convergent too, so convergence alone is not judged.
    """

    name = "stability"
    severity: Severity = "P2"

    def judge(self, inputs: GateInputs) -> list[GateResult]:
        """Judge both floors."""
        gates = inputs.config.gates
        together = Floor(measure=CONVERGENT_HIT, direction=">=", bound=gates.min_convergent_hit)
        return [
            self.result(
                inputs.config,
                *judge_floor(floor, inputs.figures.get(floor.measure), gates.min_queries),
                part,
            )
            for part, floor in (("delta_s", DELTA_S), ("convergent_hit", together))
        ]
