"""Conformal K in a calibration."""

import dataclasses

import numpy as np
import pytest

from rag_eval.uncertainty.calibration import Judged, calibrate
from rag_eval.uncertainty.conformal import Questions
from rag_eval.uncertainty.scores import Labelled

N = 160
TASK = {"prior": None, "checked_together": 1}


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(3)
    signals = rng.normal(size=(N, 3))
    missed = rng.random(N) < 1 / (1 + np.exp(0.8 - 2 * signals[:, 0]))
    labelled = Labelled(("a", "b", "c"), signals, missed, np.arange(N), np.ones(N), np.arange(N))
    return labelled, np.where(missed, 11.0 + rng.integers(0, 60, N), 1.0 + rng.integers(0, 10, N))


def test_the_ranks_of_the_questions_set_k(judged):
    labelled, rank = judged
    ids = [f"g{code}" for code in labelled.group]
    given = Judged(labelled, ids, np.full(N, 0.4))
    assert calibrate(given, **TASK).conformal == []
    few = Questions(rank[:12], labelled.group[:12], 100)
    found = calibrate(dataclasses.replace(given, questions=few), **TASK)
    assert [rule.n_groups for rule in found.conformal] == [12] * 3
