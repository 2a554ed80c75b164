"""Conformal K against a slow reference, and its coverage where the truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.uncertainty.calibration import calibrate
from rag_eval.uncertainty.conformal import Questions, find_thresholds
from rag_eval.uncertainty.validation import Labelled

DEPTH = 200


def questions(n_groups, rng, *, depth=DEPTH, size=None, hardest=3.0):
    """Draw ranks that grow with the risk, in groups of 1 to 4 questions with similar risks."""
    sizes = np.full(n_groups, size)
    if size is None:
        sizes = rng.choice([1, 2, 3, 4], n_groups, p=[0.45, 0.35, 0.15, 0.05])
    group = np.repeat(np.arange(n_groups), sizes)
    noise = rng.beta(0.8, 3, n_groups)[group] + rng.uniform(-0.03, 0.03, len(group))
    risk = np.clip(noise, 0.005, 0.99)
    luck = 0.7 * rng.normal(size=n_groups)[group] + 0.7 * rng.normal(size=len(group))
    rank = np.floor(1 + np.exp(hardest * risk + 1.2 * luck) * risk * 10)
    return Questions(np.where(rank > depth, np.inf, rank), group, depth)


def fixed_k(rank, group, depth, level):
    k = find_thresholds(np.asarray(rank), np.asarray(group), (level,))[0]
    return int(k) if k <= depth else None


def slow_threshold(ranks, mass, level):
    total = len(ranks) + mass
    for rank in sorted(ranks):
        if sum(other <= rank for other in ranks) >= level * total - 1e-9 * total:
            return rank
    return math.inf


@given(
    st.lists(st.integers(1, 20) | st.just(math.inf), max_size=30),
    st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    st.randoms(use_true_random=False),
)
def test_the_threshold_is_the_smallest_sufficient_rank(ranks, level, random):
    group = np.array([random.randrange(5) for _ in ranks], dtype=np.int64)
    sizes = np.bincount(group)
    mass = (sizes**2).sum() / sizes.sum() if ranks else 1.0
    found = find_thresholds(np.array(ranks, dtype=float), group, (level,))
    assert found.tolist() == [slow_threshold(ranks, mass, level)]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60), st.sampled_from([0.5, 0.8, 0.9, 0.95])
)
def test_groups_of_one_give_the_textbook_quantile(ranks, level):
    at = math.ceil(round(level * (len(ranks) + 1), 9))
    expected = sorted(ranks)[at - 1] if at <= len(ranks) else None
    assert fixed_k(np.array(ranks, dtype=float), np.arange(len(ranks)), 50, level) == expected


@pytest.mark.parametrize("size", [1, 3, None])
def test_new_groups_are_covered_as_stated(size):
    rng = np.random.default_rng(7)
    covered = {0.8: [], 0.9: []}
    for _ in range(300):
        old, new = questions(60, rng, size=size), questions(60, rng, size=size)
        for level, shares in covered.items():
            k = fixed_k(old.rank, old.group, DEPTH, level)
            shares.append(0.0 if k is None else float((new.rank <= k).mean()))
    for level, shares in covered.items():
        error = np.std(shares) / len(shares) ** 0.5
        assert level - 3 * error <= np.mean(shares) <= level + 0.05


def test_held_out_coverage_holds():
    data = questions(240, np.random.default_rng(21), depth=1000)
    results = data.conformal_k()
    assert [result.level for result in results] == [0.8, 0.9, 0.95]
    for result in results:
        assert result.k == fixed_k(data.rank, data.group, 1000, result.level)
        assert result.coverage.value >= result.level - 0.01
        assert result.coverage.low < result.coverage.value < result.coverage.high
        assert (result.n_groups, result.coverage.n) == (240, len(data.rank))
    assert results == data.conformal_k()


def test_a_k_beyond_the_depth_counts_as_not_covered():
    rng = np.random.default_rng(8)
    rank = np.where(rng.random(200) < 0.15, np.inf, 1.0)
    result = Questions(rank, np.arange(200), 100).conformal_k()[1]
    assert (result.level, result.k) == (0.9, None)
    assert result.coverage.value < 0.05  # few splits hold out most of the lists without gold
    assert result.within_depth == np.isfinite(rank).mean()
    single = Questions(np.array([2.0]), np.array([0]), 10)
    assert [rule.k for rule in single.conformal_k()] == [None] * 3


def test_the_ranks_of_the_questions_set_k_in_a_calibration():
    rng = np.random.default_rng(3)
    n = 160
    signals, few = rng.normal(size=(n, 3)), questions(12, rng, size=1)
    missed = rng.random(n) < 1 / (1 + np.exp(0.8 - 2 * signals[:, 0]))
    labelled = Labelled(("a", "b", "c"), signals, missed, np.arange(n), np.ones(n), np.arange(n))
    ids, options = [f"g{code}" for code in range(n)], {"prior": None, "checked_together": 1}
    for asked, groups in ((None, []), (few, [12] * 3)):
        found = calibrate(labelled, ids, heuristic=np.full(n, 0.4), questions=asked, **options)
        assert [rule.n_groups for rule in found.conformal] == groups
