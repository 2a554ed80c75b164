"""Scores of predicted miss probabilities agree with scikit-learn, references and closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from rag_eval.uncertainty.scores import (
    CLIP,
    Labelled,
    _logit,
    auroc,
    base_rate_losses,
    brier,
    grouped_folds,
    log_losses,
    miss_rate,
    observed_expected,
    recalibration,
    weighted_mean,
)
from rag_eval.uncertainty.validation import _figure_intervals


def log_loss(predicted, missed, weight):
    return weighted_mean(log_losses(predicted, missed), weight)


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


@given(judged())
def test_auroc_brier_and_log_loss_agree_with_sklearn(case):
    predicted, missed, weight, _ = case
    assert auroc(predicted, missed, weight) == pytest.approx(
        roc_auc_score(missed, predicted, sample_weight=weight), abs=1e-12
    )
    assert brier(predicted, missed, weight) == pytest.approx(
        brier_score_loss(missed, predicted, sample_weight=weight), abs=1e-12
    )
    held = np.clip(predicted, CLIP, 1 - CLIP)
    assert log_loss(predicted, missed, weight) == pytest.approx(
        sklearn_log_loss(missed, held, sample_weight=weight), abs=1e-9
    )


@given(judged(), st.integers(1, 5))
def test_whole_weights_count_like_copies_and_zero_leaves_out(case, seed):
    predicted, missed, _, group = case
    times = np.random.default_rng(seed).integers(0, 4, len(predicted))
    times[:2] = 1
    copied = [np.repeat(part, times) for part in (predicted, missed, group)]
    ones = np.ones(len(copied[0]))
    weight = times.astype(float)
    for score in (auroc, brier, log_loss, observed_expected):
        assert score(predicted, missed, weight) == pytest.approx(
            score(copied[0], copied[1], ones), abs=1e-12
        )
    # a group that is left out has no loss to weigh
    assert np.repeat(base_rate_losses(missed, group, weight), times) == pytest.approx(
        base_rate_losses(copied[1], copied[2], ones), abs=1e-9, nan_ok=True
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
    found = recalibration(predicted, missed, weight)
    assert found.slope == pytest.approx(fitted.coef_[0, 0], abs=1e-4)
    assert found.intercept == pytest.approx(fitted.intercept_[0], abs=1e-4)


@pytest.mark.parametrize(
    ("predicted", "missed"),
    [
        ([0.1, 0.2, 0.8, 0.9], [False, False, True, True]),  # misses and hits do not overlap
        ([0.3, 0.3, 0.3, 0.3], [False, True, True, False]),  # the data give no slope
        ([0.1, 0.2, 0.8, 0.9], [False, False, False, False]),
    ],
)
def test_recalibration_is_absent_where_it_is_not_identified(predicted, missed):
    found = recalibration(np.array(predicted), np.array(missed), np.ones(4))
    assert np.isnan(found.slope)
    assert np.isnan(found.intercept)


def judged_alone(missed, group):
    n = len(missed)
    return Labelled(("x",), np.zeros((n, 1)), missed, group, np.ones(n), np.arange(n))


def test_members_of_one_group_widen_the_interval():
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(60), 5)
    missed = np.where(rng.random(300) < 0.8, (rng.random(60) < 0.4)[group], rng.random(300) < 0.4)
    alone, grouped = (miss_rate(judged_alone(missed, codes)) for codes in (np.arange(300), group))
    # members correlate at 0.64, so the variance is 1 + 4 * 0.64 times as large
    assert grouped.high - grouped.low == pytest.approx(
        (alone.high - alone.low) * np.sqrt(3.56), rel=0.15
    )


def test_influences_are_the_derivatives_by_the_weights():
    rng = np.random.default_rng(4)
    predicted, missed = rng.random(40).round(1), rng.random(40) < 0.4
    weight, step = rng.choice([1.0, 2.0], 40), 1e-6
    line = recalibration(predicted, missed, weight)
    for row in (0, 7, 31):
        more = weight + step * (np.arange(40) == row)
        changed = recalibration(predicted, missed, more)
        slopes = (changed.slope - line.slope) / step * weight[row]
        assert line.influence[row, 1] == pytest.approx(slopes, rel=1e-2, abs=1e-3)


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
        found = miss_rate(judged_alone(missed, group))
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
        data = judged_alone(missed, group)
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
    fold = grouped_folds(group, n_folds, np.random.default_rng(seed))
    for code in np.unique(group):
        assert len(np.unique(fold[group == code])) == 1
    assert sorted(np.unique(fold)) == list(range(min(n_folds, len(np.unique(group)))))
    sizes = np.bincount(fold, minlength=n_folds)
    # The largest fold got its last group while it was the smallest fold.
    assert sizes.max() - sizes.min() <= np.bincount(group).max()
