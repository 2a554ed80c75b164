"""Comparisons of strategies by their misses agree with direct computations."""

import dataclasses
import json

import numpy as np
import pytest

from rag_eval.measures.intervals import holm, paired_comparison
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.uncertainty.misses import Misses, _compare


def strategies(n_groups, rng, *, labelled=1.0, harder=0.0):
    """Make three strategies whose misses share a difficulty that their predictions partly know."""
    group = np.repeat(np.arange(n_groups), rng.choice([1, 2, 3], n_groups))
    hard = rng.normal(size=n_groups)[group] + 0.5 * rng.normal(size=len(group))
    judged = (rng.random(n_groups) < labelled)[group]
    made = []
    for name, shift in (("one", 0.0), ("two", harder), ("three", 0.0)):
        p = 1 / (1 + np.exp(1.2 - 1.5 * hard - shift))
        missed = np.where(judged, rng.random(len(group)) < p, np.nan)
        made.append(Misses(name, missed, p, np.full(len(group), 0.5)))
    return made, SharedGold.of_groups(group)


APART = SharedGold.of_groups(np.arange(4))
SIMS = 250
"""Simulated comparisons per case."""


def by(comparison, a, b, measure):
    key = a, b, measure
    return next(row for row in comparison.differences if (row.a, row.b, row.measure) == key)


def test_figures_are_those_of_the_measures_they_are_named_after():
    made, gold = strategies(150, np.random.default_rng(1), labelled=0.6)
    comparison = _compare(made, gold)
    one, entry = made[0], comparison.strategies[0]
    judged = ~np.isnan(one.missed)
    found = mean_interval(one.missed, gold)
    interval = [float(bound[0]) for bound in found[:3]]
    denominators = int(judged.sum()), pytest.approx(float(found.n_effective[0]))
    observed = entry.observed.value, entry.observed.low, entry.observed.high
    assert observed == pytest.approx(interval)
    assert (entry.observed.n, entry.observed.n_effective) == denominators
    assert entry.calibrated.value == pytest.approx(one.calibrated.mean())
    assert entry.calibrated.n == len(gold)
    assert entry.raw.value == pytest.approx(0.5)
    brier, rate = ((one.calibrated - one.missed)[judged] ** 2).mean(), one.missed[judged].mean()
    assert entry.brier.value == pytest.approx(brier)
    assert entry.skill.value == pytest.approx(1 - brier / (rate * (1 - rate)))
    assert entry.skill.low < entry.skill.value < entry.skill.high
    assert comparison.n == len(gold)


def test_differences_are_paired_and_adjusted_over_pairs():
    made, gold = strategies(200, np.random.default_rng(2), harder=0.9)
    comparison = _compare(made, gold)
    pairs = [("one", "two"), ("one", "three"), ("two", "three")]
    assert [(row.a, row.b) for row in comparison.differences[::6]] == pairs
    direct = paired_comparison(made[0].missed, made[1].missed, gold, higher_is_better=False)
    row = by(comparison, "one", "two", "observed")
    found = row.delta.value, row.delta.low, row.delta.high, row.p, row.detectable
    names = ("delta", "ci_low", "ci_high", "p", "minimum_detectable")
    assert found == pytest.approx([getattr(direct, name)[0] for name in names])
    versus = direct.n_better[0], direct.n_worse[0], direct.n_tied[0]
    assert (row.n_better, row.n_worse, row.n_tied) == versus
    assert row.n_better > row.n_worse  # strategy "one" misses less
    for measure in ("observed", "raw", "calibrated", "brier", "skill"):
        mine = [other for other in comparison.differences if other.measure == measure]
        assert np.allclose([other.p_holm for other in mine], holm([other.p for other in mine]))
    skills = {entry.name: entry.skill.value for entry in comparison.strategies}
    skill = by(comparison, "one", "two", "skill")
    assert skill.delta.value == pytest.approx(skills["one"] - skills["two"])
    assert skill.delta.low < skill.delta.value < skill.delta.high
    direct = paired_comparison(made[0].skills(), made[1].skills(), gold, unit_range=False)
    found = skill.delta.low, skill.delta.high, skill.p, skill.detectable
    names = ("ci_low", "ci_high", "p", "minimum_detectable")
    assert found == pytest.approx([getattr(direct, name)[0] for name in names])


