"""Complaints against stated miss rates: the bound is exact, true complaints hardly ever exceed it, and complaints where none should be do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.uncertainty.complaints import LEVEL, complaint_room, upper_bound


def slow_bound(probability, level):
    chances = [1.0]
    for p in probability:
        chances = [
            a * (1 - p) + b * p for a, b in zip([*chances, 0.0], [0.0, *chances], strict=True)
        ]
    return next(u for u in range(len(chances)) if sum(chances[u + 1 :]) <= level + 1e-9)


@given(st.lists(st.floats(0, 1), max_size=40), st.sampled_from([0.005, 0.1, 0.3]))
@settings(deadline=None)
def test_the_bound_is_that_of_the_poisson_binomial(probability, level):
    assert upper_bound(np.array(probability, dtype=np.float64), level) == slow_bound(
        probability, level
    )


def test_the_bound_of_many_is_exact_to_the_last_place():
    from scipy.stats import binom

    for n, p in ((10_000, 0.1), (4_097, 0.5), (1_000, 0.001)):
        assert upper_bound(np.full(n, p), 0.005) == binom.isf(0.005, n, p)


def test_groups_count_once_with_all_that_their_claims_may_miss():
    rooms = complaint_room(
        np.array([0.1, 0.3, 0.9, 0.8, 0.2, 0.5]),
        list("aabbcd"),
        list("123456"),
        {"1", "2", "5", "elsewhere"},
    )
    whole, safe = rooms["every_claim"], rooms["least_risky_third"]
    assert (whole.n_claims, whole.n_groups, whole.complaints) == (6, 4, 2)
    assert whole.expected == pytest.approx(0.4 + 1 + 0.2 + 0.5)
    assert (safe.n_claims, safe.n_groups, safe.complaints) == (2, 2, 2)
    assert safe.expected == pytest.approx(0.3)
    assert (whole.upper, whole.alarm, safe.upper, safe.alarm) == (4, False, 2, False)
    assert whole.to_json()["alarm"] is False


def test_complaints_about_what_is_stated_as_safe_raise_an_alarm_that_all_claims_hide():
    rate = np.concatenate([np.full(100, 0.01), np.full(200, 0.4)])
    names = [str(number) for number in range(300)]
    rooms = complaint_room(rate, names, names, set(names[:8]))
    assert not rooms["every_claim"].alarm
    assert rooms["least_risky_third"].alarm
    assert not complaint_room(rate, names, names, set(names[-80:]))["every_claim"].alarm


def test_true_complaints_rarely_alarm_even_when_everybody_complains():
    rng, alarms, simulations = np.random.default_rng(3), 0, 2000
    for _ in range(simulations):
        group = rng.integers(0, 60, 90)
        rate = rng.beta(1, 6, 90)
        shared = rng.random(60)[group]  # wordings of a question are missed together
        missed = shared < rate
        names = [str(number) for number in range(90)]
        rooms = complaint_room(
            rate,
            [f"g{code}" for code in group],
            names,
            {name for name, lost in zip(names, missed, strict=True) if lost},
        )
        alarms += any(room.alarm for room in rooms.values())
    assert alarms <= LEVEL * simulations + 2.33 * (simulations * LEVEL) ** 0.5


def test_nothing_stated_leaves_no_room_and_nonsense_is_refused():
    rooms = complaint_room(np.zeros(0), [], [], {"a"})
    assert {
        (room.n_claims, room.complaints, room.upper, room.alarm) for room in rooms.values()
    } == {(0, 0, 0, False)}
    with pytest.raises(ValueError, match="as many"):
        complaint_room(np.zeros(2), ["a"], ["1", "2"], set())
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        complaint_room(np.array([np.nan]), ["a"], ["1"], set())
