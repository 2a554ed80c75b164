"""Acceptance and stability: configured floors against the confidence bound that could prove them wrong.

A floor `>=` must be reached by the lower bound of the interval, a ceiling `<=` kept by the upper one; figures without an interval
(latency percentiles, cache hit rate, cost) are compared as they are.

Judged@k under 0.5 makes precision-like measures and nDCG insufficient evidence: what was not judged counts against them. It does not do so
for recall and success, whose gold names the targets: with two targets a question Judged@10 is at most 0.2 however complete the gold is.
"""

from collections.abc import Mapping
from typing import Any

from rag_eval.gates.verdicts import GateResult, Status, is_configured, is_required
from rag_eval.records.gold_set import Floor, GateName, GoldSetConfig

MIN_JUDGED = 0.5
DELTA_S = Floor(measure="delta_s", direction="<=", bound=0.45)
CONVERGENT_HIT = "convergent_hit_share"

Figure = Mapping[str, Any]
"""value, and where they apply ci_low, ci_high, n_scored, n_groups, judged_at_k; `reason` where the value is null."""


def judge(
    floor: Floor, figure: Figure | None, min_queries: int
) -> tuple[Status, str, dict[str, Any]]:
    """Compare one figure with its floor.

    Returns
    -------
    status, reason_code, evidence
    """
    evidence: dict[str, Any] = {
        "measure": floor.measure,
        "accepted": f"{floor.direction} {floor.bound:g}",
    }
    if figure is None or figure.get("value") is None:
        return (
            "insufficient_evidence",
            "not_measured",
            {**evidence, "reason": _reason(figure or {})},
        )
    evidence |= {
        name: figure[name]
        for name in ("value", "ci_low", "ci_high", "n_scored", "n_groups", "judged_at_k")
        if figure.get(name) is not None
    }
    if figure.get("n_groups") is not None and figure["n_groups"] < min_queries:
        return "insufficient_evidence", "too_few_queries", {**evidence, "min_queries": min_queries}
    if (
        figure.get("judged_at_k") is not None
        and floor.direction == ">="
        and figure["judged_at_k"] < MIN_JUDGED
        and floor.measure.startswith(("precision", "ndcg"))
    ):
        return "insufficient_evidence", "too_few_judged", {**evidence, "min_judged": MIN_JUDGED}
    at_least = floor.direction == ">="
    bound = figure.get("ci_low" if at_least else "ci_high")
    compared = figure["value"] if bound is None else bound
    met = compared >= floor.bound if at_least else compared <= floor.bound
    if met:
        return "pass", "met", evidence
    near = figure["value"] >= floor.bound if at_least else figure["value"] <= floor.bound
    return "fail", "bound_not_met" if near else "value_not_met", evidence


def _reason(figure: Figure) -> str:
    return str(figure.get("reason") or figure.get("value_reason") or "this run does not measure it")


def floor_gates(config: GoldSetConfig, figures: Mapping[str, Figure]) -> list[GateResult]:
    """Judge every acceptance floor, and of stability the target of delta_s and the share of questions that are convergent and hit.

    A question that is always missed can be convergent too; the share counts those that every wording and seed hits.
    """
    results: list[GateResult] = []
    if is_configured(config.gates, "acceptance"):
        results.extend(
            _result(config, "acceptance", floor, figures.get(floor.measure))
            for floor in config.floors
        )
    if is_configured(config.gates, "stability"):
        results.append(_result(config, "stability", DELTA_S, figures.get("delta_s")))
        together = Floor(
            measure=CONVERGENT_HIT, direction=">=", bound=config.gates.min_convergent_hit
        )
        results.append(
            _result(
                config, "stability", together, figures.get(CONVERGENT_HIT), name="convergent_hit"
            )
        )
    return results


def _result(
    config: GoldSetConfig,
    gate: GateName,
    floor: Floor,
    figure: Figure | None,
    name: str | None = None,
) -> GateResult:
    status, code, evidence = judge(floor, figure, config.gates.min_queries)
    return GateResult(
        f"{gate}.{name or floor.measure}",
        gate,
        status,
        code,
        evidence,
        is_required(config.gates, gate),
    )


def unmeasured_gates(
    config: GoldSetConfig, measured: set[GateName], reasons: Mapping[GateName, str]
) -> list[GateResult]:
    """Gates that the gold set asks for and this run has no figures for: insufficient evidence, which fails closed where required."""
    asked: tuple[GateName, ...] = (*config.gates.required, *config.gates.advisory)
    return [
        GateResult(
            gate,
            gate,
            "insufficient_evidence",
            "not_measured",
            {"reason": reasons.get(gate, "this run does not measure it")},
            is_required(config.gates, gate),
        )
        for gate in dict.fromkeys(asked)
        if gate not in measured
    ]
