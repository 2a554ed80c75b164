import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.measures.paired import holm, paired_comparison, sign_flip_p


def test_sign_flips_approach_the_exact_test():
    sums = np.array([0.3, 0.1, -0.05, 0.4, 0.2, 0.15, -0.1, 0.25])
    exact = np.mean(
        [
            abs(np.dot(signs, sums)) >= abs(sums.sum()) - 1e-12
            for signs in itertools.product((-1, 1), repeat=8)
        ]
    )
    assert sign_flip_p(sums[:, None], seed=3, flips=50_000)[0] == pytest.approx(exact, abs=0.005)


def test_p_is_never_zero_and_one_without_a_difference():
    assert sign_flip_p(np.ones((60, 1)), seed=1, flips=999)[0] == pytest.approx(1 / 1000)
    assert sign_flip_p(np.zeros((60, 1)), seed=1)[0] == 1
    # 0.1 + 0.2 - 0.3 is not 0 in floating point; the flips must still all count
    assert sign_flip_p(np.array([[0.1], [0.2], [-0.3]]), seed=1)[0] == 1


def test_direction_counts_and_delta():
    a, b = (
        np.array([[0.5, 2.0], [1.0, 3.0], [0.2, 1.0], [math.nan, 5.0]]),
        np.array([[0.5, 3.0], [0.5, 2.0], [0.6, 2.0], [0.1, 5.0]]),
    )
    found = paired_comparison(
        a, b, np.arange(4), seed=1, higher_is_better=[True, False], unit_range=[True, False]
    )
    np.testing.assert_allclose(found.delta, [0.1 / 3, -0.25])
    assert found.n_better.tolist() == [1, 2]
    assert found.n_worse.tolist() == [1, 1]
    assert found.n_tied.tolist() == [1, 1]
    assert found.n_groups.tolist() == [3, 4]
    assert ((found.ci_low < found.delta) & (found.delta < found.ci_high)).all()


def test_swapping_the_strategies_mirrors_everything():
    rng = np.random.default_rng(6)
    a, b, groups = rng.random(80), rng.random(80), rng.integers(0, 60, 80)
    one, other = paired_comparison(a, b, groups, seed=4), paired_comparison(b, a, groups, seed=4)
    np.testing.assert_allclose(
        [one.delta, one.ci_low, one.ci_high], [-other.delta, -other.ci_high, -other.ci_low]
    )
    assert one.p == other.p
    assert (one.n_better, one.n_worse) == (other.n_worse, other.n_better)
    assert one.minimum_detectable == pytest.approx(other.minimum_detectable)


def test_equal_strategies_are_not_certain_to_be_equal():
    found = paired_comparison(np.full(50, 0.7), np.full(50, 0.7), np.arange(50), seed=1)
    assert (found.delta[0], found.p[0], found.n_tied[0]) == (0, 1, 50)
    assert found.ci_low[0] == pytest.approx(-2.0096 * 2**0.5 / 52, abs=1e-3)
    assert found.ci_high[0] == pytest.approx(2.0096 * 2**0.5 / 52, abs=1e-3)
    assert math.isnan(found.minimum_detectable[0])


def test_nothing_scored_by_both_is_nan_and_one_group_has_no_interval():
    nothing = paired_comparison([math.nan, 1.0], [1.0, math.nan], [0, 1], seed=1)
    assert all(
        math.isnan(part[0])
        for part in (nothing.delta, nothing.ci_low, nothing.p, nothing.minimum_detectable)
    )
    assert (nothing.n_better[0], nothing.n_groups[0]) == (0, 0)
    single = paired_comparison([1.0, 1.0], [0.0, 0.5], [3, 3], seed=1)
    assert (single.delta[0], single.n_groups[0], single.p[0]) == (0.75, 1, 1)
    assert math.isnan(single.ci_low[0])


def test_queries_of_a_group_flip_together():
    """Sixty queries in three groups give no p under 2 / 8."""
    found = paired_comparison(
        np.ones(60), np.linspace(0, 0.5, 60), np.repeat([0, 1, 2], 20), seed=1
    )
    assert found.p[0] == pytest.approx(0.25, abs=0.02)
    assert (
        paired_comparison(np.ones(60), np.linspace(0, 0.5, 60), np.arange(60), seed=1).p[0] < 0.001
    )


@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), max_size=12))
@settings(deadline=None)
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


def test_holm_keeps_the_shape():
    assert holm([[0.01, 0.04], [0.03, math.nan]]).shape == (2, 2)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="the same queries"):
        paired_comparison([1.0], [1.0, 2.0], [0], seed=1)
