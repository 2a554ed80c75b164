"""Comparisons of strategies by their misses agree with direct computations."""

import dataclasses
import json

import numpy as np
import pytest

from rag_eval.core.errors import InputError
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.measures.paired import holm, paired_comparison
from rag_eval.uncertainty.comparing import (
    NO_TRAFFIC,
    Audited,
    Misses,
    bootstrap_bounds,
    compare,
    compute_skill,
    prediction_powered,
    skill_figure,
)
from rag_eval.uncertainty.scores import (
    NO_FIGURE,
    mean_figure,
)


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
    return made, group


def by(comparison, a, b, measure):
    key = a, b, measure
    return next(row for row in comparison.differences if (row.a, row.b, row.measure) == key)


def test_figures_are_those_of_the_measures_they_are_named_after():
    made, group = strategies(150, np.random.default_rng(1), labelled=0.6)
    comparison = compare(made, group)
    one, entry = made[0], comparison.strategies[0]
    judged = ~np.isnan(one.missed)
    found = mean_interval(one.missed, SharedGold.of_groups(group))
    interval = [float(bound[0]) for bound in found[:3]]
    denominators = int(judged.sum()), pytest.approx(float(found.n_effective[0]))
    observed = entry.observed.value, entry.observed.low, entry.observed.high
    assert observed == pytest.approx(interval)
    assert (entry.observed.n, entry.observed.n_effective) == denominators
    assert entry.calibrated.value == pytest.approx(one.calibrated.mean())
    assert entry.calibrated.n == len(group)
    assert entry.raw.value == pytest.approx(0.5)
    brier, rate = ((one.calibrated - one.missed)[judged] ** 2).mean(), one.missed[judged].mean()
    assert entry.brier.value == pytest.approx(brier)
    assert entry.skill.value == pytest.approx(1 - brier / (rate * (1 - rate)))
    assert entry.skill.low < entry.skill.value < entry.skill.high
    # unjudged gold questions are no production traffic
    assert (entry.powered, entry.why["powered"]) == (None, NO_TRAFFIC)
    assert (comparison.n, comparison.n_groups) == (len(group), 150)


def test_differences_are_paired_and_adjusted_over_pairs():
    made, group = strategies(200, np.random.default_rng(2), harder=0.9)
    comparison = compare(made, group)
    pairs = [("one", "two"), ("one", "three"), ("two", "three")]
    assert [(row.a, row.b) for row in comparison.differences[::6]] == pairs
    gold = SharedGold.of_groups(group)
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
    assert skill.detectable > 0


def test_a_worse_forecaster_is_found_by_skill():
    made, group = strategies(300, np.random.default_rng(3))
    blind = Misses("blind", made[0].missed, np.full(len(group), np.nanmean(made[0].missed)))
    comparison = compare([made[0], blind], group)
    skill, observed = (by(comparison, "one", "blind", name) for name in ("skill", "observed"))
    assert skill.delta.low > 0
    assert skill.p_holm < 0.01
    assert (observed.delta.value, observed.p) == (0, 1)
    assert comparison.strategies[1].raw is None
    assert not [row for row in comparison.differences if row.measure == "raw"]


def test_equal_strategies_do_not_differ():
    made, group = strategies(60, np.random.default_rng(4))
    comparison = compare([made[0], Misses("again", made[0].missed, made[0].calibrated)], group)
    assert by(comparison, "one", "again", "powered").delta.value is None
    for row in comparison.differences:
        assert row.measure == "powered" or row.delta.value == pytest.approx(0)
        assert row.p in {None, 1.0}
    # without data to resample there is no interval
    assert by(comparison, "one", "again", "skill").delta.low is None


@pytest.mark.slow
def test_the_swap_test_of_skill_keeps_its_level_and_its_interval_covers():
    rejected, held, sims = 0, 0, 120
    for seed in range(sims):
        made, group = strategies(60, np.random.default_rng(seed))
        row = by(compare([made[0], made[2]], group, seed=seed), "one", "three", "skill")
        rejected += row.p <= 0.05
        held += row.delta.low <= 0 <= row.delta.high  # the true difference is 0
    assert rejected / sims <= 0.05 + 3 * (0.05 * 0.95 / sims) ** 0.5
    assert 0.92 <= held / sims <= 0.99


