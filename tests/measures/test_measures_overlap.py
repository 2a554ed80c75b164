"""Intervals of questions that share gold: against the reference, by definition, by simulation."""

import math

import numpy as np
import pytest

from rag_eval.measures.overlap import PRIOR, RHO, SharedGold, mean_interval, ratio_interval, wilson


def chained(n, n_items, size, seed=5):
    """Draw `size` of `n_items` relevant documents for each of n questions: the relevant pairs."""
    rng = np.random.default_rng(seed)
    drawn = np.stack([rng.choice(n_items, size, replace=False) for _ in range(n)])
    return np.repeat(np.arange(n), size), drawn.ravel()


def kernel_of(question, item, n):
    gold = np.zeros((n, item.max() + 1))
    gold[question, item] = 1
    size = np.maximum(gold.sum(axis=1), 1)
    kernel = gold @ gold.T / np.sqrt(np.outer(size, size))
    np.fill_diagonal(kernel, 1)
    return kernel


def hits(kernel, rates, rho=0.4, seed=1):
    """Draw hits [n, m] whose causes correlate by the kernel."""
    rng, n = np.random.default_rng(seed), len(kernel)
    root = np.linalg.cholesky((1 - rho) * np.eye(n) + rho * kernel)
    levels = np.quantile(rng.normal(size=100_000), rates)
    return (root @ rng.normal(size=(n, len(rates))) < levels).astype(float)


@pytest.mark.parametrize(("n", "n_items", "size"), [(60, 80, 5), (100, 300, 3), (300, 600, 30)])
def test_model_is_that_of_the_reference(reference, monkeypatch, n, n_items, size):
    """The posterior is equal; prior and scale differ, so intervals are as wide or narrower."""
    monkeypatch.setattr("rag_eval.measures.overlap.PRIOR", np.ones_like(RHO))
    question, item = chained(n, n_items, size)
    values = hits(kernel_of(question, item, n), [0.2, 0.5, 0.9])
    model = reference.Overlap(reference.overlap_kernel(question, item, n))
    weight, _ = model.posterior(values - values.mean(axis=0))
    gold = SharedGold.of_pairs(question, item, n)
    np.testing.assert_allclose(gold.fit(values).weight, weight, rtol=0, atol=1e-9)
    found, (_, low, high, count) = mean_interval(values, gold), model.mean(values)
    np.testing.assert_allclose(found.n_effective, count, rtol=1e-9)
    assert np.all(np.abs((found.high - found.low) / (high - low) - 1) < 0.08)


def test_likelihood_is_that_of_contrasts():
    """Rows with equal gold give the kernel many zero eigenvalues, and blocks of all sizes."""
    question, item = chained(40, 12, 2)
    kernel, n = kernel_of(question, item, 40), 40
    values = hits(kernel, [0.3, 0.6])
    contrasts = np.linalg.svd(np.eye(n) - 1 / n)[0][:, : n - 1]
    expected = []
    for rho in RHO[:, 0]:
        inner = contrasts.T @ ((1 - rho) * np.eye(n) + rho * kernel) @ contrasts
        e = contrasts.T @ values
        squares = (e * np.linalg.solve(inner, e)).sum(axis=0)
        expected.append(-0.5 * np.linalg.slogdet(inner)[1] - 0.5 * (n - 1) * np.log(squares))
    weight = PRIOR * np.exp(np.array(expected) - np.max(expected, axis=0))
    fit = SharedGold.of_pairs(question, item, n).fit(values)
    np.testing.assert_allclose(fit.weight, weight / weight.sum(axis=0), atol=1e-9)


def test_few_groups_have_few_degrees_of_freedom():
    """By definition: (tr S)^2 / tr(S^2) of the covariance S of the centred values."""
    group, n = np.repeat(np.arange(4), 10), 40
    centre, kernel = np.eye(n) - 1 / n, (group[:, None] == group).astype(float)
    covariances = (centre @ ((1 - rho) * np.eye(n) + rho * kernel) @ centre for rho in RHO[:, 0])
    expected = [np.trace(one) ** 2 / (one**2).sum() for one in covariances]
    found = SharedGold.of_groups(group).fit(hits(np.eye(n), [0.5])).dof
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9)
    assert found.min() < 10


def test_groups_are_questions_with_the_same_gold():
    groups = np.repeat([4, 0, 9, 2], [3, 1, 5, 2])
    values = np.random.default_rng(2).random((11, 2))
    pairs = SharedGold.of_pairs(np.arange(11), groups, 11)
    ours = np.stack(mean_interval(values, SharedGold.of_groups(groups)))
    assert ours.tobytes() == np.stack(mean_interval(values, pairs)).tobytes()


def test_missing_values_leave_the_gold_of_the_others():
    question, item = chained(50, 30, 4)
    values = hits(kernel_of(question, item, 50), [0.4, 0.6])
    values[::3, 0] = math.nan
    scored = np.flatnonzero(~np.isnan(values[:, 0]))
    kept = np.isin(question, scored)
    rebuilt = SharedGold.of_pairs(np.searchsorted(scored, question[kept]), item[kept], len(scored))
    gold = SharedGold.of_pairs(question, item, 50)
    found, alone = mean_interval(values, gold), mean_interval(values[scored, 0], rebuilt)
    assert [part[0] for part in found] == pytest.approx([part[0] for part in alone], rel=1e-9)
    assert gold.take(~np.isnan(values[:, 0])) is gold.take(scored)
    assert gold.take(np.arange(50)) is gold
    wordings = mean_interval(values[[3, 3, 7], 1], gold.take(np.array([3, 3, 7])))
    assert wordings.n_effective[0] < 2.9


