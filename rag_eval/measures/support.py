"""From a groundedness score to the probability that experts call the sentence supported.

Belongs here: the calibration and where it comes from. Not here: the score (`groundedness`).

`benchmarks/fit_groundedness.py` fits the coefficients on ExpertQA (Malaviya et al. 2024, ExpertQA: Expert-Curated Questions and Attributed
Answers, NAACL; MIT licence): claims of six systems' answers with experts' labels, where supported means the label "Complete"; claims without
evidence (all "Missing") stay in, those whose evidence text is not in the data are left out. 841 claims of the questions whose SHA-256 is even
are fitted on; on the other 1,136 AUROC is 0.787, the Brier score 0.158 (0.247 for the bare rate), the calibration error 0.02. Among the 883 of
them that have evidence text AUROC is 0.57: experts saw the whole page, and most of what systems cite is on the matter. So the probability
says whether evidence is about the sentence at all, and little more; the score itself is the finer measure where a text must carry a sentence.
"""

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import FloatArray

_ANY = 0.1  # up to here more score says that the evidence is about the matter at all
INTERCEPT, PER_SCORE, PER_ANY = -3.6383, 0.7145, 4.2287


def features(score: ArrayLike) -> FloatArray:
    """What the calibration sees of scores `[n]`: the score, and the score up to 0.1 as a share of 0.1; `[n, 2]`."""
    value = np.asarray(score, dtype=np.float64)
    return np.stack([value, np.minimum(value, _ANY) / _ANY], axis=1)


def support_probability(score: ArrayLike) -> FloatArray:
    """Probability of support for scores `[n]` in [0, 1] (`Groundedness.score`); NaN stays NaN."""
    logit = INTERCEPT + features(score) @ np.array([PER_SCORE, PER_ANY])
    probability: FloatArray = 1 / (1 + np.exp(-logit))
    return probability
