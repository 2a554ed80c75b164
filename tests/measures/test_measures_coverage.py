"""Whether 95 % intervals hold the truth 95 % of the time, on simulated gold sets whose truth is known.

A query's hit rate is drawn from a beta distribution, its 3 wordings x 2 seeds are drawn from that rate: beta-binomial, with mean p and
correlation `icc` between any two runs of the query. At icc 0.3 a query's six runs are worth 6 / (1 + 5 * 0.3) = 2.4 independent ones,
at 0.8 they are worth 1.2. Every simulated gold set is one column, so that one set of resamples serves all.
"""

import json

import numpy as np
import pytest

from rag_eval.measures.intervals import clustered_interval
from rag_eval.measures.paired import paired_comparison

RUNS = 6
GRID = [
    (n, icc, p) for n in (50, 108, 300) for icc in (0.3, 0.8) for p in (0.5, 0.8, 0.9, 0.95, 0.98)
]


def gold_sets(n, icc, p, sets, seed=7):
    rng = np.random.default_rng([seed, n, int(icc * 10), int(p * 100)])
    strength = (1 - icc) / icc
    return rng.binomial(RUNS, rng.beta(p * strength, (1 - p) * strength, size=(n, sets))) / RUNS


def coverage(n, icc, p, sets, resamples=10_000):
    found = clustered_interval(
        gold_sets(n, icc, p, sets), np.arange(n), seed=11, resamples=resamples
    )
    return float(((found.low <= p) & (p <= found.high)).mean())


def held(p, share, slack):
    return 0.93 - slack <= share <= (0.97 if p <= 0.9 else 0.99) + slack


@pytest.mark.parametrize(("n", "icc", "p"), [(50, 0.8, 0.98), (50, 0.3, 0.9), (108, 0.8, 0.8)])
def test_coverage_in_brief(n, icc, p):
    assert held(p, coverage(n, icc, p, sets=2000, resamples=1000), slack=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "icc", "p"), GRID)
def test_coverage_over_the_grid(n, icc, p):
    """4,000 gold sets: the Monte Carlo error of a coverage of 0.95 is 0.0034."""
    share = coverage(n, icc, p, sets=4000)
    print(json.dumps({"n": n, "icc": icc, "p": p, "coverage": round(share, 4)}))  # noqa: T201 - the table is read with pytest -s
    assert held(p, share, slack=0.0)
    low = coverage(n, icc, round(1 - p, 2), sets=1000, resamples=2000)
    assert held(p, low, slack=0.01), "the lower boundary is as safe as the upper"


@pytest.mark.parametrize(("icc", "worth"), [(0.3, 2.4), (0.8, 1.2)])
def test_runs_as_if_independent_cover_far_too_little(icc, worth):
    """The mistake this design avoids: six runs of a query taken as six observations."""
    n, p = 108, 0.8
    values = gold_sets(n, icc, p, 4000)
    mean = values.mean(axis=0)
    half = 1.96 * np.sqrt(mean * (1 - mean) / (RUNS * n))
    share = float((np.abs(mean - p) <= half).mean())
    assert share < 0.85
    assert mean.var() / (p * (1 - p) / n) == pytest.approx(1 / worth, rel=0.1), (
        "the generator has the correlation it says"
    )


@pytest.mark.slow
def test_runs_as_if_independent_through_the_same_function():
    """Naming every run its own group, with the correlated runs of each query passed one by one, loses the coverage too."""
    rng = np.random.default_rng(5)
    n, p, icc = 108, 0.8, 0.8
    strength = (1 - icc) / icc
    rates = rng.beta(p * strength, (1 - p) * strength, size=(n, 1, 2000))
    runs = (rng.random((n, RUNS, 2000)) < rates).astype(float).reshape(n * RUNS, 2000)
    wrong = clustered_interval(runs, np.arange(n * RUNS), seed=1, resamples=2000)
    right = clustered_interval(runs, np.repeat(np.arange(n), RUNS), seed=1, resamples=2000)
    assert ((wrong.low <= p) & (p <= wrong.high)).mean() < 0.85
    assert 0.93 <= ((right.low <= p) & (p <= right.high)).mean() <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.5, 0.9, 0.95])
