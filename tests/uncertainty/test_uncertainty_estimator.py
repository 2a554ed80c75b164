import dataclasses
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rag_eval.uncertainty.estimator import cross_validated, fit, from_prior
from rag_eval.uncertainty.head import fit_head
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.prior import Prior
from rag_eval.uncertainty.ridge import sigmoid
from rag_eval.uncertainty.scaling import CLIP, scaling

P = 8


def _judged(n, seed, *, p=P, group_size=2, coefficients=None, intercept=-1.0):
    """Outcomes of a known logistic model, with their true probabilities; rows of a group share half of their signals' variance."""
    rng = np.random.default_rng(seed)
    b = (
        np.random.default_rng([seed, 7]).normal(size=p) * 0.5
        if coefficients is None
        else coefficients
    )
    group = np.arange(n) // group_size
    x = (rng.normal(size=(n, p)) + rng.normal(size=(group.max() + 1, p))[group]) / np.sqrt(2)
    true = sigmoid(intercept + x @ b)
    names = tuple(f"s{i}" for i in range(p))
    return Labelled(names, x, rng.random(n) < true, group, np.ones(n), np.arange(n)), true


def _ids(labelled):
    return [f"g{code}" for code in labelled.group]


def _skill(predicted, missed):
    return 1 - ((predicted - missed) ** 2).mean() / (missed.mean() * (1 - missed.mean()))


def test_without_a_prior_the_coefficients_are_those_of_scikit_learn():
    labelled, _ = _judged(600, 0)
    head = fit_head(labelled, prior=None, rng=np.random.default_rng(0)).head
    z = head.scaling.z(labelled.signals)
    assert head.calibrator.name == "none"
    reference = LogisticRegression(C=1 / head.penalty, tol=1e-10, max_iter=1000).fit(
        z, labelled.missed
    )
    np.testing.assert_allclose(head.coefficients, reference.coef_[0], atol=0.01)
    np.testing.assert_allclose(head.intercept, reference.intercept_[0], atol=0.02)


def test_a_model_is_read_back_bit_by_bit():
    labelled, _ = _judged(300, 1)
    model = fit(labelled, prior=None, group_ids=_ids(labelled), seed=3, target="miss_some", k=5)
    again = MissRateModel.from_json(json.loads(json.dumps(model.to_json())))
    assert again.to_json() == model.to_json()
    for ids in (None, _ids(labelled)):
        assert (
            again.predict(labelled.signals, labelled.names, ids)
            == model.predict(labelled.signals, labelled.names, ids)
        ).all()
        assert (
            np.stack(again.interval(labelled.signals, labelled.names, ids))
            == np.stack(model.interval(labelled.signals, labelled.names, ids))
        ).all()
    assert (model.n, model.groups, model.misses, model.target, model.k, model.prior) == (
        300,
        150,
        int(labelled.missed.sum()),
        "miss_some",
        5,
        "",
    )


def test_the_same_seed_gives_the_same_model_and_another_deals_other_folds():
    labelled, _ = _judged(200, 2)
    first, again, other = (
        fit(labelled, prior=None, group_ids=_ids(labelled), seed=seed) for seed in (0, 0, 1)
    )
    assert first.to_json() == again.to_json()
    assert first.fold_of_group != other.fold_of_group


def test_a_judged_query_is_predicted_by_a_model_that_did_not_see_its_group():
    labelled, _ = _judged(200, 3)
    changed = dataclasses.replace(
        labelled, missed=np.where(labelled.group == 17, ~labelled.missed, labelled.missed)
    )
    rows = labelled.group == 17
    models = [
        fit(each, prior=None, group_ids=_ids(labelled), seed=0) for each in (labelled, changed)
    ]
    own = [
        model.predict(labelled.signals[rows], labelled.names, ["g17"] * rows.sum())
        for model in models
    ]
    new = [model.predict(labelled.signals[rows], labelled.names) for model in models]
    assert (own[0] == own[1]).all()
    assert (new[0] != new[1]).any()
    assert (
        models[0].predict(labelled.signals[rows], labelled.names, ["never judged"] * rows.sum())
        == new[0]
    ).all()


def test_signals_may_come_in_any_order_and_a_missing_one_is_named():
    labelled, _ = _judged(200, 4)
    model = fit(labelled, prior=None, group_ids=_ids(labelled), seed=0)
    order = [3, 1, 0, 2, 7, 6, 5, 4, 0]
    names = (*(labelled.names[i] for i in order[:-1]), "unheard of")
    assert (
        model.predict(labelled.signals[:, order], names)
        == model.predict(labelled.signals, labelled.names)
    ).all()
    with pytest.raises(ValueError, match="signals are missing: s7"):
        model.predict(labelled.signals[:, :7], labelled.names[:7])


