"""The drift watch: against a slow reference, resumed from its stored state, and its alarms on data with a known truth."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.records.problems import InputError
from rag_eval.uncertainty.betting import BETS, PACE, UNSTAKED
from rag_eval.uncertainty.drift import Drift, watch


def names(n, start=0):
    return [f"g{at}" for at in range(start, start + n)]


def slow_e_values(excess, tolerance):
    """Capital after each group, bet by bet and stake by stake."""
    found = []
    for sign in (1, -1):
        capital, waits = [(1 - UNSTAKED) / len(BETS)] * len(BETS), UNSTAKED
        for count, z in enumerate(excess):
            left = UNSTAKED * (1 + (count + 1) / PACE) ** -0.5
            capital = [
                (c + (waits - left) / len(BETS)) * (1 + bet * (sign * z - tolerance))
                for c, bet in zip(capital, BETS, strict=True)
            ]
            waits = left
            found.append(sum(capital) + waits)
    return np.array(found).reshape(2, -1).T


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
@settings(deadline=None)
def test_it_is_the_capital_of_the_bets(pairs):
    p, y = np.array([a for a, _ in pairs]), np.array([float(b) for _, b in pairs])
    drift = watch(p, y, names(len(p)))
    assert np.allclose(np.exp(drift.trace), slow_e_values(y - p, 0.05), rtol=1e-9)
    assert drift.e_high == pytest.approx(math.exp(drift.trace[-1, 0]))
    assert drift.e_low == pytest.approx(math.exp(drift.trace[-1, 1]))


def test_nothing_seen_is_no_evidence():
    drift = Drift()
    assert (drift.e_high, drift.e_low, drift.alarm, drift.bar) == (
        pytest.approx(1),
        pytest.approx(1),
        False,
        100,
    )
    assert watch(np.zeros(0), np.zeros(0), []) == drift


@given(st.integers(0, 2**31), st.integers(1, 199))
@settings(deadline=None, max_examples=25)
def test_resumed_from_its_stored_state_it_says_the_same(seed, cut):
    rng = np.random.default_rng(seed)
    p, y = rng.random(200), (rng.random(200) < 0.6).astype(float)
    whole = watch(p, y, names(200))
    first = watch(p[:cut], y[:cut], names(cut))
    stored = Drift.from_json(json.loads(json.dumps(first.to_json(), allow_nan=False)))
    assert stored == first
    second = watch(p[cut:], y[cut:], names(200 - cut, cut), stored)
    assert (second.n, second.groups, second.first_alarm_at, second.direction) == (
        whole.n,
        whole.groups,
        whole.first_alarm_at,
        whole.direction,
    )
    assert np.allclose(second.wealth, whole.wealth)
    assert np.allclose(np.concatenate([first.trace, second.trace]), whole.trace)


def test_a_group_counts_once_with_the_mean_of_its_outcomes():
    p, y = np.array([0.2, 0.4, 0.1, 0.6]), np.array([1.0, 0.0, 0.0, 1.0])
    drift = watch(p, y, ["a", "b", "b", "a"])
    assert (drift.n, drift.groups) == (4, ("a", "b"))
    assert drift.sum_missed == pytest.approx(1.0)
    assert drift.sum_predicted == pytest.approx(0.4 + 0.25)
    assert np.allclose(np.exp(drift.trace), slow_e_values(np.array([0.6, -0.25]), 0.05))
    again = watch(np.array([0.0, 0.3]), np.array([1.0, 1.0]), ["a", "c"], drift)
    assert (again.n, again.groups) == (5, ("a", "b", "c"))
    assert len(again.trace) == 1


def alarms(n, rate, sims, seed, *, size=1):
    """Alarms of streams whose questions are missed `rate` more often than predicted."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(sims):
        group = np.repeat(np.arange(n), size)
        p = np.clip(rng.beta(0.5, 2, n) * 0.8 + 0.1, 0, 1)[group]
        y = rng.random(n)[group] < p + rate  # questions of a group share their fate
        found.append(watch(p, y.astype(float), [str(code) for code in group]))
    return found


