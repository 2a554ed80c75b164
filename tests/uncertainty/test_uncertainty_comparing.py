"""Comparisons of strategies by their misses agree with direct computations."""

import json

import numpy as np
import pytest

from rag_eval.core.errors import InputError
from rag_eval.measures.intervals import clustered_interval
from rag_eval.measures.paired import holm, paired_comparison
from rag_eval.uncertainty.comparing import NO_TRAFFIC, Audited, Misses, compare, prediction_powered
from rag_eval.uncertainty.scores import bootstrap_bounds, compute_skill, mean_figure, skill_figure


def strategies(n_groups, rng, *, labelled=1.0, harder=0.0):
    """Make three strategies whose misses share a difficulty that their predictions partly know."""
    group = np.repeat(np.arange(n_groups), rng.choice([1, 2, 3], n_groups))
    hard = rng.normal(size=n_groups)[group] + 0.5 * rng.normal(size=len(group))
    judged = (rng.random(n_groups) < labelled)[group]
    found = []
    for name, shift in (("one", 0.0), ("two", harder), ("three", 0.0)):
        p = 1 / (1 + np.exp(1.2 - 1.5 * hard - shift))
        missed = np.where(judged, rng.random(len(group)) < p, np.nan)
        found.append(Misses(name, missed, p, np.full(len(group), 0.5)))
    return found, group


def by(comparison, a, b, measure):
    return next(
        row for row in comparison.differences if (row.a, row.b, row.measure) == (a, b, measure)
    )


def test_figures_are_those_of_the_measures_they_are_named_after():
    found, group = strategies(150, np.random.default_rng(1), labelled=0.6)
    comparison = compare(found, group)
    one, entry = found[0], comparison.strategies[0]
    judged = ~np.isnan(one.missed)
    interval = clustered_interval(one.missed, group, 0)
    assert entry.observed == (
        pytest.approx(interval.value[0]),
        pytest.approx(interval.low[0]),
        pytest.approx(interval.high[0]),
        int(judged.sum()),
        len(np.unique(group[judged])),
    )
    assert entry.calibrated.value == pytest.approx(one.calibrated.mean())
    assert entry.calibrated.n == len(group)
    assert entry.raw.value == pytest.approx(0.5)
    brier, rate = ((one.calibrated - one.missed)[judged] ** 2).mean(), one.missed[judged].mean()
    assert entry.brier.value == pytest.approx(brier)
    assert entry.skill.value == pytest.approx(1 - brier / (rate * (1 - rate)))
    assert entry.skill.low < entry.skill.value < entry.skill.high
    assert (entry.powered, entry.powered_reason) == (
        None,
        NO_TRAFFIC,
    )  # unjudged gold questions are no production traffic
    assert (comparison.n, comparison.n_groups) == (len(group), 150)


def test_differences_are_paired_and_adjusted_over_pairs():
    found, group = strategies(200, np.random.default_rng(2), harder=0.9)
    comparison = compare(found, group)
    assert [(row.a, row.b) for row in comparison.differences[::6]] == [
        ("one", "two"),
        ("one", "three"),
        ("two", "three"),
    ]
    direct = paired_comparison(found[0].missed, found[1].missed, group, 0, higher_is_better=False)
    row = by(comparison, "one", "two", "observed")
    assert row.delta.value == pytest.approx(direct.delta[0])
    assert (row.delta.low, row.delta.high) == (
        pytest.approx(direct.ci_low[0]),
        pytest.approx(direct.ci_high[0]),
    )
    assert (row.p, row.n_better, row.n_worse, row.n_tied) == (
        pytest.approx(direct.p[0]),
        direct.n_better[0],
        direct.n_worse[0],
        direct.n_tied[0],
    )
    assert row.detectable == pytest.approx(direct.minimum_detectable[0])
    assert row.n_better > row.n_worse  # one misses less
    for measure in ("observed", "raw", "calibrated", "brier", "skill"):
        mine = [other for other in comparison.differences if other.measure == measure]
        assert np.allclose([other.p_holm for other in mine], holm([other.p for other in mine]))
    skills = {entry.name: entry.skill.value for entry in comparison.strategies}
    skill = by(comparison, "one", "two", "skill")
    assert skill.delta.value == pytest.approx(skills["one"] - skills["two"])
    assert skill.delta.low < skill.delta.value < skill.delta.high
    assert skill.detectable > 0


def test_a_worse_forecaster_is_found_by_skill():
    found, group = strategies(300, np.random.default_rng(3))
    blind = Misses("blind", found[0].missed, np.full(len(group), np.nanmean(found[0].missed)))
    comparison = compare([found[0], blind], group)
    skill = by(comparison, "one", "blind", "skill")
    assert skill.delta.low > 0
    assert skill.p_holm < 0.01
    assert by(comparison, "one", "blind", "observed").delta.value == 0
    assert by(comparison, "one", "blind", "observed").p == 1
    assert comparison.strategies[1].raw is None
    assert not [row for row in comparison.differences if row.measure == "raw"]


def test_equal_strategies_do_not_differ():
    found, group = strategies(60, np.random.default_rng(4))
    comparison = compare([found[0], Misses("again", found[0].missed, found[0].calibrated)], group)
    assert by(comparison, "one", "again", "powered").delta.value is None
    for row in comparison.differences:
        assert row.measure == "powered" or row.delta.value == pytest.approx(0)
        assert row.p in {None, 1.0}
    assert (
        by(comparison, "one", "again", "skill").delta.low is None
    )  # without data to resample there is no interval