def test_undefined_signals_count_as_usual_ones_and_extreme_ones_are_held():
    signals = np.array([[1.0, np.nan, 5], [2, np.nan, 5], [3, np.nan, 5], [1e9, 4.0, 5]])
    scaled = scaling(signals)
    z = scaled.z(signals)
    assert np.isfinite(z).all()
    assert (z[:3, 1] == 0).all()
    assert (z[:, 2] == 0).all()
    assert scaled.z(np.array([[1e300, -1e300, np.nan]])).tolist() == [[CLIP, -CLIP, 0.0]]


def test_group_ids_must_go_with_the_groups():
    labelled, _ = _judged(20, 5)
    with pytest.raises(ValueError, match="one group id for each group code"):
        fit(labelled, prior=None, group_ids=["same"] * 20, seed=0)
    with pytest.raises(ValueError, match="one group id for each group code"):
        fit(labelled, prior=None, group_ids=[str(i) for i in range(20)], seed=0)
    with pytest.raises(ValueError, match="at least one outcome"):
        fit(labelled.take(np.zeros(20, dtype=bool)), prior=None, group_ids=[], seed=0)


@pytest.mark.parametrize("missed", [True, False])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_a_few_outcomes_of_one_kind_give_a_probability_and_not_certainty(n, missed):
    labelled, _ = _judged(n, 6)
    labelled = dataclasses.replace(labelled, missed=np.full(n, missed))
    for prior in (None, _prior()):
        model = fit(
            labelled,
            prior=prior,
            group_ids=_ids(labelled),
            seed=0,
            unlabelled=_judged(60, 9)[0].signals,
        )
        value = model.predict(*_query())
        low, high = model.interval(*_query())
        assert ((value > 0.005) & (value < 0.995)).all()
        assert ((low < value) & (value < high)).all()


def _prior(coefficients=None):
    coefficients = np.full(P, 0.4) if coefficients is None else coefficients
    return Prior(
        tuple(f"s{i}" for i in range(len(coefficients))),
        tuple(coefficients),
        -0.5,
        (1.0, *[0.2] * len(coefficients)),
    )


def _query():
    labelled, _ = _judged(50, 99)
    return labelled.signals, labelled.names


def test_weights_are_what_makes_a_biased_sample_fair():
    labelled, true = _judged(20_000, 7)
    rng = np.random.default_rng(0)
    inclusion = np.where(labelled.missed, 0.9, 0.15)
    kept = rng.random(20_000) < inclusion
    sample = labelled.take(kept)
    fair, biased = (
        fit_head(each, prior=None, rng=np.random.default_rng(0), calibrate=False)
        .head.predict(labelled.signals, labelled.names)
        .mean()
        for each in (dataclasses.replace(sample, weight=1 / inclusion[kept]), sample)
    )
    assert abs(fair - true.mean()) < 0.02
    assert biased - true.mean() > 0.2


def test_a_right_prior_helps_few_outcomes_and_a_wrong_one_is_left_behind():
    b = np.random.default_rng(5).normal(size=P) * 0.7
    test, true = _judged(3000, 100, coefficients=b)

    def error(prior, n):
        values = []
        for seed in range(12):
            part, _ = _judged(n, 200 + seed, coefficients=b)
            head = fit_head(
                part, prior=prior, rng=np.random.default_rng(seed), unlabelled=test.signals
            ).head
            values.append(((head.predict(test.signals, test.names) - true) ** 2).mean())
        return np.mean(values)

    right, wrong = _prior(b + np.random.default_rng(6).normal(size=P) * 0.15), _prior(-b)
    assert error(right, 25) < 0.5 * error(None, 25)
    assert error(wrong, 800) < 2.5 * error(None, 800)
    assert error(wrong, 800) < 0.1 * error(wrong, 25)


def test_the_prior_alone_estimates_without_outcomes_and_is_no_more_extreme_than_it_is_sure():
    test, true = _judged(2000, 8, coefficients=np.full(P, 0.4), intercept=-0.5)
    model = from_prior(_prior(), test.names, test.signals)
    value = model.predict(test.signals, test.names)
    low, high = model.interval(test.signals, test.names)
    assert (model.n, model.groups, model.misses, model.prior) == (0, 0, 0, _prior().id)
    assert _skill(value, test.missed) > 0.1
    assert np.ptp(value) < np.ptp(true)
    assert ((low < value) & (value < high)).all()
    assert json.loads(json.dumps(model.to_json()))["head"]["penalty"] is None
    assert (
        MissRateModel.from_json(model.to_json()).predict(test.signals, test.names) == value
    ).all()


