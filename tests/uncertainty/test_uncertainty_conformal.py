"""Conformal K against a slow reference, and its coverage where the truth is known."""

import json
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.uncertainty.conformal import Cell, Questions, conformal_k

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
    return Questions(np.where(rank > depth, np.inf, rank), group, depth, risk)


def fixed_k(rank, group, depth, level):
    n = len(rank)
    cell = Cell(np.asarray(rank), np.arange(n), np.ones(n), np.asarray(group))
    k = cell.thresholds(np.ones(n, dtype=bool), (level,))[0]
    return int(k) if k <= depth else None


def recall_k(rank, question, group, depth, level):
    nothing = np.full(len(group), np.inf)
    data = Questions(nothing, group, depth, gold_rank=rank, gold_question=question)
    return next(rule.k for rule in conformal_k(data, (level,), splits=1) if rule.method == "recall")


def slow_threshold(scores, weight, mass, level):
    total = sum(weight) + mass
    for score in sorted(scores):
        below = sum(w for s, w in zip(scores, weight, strict=True) if s <= score)
        if below >= level * total - 1e-9 * total:
            return score
    return math.inf


@given(
    st.lists(st.tuples(st.integers(1, 20) | st.just(math.inf), st.integers(1, 3)), max_size=30),
    st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    st.randoms(use_true_random=False),
)
def test_the_threshold_is_the_smallest_sufficient_rank(pairs, level, random):
    scores, weight = np.array([float(s) for s, _ in pairs]), np.array([float(w) for _, w in pairs])
    group = np.array([random.randrange(5) for _ in pairs], dtype=np.int64)
    use = np.array([random.random() < 0.7 for _ in pairs], dtype=bool)
    cell = Cell(scores, np.arange(len(pairs)), weight, group)
    sizes = np.bincount(group[use])
    mass = (sizes**2).sum() / sizes.sum() if use.any() else 1.0
    expected = slow_threshold(scores[use].tolist(), weight[use].tolist(), mass, level)
    assert cell.thresholds(use, (level,)).tolist() == [expected]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60), st.sampled_from([0.5, 0.8, 0.9, 0.95])
)
def test_groups_of_one_give_the_textbook_quantile(ranks, level):
    at = math.ceil(round(level * (len(ranks) + 1), 9))
    expected = sorted(ranks)[at - 1] if at <= len(ranks) else None
    assert fixed_k(np.array(ranks, dtype=float), np.arange(len(ranks)), 50, level) == expected


def test_a_level_beyond_the_lists_is_not_attainable():
    rank = np.array([1.0] * 80 + [math.inf] * 20)
    assert fixed_k(rank, np.arange(100), DEPTH, 0.7) == 1
    assert fixed_k(rank, np.arange(100), DEPTH, 0.8) is None  # 80 of 101 is 79 %
    assert fixed_k(rank[:5], np.arange(5), DEPTH, 0.9) is None  # five are too few
    assert fixed_k(np.zeros(0), np.zeros(0, dtype=np.int64), DEPTH, 0.9) is None


def test_questions_of_one_group_are_not_counted_as_many():
    rank, group = np.ones(100), np.repeat(np.arange(2), 50)
    assert fixed_k(rank, group, DEPTH, 0.8) is None
    assert fixed_k(rank, np.arange(100), DEPTH, 0.8) == 1


def test_expected_recall_follows_its_definition():
    rng = np.random.default_rng(3)
    n, items = 60, rng.integers(1, 4, 60)
    question = np.repeat(np.arange(n), items)
    absent, found = rng.random(len(question)) < 0.04, rng.integers(1, 40, len(question))
    rank = np.where(absent, np.inf, found.astype(float))

    def loss(k):
        return sum(1 - np.mean(rank[question == q] <= k) for q in range(n))

    for level in (0.6, 0.8, 0.9):
        enough = (k for k in range(1, 41) if (loss(k) + 1) / (n + 1) <= 1 - level + 1e-9)
        assert recall_k(rank, question, np.arange(n), 40, level) == next(enough, None)
    assert recall_k(np.where(np.isinf(rank), rank, 1.0), question, np.arange(n), 40, 0.99) is None