@pytest.mark.slow
def test_the_swap_test_of_skill_keeps_its_level_and_its_interval_covers():
    rejected, held, sims = 0, 0, 300
    for seed in range(sims):
        found, group = strategies(120, np.random.default_rng(seed))
        row = by(compare([found[0], found[2]], group, seed=seed), "one", "three", "skill")
        rejected += row.p <= 0.05
        held += row.delta.low <= 0 <= row.delta.high  # the truth: both forecasters know the same
    assert rejected / sims <= 0.05 + 3 * (0.05 * 0.95 / sims) ** 0.5
    assert 0.92 <= held / sims <= 0.99


def test_what_is_not_known_is_none_and_still_json():
    group, nothing = np.arange(4), np.full(4, np.nan)
    comparison = compare(
        [Misses("a", nothing, nothing), Misses("b", np.array([0, 1, 0, 1.0]), nothing)], group
    )
    json.dumps(comparison.to_json(), allow_nan=False)
    first = comparison.strategies[0]
    assert (first.observed.value, first.skill.value, first.powered, first.observed.n) == (
        None,
        None,
        None,
        0,
    )
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
    found, group = strategies(60, np.random.default_rng(6))
    live = {
        "one": audited(200, 1, share=0.7),
        "two": audited(160, 2, share=0.7),
        "three": Audited.nothing("nobody asked"),
    }
    comparison = compare(found, group, audited=live)
    one = comparison.strategies[0]
    assert one.powered.to_json() == pytest.approx(
        prediction_powered(live["one"].missed, live["one"].predicted, np.arange(200) // 4).to_json()
    )
    assert (one.powered.n_labelled, one.powered.n_unlabelled) == (
        int((~np.isnan(live["one"].missed)).sum()),
        int(np.isnan(live["one"].missed).sum()),
    )
    row = by(comparison, "one", "two", "powered")
    direct = prediction_powered(
        live["one"].missed[:160] - live["two"].missed,
        live["one"].predicted[:160] - live["two"].predicted,
        np.arange(160) // 4,
        unit_range=False,
    )
    assert row.powered.to_json() == pytest.approx(direct.to_json())
    assert row.delta.n == row.powered.n_labelled + row.powered.n_unlabelled == 160
    absent = by(comparison, "one", "three", "powered")
    assert (absent.delta.value, absent.delta.n, absent.powered, absent.powered_reason) == (
        None,
        0,
        None,
        "nobody asked",
    )
    document = comparison.to_json()
    assert (document["strategies"][2]["powered"], document["strategies"][2]["powered_reason"]) == (
        None,
        "nobody asked",
    )
    assert "powered_reason" not in document["strategies"][0]


def test_a_pair_takes_one_claim_of_each_question_whoever_was_audited():
    a, b = audited(120, 3, per_query=3), audited(120, 4, per_query=3)
    for of in (a, b):
        assert len(of.first()) == 40
        for query, row in of.first().items():
            assert of.claim[row] == min(
                name for name, asked in zip(of.claim, of.query, strict=True) if asked == query
            )
    found, group = strategies(60, np.random.default_rng(7))
    pair = [found[0], found[1]]
    assert (
        by(compare(pair, group, audited={"one": a, "two": b}), "one", "two", "powered").delta.n
        == 40
    )
    apart = Audited(
        b.claim, b.query, b.group, np.where(np.isnan(a.missed), b.missed, np.nan), b.predicted
    )
    never = by(
        compare(
            pair,
            group,
            audited={
                "one": audited(120, 3),
                "two": Audited(
                    apart.claim,
                    tuple(f"x{at}" for at in range(120)),
                    apart.group,
                    apart.missed,
                    apart.predicted,
                ),
            },
        ),
        "one",
        "two",
        "powered",
    )
    assert (
        "of 0 questions in the traffic of both strategies none was audited for both"
        in never.powered_reason
    )


def test_everything_missed_has_no_skill():
    group = np.arange(30)
    figure = skill_figure(np.full(30, 0.9), np.ones(30), group)
    assert (figure.value, figure.low, figure.n) == (None, None, 30)
    assert np.isnan(compute_skill(np.array(0.0), np.array(0.0), np.array(5.0)))
    assert compute_skill(np.array(1.0), np.array(5.0), np.array(10.0)) == pytest.approx(0.6)


def test_equal_values_lie_inside_their_interval():
    figure = mean_figure(np.full(1109, 0.3), np.arange(1109))
    assert figure.low <= figure.value <= figure.high
    assert mean_figure(np.array([0.4, np.nan]), np.array([0, 1])) == (0.4, None, None, 1, 1)
    assert mean_figure(np.array([np.nan]), np.array([0])).n == 0
    assert bootstrap_bounds(0.3, np.full(10, np.nan), 5) == (None, None)


def test_a_comparison_needs_two_different_strategies():
    one = Misses("a\x1b[31m", np.zeros(3), np.zeros(3))
    for wrong in ([], [one], [one, one]):
        with pytest.raises(InputError, match="two or more different") as error:
            compare(wrong, np.arange(3))
        assert "\x1b" not in str(error.value)
    with pytest.raises(ValueError, match="one a query"):
        compare([one, Misses("b", np.zeros(2), np.zeros(2))], np.arange(3))
    with pytest.raises(ValueError, match="must lie"):
        compare([one, Misses("b", np.zeros(3), np.full(3, 1.2))], np.arange(3))