def test_cross_validation_holds_out_whole_groups_and_says_when_it_cannot():
    labelled, _ = _judged(100, 9)
    first = cross_validated(labelled, prior=None, repeats=2, n_folds=5, seed=4)
    assert first.shape == (2, 100)
    assert (first == cross_validated(labelled, prior=None, repeats=2, n_folds=5, seed=4)).all()
    rows = labelled.group == 3
    flipped = dataclasses.replace(
        labelled, missed=np.where(rows, ~labelled.missed, labelled.missed)
    )
    again = cross_validated(flipped, prior=None, repeats=2, n_folds=5, seed=4)
    assert (
        first[:, rows] == again[:, rows]
    ).all()  # a group's own outcomes have no part in its prediction
    assert (first[:, ~rows] != again[:, ~rows]).any()
    with pytest.raises(ValueError, match="at least two groups"):
        cross_validated(
            dataclasses.replace(labelled, group=np.zeros(100, dtype=np.int64)), prior=None
        )


def test_random_folds_flatter_where_groups_share_their_outcome():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(60), 6)
    x = rng.normal(size=(60, 20))[group] + 0.05 * rng.normal(size=(360, 20))
    labelled = Labelled(
        tuple(f"s{i}" for i in range(20)),
        x,
        (rng.random(60) < 0.4)[group],
        group,
        np.ones(360),
        np.arange(360),
    )
    skills = [
        _skill(cross_validated(labelled, prior=None, repeats=1, folds=folds)[0], labelled.missed)
        for folds in ("grouped", "random")
    ]
    assert skills[0] < 0.05
    assert skills[1] > 0.2


def test_shuffled_outcomes_have_no_skill_on_average():
    skills = []
    for seed in range(12):
        labelled, _ = _judged(150, 300 + seed)
        shuffled = dataclasses.replace(
            labelled, missed=np.random.default_rng(seed).permutation(labelled.missed)
        )
        skills.append(_skill(cross_validated(shuffled, prior=None, repeats=1)[0], shuffled.missed))
    assert np.mean(skills) <= 0
    assert np.mean(skills) > -0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "p", "spread", "group_size"),
    [(200, 8, 0.5, 1), (500, 12, 0.4, 2), (1000, 28, 0.3, 2), (1000, 12, 0.4, 5)],
)
def test_intervals_cover_the_known_probability(n, p, spread, group_size):
    covered = []
    for seed in range(300):
        rng = np.random.default_rng([n, p, seed])
        b = rng.normal(size=p) * spread
        labelled, true = _judged(
            n + 500, [n, p, seed, 1], p=p, group_size=group_size, coefficients=b
        )
        judged = labelled.take(np.arange(n))
        fitted = fit_head(judged, prior=None, rng=rng)
        model = dataclasses.replace(
            from_prior(_prior(np.zeros(p)), labelled.names, judged.signals),
            head=fitted.head,
            covariance=fitted.covariance,
        )
        low, high = model.interval(labelled.signals[n:], labelled.names)
        covered.append(((low <= true[n:]) & (true[n:] <= high)).mean())
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.slow
def test_a_calibrator_is_fitted_inside_the_fold_and_mends_what_the_model_cannot():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 2))
    true = np.where(x[:, 0] + x[:, 1] > 0, 0.45, 0.02)  # no logistic model of the signals
    labelled = Labelled(
        ("a", "b"), x, rng.random(2000) < true, np.arange(2000), np.ones(2000), np.arange(2000)
    )
    fitted = [
        fit_head(labelled, prior=None, rng=np.random.default_rng(1), calibrate=calibrate).head
        for calibrate in (True, False)
    ]
    errors = [((head.predict(x, labelled.names) - true) ** 2).mean() for head in fitted]
    assert fitted[0].calibrator.name != "none"
    assert errors[0] < 0.7 * errors[1]


def test_weights_say_how_rows_compare_and_not_how_many_there_are():
    labelled, _ = _judged(150, 11)
    weighted = dataclasses.replace(labelled, weight=np.where(labelled.group % 2, 3.0, 1.0))
    one, ten = (
        fit_head(
            dataclasses.replace(weighted, weight=factor * weighted.weight),
            prior=_prior(),
            rng=np.random.default_rng(0),
        )
        for factor in (1.0, 10.0)
    )
    np.testing.assert_allclose(ten.head.coefficients, one.head.coefficients, atol=1e-9)
    np.testing.assert_allclose(ten.covariance, one.covariance, rtol=1e-6)
