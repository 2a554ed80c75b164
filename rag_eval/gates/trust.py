"""The gates `trust` and `poisoning`, which judge the trust of retrieved chunks.

Both look at all that a run retrieved, so they compare the figure and not the bound of an interval.
A floor on `avg_trust_score` under `acceptance` bounds the mean trust of questions like these.
"""

from collections.abc import Mapping
from typing import Any

from rag_eval.core.errors import quoted
from rag_eval.gates.gate import (
    NOT_MEASURED,
    TOO_FEW,
    Gate,
    GateInputs,
    GateResult,
    Severity,
    known_figures,
)

MAX_EXAMPLES = 20
"""Blocked chunks that the evidence names, over all strategies."""
_MAX_TEXT = 200


class TrustGate(Gate):
    """Gate that compares the mean trust of the primary strategy's chunks with `gates.min_trust`."""

    name = "trust"
    severity: Severity = "P1"

    def judge(self, inputs: GateInputs) -> list[GateResult]:
        """Judge the mean; a gold set that trusts nobody gives insufficient evidence."""
        config, floor = inputs.config, inputs.config.gates.min_trust
        figure = inputs.trust[config.primary_strategy]["avg_trust"]
        evidence: dict[str, Any] = {"measure": "avg_trust_score", "accepted": f">= {floor:g}"}
        if figure.get("value") is None:
            reason = figure.get("value_reason") or "this run does not measure it"
            return [self.result(config, NOT_MEASURED, {**evidence, "reason": reason})]
        evidence |= known_figures(figure, "value", "ci_low", "ci_high", "n_scored", "n_groups")
        needed = config.gates.min_queries
        if figure.get("n_groups") is not None and figure["n_groups"] < needed:
            return [self.result(config, TOO_FEW, {**evidence, "min_queries": needed})]
        if figure["value"] >= floor:
            return [self.result(config, ("pass", "met"), evidence)]
        return [self.result(config, ("fail", "value_not_met"), evidence)]


class PoisoningGate(Gate):
    """No strategy may return a chunk that the guard blocks; a single one fails."""

    name = "poisoning"
    severity: Severity = "P0"

    def judge(self, inputs: GateInputs) -> list[GateResult]:
        """Count blocked places in the rankings of every strategy, and name some of the chunks."""
        strategies = {
            quoted(name): {key: int(part[key]) for key in ("n_retrieved", "n_blocked")}
            for name, part in inputs.trust.items()
        }
        blocked = sum(part["n_blocked"] for part in strategies.values())
        total = sum(part["n_retrieved"] for part in strategies.values())
        evidence: dict[str, Any] = {
            "measure": "blocked chunks among what was retrieved",
            "accepted": "<= 0",
            "value": blocked,
            "n_scored": total,
            "strategies": strategies,
        }
        if blocked:
            examples = [
                {"strategy": quoted(name), **_bound_texts(example)}
                for name, part in inputs.trust.items()
                for example in part["blocked"]
            ]
            evidence["examples"] = examples[:MAX_EXAMPLES]
            return [self.result(inputs.config, ("fail", "blocked_retrieved"), evidence)]
        if not total:
            evidence["reason"] = "no strategy retrieved anything"
            return [
                self.result(inputs.config, ("insufficient_evidence", "nothing_retrieved"), evidence)
            ]
        return [self.result(inputs.config, ("pass", "met"), evidence)]


def _bound_texts(example: Mapping[str, Any]) -> dict[str, Any]:
    """Cut the texts that name a blocked chunk to a length that is safe to print."""
    return {
        quoted(key): [quoted(str(part), _MAX_TEXT) for part in value[:MAX_EXAMPLES]]
        if isinstance(value, (list, tuple))
        else value
        if isinstance(value, (bool, int, float))
        else quoted(str(value), _MAX_TEXT)
        for key, value in example.items()
    }