def test_groups_of_several_queries_keep_the_coverage(p):
    """108 groups of 1 to 4 queries that share most of their luck."""
    rng = np.random.default_rng(9)
    size = np.tile([1, 1, 2, 4], 27)
    groups = np.repeat(np.arange(108), size)
    rates = rng.beta(p * 0.5, (1 - p) * 0.5, size=(108, 3000))[groups]
    found = clustered_interval(rng.binomial(RUNS, rates) / RUNS, groups, seed=3, resamples=2000)
    share = ((found.low <= p) & (p <= found.high)).mean()
    assert 0.925 <= share <= 0.985
    alone = clustered_interval(
        rng.binomial(RUNS, rates) / RUNS, np.arange(len(groups)), seed=3, resamples=2000
    )
    assert ((alone.low <= p) & (p <= alone.high)).mean() < share - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 20, 30])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.9])
def test_few_groups_are_never_far_too_narrow(n, p):
    for icc in (0.3, 0.8):
        assert coverage(n, icc, p, sets=3000) >= 0.925


@pytest.mark.parametrize("n", [50, 300])
def test_paired_interval_and_test_keep_their_level(n):
    """Two strategies of equal quality on the same questions: the interval holds 0 and the test rejects 5 % of the time."""
    rng = np.random.default_rng(21)
    rate = rng.beta(1.6, 0.4, size=(n, 2000))
    a, b = (
        rng.binomial(RUNS, np.clip(rate + rng.normal(0, 0.1, rate.shape), 0, 1)) / RUNS
        for _ in range(2)
    )
    found = paired_comparison(a, b, np.arange(n), seed=2, flips=1000, resamples=1000)
    assert 0.93 <= ((found.ci_low <= 0) & (found.ci_high >= 0)).mean() <= 0.97
    assert 0.035 <= (found.p <= 0.05).mean() <= 0.065


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 108, 300])
@pytest.mark.parametrize("rate", [0.01, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("won", [0.5, 0.75, 1.0])
def test_strategies_that_differ_on_few_queries(n, rate, won):
    """The bootstrap alone covers 86 % here. Equal strategies (won = 0.5) are not told apart more often than 1 time in 20."""
    rng = np.random.default_rng(31)
    size = (n, 3000)
    difference = (
        (rng.random(size) < rate)
        * np.where(rng.random(size) < won, 1.0, -1.0)
        * rng.integers(1, RUNS + 1, size=size)
        / RUNS
    )
    truth = rate * (2 * won - 1) * (RUNS + 1) / 2 / RUNS
    found = paired_comparison(
        difference, np.zeros(size), np.arange(n), seed=2, flips=500, resamples=1000
    )
    assert ((found.ci_low <= truth) & (truth <= found.ci_high)).mean() >= 0.92
    if won == 0.5:
        assert (found.p <= 0.05).mean() <= 0.06


def test_minimum_detectable_difference_is_detected_four_times_in_five():
    rng = np.random.default_rng(22)
    n, shift, sd = (
        100,
        0.28,
        1.0,
    )  # (1.98 + 0.85) / sqrt(100) = 0.283 for differences of standard deviation 1
    difference = rng.normal(shift, sd, size=(n, 2000))
    found = paired_comparison(
        difference,
        np.zeros_like(difference),
        np.arange(n),
        seed=2,
        flips=500,
        resamples=50,
        unit_range=False,
    )
    assert np.median(found.minimum_detectable) == pytest.approx(shift, abs=0.01)
    assert (found.p <= 0.05).mean() == pytest.approx(0.8, abs=0.04)
