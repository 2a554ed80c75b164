"""From a groundedness score to the probability that experts call the sentence supported.

Belongs here: the calibration and where it comes from. Not here: the score (`groundedness`).

`benchmarks/fit_groundedness.py` fits the coefficients: ExpertQA (Malaviya et al. 2024, MIT licence), claims of six systems' answers with
the experts' labels, half of the questions by hash; supported means "Complete". TBD
"""

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import FloatArray

_ANY = 0.2  # up to here more score says that the evidence is about the matter at all
INTERCEPT, PER_SCORE, PER_ANY = -3.0446, 0.6893, 3.6545


def features(score: ArrayLike) -> FloatArray:
    """What the calibration sees of scores `[n]`: the score, and the score up to 0.2 as a share of 0.2; `[n, 2]`."""
    value = np.asarray(score, dtype=np.float64)
    return np.stack([value, np.minimum(value, _ANY) / _ANY], axis=1)


def support_probability(score: ArrayLike) -> FloatArray:
    """Probability of support for scores `[n]` in [0, 1] (`Groundedness.score`); NaN stays NaN."""
    logit = INTERCEPT + features(score) @ np.array([PER_SCORE, PER_ANY])
    probability: FloatArray = 1 / (1 + np.exp(-logit))
    return probability
