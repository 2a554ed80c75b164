"""Conformal K in a calibration, where the risk of a question is its out-of-fold prediction."""

import json

import numpy as np
import pytest

from rag_eval.uncertainty.calibration import Judged, Task, calibrate
from rag_eval.uncertainty.conformal import Questions
from rag_eval.uncertainty.scores import Labelled
from tests.reference.growth import growth

N = 160
TASK = Task(prior=None, checked_together=1, seed=0)


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(3)
    signals = rng.normal(size=(N, 3))
    missed = rng.random(N) < 1 / (1 + np.exp(0.8 - 2 * signals[:, 0]))
    labelled = Labelled(("a", "b", "c"), signals, missed, np.arange(N), np.ones(N), np.arange(N))
    return labelled, np.where(missed, 11.0 + rng.integers(0, 60, N), 1.0 + rng.integers(0, 10, N))


def _calibrated(judged, order, rows):
    labelled, rank = judged
    questions = Questions(rank[order], labelled.group[order], 100)
    ids = [f"g{code}" for code in labelled.group]
    judged = Judged(labelled, ids, np.full(len(labelled), 0.4), questions, rows)
    return calibrate(judged, TASK)


def test_questions_get_the_risk_of_their_own_outcome(judged):
    order = np.random.default_rng(0).permutation(N)[: N - 20]
    right = _calibrated(judged, order, order.astype(np.int64))
    wrong = _calibrated(judged, order, np.roll(order, 1))
    own, other = right.conformal[0], wrong.conformal[0]
    assert own.coverage == other.coverage
    assert own.riskiest.value < min(own.coverage.value, other.riskiest.value) - 0.1
    assert json.loads(json.dumps(right.to_json()))["conformal"][-1]["riskiest"]["value"] is not None


def test_the_riskiest_third_leaves_out_questions_without_an_outcome(judged):
    order = np.arange(N)
    whole = _calibrated(judged, order, order)
    without = _calibrated(judged, order, np.where(order == 7, -1, order))
    for one, other in zip(without.conformal, whole.conformal, strict=True):
        assert one.model_copy(update={"riskiest": other.riskiest, "text": other.text}) == other
        assert one.riskiest.n == 53  # a third of the questions with a known risk


def test_without_questions_there_is_no_k(judged):
    labelled, _ = judged
    ids = [f"g{code}" for code in labelled.group]
    assert calibrate(Judged(labelled, ids, np.full(N, 0.4)), TASK).conformal == []


def test_with_too_few_outcomes_no_risk_is_known(judged):
    labelled, rank = judged
    few = (labelled.take(np.arange(12)), rank[:12])
    found = _calibrated(few, np.arange(12), np.arange(12))
    assert [(rule.n, rule.riskiest) for rule in found.conformal] == [(12, None)] * 3


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
