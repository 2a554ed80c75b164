"""The weights of the topic-shift check, read from `shift_coefficients.json`, and where they come from.

Belongs here: reading them. `benchmarks/fit_topic_shift.py` fits and writes them, on sentences moved between public documents; the file says
which, and what was found of what it did not see.
"""

import dataclasses
import functools
import json
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.trust.shift_features import FEATURES

FILE = "shift_coefficients.json"


@dataclasses.dataclass(frozen=True)
class ShiftWeights:
    """A fitted logistic regression and its thresholds.

    Parameters
    ----------
    weights
        float64 [len(FEATURES)]; a sentence's score is features @ weights + bias.
    bias
        The score of a sentence of zeros.
    formed, plain
        Scores above which a sentence is reported: one that asks, orders, addresses its reader or introduces code, and any other.
    """

    weights: npt.NDArray[np.float64]
    bias: float
    formed: float
    plain: float


@functools.lru_cache(maxsize=1)
def load() -> ShiftWeights:
    """Read the weights."""
    document: dict[str, Any] = json.loads(
        (files("rag_eval.trust") / FILE).read_text(encoding="utf-8")
    )
    fitted = document["weights"]
    return ShiftWeights(
        np.array([fitted[name] for name in FEATURES]),
        fitted["bias"],
        document["thresholds"]["formed"],
        document["thresholds"]["plain"],
    )
