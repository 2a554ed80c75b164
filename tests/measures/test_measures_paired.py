"""Paired comparisons: by definition, and whether test and interval keep their level."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.measures.intervals import holm, paired_comparison
from rag_eval.measures.overlap import SharedGold


def apart(n):
    """Return the gold of n questions that share no document."""
    return SharedGold.of_groups(np.arange(n))


def test_direction_counts_and_delta():
    a = np.array([[0.5, 2.0], [1.0, 3.0], [0.2, 1.0], [math.nan, 5.0]])
    b = np.array([[0.5, 3.0], [0.5, 2.0], [0.6, 2.0], [0.1, 5.0]])
    found = paired_comparison(
        a, b, apart(4), higher_is_better=[True, False], unit_range=[True, False]
    )
    np.testing.assert_allclose(found.delta, [0.1 / 3, -0.25])
    counts = (found.n_better, found.n_worse, found.n_tied)
    assert [part.tolist() for part in counts] == [[1, 2], [1, 1], [1, 1]]
    np.testing.assert_allclose(found.n_effective, [3, 4])
    assert ((found.ci_low < found.delta) & (found.delta < found.ci_high)).all()


def test_equal_strategies_are_not_certain_to_be_equal():
    found = paired_comparison(np.full(50, 0.7), np.full(50, 0.7), apart(50))
    assert (found.delta[0], found.p[0], found.n_tied[0]) == (0, 1, 50)
    half = 2.0096 * 2**0.5 / 50  # t[0.975] with 49 degrees of freedom, two pseudo-questions
    assert (found.ci_low[0], found.ci_high[0]) == pytest.approx((-half, half), abs=1e-3)
    assert found.minimum_detectable[0] == pytest.approx(half + 0.8416 * 2**0.5 / 50, abs=1e-3)


def test_no_common_query_is_nan_and_one_has_no_interval():
    nothing = paired_comparison([math.nan, 1.0], [1.0, math.nan], apart(2))
    figures = (nothing.delta, nothing.ci_low, nothing.p, nothing.minimum_detectable)
    assert all(math.isnan(part[0]) for part in figures)
    assert (nothing.n_better[0], nothing.n_effective[0]) == (0, 0)
    single = paired_comparison([1.0, math.nan], [0.0, 0.5], apart(2))
    assert (single.delta[0], single.n_effective[0]) == (1, pytest.approx(1))
    assert math.isnan(single.ci_low[0])
    assert math.isnan(single.p[0])
    with pytest.raises(ValueError, match="the same queries"):
        paired_comparison([1.0], [1.0, 2.0], apart(1))


def test_a_difference_of_rates_has_bounds_of_rates():
    three = paired_comparison([1.0, 1.0, 0.0], [0.0, 0.0, 0.0], apart(3))
    assert three.ci_high[0] == 1
    of_any = paired_comparison([1.0, 1.0, 0.0], [0.0, 0.0, 0.0], apart(3), unit_range=False)
    assert of_any.ci_high[0] > 1


def test_questions_with_the_same_gold_prove_less():
    rng = np.random.default_rng(6)
    a, b = np.repeat(rng.random(6), 10), np.full(60, 0.2)
    together = SharedGold.of_groups(np.repeat(np.arange(6), 10))
    assert paired_comparison(a, b, apart(60)).p[0] < 1e-6
    assert paired_comparison(a, b, together).p[0] > 1e-4


def test_p_of_clear_and_of_no_differences_stays_a_probability():
    rng = np.random.default_rng(3)
    noise = rng.uniform(-0.5, 0.5, 400)
    gains = np.column_stack([0.5 + noise, noise - noise.mean()])
    p = paired_comparison(gains, np.zeros((400, 2)), apart(400)).p
    assert 0 < p[0] < 1e-100
    assert p[1] <= 1


@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=12))
def test_holm_equals_its_definition(p):
    adjusted = holm(p)
    tested = sorted(value for value in p if not math.isnan(value))
    for value, ours in zip(p, adjusted, strict=True):
        if math.isnan(value):
            assert math.isnan(ours)
        else:
            steps = [
                min(1, (len(tested) - i) * smaller)
                for i, smaller in enumerate(tested)
                if smaller <= value
            ]
            assert ours == pytest.approx(max(steps))


RUNS = 6


@pytest.mark.parametrize("n", [50, 300])
def test_interval_and_test_keep_their_level(n):
    """Two equally good strategies are compared on 2,000 simulated gold sets."""
    rng = np.random.default_rng(21)
    rate = rng.beta(1.6, 0.4, size=(n, 2000))
    a, b = (
        rng.binomial(RUNS, np.clip(rate + rng.normal(0, 0.1, rate.shape), 0, 1)) / RUNS
        for _ in range(2)
    )
    found = paired_comparison(a, b, apart(n))
    assert 0.93 <= ((found.ci_low <= 0) & (found.ci_high >= 0)).mean() <= 0.97
    assert 0.035 <= (found.p <= 0.05).mean() <= 0.065


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 108, 300])
@pytest.mark.parametrize("rate", [0.01, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("won", [0.5, 0.75, 1.0])
def test_strategies_that_differ_on_few_queries(n, rate, won):
    rng = np.random.default_rng(31)
    size = (n, 3000)
    signs = (rng.random(size) < rate) * np.where(rng.random(size) < won, 1.0, -1.0)
    difference = signs * rng.integers(1, RUNS + 1, size=size) / RUNS
    truth = rate * (2 * won - 1) * (RUNS + 1) / 2 / RUNS
    found = paired_comparison(difference, np.zeros(size), apart(n))
    assert ((found.ci_low <= truth) & (truth <= found.ci_high)).mean() >= 0.92
    if won == 0.5:  # equal strategies are told apart in at most 1 of 20 gold sets
        assert (found.p <= 0.05).mean() <= 0.06


def test_the_minimum_detectable_difference_has_a_power_of_four_fifths():
    # (1.98 + 0.85) / sqrt(100) = 0.283 for differences of standard deviation 1
    n, shift = 100, 0.28
    difference = np.random.default_rng(22).normal(shift, 1.0, size=(n, 2000))
    zero = np.zeros_like(difference)
    found = paired_comparison(difference, zero, apart(n), unit_range=False)
    assert np.median(found.minimum_detectable) == pytest.approx(shift, abs=0.01)
    assert (found.p <= 0.05).mean() == pytest.approx(0.8, abs=0.04)
