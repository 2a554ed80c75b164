"""Inputs of gates with the parts that a test does not name left empty."""

import pandas as pd

from rag_eval.core.config import GoldSetConfig
from rag_eval.gates.gate import GateInputs

NO_ANSWERS = {"value": None, "reason": "the gold set configures no answers"}


def configured(**parts):
    return GoldSetConfig.model_validate(
        {
            "name": "g",
            "corpus": {"loader": "folder", "path": "."},
            "k": [1],
            "depth": 20,
            "strategies": [{"name": "bm25", "kind": "bm25"}],
            **parts,
        }
    )


def gate_inputs(config, **parts):
    empty = {"figures": {}, "answers": NO_ANSWERS, "trust": {}, "baseline": None}
    empty["per_query"] = pd.DataFrame()
    return GateInputs(config, **{**empty, **parts})
