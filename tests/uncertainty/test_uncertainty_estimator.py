import dataclasses
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rag_eval.uncertainty.estimator import (
    CLIP,
    SIGNALS_SD,
    Miss,
    MissRateModel,
    Prior,
    Scaling,
    _earn_trust,
    _fit_covariance,
    cross_validate,
    fit_head,
    fit_scaling,
    sigmoid,
)
from rag_eval.uncertainty.validation import Labelled

P = 8


def _judged(n, seed, *, p=P, group_size=2, coefficients=None, intercept=-1.0):
    """Make outcomes of a known logistic model, with their true probabilities.

    Rows of a group share half of the variance of their signals.
    """
    rng = np.random.default_rng(seed)
    if coefficients is None:
        coefficients = np.random.default_rng([seed, 7]).normal(size=p) * 0.5
    group = np.arange(n) // group_size
    x = (rng.normal(size=(n, p)) + rng.normal(size=(group.max() + 1, p))[group]) / np.sqrt(2)
    true = sigmoid(intercept + x @ coefficients)
    names = tuple(f"s{i}" for i in range(p))
    return Labelled(names, x, rng.random(n) < true, group, np.ones(n), np.arange(n)), true


def _ids(labelled):
    return [f"g{code}" for code in labelled.group]


def _skill(predicted, missed):
    return 1 - ((predicted - missed) ** 2).mean() / (missed.mean() * (1 - missed.mean()))


def test_without_a_prior_the_fit_is_scikit_learns():
    labelled, _ = _judged(600, 0)
    head = fit_head(labelled, prior=None)
    z = Scaling(head.mean, head.scale).z(labelled.signals)
    reference = LogisticRegression(C=SIGNALS_SD[False] ** 2 / P, tol=1e-10, max_iter=1000).fit(
        z, labelled.missed
    )
    np.testing.assert_allclose(head.coefficients, reference.coef_[0], atol=1e-3)
    np.testing.assert_allclose(head.intercept, reference.intercept_[0], atol=1e-3)
    assert head.trust > 0.9


def test_outcomes_decide_level_and_slope_of_the_prior():
    b = np.full(P, 0.4)
    flat, steep = (
        fit_head(_judged(4000, 1, coefficients=factor * b, intercept=2.0)[0], prior=_prior(b))
        for factor in (0.25, 2.0)
    )
    np.testing.assert_allclose(flat.coefficients, 0.25 * b, atol=0.12)
    np.testing.assert_allclose(steep.coefficients, 2 * b, atol=0.25)
    np.testing.assert_allclose([flat.intercept, steep.intercept], 2.0, atol=0.25)


