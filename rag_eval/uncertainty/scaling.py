"""z-scores of signals: every strategy's signals are seen against its own queries.

Belongs here: mean, spread and z-scores. Outcomes have no part in it.
"""

from typing import Final, NamedTuple

import numpy as np

from rag_eval.uncertainty.labelled import FloatArray

CLIP: Final = 4.0
"""z-scores are kept within +-CLIP: one strange query does not decide a coefficient, or its own probability, alone."""


class Scaling(NamedTuple):
    """Mean and standard deviation of each signal, float64 [p]; 1 where a signal does not vary."""

    mean: FloatArray
    scale: FloatArray

    def z(self, signals: FloatArray) -> FloatArray:
        """z-scores within +-CLIP, 0 where a signal is not defined, float64 [n, p]."""
        z: FloatArray = np.clip((signals - self.mean) / self.scale, -CLIP, CLIP)
        z[np.isnan(z)] = 0.0
        return z


def scaling(signals: FloatArray) -> Scaling:
    """Scaling of signals [n, p]; a signal that is nowhere defined has mean 0 and scale 1."""
    defined = np.isfinite(signals)
    n = np.maximum(defined.sum(axis=0), 1)
    mean = np.where(defined, signals, 0.0).sum(axis=0) / n
    spread = np.sqrt((np.where(defined, signals - mean, 0.0) ** 2).sum(axis=0) / n)
    return Scaling(mean, np.where(spread > 1e-12 * (1 + np.abs(mean)), spread, 1.0))