def test_it_rarely_alarms_within_the_tolerance():
    for rate, size in ((0.0, 1), (0.05, 1), (-0.05, 1), (0.05, 3)):
        assert sum(drift.alarm for drift in alarms(1000, rate, 100, 1, size=size)) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "size"), [(0.0, 1), (0.05, 1), (-0.05, 1), (0.05, 4)])
def test_false_alarms_stay_under_two_per_cent_to_five_thousand_groups(rate, size):
    found = alarms(5000, rate, 500, 2, size=size)
    assert sum(drift.alarm for drift in found) / 500 <= 0.02


def test_it_finds_fifteen_points_soon_and_ten_later():
    for rate, direction in (
        (0.15, "more misses than predicted"),
        (-0.15, "fewer misses than predicted"),
    ):
        found = alarms(1000, rate, 40, 3)
        # clipping at 0 makes the negative shift smaller than 15 points for the surest questions
        assert sum(drift.direction == direction for drift in found) >= (38 if rate > 0 else 30)
    assert sum(drift.alarm for drift in alarms(3000, 0.1, 40, 4)) >= 36


def test_it_finds_a_change_after_a_long_quiet_time():
    rng, found = np.random.default_rng(5), 0
    for _ in range(20):
        p = rng.beta(0.5, 2, 3000)
        y = rng.random(3000) < np.clip(p + np.where(np.arange(3000) < 2000, 0.0, 0.2), 0, 1)
        drift = watch(p, y.astype(float), names(3000))
        found += drift.first_alarm_at is not None and drift.first_alarm_at > 2000
    assert found >= 18


def test_an_alarm_stays_and_says_when_and_which_way():
    drift = watch(np.full(60, 0.1), np.ones(60), names(60))
    assert drift.alarm
    assert drift.direction == "more misses than predicted"
    at = int(np.argmax(np.exp(drift.trace[:, 0]) >= 100)) + 1
    assert drift.first_alarm_at == at
    later = watch(np.full(500, 0.9), np.zeros(500), names(500, 60), drift)
    assert (later.first_alarm_at, later.direction) == (at, drift.direction)
    other = watch(np.full(60, 0.9), np.zeros(60), names(60))
    assert other.direction == "fewer misses than predicted"


def test_a_long_stream_does_not_overflow():
    drift = watch(np.zeros(5000), np.ones(5000), names(5000))
    assert math.isfinite(drift.e_high)
    json.dumps(drift.to_json(), allow_nan=False)


def test_level_and_tolerance_are_kept():
    start = Drift(level=0.1, tolerance=0.0)
    drift = watch(np.full(50, 0.3), np.ones(50), names(50), start)
    assert (drift.bar, drift.tolerance) == (20, 0.0)
    assert Drift.from_json(drift.to_json()).level == 0.1
    for wrong in ({"level": 0.0}, {"tolerance": -0.1}, {"tolerance": 0.5}, {"level": math.nan}):
        with pytest.raises(ValueError, match="accepted"):
            Drift(**wrong)


@pytest.mark.parametrize(
    ("p", "y", "groups"),
    [
        ([0.1], [1.0, 0.0], ["a"]),
        ([0.1], [1.0], ["a", "b"]),
        ([1.1], [1.0], ["a"]),
        ([0.1], [2.0], ["a"]),
        ([math.nan], [1.0], ["a"]),
    ],
)
def test_outcomes_that_are_none_are_refused(p, y, groups):
    with pytest.raises(ValueError, match=r"accepted|must lie"):
        watch(np.array(p), np.array(y), groups)


@pytest.mark.parametrize(
    "change",
    [
        {"wealth": None},
        {"wealth": [[1.0], [1.0]]},
        {"wealth": [["x"] * 6, [0.0] * 6]},
        {"wealth": [[math.inf] * 6, [0.0] * 6]},
        {"groups": ["a", "a"]},
        {"first_alarm_at": 3},
        {"direction": "sideways", "first_alarm_at": 3},
        {"level": 7},
        {"sum_missed": math.nan},
        {"n": "many"},
    ],
)
def test_a_state_that_is_none_is_refused(change):
    stored = {**watch(np.full(3, 0.5), np.ones(3), names(3)).to_json(), **change}
    with pytest.raises(InputError, match="bad_drift_state"):
        Drift.from_json(stored)
    with pytest.raises(InputError):
        Drift.from_json({})
