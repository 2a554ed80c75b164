"""Conformal K in a calibration, where the risk of a question is its out-of-fold prediction."""

import json

import numpy as np
import pytest

from rag_eval.uncertainty.calibration import NO_ITEMS, NO_RANKS, Judged, Task, calibrate
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
    found = _calibrated(judged, order, order.astype(np.int64))
    by = {(part.method, part.level): part for part in found.conformal}
    assert {method for method, _ in by} == {"fixed", "mondrian"}
    fixed, mondrian = by["fixed", 0.8], by["mondrian", 0.8]
    depths = [part.k for part in mondrian.bins]
    assert depths == sorted(depths)
    assert mondrian.riskiest.value > fixed.riskiest.value
    assert json.loads(json.dumps(found.to_json()))["conformal"][-1]["riskiest"]["value"] is not None


def test_k_by_risk_leaves_out_questions_without_an_outcome(judged):
    order = np.arange(N)
    whole = _calibrated(judged, order, order)
    without = _calibrated(judged, order, np.where(order == 7, -1, order))
    alone = _calibrated(judged, order[order != 7], order[order != 7])
    by_risk, of_others = (
        [part for part in found.conformal if part.method != "fixed"] for found in (without, alone)
    )
    assert by_risk == of_others
    counts = {(part.method, part.n) for part in without.conformal}
    assert counts == {("fixed", N), ("mondrian", N - 1)}
    for one, other in zip(without.conformal[:3], whole.conformal[:3], strict=True):
        assert one.model_copy(update={"riskiest": other.riskiest, "text": other.text}) == other
        assert one.riskiest.n == 53  # a third of the questions with a known risk
    counts = {"fixed": N, "recall": None, "mondrian": N - 1, "without_risk": 1}
    assert without.conformal_methods.dump() == {**counts, "recall_reason": NO_ITEMS}


def test_without_questions_every_method_says_why(judged):
    labelled, _ = judged
    ids = [f"g{code}" for code in labelled.group]
    found = calibrate(Judged(labelled, ids, np.full(N, 0.4)), TASK)
    said = found.conformal_methods.dump()
    assert {said[f"{method}_reason"] for method in ("fixed", "recall", "mondrian")} == {NO_RANKS}
    assert found.conformal == []


def test_with_too_few_outcomes_there_is_one_k(judged):
    labelled, rank = judged
    few = (labelled.take(np.arange(12)), rank[:12])
    found = _calibrated(few, np.arange(12), np.arange(12))
    assert {part.method for part in found.conformal} == {"fixed"}
    reason = found.conformal_methods.dump()["mondrian_reason"]
    assert "12 distinct groups with outcomes" in reason


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