@pytest.mark.parametrize("size", [1, 3, None])
def test_new_groups_are_covered_as_stated(size):
    rng = np.random.default_rng(7)
    covered, recalled = {0.8: [], 0.9: []}, []
    for _ in range(300):
        old, new = questions(60, rng, size=size), questions(60, rng, size=size)
        for level, shares in covered.items():
            k = fixed_k(old.rank, old.group, DEPTH, level)
            shares.append(0.0 if k is None else float((new.rank <= k).mean()))
        k = recall_k(old.rank, np.arange(len(old.rank)), old.group, DEPTH, 0.9)
        recalled.append(0.0 if k is None else float((new.rank <= k).mean()))
    for level, shares in covered.items():
        error = np.std(shares) / len(shares) ** 0.5
        assert level - 3 * error <= np.mean(shares) <= level + 0.05
    assert np.mean(recalled) >= 0.9 - 3 * np.std(recalled) / 300**0.5


def test_held_out_coverage_holds_for_every_method():
    data = questions(240, np.random.default_rng(21), depth=1000)
    ranks = Questions(data.rank, data.group, 1000, data.risk, data.rank, np.arange(len(data.rank)))
    found = conformal_k(ranks, (0.8, 0.9), splits=60)
    results = {(result.method, result.level): result for result in found}
    assert list(results) == list(product(("fixed", "recall", "mondrian"), (0.8, 0.9)))
    for (method, level), result in results.items():
        assert result.coverage.value >= level - 0.01, (method, level)
        assert result.coverage.low < result.coverage.value < result.coverage.high
        assert result.n_groups == 240
    assert results["mondrian", 0.9].riskiest.value >= 0.9 - 0.01
    assert results["fixed", 0.9].riskiest.value < results["mondrian", 0.9].riskiest.value
    # with a single gold item a question, both are equal
    assert results["recall", 0.9].k == results["fixed", 0.9].k
    bins = results["mondrian", 0.9].bins
    assert sum(part.coverage.n for part in bins) == len(data)
    assert bins[0].k < bins[1].k < bins[2].k
    for part in bins:
        inside = (part.risk_low <= data.risk) & (data.risk < part.risk_high)
        assert part.k == fixed_k(data.rank[inside], data.group[inside], 1000, 0.9)


def test_a_k_beyond_the_depth_counts_as_not_covered():
    rng = np.random.default_rng(8)
    rank = np.where(rng.random(200) < 0.15, np.inf, 1.0)
    (result,) = conformal_k(Questions(rank, np.arange(200), 100), (0.9,), splits=20)
    assert not result.attainable
    assert (result.k, result.mean_k, result.mean_k_held_out) == (None, None, None)
    assert (result.share_unattainable, result.coverage.value) == (1.0, 0.0)
    assert "not attainable within lists of 100" in result.text
    assert f"{np.isfinite(rank).mean():.1%}" in result.text


def test_the_text_says_what_k_is_an_average_of():
    data = questions(120, np.random.default_rng(6))
    for result in conformal_k(data, (0.8,), splits=10):
        counted = f"an average over questions like these {len(data):,} (120 independent groups)"
        assert f"{counted}, for this strategy fingerprint and this gold" in result.text
        assert "riskiest third" in result.text
        plain = json.loads(json.dumps(result.dump(), allow_nan=False))
        assert plain["text"] == result.text
        assert plain["coverage"]["n"] == len(data)
        assert plain["level"] == 0.8


def test_equal_seeds_agree_and_no_data_gives_no_k():
    data = questions(80, np.random.default_rng(12))
    first, again = (conformal_k(data, (0.9,), splits=5, seed=3) for _ in range(2))
    assert first == again
    empty = Questions(np.zeros(0), np.zeros(0, dtype=np.int64), 10, np.zeros(0))
    for result in conformal_k(empty, (0.9,), splits=2):
        assert not result.attainable
        assert result.coverage.value is None
        json.dumps(result.dump(), allow_nan=False)
    single = Questions(np.array([2.0]), np.array([0]), 10, np.array([0.3]))
    assert not any(result.attainable for result in conformal_k(single, (0.9,), splits=2))