def test_who_shares_gold_is_known_of_every_part():
    rows = [1.0, 0.0, 1.0, 0.0]
    without = mean_interval(rows, SharedGold.of_pairs([0], [0], 4))
    assert without.n_effective[0] == pytest.approx(4)  # no gold is nobody's gold
    gold = SharedGold.of_pairs([0, 1, 2, 3], [0, 0, 1, 2], 4)
    together, apart = (gold.take(np.array(pair)) for pair in ([0, 1], [2, 3]))
    assert mean_interval([1.0, 0.0], apart).n_effective[0] == pytest.approx(2)
    assert mean_interval([1.0, 0.0], together).n_effective[0] < 1.9
    pairs = [0, 0, 1, 2, 2, 3], [0, 1, 0, 1, 2, 2]
    twice = SharedGold.of_pairs(*(codes + codes[:2] for codes in pairs), 4)
    assert mean_interval(rows, twice) == mean_interval(rows, SharedGold.of_pairs(*pairs, 4))


def test_a_twentieth_lies_beyond_the_half_width():
    question, item = chained(60, 80, 5)
    values = hits(kernel_of(question, item, 60), [0.2, 0.5, 0.9])
    for gold in (SharedGold.of_pairs(question, item, 60), SharedGold.of_groups(np.arange(60))):
        fit = gold.fit(values)
        for at, end in enumerate(fit.value + fit.half_width()):
            assert fit.p(end)[at] == pytest.approx(0.05, abs=1e-6)


def test_few_questions_and_wrong_shapes():
    gold = SharedGold.of_groups([0, 1, 2])
    empty = mean_interval([math.nan] * 3, gold)
    assert math.isnan(empty.value[0])
    assert empty.n_effective[0] == 0
    one = mean_interval([0.5, math.nan, math.nan], gold)
    assert (one.value[0], one.n_effective[0]) == (0.5, pytest.approx(1))
    assert math.isnan(one.low[0])
    same = mean_interval([1.0, 0.0, 1.0], SharedGold.of_groups([7, 7, 7]))
    assert 0 <= same.low[0] < 2 / 3 < same.high[0] <= 1
    for wrong, message in (([1.0, 0.0], "2 rows"), ([2.0, 0.0, 1.0], "outside")):
        with pytest.raises(ValueError, match=message):
            mean_interval(wrong, gold)
    assert mean_interval([2.0, 0.0, 1.0], gold, unit_range=False).high[0] > 2
    with pytest.raises(ValueError, match="question has codes"):
        SharedGold.of_pairs([0, 3], [0, 0], 3)


def test_wilson_bounds_lie_z_deviations_from_the_rate():
    z, value, n = 1.96, np.array([0.1, 0.5, 0.97]), np.array([20.0, 50.5, 300.0])
    for bound in wilson(value, n, z):
        deviations = np.abs(value - bound) / np.sqrt(bound * (1 - bound) / n)
        np.testing.assert_allclose(deviations, z, rtol=1e-9)
    counts = np.arange(1.0, 500.0)
    assert (wilson(np.zeros_like(counts), counts, z)[0] <= 0).all()
    assert (wilson(np.ones_like(counts), counts, z)[1] >= 1).all()


def test_many_citations_of_a_question_are_one_observation():
    one_group = ratio_interval([90, 5, 5, 5], [100, 5, 5, 5], SharedGold.of_groups(np.arange(4)))
    parts, wholes = np.repeat([1, 0], [105, 10]), np.ones(115, dtype=np.int64)
    spread = ratio_interval(parts, wholes, SharedGold.of_groups(np.arange(115)))
    assert one_group.value[0] == pytest.approx(spread.value[0])
    assert one_group.high[0] - one_group.low[0] > 2 * (spread.high[0] - spread.low[0])


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.1, 0.5])
@pytest.mark.parametrize("n_groups", [50, 108, 300])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.9, 0.95, 0.98])
def test_intervals_of_ratios_cover_the_truth(p, n_groups, correlation):
    """Citations of a question are correct together: their rates are beta distributed."""
    rng = np.random.default_rng([round(100 * p), n_groups, round(10 * correlation)])
    columns, draws, scale = 250, 24, (1 - correlation) / correlation
    covered, gold = 0, SharedGold.of_groups(np.arange(n_groups))
    for _ in range(draws):
        wholes = 1 + rng.poisson(1.5, n_groups)
        rates = rng.beta(p * scale, (1 - p) * scale, (n_groups, columns))
        parts = rng.binomial(wholes[:, None], rates)
        found = ratio_interval(parts, np.tile(wholes, (columns, 1)).T, gold)
        covered += int(((found.low <= p) & (p <= found.high)).sum())
    # Coverage reaches 0.971 at p = 0.9 with 50 groups and little correlation.
    assert 0.93 <= covered / (columns * draws) <= (0.975 if p <= 0.9 else 0.99)
