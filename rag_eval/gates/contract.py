"""The answer contract as a gate: with `fail_closed` a single answer that breaks it fails the run."""

from collections.abc import Mapping
from typing import Any, Final

from rag_eval.gates.verdicts import GateResult, is_configured, is_required
from rag_eval.records.gold_set import GoldSetConfig

GATE: Final = "answer_contract"


def contract_gate(config: GoldSetConfig, answers: Mapping[str, Any]) -> list[GateResult]:
    """Judge that every answer kept its contract; NOT FOUND and INSUFFICIENT EVIDENCE keep it.

    Parameters
    ----------
    config
        Required where `answers.fail_closed` is on or the gate stands under `gates.required`; judged where it is configured at all.
    answers
        The report's part; `value` null where there are no answers.
    """
    closed = config.answers is not None and config.answers.fail_closed
    if not closed and not is_configured(config.gates, GATE):
        return []
    required = closed or is_required(config.gates, GATE)
    if "outcomes" not in answers:
        return [
            GateResult(
                GATE,
                GATE,
                "insufficient_evidence",
                "not_measured",
                {"reason": str(answers["reason"])},
                required,
            )
        ]
    outcomes, n = answers["outcomes"], answers["n_questions"]
    broken = outcomes.get("failed", 0) + outcomes.get("contract_error_reply", 0)
    evidence = {
        "measure": "answers that broke the contract",
        "value": broken,
        "n_scored": n,
        "accepted": "<= 0",
        "codes": answers["codes"],
    }
    return [
        GateResult(
            GATE,
            GATE,
            "fail" if broken else "pass",
            "contract_broken" if broken else "met",
            evidence,
            required,
        )
    ]
