"""Promote, hold or roll back: each reason, how often a decision is wrong, and who is assigned."""

import hashlib
import math

import numpy as np
import pytest

from rag_eval.gates.rollout import MIN_QUESTIONS, STAGES, assign, decide
from rag_eval.measures.overlap import SharedGold

QUESTIONS = [f"question {at}" for at in range(20_000)]


def apart(n):
    """Return the gold of n questions that share no document."""
    return SharedGold.of_groups(np.arange(n))


def outcomes(n, *, won=0, lost=0, hits=0.8):
    """Return hits of the base, hits of the candidate, each of shape (n,), and the gold.

    The base finds the first share `hits` of the questions. The candidate loses the first `lost`
    and wins the last `won` questions.
    """
    base = np.zeros(n)
    base[: round(n * hits)] = 1
    candidate = base.copy()
    candidate[:lost] = 0
    candidate[n - won :] = 1
    return base, candidate, apart(n)


def codes(decision):
    return list(decision.reasons)


def count_questions(spread, difference):
    """Return the size of a two-sided test at 5 % with power 0.8, as Guenther (1981) gives it."""
    return math.ceil(((1.959964 + 0.841621) * spread / difference) ** 2 + 1.959964**2 / 2)


def test_as_good_a_candidate_is_promoted_with_its_figures():
    found = decide(*outcomes(400, won=4, lost=4))
    assert (found.action, codes(found), found.questions_needed) == ("promote", ["not_worse"], None)
    figures = found.figures
    assert (figures["n_questions"], figures["n_effective"], figures["n_unpaired"]) == (400, 400, 0)
    names = ("base", "candidate", "difference", "degradation")
    assert [figures[name] for name in names] == [0.8, 0.8, 0, 0]
    assert (figures["n_better"], figures["n_worse"], figures["n_tied"]) == (4, 4, 392)
    assert figures["base_low"] < 0.8 < figures["base_high"]
    assert figures["difference_low"] < 0 < figures["difference_high"]
    assert figures["degradation_low"] < 0 < figures["degradation_high"] < 0.05


def test_surely_more_than_five_percent_worse_is_rolled_back():
    found = decide(*outcomes(100, lost=15))
    assert (found.action, codes(found), found.questions_needed) == ("roll_back", ["degraded"], None)
    assert found.figures["degradation"] == pytest.approx(0.15 / 0.8)
    assert found.figures["difference_high"] < 0
    assert "18.8 %" in found.reasons["degraded"]


def test_surely_worse_by_no_more_than_five_percent_is_held():
    base = np.linspace(0.6, 1.0, 400)
    found = decide(base, base * 0.95, apart(400))
    assert found.figures["difference_high"] < 0
    assert found.figures["degradation"] == pytest.approx(0.05)
    assert (found.action, codes(found)) == ("hold", ["not_excluded"])
    assert decide(base, base * 0.949, apart(400)).action == "roll_back"
    assert decide(base, base * 0.96, apart(400)).action == "promote"


def test_a_small_set_is_held_with_the_questions_that_would_promote():
    found = decide(*outcomes(100, won=4, lost=4))
    assert (found.action, codes(found)) == ("hold", ["not_excluded"])
    # The interval of few differences is wide: between the plain formula and twice that.
    plain = count_questions(math.sqrt(0.08) / 0.8, 0.05)
    assert plain * 0.9 < found.questions_needed < plain * 2


def test_an_unsure_loss_is_held_with_the_questions_that_would_show_it():
    found = decide(*outcomes(60, won=6, lost=10))
    assert found.figures["degradation"] > 0.05
    assert found.figures["difference_high"] > 0
    assert (found.action, codes(found)) == ("hold", ["not_excluded"])
    spread = math.sqrt(16 / 60 - (4 / 60) ** 2) / 0.8
    assert found.questions_needed == pytest.approx(count_questions(spread, 4 / 48), rel=0.25)


@pytest.mark.parametrize("n", [0, 1, MIN_QUESTIONS - 1])
def test_under_the_minimum_nothing_is_decided(n):
    found = decide(np.ones(n), np.zeros(n), apart(n))
    assert (found.action, codes(found)) == ("hold", ["too_few_questions"])
    enough = apart(MIN_QUESTIONS)
    assert decide(np.ones(MIN_QUESTIONS), np.zeros(MIN_QUESTIONS), enough).action == "roll_back"


