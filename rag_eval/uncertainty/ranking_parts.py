"""Rankings of some questions of a batch: taken out, put among empty ones, put back.

Belongs here: moving lists as they are. What is merged is `merging`'s matter.
"""

import dataclasses
from typing import Any, Final

import numpy as np

from rag_eval.retrieval.ranking import Ranking
from rag_eval.uncertainty.batch import IntArray

_PARTS: Final = {"rows": -1, "raw": 0.0, "norm": 0.0, "k_pos": 0, "rerank": np.nan, "candidates": 0}


def taken(part: Ranking, places: IntArray) -> Ranking:
    """Lists of some questions."""
    made: dict[str, Any] = {name: getattr(part, name)[places] for name in _PARTS}
    return Ranking(**made)


def spread(part: Ranking, places: IntArray, n: int) -> Ranking:
    """Lists of some of n questions as lists of all, empty elsewhere."""
    made: dict[str, Any] = {
        name: np.full((n, *getattr(part, name).shape[1:]), fill, dtype=getattr(part, name).dtype)
        for name, fill in _PARTS.items()
    }
    for name, values in made.items():
        values[places] = getattr(part, name)
    return Ranking(**made)


def replaced(whole: Ranking, part: Ranking, places: IntArray) -> Ranking:
    """Lists of all questions with those of some put in their places."""
    made: dict[str, Any] = {name: getattr(whole, name).copy() for name in _PARTS}
    for name, values in made.items():
        values[places] = getattr(part, name)
    return dataclasses.replace(whole, **made)
