"""Conformal K: the threshold against a slow reference, coverage on data with a known truth, and what stands beside a K."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.uncertainty.conformal import fixed_k, new_group_mass, recall_k, threshold
from rag_eval.uncertainty.conformal_report import conformal_k
from rag_eval.uncertainty.conformal_risk import (
    RiskScale,
    adaptive_factor,
    bin_depths,
    depths,
    fit_exponent,
    thirds,
)
from rag_eval.uncertainty.conformal_splits import Questions, calibrated, divide, fitted, over_splits

DEPTH = 200


def questions(n_groups, rng, *, depth=DEPTH, size=None, hardest=3.0):
    """Ranks whose logarithm grows with the risk; groups of 1 to 4 questions that share much of their luck."""
    sizes = (
        rng.choice([1, 2, 3, 4], n_groups, p=[0.45, 0.35, 0.15, 0.05])
        if size is None
        else np.full(n_groups, size)
    )
    group = np.repeat(np.arange(n_groups), sizes)
    risk = np.clip(
        rng.beta(0.8, 3, n_groups)[group] + rng.uniform(-0.03, 0.03, len(group)), 0.005, 0.99
    )
    luck = 0.7 * rng.normal(size=n_groups)[group] + 0.7 * rng.normal(size=len(group))
    rank = np.floor(1 + np.exp(hardest * risk + 1.2 * luck) * risk * 10)
    return Questions(np.where(rank > depth, np.inf, rank), group, depth, risk)


def slow_threshold(scores, weight, mass, level):
    total = sum(weight) + mass
    for score in sorted(scores):
        if (
            sum(w for s, w in zip(scores, weight, strict=True) if s <= score)
            >= level * total - 1e-9 * total
        ):
            return score
    return math.inf


@given(
    st.lists(st.tuples(st.integers(1, 20) | st.just(math.inf), st.integers(1, 3)), max_size=30),
    st.floats(0.1, 3),
    st.sampled_from([0.5, 0.8, 0.9, 0.95]),
)
def test_the_threshold_is_the_smallest_score_that_holds_enough(pairs, mass, level):
    scores, weight = np.array([float(s) for s, _ in pairs]), np.array([float(w) for _, w in pairs])
    assert threshold(scores, weight, mass, level) == slow_threshold(
        scores.tolist(), weight.tolist(), mass, level
    )


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60), st.sampled_from([0.5, 0.8, 0.9, 0.95])
)
def test_with_groups_of_one_it_is_the_textbook_quantile(ranks, level):
    at = math.ceil(round(level * (len(ranks) + 1), 9))
    expected = sorted(ranks)[at - 1] if at <= len(ranks) else None
    assert fixed_k(np.array(ranks, dtype=float), np.arange(len(ranks)), 50, level) == expected


def test_a_level_that_the_lists_do_not_reach_is_not_attainable():
    rank = np.array([1.0] * 80 + [math.inf] * 20)
    assert fixed_k(rank, np.arange(100), DEPTH, 0.7) == 1
    assert fixed_k(rank, np.arange(100), DEPTH, 0.8) is None  # 80 of 100 and one to come: 79 %
    assert fixed_k(rank[:5], np.arange(5), DEPTH, 0.9) is None  # too few to say
    assert fixed_k(np.zeros(0), np.zeros(0, dtype=np.int64), DEPTH, 0.9) is None


def test_questions_of_one_group_are_not_counted_as_many():
    rank, group = np.ones(100), np.repeat(np.arange(2), 50)
    assert new_group_mass(group) == 50
    assert fixed_k(rank, group, DEPTH, 0.8) is None
    assert fixed_k(rank, np.arange(100), DEPTH, 0.8) == 1


def test_recall_is_controlled_as_the_definition_says():
    rng = np.random.default_rng(3)
    n, items = 60, rng.integers(1, 4, 60)
    question = np.repeat(np.arange(n), items)
    rank = np.where(
        rng.random(len(question)) < 0.04, np.inf, rng.integers(1, 40, len(question)).astype(float)
    )
    for level in (0.6, 0.8, 0.9):
        expected = None
        for k in range(1, 41):
            loss = sum(1 - np.mean(rank[question == q] <= k) for q in range(n))
            if (loss + 1) / (n + 1) <= 1 - level + 1e-9:
                expected = k
                break
        assert recall_k(rank, question, np.arange(n), 40, level) == expected
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


def test_k_by_risk_covers_as_stated_and_is_shorter():
    rng = np.random.default_rng(11)
    covered, ratio = [], []
    for _ in range(150):
        old, new = questions(250, rng), questions(100, rng)
        part = divide(old.group, 0.0, rng)
        scale = fitted(old, part)
        shared = Questions(new.rank, new.group, DEPTH, new.risk)
        k = calibrated(old, part, "adaptive", 0.9, scale).depths(shared)
        one = calibrated(old, part, "fixed", 0.9, scale).depths(shared)
        covered.append(shared.covered("adaptive", k).mean())
        ratio.append(k.mean() / one.mean())
    assert 0.9 - 3 * np.std(covered) / 150**0.5 <= np.mean(covered) <= 0.92
    assert np.mean(ratio) < 0.9


def test_deeper_lists_go_to_riskier_questions():
    rng = np.random.default_rng(5)
    data = questions(300, rng)
    scale = RiskScale(0.7, ())
    factor = adaptive_factor(data.rank, data.risk, data.group, scale, 0.9)
    at = np.array([0.0, 0.01, 0.2, 0.5, 0.9, 1.0])
    k = depths(factor, scale.scale(at), DEPTH)
    assert (np.diff(k) >= 0).all()
    assert k[0] == 1
    assert k[-1] == DEPTH
    covered = data.rank <= depths(factor, scale.scale(data.risk), DEPTH)
    assert covered.mean() >= 0.9


@given(st.integers(1, 1000), st.floats(1e-6, 1 - 1e-6), st.floats(0, 2))
def test_the_rank_that_set_the_factor_is_covered(rank, risk, exponent):
    scale = RiskScale(exponent, ()).scale(np.array([risk]))
    assert depths((rank - 1) / scale, scale, 1000)[0] == rank


def test_an_exponent_of_nothing_is_the_one_k():
    data = questions(200, np.random.default_rng(2))
    scale = RiskScale(0.0, ())
    factor = adaptive_factor(data.rank, data.risk, data.group, scale, 0.9)
    assert depths(factor, scale.scale(data.risk), DEPTH)[0] == fixed_k(
        data.rank, data.group, DEPTH, 0.9
    )
    assert fit_exponent(np.zeros(0), np.zeros(0), DEPTH) == 0.0


def test_a_risk_that_says_nothing_gets_no_exponent():
    rng = np.random.default_rng(4)
    rank = np.floor(1 + np.exp(rng.normal(1, 1.2, 600)))
    assert fit_exponent(rank, rng.beta(1, 3, 600), DEPTH) < 0.15


def test_bins_are_thirds_and_each_has_its_own_k():
    rng = np.random.default_rng(9)
    data = questions(500, rng, depth=1000)
    scale = RiskScale(0.0, thirds(data.risk))
    bins = scale.bin(data.risk)
    assert (np.abs(np.bincount(bins) / len(bins) - 1 / 3) < 0.01).all()
    k = bin_depths(data.rank, data.group, bins, 0.9)
    assert k[0] < k[1] < k[2]
    for place in range(3):
        inside = bins == place
        assert k[place] == (fixed_k(data.rank[inside], data.group[inside], 1000, 0.9) or math.inf)


def test_a_split_never_divides_a_group_and_uses_all():
    data = questions(90, np.random.default_rng(1))
    part = divide(data.group, 1 / 3, np.random.default_rng(1))
    kind = part.fit.astype(int) + 2 * part.calibrate
    for code in np.unique(data.group):
        assert len(set(kind[data.group == code])) == 1
    groups = [len(np.unique(data.group[kind == place])) for place in range(3)]
    assert groups == [30, 12, 48]
    whole = divide(data.group, 0.0, np.random.default_rng(1))
    assert (whole.fit | whole.calibrate).all()


def test_held_out_coverage_holds_for_every_method():
    data = questions(240, np.random.default_rng(21), depth=1000)
    ranks = Questions(data.rank, data.group, 1000, data.risk, data.rank, np.arange(len(data.rank)))
    results = {
        (result.method, result.level): result
        for result in conformal_k(ranks, (0.8, 0.9), splits=60)
    }
    assert list(results) == [
        (method, level)
        for method in ("fixed", "recall", "adaptive", "mondrian")
        for level in (0.8, 0.9)
    ]
    for (method, level), result in results.items():
        assert result.coverage.value >= level - 0.01, (method, level)
        assert result.coverage.low < result.coverage.value < result.coverage.high
        assert result.n_groups == 240
    assert results["mondrian", 0.9].riskiest.value >= 0.9 - 0.01
    assert results["fixed", 0.9].riskiest.value < results["mondrian", 0.9].riskiest.value
    assert results["adaptive", 0.9].mean_k_held_out < results["fixed", 0.9].mean_k_held_out
    assert (
        results["recall", 0.9].k == results["fixed", 0.9].k
    )  # one gold item a question: the same thing
    assert [part.coverage.n for part in results["mondrian", 0.9].bins] == np.bincount(
        RiskScale(0.0, thirds(data.risk)).bin(data.risk)
    ).tolist()


def test_what_is_beyond_the_depth_is_said_and_counts_as_not_covered():
    rng = np.random.default_rng(8)
    rank = np.where(rng.random(200) < 0.15, np.inf, 1.0)
    (result,) = conformal_k(Questions(rank, np.arange(200), 100), (0.9,), splits=20)
    assert result.k is None
    assert not result.attainable
    assert result.share_unattainable == 1.0
    assert result.coverage.value == 0.0
    assert result.mean_k is None
    assert result.mean_k_held_out is None
    assert "not attainable within lists of 100" in result.text
    assert f"{np.isfinite(rank).mean():.1%}" in result.text


def test_the_sentence_says_what_the_number_is_an_average_of():
    data = questions(120, np.random.default_rng(6))
    for result in conformal_k(data, (0.8,), splits=10):
        assert (
            f"an average over questions like these {len(data.rank):,} (120 independent groups), for this strategy fingerprint and this gold"
            in result.text
        )
        assert "riskiest third" in result.text
        plain = json.loads(json.dumps(result.to_json(), allow_nan=False))
        assert plain["text"] == result.text
        assert plain["coverage"]["n"] == len(data.rank)
        assert plain["level"] == 0.8


def test_the_same_seed_gives_the_same_and_nothing_gives_nothing():
    data = questions(80, np.random.default_rng(12))
    assert conformal_k(data, (0.9,), splits=5, seed=3) == conformal_k(
        data, (0.9,), splits=5, seed=3
    )
    empty = Questions(np.zeros(0), np.zeros(0, dtype=np.int64), 10, np.zeros(0))
    for result in conformal_k(empty, (0.9,), splits=2):
        assert not result.attainable
        assert result.coverage.value is None
        json.dumps(result.to_json(), allow_nan=False)
    single = Questions(np.array([2.0]), np.array([0]), 10, np.array([0.3]))
    assert not any(result.attainable for result in conformal_k(single, (0.9,), splits=2))


def test_splits_look_at_every_question():
    data = questions(60, np.random.default_rng(13))
    figures = over_splits(data, (0.8,), 40, 0)
    assert not np.isnan(figures["fixed", 0.8].covered).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": np.array([0.0, 1.0])}, "rank 0"),
        ({"rank": np.array([11.0, 1.0])}, "rank 11"),
        ({"rank": np.array([np.nan, 1.0])}, "rank nan"),
        ({"rank": np.ones(3)}, "one of each"),
        ({"group": np.array([-1, 0])}, "negative"),
        ({"depth": 0}, "depth"),
        ({"risk": np.array([0.5, 1.5])}, "risk"),
        ({"risk": np.array([np.nan, -0.1])}, "risk"),
        ({"risk": np.array([0.5, np.inf])}, "risk"),
        ({"gold_rank": np.ones(1)}, "go together"),
        ({"gold_rank": np.ones(1), "gold_question": np.array([2])}, "gold_question"),
        ({"gold_rank": np.array([12.0]), "gold_question": np.array([1])}, "rank 12"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message):
    parts = {"rank": np.array([1.0, 2.0]), "group": np.array([0, 1]), "depth": 10, **change}
    with pytest.raises(ValueError, match=message):
        Questions(**parts)


def test_levels_and_splits_that_are_none_are_refused():
    data = Questions(np.array([1.0, 2.0]), np.array([0, 1]), 10)
    with pytest.raises(ValueError, match="level"):
        conformal_k(data, (1.0,))
    with pytest.raises(ValueError, match="splits"):
        conformal_k(data, (0.9,), splits=0)
