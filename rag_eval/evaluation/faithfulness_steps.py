"""Faithfulness by a model, behind FEATURE_RAGAS_EVAL: which answers are sampled, and what is reported while it is off."""

from collections.abc import Sequence
from typing import Any

from rag_eval.evaluation.measure_steps import Runs
from rag_eval.records.answers import Answer
from rag_eval.records.gold_set import Answers

RAGAS_OFF = "FEATURE_RAGAS_EVAL is off"


def faithfulness(runs: Runs, config: Answers, found: Sequence[Answer]) -> dict[str, Any]:  # noqa: ARG001
    """Judge a sample of the answers; value null with its reason where that is not possible."""
    if not runs.evaluation.settings.feature_ragas_eval:
        return {"value": None, "value_reason": RAGAS_OFF}
    raise NotImplementedError
