import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rag_eval.uncertainty.estimator import Regression, log_loss, sigmoid


def solve(design, outcome, weight, penalty, centre):
    return Regression(design, outcome, centre).solve(weight, penalty)[:, 0]


def _data(n=400, p=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    outcome = (rng.random(n) < sigmoid(x @ rng.normal(size=p) - 1)).astype(float)
    return x, np.hstack([np.ones((n, 1)), x]), outcome, rng.uniform(0.5, 4, n)


@pytest.mark.parametrize("penalty", [0.1, 5.0, 500.0])
def test_coefficients_are_those_of_scikit_learn(penalty):
    x, design, outcome, weight = _data()
    found = solve(design, outcome, weight[None], np.array([[0.0, *[penalty] * 6]]), np.zeros(7))[0]
    reference = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000).fit(
        x, outcome, sample_weight=weight
    )
    np.testing.assert_allclose(found, [reference.intercept_[0], *reference.coef_[0]], atol=2e-6)


def test_penalties_draw_towards_the_centre():
    _, design, outcome, weight = _data()
    centre = np.array([0.5, *np.linspace(-1, 1, 6)])
    found = solve(design, outcome, weight[None], np.full((1, 7), 30.0), centre)[0]
    slope = (weight * (sigmoid(design @ found) - outcome)) @ design + 30.0 * (found - centre)
    np.testing.assert_allclose(slope, 0, atol=1e-4)
    strong = solve(design, outcome, weight[None], np.full((1, 7), 1e9), centre)[0]
    np.testing.assert_allclose(strong, centre, atol=1e-5)


def test_many_problems_at_once_are_the_problems_one_by_one():
    _, design, outcome, weight = _data()
    rng = np.random.default_rng(3)
    weights = weight * (rng.random((9, len(weight))) < 0.7)
    penalties = rng.uniform(0.5, 50, (9, 7))
    regression = Regression(design, outcome, np.zeros(7))
    together = regression.solve(weights, penalties)
    coarse = regression.solve(weights, penalties, start=together[0, 0], coarse=True)
    for i, j in np.ndindex(9, 9):
        alone = regression.solve(weights[i : i + 1], penalties[j : j + 1])[0, 0]
        np.testing.assert_allclose(together[i, j], alone, atol=1e-6)
    np.testing.assert_allclose(coarse, together, atol=1e-3)


def test_separated_and_single_class_outcomes_are_finite():
    design = np.column_stack([np.ones(20), np.r_[-np.ones(10), np.ones(10)]])
    outcome = np.r_[np.zeros(10), np.ones(10)]
    found = solve(design, outcome, np.ones((1, 20)), np.full((1, 2), 1e-3), np.zeros(2))[0]
    assert np.isfinite(found).all()
    assert found[1] > 5
    one_class = solve(design, np.ones(20), np.ones((1, 20)), np.full((1, 2), 0.5), np.zeros(2))[0]
    assert one_class[0] > 1
    assert abs(one_class[1]) < 1e-6


def test_log_loss_and_sigmoid_stay_finite_at_the_far_ends():
    far = np.array([-1e6, -800.0, 0.0, 800.0, 1e6])
    assert ((sigmoid(far) > 0) & (sigmoid(far) < 1)).all()
    np.testing.assert_allclose(log_loss(far, np.ones(5)), [1e6, 800, np.log(2), 0, 0])


def test_copies_inside_groups_tell_the_covariance_nothing():
    _, design, outcome, _ = _data(n=4000)
    penalty = np.full(7, 1e-6)
    found = solve(design, outcome, np.ones((1, 4000)), penalty[None], np.zeros(7))[0]
    alone = Regression(design, outcome, np.zeros(7)).covariance(
        found, np.ones(4000), penalty, np.arange(4000)
    )
    mean = sigmoid(design @ found)
    np.testing.assert_allclose(
        np.diag(alone),
        np.diag(np.linalg.inv((design * (mean * (1 - mean))[:, None]).T @ design)),
        rtol=0.15,
    )
    twice, both = np.repeat(design, 2, axis=0), np.repeat(outcome, 2)
    copied = Regression(twice, both, np.zeros(7)).covariance(
        found, np.ones(8000), 2 * penalty, np.repeat(np.arange(4000), 2)
    )
    np.testing.assert_allclose(copied, alone, rtol=0.01, atol=1e-5)  # copies add no information
