"""The regression gate finds regressions, ignores noise, and reports when it cannot tell."""

import numpy as np
import pandas as pd
import pytest
from gate_inputs import configured, gate_inputs

from rag_eval.gates.gate import AcceptedRun
from rag_eval.gates.verdict import find_faults, judge_drops, judge_gates, with_delta_s
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.ranking import labels_at, machine_name

WON_AND_LOST, EVEN = (0.02, 0.10), (0.04, 0.04)
BASE_RATE = 0.80


def changed(n, sets, shares, seed, *, fixed):
    """Return hits before and now, [n, sets].

    `shares` are the shares of questions that are newly won and newly lost. `fixed` takes them as
    exact counts, otherwise they are probabilities of multinomial draws.
    """
    rng = np.random.default_rng(seed)
    hits = round(n * BASE_RATE)
    before = np.zeros((n, sets))
    before[:hits] = 1
    now = before.copy()
    for at in range(sets):
        won, lost = (
            (round(share * n) for share in shares)
            if fixed
            else rng.multinomial(n, [*shares, 1 - sum(shares)])[:2]
        )
        now[rng.choice(hits, min(lost, hits), replace=False), at] = 0
        now[hits + rng.choice(n - hits, min(won, n - hits), replace=False), at] = 1
    return before, now


def drops(before, now, *, groups=None, higher=True):
    """Judge arrays [n, m] under the default bounds: a drop of 5 %, 50 independent questions."""
    gold = SharedGold.of_groups(np.arange(len(before)) if groups is None else groups)
    higher = [higher] * before.shape[1]
    return judge_drops(before, now, gold, max_relative_drop=0.05, min_queries=50, higher=higher)


def alarms(n, sets, shares, seed, *, fixed):
    return [found.reason_code for found in drops(*changed(n, sets, shares, seed, fixed=fixed))]


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [True, False])
def test_a_drop_of_eight_percent_is_found_nine_times_in_ten(fixed):
    codes = alarms(200, 4000, WON_AND_LOST, 5, fixed=fixed)
    assert codes.count("regression") / len(codes) >= 0.90


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [True, False])
def test_no_drop_alarms_at_most_one_time_in_twenty(fixed):
    codes = alarms(200, 4000, EVEN, 6, fixed=fixed)
    assert codes.count("regression") / len(codes) <= 0.05
    assert set(codes) <= {"regression", "no_regression"}


def test_effective_questions_count():
    now = np.repeat(np.random.default_rng(2).random((20, 1)), 5, axis=0)
    (found,) = drops(np.ones((100, 1)), now, groups=np.arange(100) // 5)
    assert found.reason_code == "too_few_queries"
    assert found.evidence["n_scored"] == 100
    assert 20 < found.evidence["n_effective"] < 25


def test_a_small_or_an_unsure_drop_passes():
    before = np.full((400, 2), 0.8)
    now = before.copy()
    now[:, 0] -= np.linspace(0.02, 0.03, 400)  # a certain drop of about 3 %
    now[:, 1] += np.random.default_rng(1).choice([-0.8, 0.2], 400, p=[0.24, 0.76])
    now[:, 1] += 0.75 - now[:, 1].mean()
    small = drops(before, now)[0]
    assert small.reason_code == "no_regression"
    assert small.evidence["ci_high"] < 0
    (unsure,) = drops(before[:60, 1:], now[:60, 1:] - now[:60, 1:].mean() + 0.75)
    assert unsure.reason_code == "no_regression"
    assert unsure.evidence["relative_drop"] >= 0.05
    assert unsure.evidence["ci_high"] > 0


def test_the_gate_states_the_drop_that_it_catches():
    (found,) = drops(*changed(100, 1, EVEN, 1, fixed=True))
    assert found.evidence["catches_drop"] == pytest.approx(
        1.1 * 2.83 * (0.08 / 100) ** 0.5, rel=0.15
    )
    # the differences vary more at the lower mean
    (same,) = drops(np.full((2000, 1), 0.8), np.full((2000, 1), 0.8))
    assert same.evidence["catches_drop"] == pytest.approx(0.04)  # 5 % of 0.8


def test_exactly_the_share_counts_whatever_the_last_bit_says():
    before = np.full((200, 1), 0.8)
    (found,) = drops(before, before * 0.95)
    assert (found.reason_code, found.evidence["n_worse"]) == ("regression", 200)
    assert drops(before, before * 0.951)[0].reason_code == "no_regression"


def test_a_measure_that_improves_as_it_falls():
    before, now = np.full((100, 1), 0.4), np.full((100, 1), 0.3)
    before[::2] += 0.01
    (fallen,) = drops(before, now, higher=False)
    assert (fallen.reason_code, fallen.evidence["n_better"]) == ("no_regression", 100)
    assert fallen.evidence["relative_drop"] < 0
    (risen,) = drops(now, before, higher=False)
    assert (risen.reason_code, risen.evidence["n_worse"]) == ("regression", 100)
    assert risen.evidence["ci_low"] > 0


def test_a_baseline_of_zero():
    zeros, ones = np.zeros((60, 1)), np.ones((60, 1))
    (found,) = drops(zeros, zeros)
    assert found.reason_code == "no_regression"
    assert "relative_drop" not in found.evidence
    assert drops(zeros, ones, higher=False)[0].reason_code == "regression"


def test_lost_questions_are_no_evidence():
    before, now = np.ones((100, 1)), np.ones((100, 1))
    now[:5] = np.nan
    (found,) = drops(before, now)
    assert (found.status, found.reason_code) == ("insufficient_evidence", "not_measured")
    assert "5 of 100" in found.evidence["reason"]
    now[4] = 1
    (found,) = drops(before, now)
    assert found.reason_code == "no_regression"
    assert (found.evidence["n_unpaired"], found.evidence["n_scored"]) == (4, 96)


def config(**gates):
    chosen = {"required": [], "advisory": ["regression"], "regression": ["recall_at_10"]}
    return configured(k=[10], gates=chosen | gates)


def judge(config, before, now):
    return judge_gates(gate_inputs(config, baseline=before, per_query=now))


def frame(values, strategy="bm25", **more):
    """Return a frame with two wordings per question; the second wording scores 0.2 lower."""
    n = len(values)
    rows = pd.DataFrame(
        {
            "strategy": strategy,
            "level": "document",
            "query_id": [f"q{at:03}" for at in range(n)],
            "group_id": [f"g{at:03}" for at in range(n)],
            "recall_at_10": values,
            **more,
        }
    )
    second = rows.assign(recall_at_10=rows["recall_at_10"] - 0.2)
    other_level = rows.assign(level="span", recall_at_10=0.0)
    return pd.concat([rows, second, other_level], ignore_index=True)


def accepted(values, strategy="bm25", **changes):
    return AcceptedRun("run", frame(values, strategy), changes)


def test_the_means_of_questions_are_compared_at_the_headline_level():
    before = accepted(np.full(80, 0.9))
    (found,) = judge(config(), before, frame(np.full(80, 0.6)))
    assert (found.id, found.reason_code) == ("regression.recall_at_10", "regression")
    assert (found.status, found.required) == ("fail", False)
    assert found.evidence["baseline"] == pytest.approx(0.8)
    assert found.evidence["now"] == pytest.approx(0.5)
    assert found.evidence["relative_drop"] == pytest.approx(0.375)
    assert (found.evidence["n_scored"], found.evidence["baseline_run"]) == (80, "run")
    required = config(required=["regression"], advisory=[])
    (same,) = judge(required, before, before.per_query)
    assert (same.status, same.required, same.evidence["n_tied"]) == ("pass", True, 80)
    assert "different" not in same.evidence


def test_changed_inputs_are_named_and_judged_all_the_same():
    before = accepted(np.ones(80), index_changed="the index differs of bm25")
    (found,) = judge(config(), before, frame(np.ones(80)))
    assert (found.status, found.evidence["different"]) == ("pass", ["the index differs of bm25"])


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (None, "no_baseline"),
        (accepted(np.ones(80), gold_changed="the gold differs"), "gold_differs"),
        (accepted(np.ones(80), "vector"), "strategy_missing"),
        (accepted(np.ones(20)), "too_few_queries"),
        (accepted(np.full(80, np.nan)), "not_measured"),
    ],
)
def test_without_evidence_it_never_passes(before, code):
    now = frame(np.ones(20 if code == "too_few_queries" else 80))
    assert judge(config(advisory=[]), before, now) == []
    (found,) = judge(config(), before, now)
    assert (found.status, found.reason_code) == ("insufficient_evidence", code)
    assert found.evidence["measure"] == "recall_at_10"


