import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sklearn.isotonic import IsotonicRegression

from rag_eval.uncertainty.estimator import (
    CALIBRATORS,
    FEWEST,
    StoredCalibrator,
    choose_calibrator,
    fit_steps,
    log_loss,
    sigmoid,
    unknown_calibrators,
)
from rag_eval.uncertainty.scores import grouped_folds

STORED = TypeAdapter(StoredCalibrator)
GRID = np.linspace(-40, 40, 801)
rows = st.lists(
    st.tuples(
        st.integers(-6, 6).map(float),
        st.integers(0, 1).map(float),
        st.sampled_from([1.0, 1.5, 4.0]),
    ),
    min_size=1,
    max_size=40,
)


def _columns(given_rows):
    return (np.array(column) for column in zip(*given_rows, strict=True))


@given(rows)
def test_calibrators_are_monotone_and_inside_the_unit_interval(given_rows):
    score, missed, weight = _columns(given_rows)
    for kind in CALIBRATORS.values():
        fitted = kind.fit(score, missed, weight[None])[0]
        value = fitted.apply(GRID)
        assert (np.diff(value) >= -1e-12).all()
        assert ((value > 0) & (value < 1)).all()


@given(rows)
def test_a_calibrator_is_read_back_exactly(given_rows):
    score, missed, weight = _columns(given_rows)
    for kind in CALIBRATORS.values():
        fitted = kind.fit(score, missed, weight[None])[0]
        again = STORED.validate_json(STORED.dump_json(fitted))
        assert again.name == fitted.name
        assert (again.apply(GRID) == fitted.apply(GRID)).all()


@given(rows)
def test_isotonic_is_that_of_scikit_learn(given_rows):
    score, missed, weight = _columns(given_rows)
    reference = IsotonicRegression().fit(score, missed, sample_weight=weight)
    np.testing.assert_allclose(
        fit_steps(score, missed, weight)(score), reference.predict(score), atol=1e-9
    )


def test_slopes_are_never_negative_and_few_outcomes_move_little():
    score = np.linspace(-3, 3, 400)
    missed = (score < 0).astype(float)  # outcomes contradict the scores
    fitted = CALIBRATORS["platt"].fit(score, missed, np.ones((1, 400)))[0]
    assert np.ptp(fitted.apply(score)) < 0.3
    assert (np.diff(fitted.apply(score)) >= 0).all()
    separated = CALIBRATORS["platt"].fit(
        np.array([-1.0, -0.5, 0.5, 1.0]), np.array([0.0, 0, 1, 1]), np.ones((1, 4))
    )[0]
    assert 0.8 < separated.slope < 1.3


def test_platt_finds_the_map_that_made_the_outcomes():
    rng = np.random.default_rng(0)
    score = rng.normal(0, 2, 40_000)
    missed = (rng.random(40_000) < sigmoid(-1 + 0.5 * score)).astype(float)
    platt = CALIBRATORS["platt"].fit(score, missed, np.ones((1, 40_000)))[0]
    assert abs(platt.slope - 0.5) < 0.03
    assert abs(platt.intercept + 1) < 0.04


def test_weights_are_repeated_rows_and_weight_zero_is_not_seen():
    rng = np.random.default_rng(1)
    score, missed = rng.normal(size=60).round(1), (rng.random(60) < 0.4).astype(float)
    weights = rng.integers(0, 4, (3, 60))
    for name in ("platt", "isotonic"):
        fits = CALIBRATORS[name].fit(score, missed, weights.astype(float))
        for times, weighted in zip(weights, fits, strict=True):
            copies = np.repeat(score, times), np.repeat(missed, times)
            repeated = CALIBRATORS[name].fit(*copies, np.ones((1, times.sum())))[0]
            np.testing.assert_allclose(weighted.apply(GRID), repeated.apply(GRID), atol=1e-6)


def _chosen(n, true, seed=0):
    rng = np.random.default_rng(seed)
    score = rng.normal(-1, 1.5, n)
    missed = (rng.random(n) < true(score)).astype(float)
    group = np.arange(n) // 2
    return choose_calibrator(score, missed, np.ones(n), group, grouped_folds(group, 5, rng)).name


def test_none_is_kept_where_the_probabilities_are_right_already():
    names = [_chosen(600, sigmoid, seed) for seed in range(20)]
    assert names.count("none") >= 19


def test_a_calibrator_is_switched_on_where_probabilities_are_wrong():
    assert _chosen(1000, lambda score: sigmoid(0.4 * score - 1)) != "none"
    assert _chosen(1000, lambda score: np.where(score > 0, 0.5, 0.02)) == "isotonic"


@pytest.mark.parametrize("n", [24, 399])
def test_calibrators_that_need_more_outcomes_are_not_considered(n):
    name = _chosen(n, lambda score: np.where(score > 0, 0.9, 0.02))
    assert FEWEST.get(name, 0) <= n


def test_one_class_and_one_fold_leave_it_at_none():
    score, ones = np.linspace(-1, 1, 30), np.ones(30)
    single = np.zeros(30, dtype=np.int64)
    assert choose_calibrator(score, ones, ones, single, single).name == "none"
    found = choose_calibrator(score, ones, ones, np.arange(30), np.arange(30) % 5)
    assert log_loss(score, ones).mean() >= -np.log(found.apply(score)).mean()


def test_an_unknown_calibrator_is_named():
    with pytest.raises(ValueError, match="'spline'"):
        STORED.validate_python({"name": "spline", "parameters": {}})


def test_unknown_kinds_in_a_stored_model_are_listed():
    head = {"calibrator": {"name": "venn_abers", "parameters": {}}}
    model = {"head": {"calibrator": {"name": "platt"}}}
    assert unknown_calibrators({"model": {**model, "folds": [head, head]}}) == ["venn_abers"]
    assert unknown_calibrators({"calibrator": "0123", "model": model}) == []
