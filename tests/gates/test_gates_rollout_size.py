"""Sample sizes: against their formula, against what they promise, and where nothing is known."""

import math

import numpy as np
import pytest

from rag_eval.gates.rollout_assignment import STAGES
from rag_eval.gates.rollout_plan import plan_stages
from rag_eval.gates.rollout_size import (
    Spread,
    detectable,
    estimated_spread,
    largest_spread,
    questions_needed,
    rolled_back,
)
from rag_eval.measures.paired import paired_comparison


def test_the_formula_by_hand():
    # (1.959964 + 0.841621)^2 = 7.848880; spread / difference = 4; 125.58 + 1.92
    assert questions_needed(0.4, 0.1, 0.8) == 128
    assert questions_needed(0.4, 0.05, 0.8) == math.ceil(7.848880 * 64 + 1.920729)
    assert (
        questions_needed(0.4, 0.1, 0.9)
        > questions_needed(0.4, 0.1, 0.8)
        > questions_needed(0.3, 0.1, 0.8)
    )


@pytest.mark.parametrize(
    ("spread", "difference", "power"), [(0.4, 0.1, 0.8), (1.0, 0.3, 0.9), (2.0, 0.05, 0.8)]
)
def test_what_is_needed_detects_what_was_asked_for(spread, difference, power):
    n = questions_needed(spread, difference, power)
    assert detectable(spread, n, power) == pytest.approx(difference, rel=0.01)
    assert detectable(spread, n, power) <= difference * 1.001
    assert detectable(spread, 1, power) is None
    assert rolled_back(spread, 1, power, 0.05) is None


def test_what_rolls_back_must_be_told_and_must_be_more_than_the_limit():
    n = questions_needed(0.4, 0.05, 0.8)
    assert rolled_back(0.4, n, 0.8, 0.05) == pytest.approx(
        0.05 + 0.8416 * 0.4 / math.sqrt(n), rel=0.01
    )
    assert rolled_back(0.4, 50, 0.8, 0.05) == detectable(0.4, 50, 0.8)


def test_a_spread_is_that_of_the_differences_between_groups():
    rng = np.random.default_rng(3)
    current = (rng.random(4000) < 0.8).astype(float)
    candidate = np.where(rng.random(4000) < 0.1, 1 - current, current)
    found = estimated_spread(current, candidate, np.arange(4000))
    assert (found.base, found.n_groups) == (current.mean(), 4000)
    assert found.relative == pytest.approx((candidate - current).std() / current.mean(), rel=0.03)
    tied = estimated_spread(current, candidate, np.arange(4000) // 4)
    assert (tied.n_groups, tied.relative) == (1000, pytest.approx(found.relative / 2, rel=0.1))


def test_strategies_that_never_differed_are_not_certain_to_be_equal():
    found = estimated_spread(np.ones(100), np.ones(100), np.arange(100))
    assert 0.1 < found.relative < 0.2
    interval = paired_comparison(np.ones(100), np.ones(100), np.arange(100), 1)
    assert found.relative == pytest.approx(interval.ci_high[0] / 1.984 * 10, rel=0.01)


@pytest.mark.parametrize(
    ("current", "candidate"),
    [([np.nan, 1.0], [1.0, np.nan]), ([0.0, 0.0], [0.0, 1.0]), ([1.0], [0.0])],
)
def test_no_spread_where_it_cannot_be_said(current, candidate):
    assert estimated_spread(current, candidate, np.arange(len(current))) is None


def test_the_most_that_two_strategies_can_differ():
    assert (largest_spread().base, largest_spread().relative, largest_spread().n_groups) == (
        0.5,
        2.0,
        0,
    )
    rng = np.random.default_rng(4)
    for base in (0.5, 0.7, 0.9):
        a, b = (rng.random(200_000) < base for _ in range(2))
        assert (a.astype(float) - b).std() / base <= largest_spread(base).relative
        assert largest_spread(base).relative <= largest_spread().relative


def test_the_stages_of_a_plan():
    queries = [f"question {at}" for at in range(1000)]
    stages = plan_stages(
        Spread(0.8, 0.4, 200),
        queries,
        [str(at // 2) for at in range(1000)],
        "salt",
        detect=0.1,
        power=0.8,
    )
    assert [stage.share for stage in stages] == list(STAGES)
    assert [stage.needed for stage in stages] == [128] * 3
    assert [stage.traffic for stage in stages] == [1280, 320, 256]
    assert stages[2].gold_questions == 1000
    assert stages[2].gold_groups == 500
    assert 60 < stages[0].gold_groups < stages[0].gold_questions < 140
    assert stages[0].gold_new_groups == stages[0].gold_groups
    assert stages[1].gold_new_groups < stages[1].gold_groups
    assert [stage.detects for stage in stages] == sorted(
        (stage.detects for stage in stages), reverse=True
    )
    assert stages[2].detects == detectable(0.4, 500, 0.8)


def test_a_gold_set_too_small_to_tell_anything_says_so():
    stages = plan_stages(
        largest_spread(), ["a", "b", "c"], ["a", "b", "c"], "salt", detect=0.05, power=0.8
    )
    assert [stage.detects for stage in stages] == [None] * 3
    assert stages[0].needed == math.ceil(7.848880 * 1600 + 1.920729)
    assert (
        plan_stages(Spread(0.8, 0.01, 9), ["a"], ["a"], "salt", detect=0.5, power=0.8)[0].needed
        == 30
    )
