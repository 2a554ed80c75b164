"""Inputs of gates with the parts that a test does not name left empty."""

import numpy as np
import pandas as pd

from rag_eval.core.config import GoldSetConfig
from rag_eval.gates.gate import GateInputs
from rag_eval.measures.overlap import NamedGold, SharedGold

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
    empty |= {"n_chunks": 3400, "n_quarantined": 12}
    empty["per_query"] = pd.DataFrame()
    names = [f"q{at:03}" for at in range(100)]
    empty["gold"] = NamedGold(names, SharedGold.of_groups(np.arange(100)))
    return GateInputs(config, **{**empty, **parts})
