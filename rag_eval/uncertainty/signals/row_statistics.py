"""Statistics of the rows of an array in which NaN marks an empty place.

Belongs here: figures that several signals take of scores [n, j], each as [n]; NaN where a row has too few numbers.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def mean(values: FloatArray) -> FloatArray:
    """Mean of a row's numbers."""
    count = (~np.isnan(values)).sum(axis=1)
    return np.where(count > 0, np.nansum(values, axis=1) / np.maximum(count, 1), np.nan)


def deviation(values: FloatArray) -> FloatArray:
    """Standard deviation of a row's numbers (of n, not n - 1); NaN where there are fewer than two."""
    count = (~np.isnan(values)).sum(axis=1)
    spread = np.nansum((values - mean(values)[:, None]) ** 2, axis=1)
    return np.where(count > 1, np.sqrt(spread / np.maximum(count, 1)), np.nan)


def highest(values: FloatArray) -> FloatArray:
    """Largest of a row's numbers."""
    best = np.where(np.isnan(values), -np.inf, values).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(best), best, np.nan)


def nth_highest(values: FloatArray, n: int) -> FloatArray:
    """n-th largest of a row's numbers, n from 1; NaN where it has fewer."""
    if values.shape[1] < n:
        return np.full(len(values), np.nan)
    filled = np.where(np.isnan(values), -np.inf, values)
    found = np.partition(filled, values.shape[1] - n, axis=1)[:, values.shape[1] - n]
    return np.where(np.isfinite(found), found, np.nan)


def standardised(values: FloatArray) -> FloatArray:
    """Each row's numbers minus their mean, by their standard deviation; 0 where they are all equal."""
    spread = deviation(values)
    spread = np.where(np.isnan(spread) | (spread <= 0), np.inf, spread)
    scaled: FloatArray = (values - mean(values)[:, None]) / spread[:, None]
    return scaled
