import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from rag_eval.measures.bootstrap import bootstrap_quantiles, resample_weights
from rag_eval.measures.intervals import clustered_interval, group_totals, wilson


def test_value_is_the_mean_over_queries_and_lies_inside():
    rng = np.random.default_rng(3)
    values, groups = rng.random((150, 4)), rng.integers(0, 120, 150)
    values[rng.random(values.shape) < 0.1] = math.nan
    found = clustered_interval(values, groups, seed=1)
    np.testing.assert_allclose(found.value, np.nanmean(values, axis=0))
    assert ((found.low < found.value) & (found.value < found.high)).all()


def test_same_seed_same_bytes_and_measures_do_not_disturb_each_other():
    values = np.random.default_rng(3).random((150, 3))
    values[5, 1] = math.nan
    groups = np.arange(150)
    first, again, other = (clustered_interval(values, groups, seed=seed) for seed in (1, 1, 2))
    assert np.stack(first).tobytes() == np.stack(again).tobytes()
    assert not np.array_equal(first.low, other.low)
    for column in range(3):
        alone = clustered_interval(values[:, column], groups, seed=1)
        np.testing.assert_allclose(
            [alone.low[0], alone.high[0]], [first.low[column], first.high[column]], rtol=1e-12
        )


def test_bootstrap_equals_resampling_one_group_at_a_time():
    rng = np.random.default_rng(8)
    values, groups = rng.normal(size=40), np.repeat(np.arange(20), 2)
    totals = group_totals(values[:, None], groups)
    quantiles = bootstrap_quantiles(totals.sums, totals.counts, 5, 500, (0.025, 0.975))
    weights = np.concatenate(list(resample_weights(20, 5, 500)))
    assert (weights.sum(axis=1) == 20).all()
    slow = [
        np.concatenate(
            [np.tile(values[groups == g], int(times)) for g, times in enumerate(row)]
        ).mean()
        for row in weights
    ]
    np.testing.assert_allclose(quantiles[:, 0], np.quantile(slow, [0.025, 0.975]))


def test_blocks_hold_every_resample_and_every_measure(monkeypatch):
    sums = np.random.default_rng(8).random((10, 7))
    monkeypatch.setattr("rag_eval.measures.bootstrap._CELLS", 300)
    assert sum(len(block) for block in resample_weights(10, 1, 100)) == 100
    quantiles = bootstrap_quantiles(sums, np.ones(10), 1, 100, (0.1, 0.9))
    expected = np.quantile(
        np.concatenate(list(resample_weights(10, 1, 100))) @ sums / 10, (0.1, 0.9), axis=0
    )
    np.testing.assert_allclose(quantiles, expected)


def test_queries_of_one_group_count_as_one():
    """Ten copies of each query in its own group say no more than the query itself."""
    values = np.random.default_rng(2).random(120)
    once = clustered_interval(values, np.arange(120), seed=1)
    copied = clustered_interval(np.repeat(values, 10), np.repeat(np.arange(120), 10), seed=1)
    np.testing.assert_allclose(np.stack(once), np.stack(copied), rtol=1e-9)


def test_wide_enough_where_nothing_varies():
    for n, low in ((10, 0.722), (50, 0.929), (300, 0.987)):
        found = clustered_interval(np.ones(n), np.arange(n), seed=1)
        assert found.high[0] == 1
        assert found.low[0] == pytest.approx(low, abs=5e-4)
        mirrored = clustered_interval(np.zeros(n), np.arange(n), seed=1)
        assert (mirrored.low[0], mirrored.high[0]) == (0, pytest.approx(1 - low, abs=5e-4))
    grouped = clustered_interval(np.ones(50), np.repeat(np.arange(10), 5), seed=1)
    assert grouped.low[0] == pytest.approx(0.722, abs=5e-4)


def test_wilson_equals_its_definition():
    """The bounds are the rates at which the observed one is z standard deviations away."""
    z, value, n = float(norm.ppf(0.975)), np.array([0.1, 0.5, 0.97]), np.array([20.0, 50.5, 300.0])
    for bound in wilson(value, n, z):
        np.testing.assert_allclose(
            np.abs(value - bound) / np.sqrt(bound * (1 - bound) / n), z, rtol=1e-9
        )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_bounds_are_ordered_and_inside_the_unit_range(values, n_groups):
    found = clustered_interval(values, np.arange(len(values)) % n_groups, seed=1, resamples=50)
    if min(n_groups, len(values)) > 1:
        assert 0 <= found.low[0] <= found.value[0] + 1e-12
        assert found.value[0] <= found.high[0] + 1e-12 <= 1 + 1e-12
    else:
        assert math.isnan(found.low[0])


def test_nothing_scored_is_nan():
    found = clustered_interval([[math.nan, 0.5], [math.nan, 0.7]], [0, 1], seed=1)
    assert math.isnan(found.value[0])
    assert math.isnan(found.low[0])
    assert found.value[1] == pytest.approx(0.6)
    assert clustered_interval(np.empty((0, 2)), np.empty(0, dtype=int), seed=1).value.shape == (2,)


def test_measures_without_a_boundary_may_leave_the_unit_range():
    values = np.column_stack([np.linspace(100, 300, 40), np.linspace(0, 1, 40)])
    found = clustered_interval(values, np.arange(40), seed=1, unit_range=[False, True])
    assert 150 < found.low[0] < 200 < found.high[0] < 250
    with pytest.raises(ValueError, match="outside"):
        clustered_interval(values, np.arange(40), seed=1)
    with pytest.raises(ValueError, match="groups 3"):
        clustered_interval([1, 0], [0, 1, 2], seed=1)
