"""The gate `answer_contract`: every answer kept its contract."""

from rag_eval.core.config import GoldSetConfig
from rag_eval.gates.gate import NOT_MEASURED, Gate, GateInputs, GateResult, Severity


class ContractGate(Gate):
    """With `answers.fail_closed` a single answer that breaks the contract fails the run."""

    name = "answer_contract"
    severity: Severity = "P1"

    def is_required(self, config: GoldSetConfig) -> bool:
        """Whether answers fail closed, or the gate is under `gates.required`."""
        closed = config.answers is not None and config.answers.fail_closed
        return closed or super().is_required(config)

    def judge(self, inputs: GateInputs) -> list[GateResult]:
        """Count broken answers; NOT FOUND and INSUFFICIENT EVIDENCE keep the contract."""
        answers = inputs.answers
        if "outcomes" not in answers:
            return [self.result(inputs.config, NOT_MEASURED, {"reason": str(answers["reason"])})]
        outcomes = answers["outcomes"]
        broken = outcomes.get("failed", 0) + outcomes.get("contract_error_reply", 0)
        evidence = {
            "measure": "answers that broke the contract",
            "value": broken,
            "n_scored": answers["n_questions"],
            "accepted": "<= 0",
            "codes": answers["codes"],
        }
        if broken:
            return [self.result(inputs.config, ("fail", "contract_broken"), evidence)]
        return [self.result(inputs.config, ("pass", "met"), evidence)]
