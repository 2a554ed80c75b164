"""Gates I and P: how far what was retrieved can be trusted, and whether anything blocked was among it.

Both look at all that this run retrieved, which is no sample of it: the figure itself is compared, not the bound of an interval. Whoever
wants the mean trust of questions like these bounded from below sets a floor on `avg_trust_score` under `acceptance`.
"""

from collections.abc import Mapping
from typing import Any, Final

from rag_eval.gates.floors import Figure
from rag_eval.gates.verdicts import GateResult, Status, is_configured, is_required
from rag_eval.records.gold_set import GoldSetConfig
from rag_eval.records.problems import quoted

TRUST_GATE: Final = "trust"
POISONING_GATE: Final = "poisoning"
MAX_EXAMPLES = 20
"""Blocked chunks that are named in the evidence, over all strategies."""

_MAX_TEXT = 200


def trust_gate(config: GoldSetConfig, figure: Figure | None) -> list[GateResult]:
    """Judge the mean trust of what the primary strategy retrieved against `gates.min_trust`.

    Parameters
    ----------
    config
        The gold set; without the gate under its gates there is nothing to judge.
    figure
        value (0 to 1) with ci_low, ci_high, n_scored and n_groups where they are known; value None with `reason` where the gold set says
        of nobody that they are trusted. None: not measured.
    """
    if not is_configured(config.gates, TRUST_GATE):
        return []
    floor, required = config.gates.min_trust, is_required(config.gates, TRUST_GATE)
    evidence: dict[str, Any] = {"measure": "avg_trust_score", "accepted": f">= {floor:g}"}
    if figure is None or figure.get("value") is None:
        reason = (figure or {}).get("reason") or "this run does not measure it"
        return [
            GateResult(
                TRUST_GATE,
                TRUST_GATE,
                "insufficient_evidence",
                "not_measured",
                {**evidence, "reason": reason},
                required,
            )
        ]
    evidence |= {
        name: figure[name]
        for name in ("value", "ci_low", "ci_high", "n_scored", "n_groups")
        if figure.get(name) is not None
    }
    status, code = _trust_status(figure, floor, config.gates.min_queries)
    if code == "too_few_queries":
        evidence["min_queries"] = config.gates.min_queries
    return [GateResult(TRUST_GATE, TRUST_GATE, status, code, evidence, required)]


def _trust_status(figure: Figure, floor: float, min_queries: int) -> tuple[Status, str]:
    if figure.get("n_groups") is not None and figure["n_groups"] < min_queries:
        return "insufficient_evidence", "too_few_queries"
    return ("pass", "met") if figure["value"] >= floor else ("fail", "value_not_met")


def poisoning_gate(
    config: GoldSetConfig, retrieved: Mapping[str, Mapping[str, Any]] | None
) -> list[GateResult]:
    """Judge that no strategy returned a chunk that the guard blocks; one is enough to fail, however few questions there are.

    Parameters
    ----------
    config
        The gold set; without the gate under its gates there is nothing to judge.
    retrieved
        Strategy -> n_retrieved (places in its rankings, over every wording and seed), n_blocked (of these, held by a chunk that is blocked and that nobody allowed) and
        `examples`: a list of mappings that name blocked chunks (chunk_id, doc_id, reasons, ...). None: the guard did not run.
    """
    if not is_configured(config.gates, POISONING_GATE):
        return []
    required = is_required(config.gates, POISONING_GATE)
    evidence: dict[str, Any] = {
        "measure": "blocked chunks among what was retrieved",
        "accepted": "<= 0",
    }
    if retrieved is None:
        return [
            GateResult(
                POISONING_GATE,
                POISONING_GATE,
                "insufficient_evidence",
                "not_measured",
                {**evidence, "reason": "the poisoning guard did not run"},
                required,
            )
        ]
    blocked, total = (
        sum(int(part[name]) for part in retrieved.values()) for name in ("n_blocked", "n_retrieved")
    )
    strategies = {
        quoted(name): {"n_retrieved": int(part["n_retrieved"]), "n_blocked": int(part["n_blocked"])}
        for name, part in retrieved.items()
    }
    evidence |= {"value": blocked, "n_scored": total, "strategies": strategies}
    if blocked:
        named = [
            {"strategy": quoted(name), **_bounded(example)}
            for name, part in retrieved.items()
            for example in list(part.get("examples", ()))[:MAX_EXAMPLES]
        ]
        evidence["examples"] = named[:MAX_EXAMPLES]
        return [
            GateResult(
                POISONING_GATE, POISONING_GATE, "fail", "blocked_retrieved", evidence, required
            )
        ]
    if not total:
        return [
            GateResult(
                POISONING_GATE,
                POISONING_GATE,
                "insufficient_evidence",
                "nothing_retrieved",
                {**evidence, "reason": "no strategy retrieved anything"},
                required,
            )
        ]
    return [GateResult(POISONING_GATE, POISONING_GATE, "pass", "met", evidence, required)]


def _bounded(example: Mapping[str, Any]) -> dict[str, Any]:
    """What names a blocked chunk, as short texts and numbers."""
    shown: dict[str, Any] = {}
    for key, value in list(example.items())[:MAX_EXAMPLES]:
        if isinstance(value, (bool, int, float)):
            shown[quoted(key)] = value
        elif isinstance(value, (list, tuple)):
            shown[quoted(key)] = [quoted(str(part), _MAX_TEXT) for part in value[:MAX_EXAMPLES]]
        else:
            shown[quoted(key)] = quoted(str(value), _MAX_TEXT)
    return shown
