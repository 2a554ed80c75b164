"""Smooth calibration error: residuals smoothed by a Gaussian kernel on [0, 1], at the bandwidth that equals the error.

Belongs here: the figure, for one or for thousands of sets of outcomes. Drawing outcomes: `calibrated_null`.
"""

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray

GRID = 1024
_STEPS = 14
"""Halvings of [0, 1]: the bandwidth is found to 1 / 2 ** 14 = 0.00006."""
_ROWS = 512


def smooth_ece(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Smooth expected calibration error (Błasiok & Nakkiran 2023, arXiv 2309.12236).

    Parameters
    ----------
    predicted, weight
        `[n]`, n >= 1, predictions in [0, 1].
    missed
        `[..., n]`.

    Returns
    -------
    array
        `[...]`, in [0, 1].

    Notes
    -----
    ``smECE_s`` is the integral over t in [0, 1] of ``|sum_i w_i (y_i - p_i) K_s(t, p_i)| / sum_i w_i`` with the Gaussian kernel of standard
    deviation s reflected at 0 and 1. It falls with s, and the figure is where ``smECE_s = s``, found by halving.
    Reflection makes K_s the heat kernel of an insulated rod, so in the cosine basis smoothing is a product with ``exp(-(pi k s) ** 2 / 2)``:
    residuals are spread linearly over 1,024 cells and every bandwidth costs one cosine transform, whatever n is.
    """
    from scipy.sparse import csr_array

    place = np.clip(predicted * GRID - 0.5, 0, GRID - 1)  # cells are known by their middles
    left = np.minimum(place.astype(np.int64), GRID - 2)
    right_share = place - left
    n = len(predicted)
    entries, rows, columns = (
        np.concatenate([1 - right_share, right_share]),
        np.tile(np.arange(n), 2),
        np.concatenate([left, left + 1]),
    )
    cells = csr_array((entries, (rows, columns)), shape=(n, GRID))
    outcomes = missed.reshape(-1, n)
    share = weight / weight.sum()
    blocks = [
        _of_masses(((outcomes[at : at + _ROWS] - predicted) * share) @ cells)
        for at in range(0, len(outcomes), _ROWS)
    ]
    return np.concatenate(blocks).reshape(missed.shape[:-1])


def _of_masses(masses: FloatArray) -> FloatArray:
    """Fixed point for each row of residual masses `[r, GRID]`."""
    from scipy.fft import dct, idct

    spectrum = dct(
        masses.astype(np.float32), axis=-1, norm="ortho"
    )  # single precision is 0.000001 here, and half the time
    decay = (-((np.pi * np.arange(GRID)) ** 2) / 2).astype(np.float32)
    low, high = np.zeros(len(masses)), np.ones(len(masses))
    for _ in range(_STEPS):
        width = (low + high) / 2
        smoothed = idct(
            spectrum * np.exp(decay * (width[:, None] ** 2).astype(np.float32)),
            axis=-1,
            norm="ortho",
        )
        wider = np.abs(smoothed).sum(axis=-1, dtype=np.float64) > width
        low, high = np.where(wider, width, low), np.where(wider, high, width)
    return (low + high) / 2
