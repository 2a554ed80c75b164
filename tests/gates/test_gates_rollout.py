"""Promote, hold or roll back: each reason, how often a decision is wrong, and who is assigned."""

import hashlib
import math

import numpy as np
import pytest

from rag_eval.gates.rollout import MIN_QUESTIONS, assign, decide
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


def test_as_good_a_candidate_is_promoted_with_its_figures():
    decision = decide(*outcomes(400, won=4, lost=4))
    assert (decision.action, decision.code) == ("promote", "not_worse")
    assert (decision.n_questions, decision.n_effective) == (400, 400)
    figures = (decision.base, decision.candidate, decision.difference[0], decision.degradation[0])
    assert figures == (0.8, 0.8, 0, 0)
    assert decision.difference.low < 0 < decision.difference.high
    assert decision.degradation.low < 0 < decision.degradation.high < 0.05


def test_surely_more_than_five_percent_worse_is_rolled_back():
    decision = decide(*outcomes(100, lost=15))
    assert (decision.action, decision.code) == ("roll_back", "degraded")
    assert decision.degradation.value == pytest.approx(0.15 / 0.8)
    assert decision.difference.high < 0


def test_surely_worse_by_no_more_than_five_percent_is_held():
    base = np.linspace(0.6, 1.0, 400)
    decision = decide(base, base * 0.95, apart(400))
    assert decision.difference.high < 0
    assert decision.degradation.value == pytest.approx(0.05)
    assert (decision.action, decision.code) == ("hold", "not_excluded")
    assert decide(base, base * 0.949, apart(400)).action == "roll_back"
    assert decide(base, base * 0.96, apart(400)).action == "promote"


def test_an_unsure_loss_is_held():
    decision = decide(*outcomes(60, won=6, lost=10))
    assert decision.degradation.value > 0.05
    assert decision.difference.high > 0
    assert (decision.action, decision.code) == ("hold", "not_excluded")


@pytest.mark.parametrize("n", [0, 1, MIN_QUESTIONS - 1])
def test_under_the_minimum_nothing_is_decided(n):
    decision = decide(np.ones(n), np.zeros(n), apart(n))
    assert (decision.action, decision.code) == ("hold", "too_few_questions")
    enough = apart(MIN_QUESTIONS)
    assert decide(np.ones(MIN_QUESTIONS), np.zeros(MIN_QUESTIONS), enough).action == "roll_back"


def test_effective_questions_count():
    base, candidate, _ = outcomes(290, lost=100)
    decision = decide(base, candidate, SharedGold.of_groups(np.arange(290) // 12))
    assert (decision.action, decision.n_questions) == ("hold", 290)
    assert 25 < decision.n_effective < 30


def test_strategies_that_never_differed_need_enough_questions():
    # 50 questions without a difference cannot exclude a loss of one in twenty
    assert decide(*outcomes(50)).action == "hold"
    assert decide(*outcomes(120)).action == "promote"


def test_questions_without_the_candidate_could_all_be_lost():
    base, candidate, gold = outcomes(400)
    candidate[:30] = np.nan
    decision = decide(base, candidate, gold)
    assert (decision.action, decision.code) == ("hold", "not_paired")
    candidate[10:30] = 1
    assert decide(base, candidate, gold).action == "promote"


def test_a_measure_that_improves_as_it_falls():
    base = np.full(200, 0.4) + np.linspace(-0.1, 0.1, 200)
    for factor, action in ((1.2, "roll_back"), (0.8, "promote")):
        decision = decide(base, base * factor, apart(200), higher_is_better=False)
        assert decision.action == action
        assert decision.degradation.value == pytest.approx(factor - 1)
    few = base.copy()
    few[:5] = 0.9
    decision = decide(base, few, apart(200), higher_is_better=False)
    value, low, high = decision.degradation
    assert low < value < high == pytest.approx(decision.difference.high / decision.base)


def test_a_base_that_scores_nothing():
    nothing = np.zeros(100)
    decision = decide(nothing, nothing, apart(100))
    assert (decision.action, decision.code, decision.degradation[0]) == ("hold", "no_base", None)
    risen = decide(nothing, nothing + 0.5, apart(100), higher_is_better=False)
    assert risen.action == "roll_back"


def test_assignment_keeps_the_share_and_nests_the_stages():
    tenth, half, everyone, nobody = (
        {one for one in QUESTIONS if assign(one, share, "salt")} for share in (0.1, 0.5, 1, 0)
    )
    assert nobody == set() < tenth < half < everyone == set(QUESTIONS)
    assert len(tenth) == pytest.approx(2000, abs=4 * math.sqrt(20_000 * 0.09))
    assert len(half) == pytest.approx(10_000, abs=4 * math.sqrt(20_000 * 0.25))


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
@pytest.mark.parametrize("n", [30, 100, 300])
def test_a_degradation_at_the_limit_is_seldom_promoted(n):
    assert simulated(n, 0.02, 0.06, n)["promote"] <= limit(0.025, 400)
    assert simulated(n, 0.02, 0.10, n)["promote"] <= 0.05
