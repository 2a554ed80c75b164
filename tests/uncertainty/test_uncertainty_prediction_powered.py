"""Prediction-powered means agree with a formula, and their intervals cover a known truth.

The formula holds for independent queries.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.uncertainty.traffic import _prediction_powered


def queries(n_groups, share, rng, *, knows=1.0, base=-1.0, sized=True):
    """Make outcomes with labels for `share` of the groups.

    Predictions know the share `knows` of the difficulty.
    """
    group = np.repeat(
        np.arange(n_groups), rng.choice([1, 2, 3], n_groups, p=[0.5, 0.3, 0.2]) if sized else 1
    )
    hard = 0.6 * rng.normal(size=n_groups)[group] + 0.8 * rng.normal(size=len(group))
    y = rng.random(len(group)) < 1 / (1 + np.exp(-(base + 2 * hard)))
    seen = knows * hard + (1 - knows**2) ** 0.5 * rng.normal(size=len(group))
    f = 1 / (1 + np.exp(-(base + 2 * knows * seen)))
    order = rng.permutation(n_groups)
    return np.where(order[group] < share * n_groups, y, np.nan), f, group


def test_with_independent_queries_it_is_the_published_estimate():
    y, f, group = queries(400, 0.25, np.random.default_rng(1), sized=False)
    labelled = ~np.isnan(y)
    n, m = labelled.sum(), (~labelled).sum()
    a = (y[labelled] - y[labelled].mean()) / n
    b = (f[labelled] - f[labelled].mean()) / n
    power = (a * b).sum() / (
        (b**2).sum() + ((f[~labelled] - f[~labelled].mean()) ** 2).sum() / m**2
    )
    found = _prediction_powered(y, f, group)
    assert 0 < found.power < 1
    assert found.power == pytest.approx(power)
    assert found.value == pytest.approx(
        y[labelled].mean() + power * (f[~labelled].mean() - f[labelled].mean())
    )
    assert (found.n_labelled, found.n_unlabelled) == (100, 300)
    assert (found.n_groups_labelled, found.n_groups_unlabelled) == (100, 300)
    variance = (
        n / (n - 2) * ((a - power * b) ** 2).sum()
        + power**2 * ((f[~labelled] - f[~labelled].mean()) ** 2).sum() / m**2
    )
    alone = n / (n - 2) * (a**2).sum()
    assert found.extra_labels == pytest.approx(alone / variance - 1)


@given(st.integers(0, 2**31), st.floats(0.02, 0.95), st.floats(-1, 1))
@settings(max_examples=60)
def test_it_is_never_much_wider_than_the_labels_alone(seed, share, knows):
    y, f, group = queries(80, share, np.random.default_rng(seed), knows=knows)
    found = _prediction_powered(y, f, group)
    if found.low is None:
        assert found.n_groups_labelled < 3
        return
    assert found.extra_labels >= 0
    # At another rate, the same number of labels gives a slightly wider or narrower interval.
    assert found.high - found.low <= (found.labels_high - found.labels_low) * 1.15
    assert found.low <= found.value <= found.high


def test_good_predictions_are_worth_labels_and_bad_ones_nothing():
    rng = np.random.default_rng(2)
    good = [_prediction_powered(*queries(500, 0.2, rng)).extra_labels for _ in range(20)]
    none = [_prediction_powered(*queries(500, 0.2, rng, knows=0.0)).extra_labels for _ in range(20)]
    assert np.mean(good) > 0.3
    assert np.mean(none) < 0.05


def test_predictions_against_the_truth_are_not_believed():
    y, f, group = queries(300, 0.3, np.random.default_rng(3))
    found = _prediction_powered(y, 1 - f, group)
    assert (found.power, found.extra_labels) == (0.0, 0.0)
    labels = found.labels_value, found.labels_low, found.labels_high
    assert (found.value, found.low, found.high) == labels


def coverage(sims, n_groups, share, *, knows, base, biased=0.0):
    rng = np.random.default_rng(17)
    draws = rng.normal(size=400_000)
    truth = (1 / (1 + np.exp(-(base + 2 * draws)))).mean()
    found = [
        _prediction_powered(y, np.clip(f + biased, 0, 1), group)
        for y, f, group in (
            queries(n_groups, share, rng, knows=knows, base=base) for _ in range(sims)
        )
    ]
    width = np.mean(
        [(entry.high - entry.low) / (entry.labels_high - entry.labels_low) for entry in found]
    )
    return np.mean([entry.low <= truth <= entry.high for entry in found]), width


def test_intervals_cover_the_truth():
    held, width = coverage(400, 300, 0.3, knows=1.0, base=-0.5)
    assert 0.93 - 0.02 <= held <= 0.97 + 0.01
    assert width < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_groups", "share", "knows", "base", "biased"),
    [
        (400, 0.25, 1.0, -0.5, 0.0),
        (400, 0.25, 0.5, 0.0, 0.2),
        (1200, 0.2, 1.0, -2.0, 0.0),
        (1200, 0.5, 0.7, -1.0, -0.1),
        (200, 0.5, 0.8, 0.5, 0.1),
    ],
)
def test_intervals_cover_93_to_97_per_cent(n_groups, share, knows, base, biased):
    """Simulate each cell of a grid 2,000 times.

    The grid has 100 to 600 labelled groups and miss rates of 0.15 to 0.6. Its predictions know all
    or half of the difficulty, or are biased.
    """
    held, width = coverage(2000, n_groups, share, knows=knows, base=base, biased=biased)
    error = 2 * (0.05 * 0.95 / 2000) ** 0.5
    assert 0.93 - error <= held <= 0.97 + error
    assert width <= 1.0


def test_a_group_with_both_kinds_is_one_group():
    y, f, group = queries(200, 1.0, np.random.default_rng(5))
    y[::3] = np.nan
    found = _prediction_powered(y, f, group)
    assert found.n_labelled + found.n_unlabelled == len(group)
    assert found.n_groups_unlabelled + found.n_groups_labelled == 200
    apart = _prediction_powered(y, f, np.arange(len(group)))
    # Dependent questions of a group carry less information.
    assert found.high - found.low > apart.high - apart.low


def test_labels_without_predictions_are_an_ordinary_mean():
    y, _, group = queries(100, 0.5, np.random.default_rng(6))
    found = _prediction_powered(y, np.full(len(y), np.nan), group)
    assert (found.power, found.extra_labels, found.n_unlabelled) == (0.0, 0.0, 0)
    assert found.value == pytest.approx(np.nanmean(y))


def test_too_few_labels_have_no_interval():
    found = _prediction_powered(np.array([1.0, 0.0, np.nan]), np.full(3, 0.4), np.arange(3))
    assert (found.value, found.low, found.n_labelled) == (0.5, None, 2)
    nothing = _prediction_powered(np.full(2, np.nan), np.full(2, 0.4), np.arange(2))
    assert (nothing.value, nothing.n_unlabelled) == (None, 2)