def test_unknown_values_are_none_and_still_json():
    group, nothing = np.arange(4), np.full(4, np.nan)
    half = Misses("b", np.array([0, 1, 0, 1.0]), nothing)
    comparison = compare([Misses("a", nothing, nothing), half], group)
    json.dumps(comparison.dump(), allow_nan=False)
    first = comparison.strategies[0]
    values = first.observed.value, first.skill.value, first.powered, first.observed.n
    assert values == (None, None, None, 0)
    assert comparison.strategies[1].observed.value == 0.5
    assert all(row.delta.value is None and row.p is None for row in comparison.differences)


def audited(n, seed, *, share=0.3, per_query=1):
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 2, n)
    missed = np.where(rng.random(n) < share, rng.random(n) < p, np.nan)
    return Audited(
        tuple(f"c{at:03d}" for at in rng.permutation(n)),
        tuple(f"q{at // per_query}" for at in range(n)),
        tuple(f"g{at // 4}" for at in range(n)),
        missed,
        p,
    )


def test_powered_estimates_are_of_traffic_and_not_of_the_gold_questions():
    made, group = strategies(60, np.random.default_rng(6))
    one, two = audited(200, 1, share=0.7), audited(160, 2, share=0.7)
    live = {"one": one, "two": two, "three": Audited.nothing("nobody asked")}
    comparison = compare(made, group, audited=live)
    powered = comparison.strategies[0].powered
    whole = prediction_powered(one.missed, one.predicted, np.arange(200) // 4)
    assert powered.dump() == pytest.approx(whole.dump())
    n_unaudited = int(np.isnan(one.missed).sum())
    assert (powered.n_labelled, powered.n_unlabelled) == (200 - n_unaudited, n_unaudited)
    row = by(comparison, "one", "two", "powered")
    missed, predicted = one.missed[:160] - two.missed, one.predicted[:160] - two.predicted
    direct = prediction_powered(missed, predicted, np.arange(160) // 4, unit_range=False)
    assert row.powered.dump() == pytest.approx(direct.dump())
    assert row.delta.n == row.powered.n_labelled + row.powered.n_unlabelled == 160
    absent = by(comparison, "one", "three", "powered")
    assert (absent.delta, absent.powered) == (NO_FIGURE, None)
    assert absent.why["powered"] == "nobody asked"
    entries = comparison.dump()["strategies"]
    assert (entries[2]["powered"], entries[2]["powered_reason"]) == (None, "nobody asked")
    assert "powered_reason" not in entries[0]


def test_a_pair_takes_one_claim_of_each_question_whoever_was_audited():
    a, b = audited(120, 3, per_query=3), audited(120, 4, per_query=3)
    for part in (a, b):
        names = dict.fromkeys(part.query, "d")
        for claim, query in zip(part.claim, part.query, strict=True):
            names[query] = min(names[query], claim)
        assert {query: part.claim[row] for query, row in part.first().items()} == names
    made, group = strategies(60, np.random.default_rng(7))

    def powered(one, two):
        comparison = compare(made[:2], group, audited={"one": one, "two": two})
        return by(comparison, "one", "two", "powered")

    assert powered(a, b).delta.n == 40
    others = dataclasses.replace(b, query=tuple(f"x{at}" for at in range(120)))
    none = "of 0 questions in the traffic of both strategies none was audited for both"
    assert powered(audited(120, 3), others).why["powered"] == none


def test_everything_missed_has_no_skill():
    figure = skill_figure(np.full(30, 0.9), np.ones(30), np.arange(30))
    assert (figure.value, figure.low, figure.n) == (None, None, 30)
    assert np.isnan(compute_skill(np.array(0.0), np.array(0.0), np.array(5.0)))
    assert compute_skill(np.array(1.0), np.array(5.0), np.array(10.0)) == pytest.approx(0.6)


def test_equal_values_lie_inside_their_interval():
    figure = mean_figure(np.full(1109, 0.3), np.arange(1109))
    assert figure.low <= figure.value <= figure.high
    single = mean_figure(np.array([0.4, np.nan]), np.array([0, 1]))
    assert (single.value, single.low, single.n, single.n_effective) == (0.4, None, 1, 1)
    assert mean_figure(np.array([np.nan]), np.array([0])).n == 0
    assert bootstrap_bounds(0.3, np.full(10, np.nan), 5) == (None, None)


def test_a_comparison_needs_two_different_strategies():
    one = Misses("a\x1b[31m", np.zeros(3), np.zeros(3))
    for wrong in ([], [one], [one, one]):
        with pytest.raises(InputError, match="two or more different") as error:
            compare(wrong, np.arange(3))
        assert "\x1b" not in str(error.value)