def test_equal_strategies_do_not_differ():
    made, gold = strategies(60, np.random.default_rng(4))
    comparison = _compare([made[0], dataclasses.replace(made[0], name="again")], gold)
    for row in comparison.differences:
        assert row.delta.value == pytest.approx(0)
        assert row.p in {None, 1.0}
    skill = by(comparison, "one", "again", "skill")
    assert (skill.delta.low, skill.p, skill.detectable) == (None, None, None)


def skill_difference(n_groups, rng, noise):
    """Compare the skills of forecasters whose log-odds have noise of 0.5 and of `noise`.

    Return difference, low, high and p, as `compare` takes them.
    """
    made, gold = strategies(n_groups, rng)
    noisy = []
    for one, size in zip(made, (0.5, noise), strict=False):
        odds = np.log(one.calibrated / (1 - one.calibrated)) + size * rng.normal(size=len(gold))
        noisy.append(dataclasses.replace(one, calibrated=1 / (1 + np.exp(-odds))))
    found = paired_comparison(noisy[0].skills(), noisy[1].skills(), gold, unit_range=False)
    return found.delta[0], found.ci_low[0], found.ci_high[0], found.p[0]


@pytest.mark.slow
@pytest.mark.parametrize("n_groups", [30, 100])
@pytest.mark.parametrize("noise", [0.5, 1.5])
def test_the_test_of_skills_keeps_its_level_and_covers(n_groups, noise):
    rng, held, rejected = np.random.default_rng(n_groups), 0, 0
    truth = np.mean([skill_difference(5000, rng, noise)[0] for _ in range(20)])
    for _ in range(SIMS):
        _, low, high, p = skill_difference(n_groups, rng, noise)
        held += low <= truth <= high
        rejected += p <= 0.05
    assert 0.92 <= held / SIMS <= 0.985, held / SIMS
    assert noise > 0.5 or rejected / SIMS <= 0.05 + 3 * (0.05 * 0.95 / SIMS) ** 0.5


def test_unknown_values_are_none_and_still_json():
    nothing = np.full(4, np.nan)
    half = Misses("b", np.array([0, 1, 0, 1.0]), nothing, nothing)
    comparison = _compare([Misses("a", nothing, nothing, nothing), half], APART)
    json.dumps(comparison.dump(), allow_nan=False)
    first = comparison.strategies[0]
    assert (first.observed.value, first.skill.value, first.observed.n) == (None, None, 0)
    assert comparison.strategies[1].observed.value == 0.5
    assert all(row.delta.value is None and row.p is None for row in comparison.differences)


def test_the_spread_of_skills_is_their_influence():
    made, _ = strategies(100, np.random.default_rng(5), labelled=0.7)
    y = made[0].missed
    known = ~np.isnan(y)

    def skill(weight):
        rate = np.average(y[known], weights=weight)
        error = np.average(made[0].squared_error[known], weights=weight)
        return 1 - error / (rate * (1 - rate))

    n, step, skills = int(known.sum()), 1e-6, made[0].skills()
    assert np.isnan(skills[~known]).all()
    assert np.nanmean(skills) == pytest.approx(skill(np.ones(n)))
    for row in (0, 7, 31):
        slope = (skill(1 + step * (np.arange(n) == row)) - skill(np.ones(n))) / step * n
        assert skills[known][row] - skill(np.ones(n)) == pytest.approx(slope, rel=1e-3, abs=1e-3)
    pair = dataclasses.replace(made[0], missed=np.where(known, y, 1.0)).skills(known)
    assert pair == pytest.approx(skills, nan_ok=True)
