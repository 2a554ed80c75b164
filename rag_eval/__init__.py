"""Evaluate retrieval for RAG systems and estimate how often the retriever misses evidence.

>>> import rag_eval
>>> result = rag_eval.evaluate({"q1": {"d1": 1.0}}, {"q1": {"d1": 1}}, ["R@10"])
>>> float(result.table.loc["R@10", "value"])
1.0

The names below are the public API. Each name is imported at its first use, so that
`import rag_eval` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag_eval.api.inputs import read_qrels, read_run
    from rag_eval.api.results import ComparedRuns, EvaluatedRuns, compare, evaluate
    from rag_eval.core.errors import InputError

__version__ = "0.1.0"

_MODULES = {
    "evaluate": "rag_eval.api.results",
    "compare": "rag_eval.api.results",
    "EvaluatedRuns": "rag_eval.api.results",
    "ComparedRuns": "rag_eval.api.results",
    "read_run": "rag_eval.api.inputs",
    "read_qrels": "rag_eval.api.inputs",
    "InputError": "rag_eval.core.errors",
}
__all__ = [
    "ComparedRuns",
    "EvaluatedRuns",
    "InputError",
    "compare",
    "evaluate",
    "read_qrels",
    "read_run",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
