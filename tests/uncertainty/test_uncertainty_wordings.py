import dataclasses
import json

import numpy as np
from sklearn.metrics import roc_auc_score

from rag_eval.uncertainty.estimator import cross_validate, sigmoid
from rag_eval.uncertainty.scores import Labelled
from rag_eval.uncertainty.wordings import (
    Shrinkage,
    WordingsModel,
    _fit_shrinkage,
    cross_validate_wordings,
    fit_wordings,
    sum_others,
)


def _wordings(n_questions=150, each=4, seed=0, depth=2.0):
    """Draw wordings of questions whose difficulty no signal shows."""
    rng = np.random.default_rng(seed)
    question = np.repeat(np.arange(n_questions), each)
    x = rng.normal(size=(len(question), 3))
    difficulty = depth * rng.normal(size=n_questions)[question]
    missed = rng.random(len(question)) < sigmoid(-1 + x[:, 0] + difficulty)
    return Labelled(("a", "b", "c"), x, missed, question // 3, np.ones(len(question)), question)


def test_the_history_is_that_of_the_other_wordings():
    question = np.array([0, 0, 0, 1, 2, 2])
    missed = np.array([True, False, True, True, False, False])
    weight = np.array([1.0, 2.0, 4.0, 1.0, 1.0, 1.3])
    misses, judged = sum_others(question, missed, weight)
    assert misses.tolist() == [4, 5, 1, 0, 0, 0]
    np.testing.assert_allclose(judged, [6, 5, 3, 0, 1.3, 1])
    assert judged[3] == 0


def test_rates_of_few_wordings_are_drawn_towards_the_overall_one():
    log_odds = Shrinkage(0.2, 2.0).log_odds(np.array([0.0, 1, 40, 0]), np.array([1.0, 1, 40, 0]))
    np.testing.assert_allclose(sigmoid(log_odds[:3]), [0.4 / 3, 1.4 / 3, 40.4 / 42])
    assert np.isnan(log_odds[3])


def test_the_strength_falls_where_questions_differ():
    def strength(depth):
        its = _wordings(800, 5, depth=depth)
        return _fit_shrinkage(its.question, its.missed, its.weight).strength

    assert strength(0.0) > 20
    assert strength(4.0) < 1.5
    single = _wordings(10, 1)
    assert _fit_shrinkage(single.question, single.missed, single.weight).strength == 1.0


def test_judged_wordings_tell_what_the_signals_do_not():
    labelled = _wordings()
    with_history = cross_validate_wordings(labelled, prior=None, repeats=1)[0]
    without = cross_validate(labelled, prior=None, repeats=1)[0]
    better, worse = (roc_auc_score(labelled.missed, part) for part in (with_history, without))
    assert better > worse + 0.05


def test_a_wording_s_own_outcome_has_no_part_in_its_prediction():
    labelled = _wordings()
    row = 17
    flipped = labelled.missed ^ (np.arange(len(labelled)) == row)
    both = [
        cross_validate_wordings(
            dataclasses.replace(labelled, missed=missed), prior=None, repeats=1
        )[0]
        for missed in (labelled.missed, flipped)
    ]
    assert both[0][row] == both[1][row]
    assert both[0][row + 1] != both[1][row + 1]  # the next wording of the question


def test_without_a_history_it_says_nothing():
    labelled = _wordings(60)
    model = fit_wordings(labelled, prior=None)
    value = model.predict(
        labelled.signals[:2], labelled.names, np.array([0.0, 1.0]), np.array([0.0, 2.0])
    )
    assert np.isnan(value[0])
    assert 0 < value[1] < 1
    again = WordingsModel.from_json(json.loads(json.dumps(model.to_json())))
    given = labelled.signals, labelled.names, np.ones(240), np.full(240, 2.0)
    assert (again.predict(*given) == model.predict(*given)).all()
    single = _wordings(30, 1)
    assert fit_wordings(single, prior=None) is None
    assert np.isnan(cross_validate_wordings(single, prior=None, repeats=1)).all()
