"""Figures of predicted miss probabilities agree with scikit-learn, references and closed forms.

Noise never becomes `measured`.
"""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from rag_eval.uncertainty.estimator import _grouped_folds
from rag_eval.uncertainty.status import Situation, count_outcomes, judge_status
from rag_eval.uncertainty.validation import (
    CLIP,
    LEVEL,
    Labelled,
    _calibrated_outcomes,
    _figure_intervals,
    _group_dependence,
    _isotonic_rates,
    _judge_error,
    _logit,
    _recalibrate,
    _reliability,
    _simulations_for,
    adjusted_level,
    base_rate_losses,
    ece,
    equal_mass_bins,
    limit,
    miss_rate,
    validate,
)


def alone(missed, group, weight=None):
    n = len(missed)
    weight = np.ones(n) if weight is None else weight
    return Labelled(("x",), np.zeros((n, 1)), missed, group, weight, np.arange(n))


def figures_of(predicted, missed, weight, group):
    found = _figure_intervals(alone(missed, group, weight), predicted[None, :], predicted)
    return {
        name: np.nan if figure.value is None else figure.value for name, figure in found.items()
    }


@st.composite
def judged(draw, both=True):
    n = draw(st.integers(4, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    predicted = rng.random(n).round(draw(st.integers(1, 6)))  # one digit: many ties
    missed = rng.random(n) < draw(st.floats(0.05, 0.95))
    if both:
        missed[:2] = [True, False]
    weight = rng.choice([1.0, 1.5, 4.0], n) if draw(st.booleans()) else np.ones(n)
    return predicted, missed, weight, rng.integers(0, max(2, n // 3), n)


@settings(max_examples=40)
@given(judged())
def test_auroc_brier_and_log_loss_agree_with_sklearn(case):
    predicted, missed, weight, _ = case
    found, weights = figures_of(*case), {"sample_weight": weight}
    clipped = np.clip(predicted, CLIP, 1 - CLIP)
    assert found["auroc"] == pytest.approx(roc_auc_score(missed, predicted, **weights), abs=1e-12)
    assert found["brier"] == pytest.approx(
        brier_score_loss(missed, predicted, **weights), abs=1e-12
    )
    assert found["log_loss"] == pytest.approx(
        sklearn_log_loss(missed, clipped, **weights), abs=1e-9
    )


@given(judged(both=False))
def test_base_rate_of_the_other_groups_against_a_slow_reference(case):
    _, missed, weight, group = case
    losses = np.zeros(len(missed))
    for row in range(len(missed)):
        others = group != group[row]
        rate = np.average(missed[others], weights=weight[others]) if others.any() else np.nan
        losses[row] = (rate - missed[row]) ** 2
    assert base_rate_losses(missed, group, weight) == pytest.approx(losses, abs=1e-12, nan_ok=True)


def test_recalibration_agrees_with_an_unpenalised_logistic_regression():
    rng = np.random.default_rng(5)
    predicted = rng.uniform(0.02, 0.9, 400)
    missed = rng.random(400) < 1 / (1 + np.exp(-(0.4 + 0.6 * _logit(predicted))))
    weight = rng.choice([1.0, 3.0], 400)
    fitted = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        _logit(predicted)[:, None], missed, weight
    )
    line, _ = _recalibrate(predicted, missed, weight)
    assert line == pytest.approx([fitted.intercept_[0], fitted.coef_[0, 0]], abs=1e-4)


@pytest.mark.parametrize(
    ("predicted", "missed"),
    [
        ([0.1, 0.2, 0.8, 0.9], [False, False, True, True]),  # misses and hits do not overlap
        ([0.3, 0.3, 0.3, 0.3], [False, True, True, False]),  # the data give no slope
        ([0.1, 0.2, 0.8, 0.9], [False, False, False, False]),
    ],
)
def test_recalibration_is_absent_where_it_is_not_identified(predicted, missed):
    assert np.isnan(_recalibrate(np.array(predicted), np.array(missed), np.ones(4))[0]).all()


def test_influences_are_the_derivatives_by_the_weights():
    rng = np.random.default_rng(4)
    predicted, missed = rng.random(40).round(1), rng.random(40) < 0.4
    weight, step = rng.choice([1.0, 2.0], 40), 1e-6
    line, influence = _recalibrate(predicted, missed, weight)
    for row in (0, 7, 31):
        more = weight + step * (np.arange(40) == row)
        changes = (_recalibrate(predicted, missed, more)[0] - line) / step * weight[row]
        assert influence[row] == pytest.approx(changes, rel=1e-2, abs=1e-3)


def _drawn(rng, groups, members, level, spread):
    """Draw probabilities, outcomes and groups; the members of a group have similar signals."""
    group = np.repeat(np.arange(groups), members)
    x = rng.normal(size=groups)[group] * 0.6 + rng.normal(size=groups * members) * 0.8
    true = 1 / (1 + np.exp(-(level + spread * x)))
    return true, rng.random(len(true)) < true, group


KNOWN = pytest.mark.parametrize(
    ("n_groups", "members", "level", "spread"),
    [(200, 1, -1.5, 1.5), (500, 1, -2.0, 1.5), (250, 2, -1.0, 1.0), (120, 4, -1.5, 1.5)],
)


TRIALS = 1000
"""Simulated data sets per case."""


@pytest.mark.slow
@KNOWN
def test_intervals_of_the_miss_rate_cover(n_groups, members, level, spread):
    rng = np.random.default_rng(23)
    rate = _drawn(rng, 1_000_000 // members, members, level, spread)[0].mean()
    held = 0
    for _ in range(TRIALS):
        _, missed, group = _drawn(rng, n_groups, members, level, spread)
        found = miss_rate(alone(missed, group))
        held += found.low <= rate <= found.high
    assert 0.925 <= held / TRIALS <= 0.98, held / TRIALS


@pytest.mark.slow
@KNOWN
def test_intervals_of_skill_and_auroc_cover(n_groups, members, level, spread):
    rng = np.random.default_rng(23)
    true, _, _ = _drawn(rng, 1_000_000 // members, members, level, spread)
    rate, order = true.mean(), np.argsort(true)
    # Brier skill of the true probability, and its chance to rank a miss above a hit (AUROC).
    skill = 1 - (true * (1 - true)).mean() / (rate * (1 - rate))
    above = np.cumsum((1 - true)[order])
    ranked = (true[order] * above).sum() / (true.sum() * (1 - true).sum())
    truth = np.array([skill, ranked])
    held = np.zeros(2)
    for _ in range(400):
        predicted, missed, group = _drawn(rng, n_groups, members, level, spread)
        data = alone(missed, group)
        found = _figure_intervals(data, predicted[None, :], predicted)
        held += [
            found[name].low <= value <= found[name].high
            for name, value in zip(("skill", "auroc"), truth, strict=True)
        ]
    assert (held / 400 >= 0.92).all(), held / 400
    assert (held / 400 <= 0.98).all(), held / 400


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=120), st.integers(1, 12), st.integers(0, 5)
)
def test_folds_never_split_a_group_and_are_balanced(groups, n_folds, seed):
    group = np.array(groups)
    fold = _grouped_folds(group, n_folds, np.random.default_rng(seed))
    for code in np.unique(group):
        assert len(np.unique(fold[group == code])) == 1
    assert sorted(np.unique(fold)) == list(range(min(n_folds, len(np.unique(group)))))
    sizes = np.bincount(fold, minlength=n_folds)
    # The largest fold got its last group while it was the smallest fold.
    assert sizes.max() - sizes.min() <= np.bincount(group).max()


def draw(*given):
    return np.concatenate(list(_calibrated_outcomes(*given)))


def labelled(n=400, groups=250, *, level=-1.0, spread=1.4, seed=1):
    """Draw outcomes from a logistic model of the first signal; the other signals are noise."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    values = rng.normal(size=(n, 6))
    values[:, 0] = 0.6 * rng.normal(size=groups)[group] + 0.8 * values[:, 0]
    true = 1 / (1 + np.exp(-(level + spread * values[:, 0])))
    names = tuple(f"signal_{at}" for at in range(6))
    return Labelled(names, values, rng.random(n) < true, group, np.ones(n), np.arange(n)), true


def ridge(train, test):
    scaler = StandardScaler().fit(train.signals)
    model = LogisticRegression(C=0.3).fit(
        scaler.transform(train.signals), train.missed, train.weight
    )
    return model.predict_proba(scaler.transform(test.signals))[:, 1]


def out_of_fold(data, repeats, seed):
    predictions = np.empty((repeats, len(data)))
    for repeat in range(repeats):
        folds = GroupKFold(5, shuffle=True, random_state=seed + repeat)
        for train, test in folds.split(data.signals, data.missed, data.group):
            predictions[repeat, test] = ridge(data.take(train), data.take(test))
    return predictions


def test_a_validation_has_figures_and_denominators():
    data, true = labelled()
    predictions = np.clip(
        true + np.random.default_rng(1).normal(scale=0.02, size=(3, len(data))), 0.001, 0.999
    )
    found = validate(data, predictions, checked_together=3, seed=2)
    ones, missed = np.ones(len(data)), data.missed
    assert (found.n, found.repeats, found.misses) == (400, 3, int(missed.sum()))
    groups = [len(set(part.tolist())) for part in (data.group, data.group[missed])]
    assert [found.groups, found.groups_with_misses] == groups
    assert found.groups_with_hits == len(set(data.group[~missed].tolist()))
    of_folds = [figures_of(row, missed, ones, data.group) for row in predictions]
    for name in ("brier", "log_loss", "skill"):
        mean = np.mean([figures[name] for figures in of_folds])
        assert getattr(found, name).value == pytest.approx(mean)
    assert found.auroc.value == pytest.approx(roc_auc_score(missed, predictions.mean(axis=0)))
    names = "miss_rate brier skill auroc slope intercept observed_expected".split()
    for figure in (getattr(found, name) for name in names):
        assert figure.low < figure.value < figure.high
    assert sum(found.histogram) == 400
    assert found.ece.null_median < found.ece.null_95 < found.ece.null_limit
    assert found.skill.low > 0.05
    assert found.slope.low < 1 < found.slope.high


def test_undefined_figures_are_null():
    data, _ = labelled(n=60)
    nothing = dataclasses.replace(data, missed=np.zeros(60, dtype=bool))
    predictions = np.full((2, 60), 0.02)
    found = validate(nothing, predictions, checked_together=1, seed=1).dump()
    for name in ("auroc", "slope", "skill"):
        assert {found[name][end] for end in ("value", "low", "high")} == {None}
    assert found["miss_rate"]["value"] == 0
    assert found["miss_rate"]["high"] > 0.02
    assert json.dumps(found, allow_nan=False)


def test_a_weighted_sample_speaks_for_its_population():
    data, true = labelled(n=4000, groups=4000)
    # all risky outcomes were audited, and a quarter of the others
    chance = np.where(true > 0.3, 1.0, 0.25)
    kept = np.random.default_rng(3).random(4000) < chance
    sample = dataclasses.replace(data.take(kept), weight=1 / chance[kept])
    found = validate(sample, true[None, kept], checked_together=1, seed=1)
    everything = validate(data, true[None, :], checked_together=1, seed=1)
    assert found.miss_rate.low < everything.miss_rate.value < found.miss_rate.high
    assert found.skill.low < everything.skill.value < found.skill.high
    assert data.missed[kept].mean() > found.miss_rate.high  # unweighted, the rate is biased


def _status(data, seed):
    found = validate(data, out_of_fold(data, 2, seed), checked_together=1, seed=seed)
    fresh = Situation(age_days=1.0, stale_after_days=180, n_unlabelled=500)
    return judge_status(count_outcomes(data), found, fresh).status


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_shuffled_outcomes_never_become_measured():
    """Zero of 200 data sets rule out a share of 1.5 % at the 95 % level: 0.985 ** 200 = 0.049."""
    shuffled, genuine = [], []
    for trial in range(200):
        data, _ = labelled(n=320, groups=600, seed=trial)
        missed = np.random.default_rng(10_000 + trial).permutation(data.missed)
        shuffled.append(_status(dataclasses.replace(data, missed=missed), trial))
        if trial < 20:
            genuine.append(_status(data, trial))
    assert set(shuffled) == {"provisional"}
    assert genuine.count("measured") >= 10


def test_a_calibration_error_is_held_against_chance():
    simulated = np.linspace(0.0, 0.1, 1000)
    found = _judge_error(0.05, simulated, 1)
    assert found.inside
    assert found.p == pytest.approx(0.5, abs=0.01)
    assert (found.null_median, found.null_95) == pytest.approx((0.05, 0.095), abs=1e-3)
    beyond = _judge_error(0.2, simulated, 1)
    assert not beyond.inside
    assert beyond.p == pytest.approx(1 / 1001)


@given(judged(both=False))
def test_bins_of_the_diagram_are_those_of_the_error(case):
    predicted, missed, weight, _ = case
    drawn = _calibrated_outcomes(predicted, np.arange(len(predicted)), 0.0, 1, 50)
    found = _reliability(predicted, missed, weight, list(drawn))
    mass = np.bincount(equal_mass_bins(predicted, weight), weight)
    gaps = np.abs(np.subtract(found["observed"], found["predicted"]))
    error = float(ece(predicted, missed, weight))
    assert float(gaps @ mass / mass.sum()) == pytest.approx(error, abs=2e-6)  # rounded to 6 digits
    assert (np.diff(found["predicted"]) >= 0).all()
    assert (np.array(found["band_low"]) <= found["band_high"]).all()


def _band_holds(predicted, rate, group, seed):
    missed = np.random.default_rng(seed).random(len(predicted)) < rate
    drawn = list(_calibrated_outcomes(predicted, group, 0.0, seed, 400))
    found = _reliability(predicted, missed, np.ones(len(predicted)), drawn)
    low, observed, high = (np.array(found[name]) for name in ("band_low", "observed", "band_high"))
    return np.mean((low <= observed) & (observed <= high))


def test_the_band_holds_calibrated_rates_and_not_others():
    predicted = np.sort(np.random.default_rng(4).uniform(0.02, 0.7, 500))
    group = np.arange(500)
    calibrated, raised = (
        np.mean([_band_holds(predicted, rate, group, seed) for seed in range(20)])
        for rate in (predicted, np.minimum(1, 1.6 * predicted))
    )
    assert 0.9 <= calibrated <= 0.985
    assert raised < 0.5


def test_bins_have_equal_mass_keep_ties_and_are_few_for_few_points():
    rng = np.random.default_rng(7)
    assert np.bincount(equal_mass_bins(rng.random(1500), np.ones(1500))).tolist() == [100] * 15
    assert np.bincount(equal_mass_bins(rng.random(100), np.ones(100))).tolist() == [20] * 5
    assert equal_mass_bins(rng.random(19), np.ones(19)).tolist() == [0] * 19
    assert equal_mass_bins(np.full(500, 0.2), np.ones(500)).tolist() == [0] * 500
    tied = rng.random(400).round(1)
    assert all(len(set(equal_mass_bins(tied, np.ones(400))[tied == value])) == 1 for value in tied)


def test_ece_by_hand():
    predicted = np.repeat([0.1, 0.6], 20)
    missed = np.concatenate([np.arange(20) < 4, np.arange(20) < 10])
    assert ece(predicted, missed, np.ones(40)) == pytest.approx((0.1 + 0.1) / 2)
    assert ece(predicted, missed, np.repeat([3.0, 1.0], 20)) == pytest.approx(0.1)
    assert ece(np.array([0.25]), np.array([True]), np.ones(1)) == pytest.approx(0.75)


def test_the_level_is_adjusted_for_what_is_checked_together():
    assert adjusted_level(1) == LEVEL
    assert adjusted_level(6) ** 6 == pytest.approx(LEVEL)
    assert _simulations_for(1) == 2000
    assert (1 - adjusted_level(20)) * _simulations_for(20) >= 19.9
    assert limit(np.arange(1.0, 100.0), 0.95) == 95
    assert limit(np.arange(1.0, 100.0), 0.9999) == 99


def test_simulated_outcomes_have_rates_and_dependence():
    predicted, group = np.array([0.2, 0.5, 0.5, 0.9]), np.array([3, 8, 8, 3])
    drawn = draw(predicted, group, 0.6, 1, 60_000).astype(float)
    assert drawn.mean(axis=0) == pytest.approx(predicted, abs=0.008)
    covariance = np.cov(drawn.T)
    assert covariance[1, 2] == pytest.approx(0.6 * 0.25, abs=0.008)
    assert covariance[0, 3] == pytest.approx(0.6 * (0.2 - 0.18), abs=0.004)
    assert covariance[0, 1] == pytest.approx(0, abs=0.004)


def test_dependence_is_found_again():
    rng = np.random.default_rng(9)
    predicted, group = rng.uniform(0.05, 0.95, 6000), rng.permutation(np.repeat(np.arange(1500), 4))
    for dependence in (0.0, 0.3, 0.8):
        missed = draw(predicted, group, dependence, 5, 1)[0]
        assert _group_dependence(predicted, missed, group) == pytest.approx(dependence, abs=0.06)
    assert _group_dependence(predicted, missed, np.arange(6000)) == 0


def _share_outside(predicted, rate, group, *, dependence, seed, trials):
    """Return the share of data sets whose ECE exceeds the 95th percentile of the null.

    Each outcome is a miss with the probability `rate`.
    """
    weight = np.ones(len(predicted))
    outside = 0
    for at in range(trials):
        missed = draw(rate, group, dependence, seed + at, 1)[0]
        found = _group_dependence(_isotonic_rates(predicted, missed, weight), missed, group)
        null = draw(predicted, group, found, seed + trials + at, 399)
        outside += ece(predicted, missed, weight) > limit(ece(predicted, null, weight), LEVEL)
    return outside / trials


RATES = np.random.default_rng(10).beta(1, 4, 400)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_null_holds_with_estimated_group_dependence():
    for group, dependence in ((np.arange(400), 0.0), (np.arange(400) // 4, 0.6)):
        share = _share_outside(RATES, RATES, group, dependence=dependence, seed=5000, trials=400)
        assert 0.02 <= share <= 0.08  # 0.05 give or take 2.8 standard deviations of 400 trials


@pytest.mark.slow
def test_miscalibrated_predictions_exceed_the_null():
    low, sure = np.minimum(1, 1.6 * RATES), np.clip(RATES * 2.2 - 0.1, 0.005, 0.98)
    # the sure forecaster is over-confident at both ends
    for predicted, rate, seed in ((RATES, low, 2000), (sure, RATES, 3000)):
        group = np.arange(400)
        share = _share_outside(predicted, rate, group, dependence=0.0, seed=seed, trials=100)
        assert share >= 0.95


def test_the_null_needs_the_dependence_of_groups():
    """Groups have ten members, because the error by bins hardly notices groups of four."""
    group = np.arange(400) // 10
    errors, null = (
        ece(RATES, draw(RATES, group, *given), np.ones(400))
        for given in ((0.6, 3, 500), (0.0, 4, 999))
    )
    naive = limit(null, LEVEL)
    assert np.mean(errors > naive) > 0.18


@settings(max_examples=25)
@given(judged(), st.integers(1, 5))
def test_whole_weights_count_like_copies(case, seed):
    predicted, missed, _, group = case
    times = np.random.default_rng(seed).integers(1, 4, len(predicted))
    copied = [np.repeat(part, times) for part in (predicted, missed, group)]
    ones = np.ones(len(copied[0]))
    whole = figures_of(predicted, missed, times.astype(float), group)
    copies = figures_of(copied[0], copied[1], ones, copied[2])
    for name in ("auroc", "brier", "log_loss", "skill", "observed_expected"):
        assert whole[name] == pytest.approx(copies[name], abs=1e-9, nan_ok=True), name


def test_members_of_one_group_widen_the_interval():
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(60), 5)
    missed = np.where(rng.random(300) < 0.8, (rng.random(60) < 0.4)[group], rng.random(300) < 0.4)
    single, grouped = (miss_rate(alone(missed, codes)) for codes in (np.arange(300), group))
    # members correlate at 0.64, so the variance is 1 + 4 * 0.64 times as large
    assert grouped.high - grouped.low == pytest.approx(
        (single.high - single.low) * np.sqrt(3.56), rel=0.15
    )


def test_equal_seeds_give_equal_validations_as_json():
    data, true = labelled(n=120)
    first, second = (
        validate(data, true[None, :], checked_together=1, seed=7).dump() for _ in range(2)
    )
    assert first == second == json.loads(json.dumps(first, allow_nan=False))
    assert set(first["skill"]) == {"value", "low", "high"}
    assert first["reliability"]["predicted"] == sorted(first["reliability"]["predicted"])


def test_calibrated_predictions_exceed_the_null_rarely():
    null, drawn = (
        ece(RATES, draw(RATES, np.arange(400), 0.0, seed, 4000), np.ones(400)) for seed in (3, 4)
    )
    assert np.mean(drawn > limit(null, LEVEL)) == pytest.approx(0.05, abs=0.015)
