"""CORP, smooth and binned calibration error: identities, slow references, and what chance gives calibrated predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.optimize import brentq
from sklearn.isotonic import IsotonicRegression

from rag_eval.uncertainty.calibrated_null import calibrated_outcomes, group_dependence
from rag_eval.uncertainty.corp import corp, isotonic
from rag_eval.uncertainty.ece import (
    LEVEL,
    adjusted_level,
    ece,
    equal_mass_bins,
    limit,
    simulations_for,
)
from rag_eval.uncertainty.scores import brier
from rag_eval.uncertainty.smece import smooth_ece


@st.composite
def judged(draw):
    n = draw(st.integers(1, 80))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    predicted = rng.random(n).round(draw(st.integers(0, 6)))
    return predicted, rng.random(n) < draw(st.floats(0, 1)), rng.choice([1.0, 1.5, 4.0], n)


@settings(deadline=None)
@given(judged())
def test_brier_is_miscalibration_less_discrimination_plus_uncertainty(case):
    predicted, missed, weight = case
    parts = corp(predicted, missed, weight)
    assert parts.mcb - parts.dsc + parts.unc == pytest.approx(
        float(brier(predicted, missed, weight)), abs=1e-12
    )
    assert parts.mcb >= -1e-12
    assert parts.dsc >= -1e-12
    rate = np.average(missed, weights=weight)
    assert parts.unc == pytest.approx(rate * (1 - rate), abs=1e-12)


@settings(deadline=None)
@given(judged())
def test_the_curve_is_the_isotonic_regression(case):
    predicted, missed, weight = case
    expected = (
        IsotonicRegression(y_min=0, y_max=1)
        .fit(predicted, missed, sample_weight=weight)
        .predict(predicted)
    )
    assert isotonic(predicted, missed, weight) == pytest.approx(expected, abs=1e-9)
    parts = corp(predicted, missed, weight)
    assert (np.diff(parts.recalibrated) >= 0).all()
    assert np.interp(predicted, parts.predicted, parts.recalibrated) == pytest.approx(
        expected, abs=1e-9
    )  # the corners hold all of it


def test_the_curve_of_recalibrated_predictions_is_the_diagonal():
    rng = np.random.default_rng(1)
    predicted, missed, weight = rng.random(300), rng.random(300) < 0.4, np.ones(300)
    again = corp(isotonic(predicted, missed, weight), missed, weight)
    assert again.mcb == pytest.approx(0, abs=1e-12)
    assert again.recalibrated == pytest.approx(again.predicted, abs=1e-9)


def _band_holds(predicted, rate, group, seed):
    missed = np.random.default_rng(seed).random(len(predicted)) < rate
    weight = np.ones(len(predicted))
    parts = corp(predicted, missed, weight, calibrated_outcomes(predicted, group, 0.0, seed, 400))
    curve = np.interp(parts.band_at, parts.predicted, parts.recalibrated)
    return np.mean((parts.band_low <= curve) & (curve <= parts.band_high))


def test_the_band_holds_calibrated_curves_and_not_others():
    predicted = np.sort(np.random.default_rng(4).uniform(0.02, 0.7, 500))
    group = np.arange(500)
    calibrated = np.mean([_band_holds(predicted, predicted, group, seed) for seed in range(20)])
    doubled = np.mean(
        [_band_holds(predicted, np.minimum(1, 1.6 * predicted), group, seed) for seed in range(20)]
    )
    assert 0.9 <= calibrated <= 0.985
    assert doubled < 0.5


def _slow_smooth_ece(predicted, missed, weight):
    """By the definition: reflected Gaussian kernels added up at every point of a fine grid, the fixed point by root finding."""
    at = np.linspace(0, 1, 2001)
    residual = (missed - predicted) * weight / weight.sum()

    def error(width):
        smoothed = np.zeros_like(at)
        for image in range(
            -2, 3
        ):  # 0 and 1 are mirrors: images at p + 2m and -p + 2m; bandwidths here are under 0.4
            for place in (predicted + 2 * image, -predicted + 2 * image):
                smoothed += (residual * np.exp(-(((at[:, None] - place) / width) ** 2) / 2)).sum(
                    axis=1
                )
        return trapezoid(np.abs(smoothed), at) / (width * np.sqrt(2 * np.pi))

    return (
        brentq(lambda width: error(width) - width, 2e-3, 1, xtol=1e-5)
        if error(2e-3) > 2e-3
        else 0.0
    )


@pytest.mark.parametrize("seed", range(6))
def test_smooth_ece_agrees_with_the_slow_reference(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 150))
    predicted = rng.beta(1, 3, n) if seed % 2 else rng.random(n).round(1)
    missed = rng.random(n) < np.clip(predicted * rng.uniform(0.5, 2), 0, 1)
    weight = rng.choice([1.0, 5.0], n)
    assert smooth_ece(predicted, missed, weight) == pytest.approx(
        _slow_smooth_ece(predicted, missed, weight), abs=4e-4
    )


def test_smooth_ece_of_constant_predictions_is_their_bias():
    missed = np.arange(1000) < 300
    assert smooth_ece(np.full(1000, 0.3), missed, np.ones(1000)) == pytest.approx(0, abs=1e-4)
    assert smooth_ece(np.full(1000, 0.5), missed, np.ones(1000)) == pytest.approx(0.2, abs=1e-4)
    assert smooth_ece(np.zeros(10), np.ones(10, dtype=bool), np.ones(10)) == pytest.approx(
        1, abs=1e-3
    )


def test_many_outcomes_are_scored_as_one_by_one():
    rng = np.random.default_rng(6)
    predicted, missed, weight = (
        rng.random(90),
        rng.random((700, 90)) < 0.5,
        rng.choice([1.0, 2.0], 90),
    )
    for error in (smooth_ece, ece):
        assert error(predicted, missed, weight)[[0, 400, 699]] == pytest.approx(
            [float(error(predicted, missed[at], weight)) for at in (0, 400, 699)]
        )


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
    assert simulations_for(1) == 2000
    assert (1 - adjusted_level(20)) * simulations_for(20) >= 19.9
    with pytest.raises(ValueError, match="checked together"):
        adjusted_level(0)
    assert limit(np.arange(1.0, 100.0), 0.95) == 95
    assert limit(np.arange(1.0, 100.0), 0.9999) == 99


def test_simulated_outcomes_have_the_predicted_rates_and_the_given_dependence():
    predicted, group = np.array([0.2, 0.5, 0.5, 0.9]), np.array([3, 8, 8, 3])
    drawn = np.concatenate(list(calibrated_outcomes(predicted, group, 0.6, 1, 60_000))).astype(
        float
    )
    assert drawn.mean(axis=0) == pytest.approx(predicted, abs=0.008)
    covariance = np.cov(drawn.T)
    assert covariance[1, 2] == pytest.approx(0.6 * 0.25, abs=0.008)
    assert covariance[0, 3] == pytest.approx(0.6 * (0.2 - 0.18), abs=0.004)
    assert covariance[0, 1] == pytest.approx(0, abs=0.004)


def test_dependence_is_found_again():
    rng = np.random.default_rng(9)
    predicted, group = rng.uniform(0.05, 0.95, 6000), rng.permutation(np.repeat(np.arange(1500), 4))
    for dependence in (0.0, 0.3, 0.8):
        missed = next(iter(calibrated_outcomes(predicted, group, dependence, 5, 1)))[0]
        assert group_dependence(predicted, missed, group) == pytest.approx(dependence, abs=0.06)
    assert group_dependence(predicted, missed, np.arange(6000)) == 0


def _share_outside(predicted, rate, group, *, dependence, seed, trials):
    """Share of data sets (outcomes of probability `rate`) whose ECE and smECE are over the 95th percentile of the null."""
    weight = np.ones(len(predicted))
    outside = np.zeros(2)
    for at in range(trials):
        missed = next(iter(calibrated_outcomes(rate, group, dependence, seed + at, 1)))[0]
        found = group_dependence(isotonic(predicted, missed, weight), missed, group)
        null = np.concatenate(
            list(calibrated_outcomes(predicted, group, found, seed + trials + at, 399))
        )
        for which, error in enumerate((ece, smooth_ece)):
            outside[which] += error(predicted, missed, weight) > limit(
                error(predicted, null, weight), LEVEL
            )
    return outside / trials


def test_calibrated_predictions_are_outside_the_null_one_time_in_twenty():
    predicted, group, weight = (
        np.random.default_rng(10).beta(1, 4, 400),
        np.arange(400),
        np.ones(400),
    )
    null, drawn = (
        np.concatenate(list(calibrated_outcomes(predicted, group, 0.0, seed, 4000)))
        for seed in (3, 4)
    )
    for error in (ece, smooth_ece):
        assert np.mean(
            error(predicted, drawn, weight) > limit(error(predicted, null, weight), LEVEL)
        ) == pytest.approx(0.05, abs=0.015)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_so_they_are_where_the_dependence_inside_groups_is_estimated():
    predicted = np.random.default_rng(10).beta(1, 4, 400)
    for group, dependence in ((np.arange(400), 0.0), (np.arange(400) // 4, 0.6)):
        share = _share_outside(
            predicted, predicted, group, dependence=dependence, seed=5000, trials=400
        )
        assert (share >= 0.02).all(), (
            share
        )  # 0.05 give or take 2.8 standard deviations of 400 trials
        assert (share <= 0.08).all(), share


@pytest.mark.slow
def test_miscalibrated_predictions_are_nearly_always_outside_the_null():
    predicted = np.random.default_rng(10).beta(1, 4, 400)
    single = np.arange(400)
    assert (
        _share_outside(
            predicted, np.minimum(1, 1.6 * predicted), single, dependence=0.0, seed=2000, trials=100
        )
        >= 0.95
    ).all()
    sure = np.clip(predicted * 2.2 - 0.1, 0.005, 0.98)  # over-confident at both ends
    assert (
        _share_outside(sure, predicted, single, dependence=0.0, seed=3000, trials=100) >= 0.95
    ).all()


def test_without_the_dependence_grouped_data_would_fail_though_calibrated():
    predicted, group, weight = (
        np.random.default_rng(10).beta(1, 4, 400),
        np.arange(400) // 4,
        np.ones(400),
    )
    drawn = np.concatenate(list(calibrated_outcomes(predicted, group, 0.6, 3, 500)))
    naive = limit(
        smooth_ece(
            predicted,
            np.concatenate(list(calibrated_outcomes(predicted, group, 0.0, 4, 999))),
            weight,
        ),
        LEVEL,
    )
    assert np.mean(smooth_ece(predicted, drawn, weight) > naive) > 0.12