def test_delta_s_stands_beside_the_ranking_measures():
    rows = pd.DataFrame(
        {
            "strategy": ["bm25"] * 4 + ["mine"] * 2,
            "query_id": ["a", "a", "b", "b", "a", "a"],
            "paraphrase_id": "original",
            "seed": [1, 2, 1, 2, 1, 2],
            "failed": [False, False, False, True, True, False],
        }
    )
    per_run = pd.DataFrame(
        {
            "strategy": "bm25",
            "query_id": ["a", "b"],
            "paraphrase_id": "original",
            "seed": 1,
            "delta_s": [0.2, 0.5],
        }
    )
    found = with_delta_s(rows, per_run)
    # The delta_s of one seed holds for all seeds, and a failed retrieval has delta_s 1.
    assert found["delta_s"].tolist()[:4] == [0.2, 0.2, 0.5, 1.0]
    assert found["delta_s"].isna().tolist()[4:] == [True, True]


def named(*names, level="document", k=(1, 5)):
    gates = {"gates": {"regression": list(names)}} if names else {}
    return configured(k=list(k), level=level, **gates)


@pytest.mark.parametrize("level", ["document", "section", "span"])
def test_every_measure_of_a_question_is_accepted(level):
    names = [machine_name(label) for label in labels_at(level, (1, 5))]
    assert list(find_faults(named(*names, "delta_s", level=level))) == []
    assert named(level=level).gates.regression == ("recall_at_10", "mrr")


@pytest.mark.parametrize(
    ("name", "level", "hint"),
    [
        ("recal_at_10", "document", "no such measure; did you mean recall_at_10?"),
        ("MRR", "document", "no such measure; did you mean mrr?"),
        ("recall_at_7", "document", "no such measure; did you mean recall_at_"),
        ("\x1b[2J" + "x" * 5000, "document", "no such measure"),
    ],
)
def test_an_impossible_measure_is_refused(name, level, hint):
    (fault,) = find_faults(named("mrr", name, level=level))
    assert (fault.location, fault.found) == (("gates", "regression"), name)
    assert hint in f"{fault.message}; accepted are {fault.accepted}"


def test_an_unknown_gate_or_floor_is_refused():
    gates = {"required": ["poisonning"], "advisory": ["acceptance"]}
    config = configured(gates=gates, acceptance={"recall@10": ">= 0.5", "delta_s": "<= 0.5"})
    floor, gate = find_faults(config)
    assert floor.location == ("acceptance", "recall@10")
    assert "did you mean recall_at_10?" in floor.message
    assert (gate.location, gate.found) == (("gates", "required"), "poisonning")
    assert "did you mean poisoning?" in gate.message
