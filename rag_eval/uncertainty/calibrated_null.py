"""Outcomes as they would be were the predictions calibrated: what calibration figures are held against.

Belongs here: drawing outcomes from predictions, with the correlation inside groups that the real ones show. Not here: any figure of them.
"""

from collections.abc import Iterator

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray

_CELLS = 2_000_000


def group_dependence(probability: FloatArray, missed: BoolArray, group: IntArray) -> float:
    """How strongly outcomes of one group go together beyond what their probabilities say, in [0, 1].

    Parameters
    ----------
    probability
        `[n]` of a miss, as well calibrated as can be (isotonic recalibrated predictions: a biased prediction must not pass for dependence).
    missed, group
        `[n]`.

    Returns
    -------
    float
        Moment estimate of d in `calibrated_outcomes`: the sum of the products of two residuals of one group over its largest possible value
        ``sum(min(p_i, p_j) - p_i p_j)``, held in [0, 1]; 0 where every group has one member.
    """
    _, code = np.unique(group, return_inverse=True)
    order = np.lexsort((probability, code))
    code, p, residual = code[order], probability[order], (missed - probability)[order]
    size = np.bincount(code)
    place = np.arange(len(code)) - np.repeat(np.cumsum(size) - size, size)
    smaller = float(
        (p * (size[code] - 1 - place)).sum()
    )  # ascending inside the group: p is the smaller one of as many pairs as follow it

    def of_pairs(values: FloatArray) -> float:
        return float((np.bincount(code, values) ** 2).sum() - (values**2).sum()) / 2

    largest = smaller - of_pairs(p)
    return float(np.clip(of_pairs(residual) / largest, 0, 1)) if largest > 1e-12 else 0.0  # noqa: PLR2004 - rounding


def calibrated_outcomes(
    predicted: FloatArray, group: IntArray, dependence: float, seed: int, simulations: int
) -> Iterator[BoolArray]:
    """Draw outcomes for which the predictions are calibrated, in blocks `[block, n]`.

    Parameters
    ----------
    predicted, group
        `[n]`.
    dependence
        d in [0, 1]. Each member follows, with probability sqrt(d), one uniform number that is shared by its group, else its own; it misses when
        the number is under its prediction. So each probability is exactly the predicted one, and two members of a group have the covariance
        ``d (min(p_i, p_j) - p_i p_j)``.
    seed, simulations
        Of the draws.
    """
    rng = np.random.default_rng(seed)
    _, code = np.unique(group, return_inverse=True)
    n_groups, rows = int(code.max(initial=-1)) + 1, max(1, _CELLS // max(1, len(predicted)))
    for start in range(0, simulations, rows):
        shape = (min(rows, simulations - start), len(predicted))
        number = rng.random(shape)
        if dependence > 0:
            shared = rng.random((shape[0], n_groups))[:, code]
            number = np.where(rng.random(shape) < np.sqrt(dependence), shared, number)
        yield number < predicted
