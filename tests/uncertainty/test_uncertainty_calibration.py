"""The time of a calibration."""

import numpy as np
import pytest

from rag_eval.uncertainty.calibration import Judged, Task, calibrate
from rag_eval.uncertainty.scores import Labelled
from tests.reference.growth import growth

TASK = Task(prior=None, checked_together=1, seed=0)


@pytest.mark.slow
def test_calibration_time_grows_at_most_linearly_with_outcomes():
    def outcomes(size):
        rng = np.random.default_rng(size)
        signals = rng.normal(size=(size, 34))
        missed = rng.random(size) < 1 / (1 + np.exp(0.8 - 2 * signals[:, 0]))
        groups, names = np.arange(size), tuple(f"signal_{j}" for j in range(34))
        labelled = Labelled(names, signals, missed, groups, np.ones(size), groups)
        return Judged(labelled, [f"g{code}" for code in groups], np.full(size, 0.4))

    ratio = growth(lambda judged: calibrate(judged, TASK), outcomes, 2_500, 10_000, repeats=1)
    assert 0 < ratio <= 4
