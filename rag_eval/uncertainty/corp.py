"""CORP: the isotonic reliability curve of predictions, the parts of their Brier score, and the band in which a calibrated curve stays.

Belongs here: the decomposition and the points of the diagram. Drawing it: `reporting.miss_rate_plots`; drawing outcomes: `calibrated_null`.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from rag_eval.measures.arrays import BoolArray, FloatArray, IntArray
from rag_eval.uncertainty.scores import brier, weighted_mean

BAND = (0.025, 0.975)
POINTS = 101
"""Places at which the band is kept."""
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Corp:
    """Reliability of predictions by isotonic regression.

    Parameters
    ----------
    brier
        Brier score of these predictions, = mcb - dsc + unc.
    mcb, dsc, unc
        Miscalibration (what recalibrating would gain), discrimination (what the recalibrated predictions gain over the base rate) and
        uncertainty (Brier score of the base rate itself).
    predicted, recalibrated
        `[p]` corners of the curve: each flat piece by its first and its last prediction.
    band_at, band_low, band_high
        `[q]` where the recalibrated curve of calibrated predictions lies 95 times in 100, at each place by itself; empty where none was simulated.
    """

    brier: float
    mcb: float
    dsc: float
    unc: float
    predicted: FloatArray
    recalibrated: FloatArray
    band_at: FloatArray
    band_low: FloatArray
    band_high: FloatArray

    def to_json(self) -> dict[str, Any]:
        """Write as a JSON object; the curve and the band as columns, to 6 digits."""
        parts = {name: getattr(self, name) for name in ("brier", "mcb", "dsc", "unc")}
        curve = {
            name: getattr(self, name).round(_DIGITS).tolist()
            for name in ("predicted", "recalibrated")
        }
        band = {
            name: getattr(self, f"band_{name}").round(_DIGITS).tolist()
            for name in ("at", "low", "high")
        }
        return {**parts, "curve": curve, "band": band}


def isotonic(predicted: FloatArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    """Miss rate as a rising function of the prediction, `[n]`: weighted least squares, equal predictions equal (pool adjacent violators)."""
    return _pooled(*_levels(predicted), missed, weight)


def _levels(predicted: FloatArray) -> tuple[int, IntArray]:
    value, inverse = np.unique(predicted, return_inverse=True)
    return len(value), inverse.astype(np.int64)


def _pooled(levels: int, level: IntArray, missed: BoolArray, weight: FloatArray) -> FloatArray:
    from scipy.optimize import isotonic_regression

    mass = np.bincount(level, weight, minlength=levels)
    misses = np.bincount(level, weight * missed, minlength=levels)
    fitted: FloatArray = np.clip(isotonic_regression(misses / mass, weights=mass).x, 0, 1)
    return fitted[level]


def corp(
    predicted: FloatArray,
    missed: BoolArray,
    weight: FloatArray,
    calibrated: Iterable[BoolArray] = (),
) -> Corp:
    """Decompose the Brier score and trace the reliability curve with its consistency band.

    Parameters
    ----------
    predicted, missed, weight
        `[n]`, n >= 1.
    calibrated
        Blocks `[block, n]` of outcomes drawn under calibration (`calibrated_null.calibrated_outcomes`), for the band. They carry the
        correlation inside groups, so the band is as wide as that makes it. Predictions are kept as they are.

    References
    ----------
    Dimitriadis, Gneiting & Jordan (2021), PNAS 118(8) e2016191118.
    """
    levels, level = _levels(predicted)
    recalibrated = _pooled(levels, level, missed, weight)
    score, best = (
        float(brier(predicted, missed, weight)),
        float(brier(recalibrated, missed, weight)),
    )
    reference = float(
        brier(weighted_mean(missed.astype(np.float64), weight)[..., None], missed, weight)
    )
    order = np.argsort(predicted, kind="stable")
    at, curve = predicted[order], recalibrated[order]
    changes = np.flatnonzero(np.diff(curve))
    corners = np.unique(np.concatenate([[0], changes, changes + 1, [len(curve) - 1]]))
    kept = order[np.unique(np.linspace(0, len(order) - 1, POINTS).round().astype(np.int64))]
    kept = kept[np.unique(predicted[kept], return_index=True)[1]]
    rows = [
        _pooled(levels, level, outcomes, weight)[kept] for block in calibrated for outcomes in block
    ]
    low, high = np.quantile(np.stack(rows), BAND, axis=0) if rows else np.zeros((2, 0))
    return Corp(
        score,
        score - best,
        reference - best,
        reference,
        at[corners],
        curve[corners],
        predicted[kept] if rows else np.zeros(0),
        low,
        high,
    )
