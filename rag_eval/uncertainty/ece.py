"""Expected calibration error over bins of equal mass, and the limit that chance sets to a calibration figure.

Belongs here: the binned figure and reading a limit off simulated figures. Drawing the outcomes they are simulated with: `calibrated_null`.
"""

import math

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray

MAX_BINS = 15
MIN_PER_BIN = 20
"""Judged retrievals that a bin should hold: with fewer in all, there are fewer bins, down to one."""
LEVEL = 0.95
MIN_SIMULATIONS, MAX_SIMULATIONS = 2000, 10_000
_BEYOND = 20
"""Simulated figures that should lie beyond the limit, so that it is no accident of the simulation."""


def equal_mass_bins(predicted: FloatArray, weight: FloatArray) -> IntArray:
    """Bin of each prediction, `[n]`: min(15, n // 20) bins of about equal weight, at least one.

    Equal predictions are never split: they go where the middle of their weight lies, so a bin may be larger than another and some may be
    empty; bins are numbered without gaps. A single value for all is one bin.
    """
    value, inverse = np.unique(predicted, return_inverse=True)
    mass = np.bincount(inverse, weight, minlength=len(value))
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    bins = max(1, min(MAX_BINS, len(predicted) // MIN_PER_BIN))
    _, number = np.unique(np.floor(middle * bins).astype(np.int64), return_inverse=True)
    codes: IntArray = number[inverse].astype(np.int64)
    return codes


def ece(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Equal-mass expected calibration error: the weighted mean over bins of |miss rate - mean prediction|.

    Parameters
    ----------
    predicted, weight
        `[n]`, n >= 1.
    missed
        `[..., n]`.

    Returns
    -------
    array
        `[...]`. Never under its expectation for calibrated predictions, which is above 0: compare it with its null, not with 0.
    """
    bins = equal_mass_bins(predicted, weight)
    order = np.argsort(bins, kind="stable")
    starts = np.searchsorted(bins[order], np.arange(int(bins.max()) + 1))
    gaps = np.add.reduceat(((missed - predicted) * weight)[..., order], starts, axis=-1)
    return np.asarray(np.abs(gaps).sum(axis=-1) / weight.sum())


def adjusted_level(checked_together: int) -> float:
    """Level of each of m checks so that m calibrated figures are all inside with 95 % (Sidak 1967, JASA 62:626-633): 0.95 ** (1 / m)."""
    if checked_together < 1:
        raise ValueError(f"{checked_together} figures checked together; accepted: 1 or more")
    return float(LEVEL ** (1 / checked_together))


def simulations_for(checked_together: int) -> int:
    """How many simulations the adjusted level needs: 20 beyond it, between 2,000 and 10,000."""
    return int(
        np.clip(
            math.ceil(_BEYOND / (1 - adjusted_level(checked_together))),
            MIN_SIMULATIONS,
            MAX_SIMULATIONS,
        )
    )


def limit(simulated: FloatArray, level: float) -> float:
    """The figure that a calibrated prediction exceeds with probability 1 - level: the order statistic ceil(level (S + 1)) of S simulated ones."""
    place = min(math.ceil(level * (len(simulated) + 1)), len(simulated))
    return float(np.sort(simulated)[place - 1])