def test_effective_questions_count():
    base, candidate, _ = outcomes(290, lost=100)
    found = decide(base, candidate, SharedGold.of_groups(np.arange(290) // 12))
    assert (found.action, found.figures["n_questions"]) == ("hold", 290)
    assert 25 < found.figures["n_effective"] < 30


def test_strategies_that_never_differed_need_enough_questions():
    # 50 questions without a difference cannot exclude a loss of one in twenty
    assert decide(*outcomes(50)).action == "hold"
    assert decide(*outcomes(120)).action == "promote"


def test_questions_without_the_candidate_could_all_be_lost():
    base, candidate, gold = outcomes(400)
    candidate[:30] = np.nan
    found = decide(base, candidate, gold)
    assert (found.action, codes(found), found.figures["n_unpaired"]) == ("hold", ["not_paired"], 30)
    candidate[10:30] = 1
    assert decide(base, candidate, gold).action == "promote"
    base[:10] = np.nan  # neither strategy was scored
    assert decide(base, candidate, gold).figures["n_unpaired"] == 0


def test_a_measure_that_improves_as_it_falls():
    base = np.full(200, 0.4) + np.linspace(-0.1, 0.1, 200)
    for factor, action, count in ((1.2, "roll_back", "n_worse"), (0.8, "promote", "n_better")):
        found = decide(base, base * factor, apart(200), higher_is_better=False)
        assert (found.action, found.figures[count]) == (action, 200)
        assert found.figures["degradation"] == pytest.approx(factor - 1)
    few = base.copy()
    few[:5] = 0.9
    found = decide(base, few, apart(200), higher_is_better=False).figures
    assert found["degradation_low"] < found["degradation"] < found["degradation_high"]
    assert found["degradation_high"] == pytest.approx(found["difference_high"] / found["base"])


def test_a_base_that_scores_nothing():
    nothing = np.zeros(100)
    found = decide(nothing, nothing, apart(100))
    assert (found.action, codes(found), found.figures["degradation"]) == ("hold", ["no_base"], None)
    assert found.questions_needed is None
    risen = decide(nothing, nothing + 0.5, apart(100), higher_is_better=False)
    assert risen.action == "roll_back"


def test_assignment_keeps_the_share_and_nests_the_stages():
    on = [{one for one in QUESTIONS if assign(one, stage / 100, "salt")} for stage in STAGES]
    assert on[0] < on[1] < on[2] == set(QUESTIONS)
    for stage, assigned in zip(STAGES[:2], on[:2], strict=True):
        share = stage / 100
        assert len(assigned) == pytest.approx(
            share * len(QUESTIONS), abs=4 * math.sqrt(len(QUESTIONS) * share * (1 - share))
        )
    assert not any(assign(one, 0, "salt") for one in QUESTIONS)


def test_an_assignment_is_the_same_in_every_version():
    place = int(hashlib.sha256(b"s\0what is it?").hexdigest()[:13], 16) / 2**52
    assert not assign("what is it?", place, "s")
    assert assign("what is it?", math.nextafter(place, 1), "s")


BASE = 0.8


def simulated(n, won, lost, seed, *, sets=400):
    """Return shares of promote, hold and roll back over random draws.

    Won and lost are shares of all questions.
    """
    rng = np.random.default_rng(seed)
    actions = []
    for _ in range(sets):
        base = rng.random(n) < BASE
        draw = rng.random(n)
        candidate = np.where(base, draw >= lost / BASE, draw < won / (1 - BASE))
        actions.append(decide(base.astype(float), candidate.astype(float), apart(n)).action)
    return {action: actions.count(action) / sets for action in ("promote", "hold", "roll_back")}


def limit(share, sets):
    """Return the true share of errors plus 3 standard errors of the share over `sets` draws."""
    return share + 3 * math.sqrt(share * (1 - share) / sets)


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("churn", [0.02, 0.10])
def test_equal_strategies_are_seldom_rolled_back(n, churn):
    assert simulated(n, churn, churn, n)["roll_back"] <= limit(0.025, 400)


@pytest.mark.slow
@pytest.mark.parametrize(("won", "lost"), [(0.02, 0.10), (0.05, 0.13)])
def test_ten_percent_worse_is_rolled_back_with_the_power(won, lost):
    spread = math.sqrt(won + lost - (lost - won) ** 2) / BASE
    found = simulated(count_questions(spread, (lost - won) / BASE), won, lost, 5)
    assert found["roll_back"] == pytest.approx(0.8, abs=3 * math.sqrt(0.8 * 0.2 / 400))
    assert found["promote"] <= 0.02
    assert simulated(count_questions(spread, 0.05), won, lost, 6, sets=100)["roll_back"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100, 300])
def test_a_degradation_at_the_limit_is_seldom_promoted(n):
    assert simulated(n, 0.02, 0.06, n)["promote"] <= limit(0.025, 400)
    assert simulated(n, 0.02, 0.10, n)["promote"] <= 0.05


@pytest.mark.slow
def test_an_equal_candidate_is_promoted_with_the_power():
    n = count_questions(math.sqrt(0.08) / BASE, 0.05)
    assert simulated(n, 0.04, 0.04, 8)["promote"] == pytest.approx(
        0.8, abs=3 * math.sqrt(0.8 * 0.2 / 400)
    )