def test_groups_that_agree_on_a_direction_earn_trust():
    spread = np.eye(2)
    agreeing, opposed = np.tile([1.0, 0.5], (60, 1)), np.tile([[1.0, 0.5], [-1.0, -0.5]], (30, 1))
    alone = np.arange(60)
    assert _earn_trust(agreeing, alone, spread) > 0.9
    assert _earn_trust(opposed, alone, spread) == 0
    # one group cannot agree with itself
    assert _earn_trust(agreeing, np.zeros(60, dtype=np.int64), spread) == 0
    assert _earn_trust(agreeing, alone // 10, spread) < _earn_trust(agreeing, alone, spread)


def test_signals_of_noise_leave_the_base_rate():
    stated = []
    for seed in range(60):
        labelled, _ = _judged(60, seed, coefficients=np.zeros(P))
        head = fit_head(labelled, prior=_prior() if seed % 2 else None)
        stated.append(head.predict(*_query()))
    assert np.mean([np.ptp(values) < 1e-12 for values in stated]) > 0.9


def test_a_model_is_read_back_bit_by_bit():
    labelled, _ = _judged(300, 1)
    model = MissRateModel.fit(
        labelled, _ids(labelled), prior=None, seed=3, miss=Miss("miss_some", 5)
    )
    again = MissRateModel.from_json(json.loads(json.dumps(model.to_json())))
    assert again.to_json() == model.to_json()
    for ids in (None, _ids(labelled)):
        given = labelled.signals, labelled.names, ids
        assert (again.predict(*given) == model.predict(*given)).all()
        assert np.array_equal(again.interval(*given), model.interval(*given))
    assert (model.n, model.groups, model.misses) == (300, 150, int(labelled.missed.sum()))
    assert (model.target, model.k, model.prior) == ("miss_some", 5, "")


def test_a_judged_group_is_predicted_by_a_fit_without_it():
    labelled, _ = _judged(200, 3)
    rows = labelled.group == 17
    changed = dataclasses.replace(labelled, missed=labelled.missed ^ rows)
    models = [
        MissRateModel.fit(each, _ids(labelled), prior=None, seed=0) for each in (labelled, changed)
    ]
    own, new, other = (
        [model.predict(labelled.signals[rows], labelled.names, ids) for model in models]
        for ids in (["g17"] * 2, None, ["never judged"] * 2)
    )
    assert (own[0] == own[1]).all()
    assert (new[0] != new[1]).any()
    assert (other[0] == new[0]).all()


def test_signals_come_in_any_order_and_none_may_miss():
    labelled, _ = _judged(200, 4)
    model = MissRateModel.fit(labelled, _ids(labelled), prior=None, seed=0)
    order = [3, 1, 0, 2, 7, 6, 5, 4, 0]
    names = (*(labelled.names[i] for i in order[:-1]), "unheard of")
    shuffled = model.predict(labelled.signals[:, order], names)
    assert (shuffled == model.predict(labelled.signals, labelled.names)).all()
    with pytest.raises(ValueError, match="signals are missing: s7"):
        model.predict(labelled.signals[:, :7], labelled.names[:7])


def test_undefined_signals_are_average_and_extremes_clipped():
    signals = np.array([[1.0, np.nan, 5], [2, np.nan, 5], [3, np.nan, 5], [1e9, 4.0, 5]])
    scaled = fit_scaling(signals)
    z = scaled.z(signals)
    assert np.isfinite(z).all()
    assert (z[:3, 1] == 0).all()
    assert (z[:, 2] == 0).all()
    assert scaled.z(np.array([[1e300, -1e300, np.nan]])).tolist() == [[CLIP, -CLIP, 0.0]]


def _prior(coefficients=None):
    coefficients = np.full(P, 0.4) if coefficients is None else coefficients
    return Prior(tuple(f"s{i}" for i in range(len(coefficients))), tuple(coefficients), -0.5, 1.0)


def _query():
    labelled, _ = _judged(50, 99)
    return labelled.signals, labelled.names


def test_weights_make_a_biased_sample_fair():
    labelled, true = _judged(20_000, 7)
    rng = np.random.default_rng(0)
    inclusion = np.where(labelled.missed, 0.9, 0.15)
    kept = rng.random(20_000) < inclusion
    sample = labelled.take(kept)
    fair, biased = (
        fit_head(each, prior=None).predict(labelled.signals, labelled.names).mean()
        for each in (dataclasses.replace(sample, weight=1 / inclusion[kept]), sample)
    )
    assert abs(fair - true.mean()) < 0.02
    assert biased - true.mean() > 0.2


def test_a_right_prior_helps_and_a_wrong_one_does_no_harm():
    b = np.random.default_rng(5).normal(size=P) * 0.7
    test, true = _judged(3000, 100, coefficients=b)

    def error(prior, n):
        values = []
        for seed in range(12):
            part = _judged(n, 200 + seed, coefficients=b)[0]
            head = fit_head(part, prior=prior, unlabelled=test.signals)
            values.append(((head.predict(test.signals, test.names) - true) ** 2).mean())
        return np.mean(values)

    right, wrong = _prior(b + np.random.default_rng(6).normal(size=P) * 0.15), _prior(-b)
    assert error(right, 60) < 0.8 * error(None, 60)
    assert error(wrong, 25) < 1.5 * error(None, 25)
    assert error(wrong, 800) < 1.5 * error(None, 800)


def test_the_prior_alone_estimates_without_outcomes():
    test, true = _judged(2000, 8, coefficients=np.full(P, 0.4), intercept=-0.5)
    model = MissRateModel.from_prior(_prior(), test.names, test.signals)
    value = model.predict(test.signals, test.names)
    low, high = model.interval(test.signals, test.names)
    assert (model.n, model.groups, model.misses, model.prior) == (0, 0, 0, _prior().id)
    assert _skill(value, test.missed) > 0.1
    assert np.ptp(value) < np.ptp(true)
    assert ((low < value) & (value < high)).all()
    again = MissRateModel.from_json(model.to_json())
    assert (again.predict(test.signals, test.names) == value).all()


def test_cross_validation_holds_out_whole_groups():
    labelled, _ = _judged(100, 9)
    first = cross_validate(labelled, prior=None, repeats=2, seed=4)
    assert first.shape == (2, 100)
    assert (first == cross_validate(labelled, prior=None, repeats=2, seed=4)).all()
    rows = labelled.group == 3
    flipped = dataclasses.replace(labelled, missed=labelled.missed ^ rows)
    again = cross_validate(flipped, prior=None, repeats=2, seed=4)
    # a group's own outcomes have no part in its prediction
    assert (first[:, rows] == again[:, rows]).all()
    assert (first[:, ~rows] != again[:, ~rows]).any()
    single = dataclasses.replace(labelled, group=np.zeros(100, dtype=np.int64))
    with pytest.raises(ValueError, match="at least two groups"):
        cross_validate(single, prior=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "p", "spread", "group_size"),
    [(200, 8, 0.5, 1), (500, 12, 0.4, 2), (1000, 28, 0.3, 2), (1000, 12, 0.4, 5)],
)
def test_intervals_cover_the_known_probability(n, p, spread, group_size):
    covered = []
    for seed in range(100):
        rng = np.random.default_rng([n, p, seed])
        b = rng.normal(size=p) * spread
        labelled, true = _judged(
            n + 500, [n, p, seed, 1], p=p, group_size=group_size, coefficients=b
        )
        judged = labelled.take(np.arange(n))
        head = fit_head(judged, prior=None)
        model = dataclasses.replace(
            MissRateModel.from_prior(_prior(np.zeros(p)), labelled.names, judged.signals),
            head=head,
            covariance=_fit_covariance(head, judged, prior=None),
        )
        low, high = model.interval(labelled.signals[n:], labelled.names)
        covered.append(((low <= true[n:]) & (true[n:] <= high)).mean())
    assert 0.92 <= np.mean(covered) <= 0.97


def test_folds_that_split_groups_flatter_where_groups_share_their_outcome():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 6)
    x = rng.normal(size=(60, 20))[group] + 0.05 * rng.normal(size=(360, 20))
    names, missed = tuple(f"s{i}" for i in range(20)), (rng.random(60) < 0.4)[group]
    grouped, split = (
        _skill(cross_validate(labelled, prior=None, repeats=1)[0], missed)
        for labelled in (
            Labelled(names, x, missed, folds, np.ones(360), np.arange(360))
            for folds in (group, np.arange(360))
        )
    )
    assert grouped < 0.05
    assert split > 0.15
