"""Intervals of means and records: by definition, and whether they hold a known truth."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from rag_eval.measures.intervals import (
    aggregate,
    bootstrap_quantiles,
    clustered_interval,
    group_totals,
    resample_weights,
    wilson,
    within_query,
)


def test_same_seed_same_bytes_and_measures_do_not_disturb_each_other():
    values = np.random.default_rng(3).random((150, 3))
    values[5, 1] = math.nan
    groups = np.arange(150)
    first, again, other = (clustered_interval(values, groups, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_allclose(first.value, np.nanmean(values, axis=0))
    assert ((first.low < first.value) & (first.value < first.high)).all()
    assert np.stack(first).tobytes() == np.stack(again).tobytes()
    assert not np.array_equal(first.low, other.low)
    for column in range(3):
        alone = clustered_interval(values[:, column], groups, seed=1)
        bounds = [first.low[column], first.high[column]]
        np.testing.assert_allclose([alone.low[0], alone.high[0]], bounds, rtol=1e-12)


def test_bootstrap_equals_resampling_one_group_at_a_time(monkeypatch):
    rng = np.random.default_rng(8)
    values, groups = rng.normal(size=(40, 3)), np.repeat(np.arange(20), 2)
    weights = np.concatenate(list(resample_weights(20, 5, 500)))
    assert (weights.sum(axis=1) == 20).all()
    slow = [
        np.concatenate(
            [np.tile(values[groups == g], (int(times), 1)) for g, times in enumerate(row)]
        ).mean(axis=0)
        for row in weights
    ]
    expected = np.quantile(slow, (0.025, 0.975), axis=0)
    totals = group_totals(values, groups)
    found = bootstrap_quantiles(totals.sums, totals.counts, 5, 500, (0.025, 0.975))
    np.testing.assert_allclose(found, expected)
    monkeypatch.setattr("rag_eval.measures.intervals._CELLS", 900)  # blocks of few resamples
    assert sum(len(block) for block in resample_weights(20, 5, 500)) == 500
    assert bootstrap_quantiles(totals.sums, totals.counts, 5, 500, (0.1, 0.9)).shape == (2, 3)


def test_queries_of_one_group_count_as_one():
    values = np.random.default_rng(2).random((120, 2))
    once = clustered_interval(values, np.arange(120), seed=1)
    copies = np.repeat(values, 10, axis=0), np.repeat(np.arange(120), 10)
    np.testing.assert_allclose(np.stack(once), np.stack(clustered_interval(*copies, seed=1)))
    alone = group_totals(values, np.arange(120))
    np.testing.assert_allclose(alone.variance, values.var(axis=0, ddof=1) / 120)
    np.testing.assert_allclose(group_totals(*copies).variance, alone.variance)


@pytest.mark.parametrize(("n", "low"), [(10, 0.722), (50, 0.929), (300, 0.987)])
def test_an_interval_is_wide_enough_where_nothing_varies(n, low):
    found = clustered_interval(np.ones(n), np.arange(n), seed=1)
    assert (found.low[0], found.high[0]) == (pytest.approx(low, abs=5e-4), 1)
    mirrored = clustered_interval(np.zeros(n), np.arange(n), seed=1)
    assert (mirrored.low[0], mirrored.high[0]) == (0, pytest.approx(1 - low, abs=5e-4))
    grouped = clustered_interval(np.ones(5 * n), np.repeat(np.arange(n), 5), seed=1)
    assert grouped.low[0] == pytest.approx(low, abs=5e-4)


def test_wilson_equals_its_definition():
    """Each bound lies z of its own standard deviations away from the observed rate."""
    z, value, n = float(norm.ppf(0.975)), np.array([0.1, 0.5, 0.97]), np.array([20.0, 50.5, 300.0])
    for bound in wilson(value, n, z):
        deviations = np.abs(value - bound) / np.sqrt(bound * (1 - bound) / n)
        np.testing.assert_allclose(deviations, z, rtol=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 30))
@settings(max_examples=100)
def test_bounds_are_ordered_and_inside_the_unit_range(values, n_groups):
    found = clustered_interval(values, np.arange(len(values)) % n_groups, seed=1, resamples=50)
    if min(n_groups, len(values)) > 1:
        assert 0 <= found.low[0] <= found.value[0] + 1e-12
        assert found.value[0] <= found.high[0] + 1e-12 <= 1 + 1e-12
    else:
        assert math.isnan(found.low[0])


def test_measures_without_a_boundary_may_leave_the_unit_range():
    values = np.column_stack([np.linspace(100, 300, 40), np.linspace(0, 1, 40)])
    found = clustered_interval(values, np.arange(40), seed=1, unit_range=[False, True])
    assert 150 < found.low[0] < 200 < found.high[0] < 250
    with pytest.raises(ValueError, match="outside"):
        clustered_interval(values, np.arange(40), seed=1)
    with pytest.raises(ValueError, match="groups 3"):
        clustered_interval([1, 0], [0, 1, 2], seed=1)


# records


def test_failed_scores_zero_and_empty_gold_is_left_out():
    values = [[1.0, 0.5], [0.9, 0.9], [math.nan, math.nan], [0.5, 0.1]]
    failed, ineligible = [False, True, True, False], [False, False, True, False]
    recall, judged = aggregate(
        ["R@10", "Judged@10"], values, np.arange(4), 1, failed=failed, ineligible=ineligible
    )
    counts = (recall.n_attempted, recall.n_scored, recall.n_failed, recall.n_ineligible)
    assert (recall.label, *counts) == ("R@10", 4, 3, 1, 1)
    assert recall.value == pytest.approx(1.5 / 3)
    assert recall.judged_at_k == pytest.approx(0.6 / 3)
    assert math.isnan(judged.judged_at_k)
    assert recall.ci_low < recall.value < recall.ci_high


def test_a_failed_distance_is_as_bad_as_can_be():
    (record,) = aggregate(
        ["delta_s"], [0.2, math.nan], [0, 1], seed=1, failed=[False, True], failed_value=1.0
    )
    assert (record.value, record.n_scored, record.n_failed) == (0.6, 2, 1)


def test_runs_are_averaged_inside_the_query_first():
    values, query_of = [1.0, 1.0, 1.0, 0.0, math.nan, 1.0], [0, 0, 0, 1, 1, 1]
    (record,) = aggregate(["R@5"], values, [0, 1], seed=1, query_of=query_of)
    assert record.value == pytest.approx(0.75)
    failed = [False, False, True, False, False, False]
    (record,) = aggregate(["R@5"], values, [0, 1], seed=1, query_of=query_of, failed=failed)
    assert record.value == pytest.approx((2 / 3 + 0.5) / 2)
    assert (record.n_failed, record.n_scored) == (1, 2)
    np.testing.assert_array_equal(
        within_query([[1.0], [math.nan], [0.0]], [0, 1, 0], 3), [[0.5], [math.nan], [math.nan]]
    )


def test_nothing_scored_is_nan_with_its_denominators():
    (record,) = aggregate(["R@5"], [math.nan, math.nan], [0, 1], seed=1)
    shown = (record.value, record.ci_low, record.ci_high, record.judged_at_k)
    assert all(map(math.isnan, shown))
    assert (record.n_attempted, record.n_scored, record.n_ineligible) == (2, 0, 2)
    (empty,) = aggregate(["R@5"], np.empty((0, 1)), np.empty(0, dtype=int), seed=1)
    assert (empty.n_attempted, empty.n_scored) == (0, 0)


def test_eligibility_may_differ_by_measure():
    mask = [[False, True], [False, False], [False, False]]
    one, two = aggregate(
        ["R@5", "RR"], [[1.0, 1.0], [0.0, 0.5]], [0, 1, 2], 1, query_of=[0, 1], ineligible=mask
    )
    assert (one.n_scored, one.n_ineligible, one.value) == (2, 1, 0.5)
    assert (two.n_scored, two.n_ineligible, two.value) == (1, 2, 0.5)
    # Dagster metadata and JSON refuse numpy scalars
    assert {type(part) for part in dataclasses.astuple(one)} == {str, float, int}
    assert json.loads(json.dumps(dataclasses.asdict(one)))["n_scored"] == 2


# Coverage on simulated gold sets. The hit rate of a query follows a beta distribution.
# The query has six runs (3 wordings x 2 seeds), which hit with that rate.
# `icc` is the correlation of two runs of a query.

RUNS = 6


def gold_sets(n, icc, p, sets):
    """Make hit rates of n queries (rows) in `sets` gold sets (columns).

    One set of resamples serves all columns.
    """
    rng = np.random.default_rng([7, n, int(icc * 10), int(p * 100)])
    strength = (1 - icc) / icc
    return rng.binomial(RUNS, rng.beta(p * strength, (1 - p) * strength, size=(n, sets))) / RUNS


def coverage(n, icc, p, sets, resamples):
    values = gold_sets(n, icc, p, sets)
    found = clustered_interval(values, np.arange(n), seed=11, resamples=resamples)
    return float(((found.low <= p) & (p <= found.high)).mean())


@pytest.mark.parametrize(("n", "icc", "p"), [(50, 0.8, 0.98), (50, 0.3, 0.9), (108, 0.8, 0.8)])
def test_intervals_cover_the_truth(n, icc, p):
    assert 0.93 <= coverage(n, icc, p, 2000, 1000) <= (0.97 if p <= 0.9 else 0.99)


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 108, 300])
@pytest.mark.parametrize("icc", [0.3, 0.8])
@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.8, 0.9, 0.95, 0.98])
def test_intervals_cover_the_truth_over_the_grid(n, icc, p):
    """The Monte Carlo error of a coverage of 0.95 is 0.0034 with 4,000 gold sets."""
    share = coverage(n, icc, p, 4000, 10_000)
    assert 0.93 <= share <= (0.97 if 0.1 <= p <= 0.9 else 0.99)


def test_six_groups_cover_the_truth():
    """The unstretched percentile interval covers the true mean in 84 % of these draws."""
    values = np.random.default_rng(7).normal(size=(6, 600))
    found = clustered_interval(values, np.arange(6), seed=3, resamples=2000, unit_range=False)
    assert np.mean((found.low < 0) & (found.high > 0)) > 0.92


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.5, 0.9, 0.95])
def test_groups_of_several_queries_keep_the_coverage(p):
    """Each of the 108 groups has 1 to 4 queries with a common hit rate."""
    rng = np.random.default_rng(9)
    groups = np.repeat(np.arange(108), np.tile([1, 1, 2, 4], 27))
    rates = rng.beta(p * 0.5, (1 - p) * 0.5, size=(108, 3000))[groups]
    values = rng.binomial(RUNS, rates) / RUNS
    found = clustered_interval(values, groups, seed=3, resamples=2000)
    share = ((found.low <= p) & (p <= found.high)).mean()
    assert 0.925 <= share <= 0.985
    alone = clustered_interval(values, np.arange(len(groups)), seed=3, resamples=2000)
    assert ((alone.low <= p) & (p <= alone.high)).mean() < share - 0.05
