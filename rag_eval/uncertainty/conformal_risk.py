"""K by predicted risk: deeper lists for questions that are likelier to be missed, at the same share of questions covered.

Belongs here: the scale that a predicted risk gives a rank, fitted on other groups than those that calibrate, and bins of risk with a K
each (Mondrian). The threshold is `conformal`.

Notes
-----
K(r) = 1 + floor(q * odds(r) ** exponent), q the conformal threshold of the scores (rank - 1) / odds ** exponent: the scores are those of
exchangeable groups whatever the exponent is, so the coverage over questions holds; the exponent decides only how short lists are on
average. Exponent 0 is the fixed K. The exponent that equalises coverage over risks is larger than the one of the shortest mean, because
the last per cents of the riskiest questions cost hundreds of ranks; who needs coverage among the riskiest takes the bins.

References
----------
Lei et al. (2018), JASA 113:1094-1111 (scores scaled by a fitted spread). Vovk et al. (2003), Mondrian confidence machine.
"""

import dataclasses

import numpy as np

from rag_eval.uncertainty.conformal import (
    BoolArray,
    FloatArray,
    IntArray,
    new_group_mass,
    threshold,
)

EXPONENTS = tuple(round(0.1 * step, 1) for step in range(21))
FITTED_AT = (0.8, 0.85, 0.875, 0.9, 0.925, 0.95)
"""Levels whose mean K chooses the exponent; one level alone chooses by chance."""
FIT_SHARE = 0.2
"""Share of the calibration groups that fit the exponent, and calibrate nothing that uses it; one number needs few, and what they take is missed."""
BINS = 3
NEAR_BEST = 0.1
"""Exponents whose mean K is at most so much (of its logarithm) over the shortest count as equally good."""
_CLIP = 1e-6


@dataclasses.dataclass(frozen=True)
class RiskScale:
    """What a predicted risk says of a rank.

    Parameters
    ----------
    exponent
        Of the odds of the predicted miss, fitted on groups that calibrate nothing.
    edges
        Risks at which the next bin starts, ascending. No outcome decides them, so they may come from the risks of all questions.
    """

    exponent: float
    edges: tuple[float, ...]

    def scale(self, risk: FloatArray) -> FloatArray:
        """Odds ** exponent, [n]; risks are kept off 0 and 1 by 1e-6."""
        inside = np.clip(risk, _CLIP, 1 - _CLIP)
        scaled: FloatArray = (inside / (1 - inside)) ** self.exponent
        return scaled

    def bin(self, risk: FloatArray) -> IntArray:
        """Bin of each question, 0 = the least risky, -1 = its risk is not known, [n]."""
        return np.where(
            np.isnan(risk), -1, np.searchsorted(np.asarray(self.edges), risk, side="right")
        ).astype(np.int64)


def thirds(risk: FloatArray) -> tuple[float, ...]:
    """Give the risks at which the second and third third of questions start; without questions, none."""
    return tuple(np.quantile(risk, np.arange(1, BINS) / BINS).tolist()) if len(risk) else ()


def fit_exponent(rank: FloatArray, risk: FloatArray, depth: int) -> float:
    """Choose the exponent with the shortest mean K: the mean of those near the best, which hardly differ and jump with the sample.

    Parameters
    ----------
    rank, risk
        float64 [n] rank of the first gold (inf = none) and predicted miss probability of questions that calibrate nothing; without any, 0.
    depth
        Longest list.
    """
    if not len(rank):
        return 0.0
    means = np.array(
        [_mean_log_k(rank, RiskScale(exponent, ()).scale(risk), depth) for exponent in EXPONENTS]
    )
    return round(float(np.mean(np.asarray(EXPONENTS)[means <= means.min() + NEAR_BEST])), 2)


def _mean_log_k(rank: FloatArray, scale: FloatArray, depth: int) -> float:
    """Mean over levels of ln(mean K): a factor counts alike at every level. An unattainable K counts as the whole depth."""
    scores = np.sort((rank - 1) / scale)
    at = np.minimum(np.ceil(np.asarray(FITTED_AT) * len(scores)).astype(np.int64), len(scores)) - 1
    return float(np.log(depths(scores[at][:, None], scale[None, :], depth).mean(axis=1)).mean())


def depths(q: FloatArray | float, scale: FloatArray, depth: int) -> FloatArray:
    """K of each question, 1 + floor(q * scale), at most the depth; the rounding of a division that was exact does not cost a rank."""
    deep: FloatArray = np.minimum(1 + np.floor(np.minimum(q * scale, depth) + 1e-9), depth)
    return deep


def adaptive_factor(
    rank: FloatArray, risk: FloatArray, group: IntArray, scale: RiskScale, level: float
) -> float:
    """Give the factor q of K(r) from calibration groups; inf where the level is not attainable within the depth.

    Parameters
    ----------
    rank, risk, group
        [n] of the calibration questions.
    scale
        Fitted on other groups.
    level
        Share of questions to be covered.
    """
    return threshold(
        (rank - 1) / scale.scale(risk), np.ones(len(rank)), new_group_mass(group), level
    )


def bin_depths(rank: FloatArray, group: IntArray, bins: IntArray, level: float) -> FloatArray:
    """K of each bin [BINS] from the calibration questions in it; inf where not attainable within the depth.

    Parameters
    ----------
    rank, group, bins
        [n] of the calibration questions.
    level
        Share of the questions of every bin to be covered.
    """
    found = np.full(BINS, np.inf)
    for place in range(BINS):
        inside: BoolArray = bins == place
        found[place] = threshold(
            rank[inside], np.ones(int(inside.sum())), new_group_mass(group[inside]), level
        )
    return found
