"""Evaluate retrieval for RAG systems and estimate how often the retriever misses evidence.

>>> import rag_eval
>>> result = rag_eval.evaluate({"q1": {"d1": 1.0}}, {"q1": {"d1": 1}}, ["R@10"])
>>> float(result.table.loc["R@10", "value"])
1.0

The names below are the public API. Each name is imported at its first use, so that
`import rag_eval` costs nothing.
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rag_eval.api.gold_sets import (
        ComparedMissRates,
        WrittenReport,
        compare_miss_rates,
        estimate_miss_rate,
        load,
        open_strategy,
        run,
    )
    from rag_eval.api.inputs import read_qrels, read_run
    from rag_eval.api.miss_rate_model import MissRates, miss_rates
    from rag_eval.api.results import ComparedRuns, EvaluatedRuns, compare, evaluate
    from rag_eval.core.errors import InputError
    from rag_eval.uncertainty.confidence import UncertainRetrieval

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # `python -m rag_eval` puts the working folder first, where a folder such as `pandas` would
    # run in place of the installed package
    sys.path.append(sys.path.pop(0))

__version__ = "0.1.0"
__all__ = [
    "ComparedMissRates",
    "ComparedRuns",
    "EvaluatedRuns",
    "InputError",
    "MissRates",
    "UncertainRetrieval",
    "WrittenReport",
    "compare",
    "compare_miss_rates",
    "estimate_miss_rate",
    "evaluate",
    "load",
    "miss_rates",
    "open_strategy",
    "read_qrels",
    "read_run",
    "run",
]
_MODULES = {
    "rag_eval.api.gold_sets": (
        "ComparedMissRates",
        "WrittenReport",
        "compare_miss_rates",
        "estimate_miss_rate",
        "load",
        "open_strategy",
        "run",
    ),
    "rag_eval.api.inputs": ("read_qrels", "read_run"),
    "rag_eval.api.miss_rate_model": ("MissRates", "miss_rates"),
    "rag_eval.api.results": ("ComparedRuns", "EvaluatedRuns", "compare", "evaluate"),
    "rag_eval.core.errors": ("InputError",),
    "rag_eval.uncertainty.confidence": ("UncertainRetrieval",),
}
_HOME_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    target = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)
    return target


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
