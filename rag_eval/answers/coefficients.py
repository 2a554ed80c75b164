"""The weights of the extractive answerer, read from `coefficients.json`, and where they come from.

Belongs here: reading them. `benchmarks/fit_extractive.py` fits and writes them; the file says from what, and with which result on what it
did not see. No weight, and no threshold, was fitted on the gold sets of this project.
"""

import dataclasses
import functools
import json
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from rag_eval.answers.features import DENSE, LEXICAL
from rag_eval.answers.pool import Floats

FILE = "coefficients.json"
Model = Literal["lexical", "lsa", "sentence"]


@dataclasses.dataclass(frozen=True)
class Weights:
    """One fitted model.

    Parameters
    ----------
    features
        Names of the features of a unit, in order.
    sentence, sentence_bias
        Log-odds that a unit answers: features @ sentence + sentence_bias.
    signal, signal_bias
        Log-odds that the best unit is right, over `abstention.signal_names(features)`.
    threshold
        Default threshold of the signal.
    """

    features: tuple[str, ...]
    sentence: Floats
    sentence_bias: float
    signal: Floats
    signal_bias: float
    threshold: float


@functools.lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (files("rag_eval.answers") / FILE).read_text(encoding="utf-8")
    )
    return document


def feature_names(model: Model) -> tuple[str, ...]:
    """Features that a model weighs."""
    return LEXICAL if model == "lexical" else (*LEXICAL, *DENSE)


@functools.lru_cache(maxsize=3)
def load(model: Model) -> Weights:
    """Read the weights of a model."""
    from rag_eval.answers.abstention import signal_names

    names, fitted = feature_names(model), _document()["models"][model]
    signals = signal_names(names)
    return Weights(
        names,
        np.array([fitted["sentence"][name] for name in names]),
        fitted["sentence"]["bias"],
        np.array([fitted["signal"][name] for name in signals]),
        fitted["signal"]["bias"],
        fitted["threshold"],
    )
