"""The watch over many nights: fed once, resumed as it was, started anew by another fingerprint or after an alarm, and rarely wrong."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.evaluation.calibrator_files import keep_watch, kept_watch
from rag_eval.records.problems import InputError
from rag_eval.uncertainty.drift import LEVEL, watch
from rag_eval.uncertainty.drift_state import WATCHED, WatchState, fed, question_mark, resumed
from rag_eval.uncertainty.outcome_use import first_judgements

PLACE = ("tiny", "bm25", "miss_any", 10)


def at(night, second=0):
    return f"2026-02-{night:02d}T03:00:{second:02d}.000000Z"


def outcomes(night, predicted, missed, *, groups=None, start=0):
    names = [f"q{night}-{number + start}" for number in range(len(missed))]
    rows = {
        "claim_id": [f"c{name}" for name in names],
        "query_id": names,
        "group_id": groups or names,
        "at": at(night),
        "predicted": predicted,
        "missed": np.asarray(missed, dtype=np.float64),
    }
    return pd.DataFrame(rows)[list(WATCHED)]


def known(*frames):
    return [
        pair for frame in frames for pair in zip(frame["query_id"], frame["group_id"], strict=True)
    ]


def kept(home, state):
    """The state as the next night finds it."""
    keep_watch(home, *PLACE, state=state)
    return kept_watch(home, *PLACE)


def test_an_alarm_takes_many_nights_where_each_of_them_proves_nothing(tmp_path):
    state, alone, nights = WatchState("f"), [], []
    for night in range(
        1, 9
    ):  # every night has its own calibrator: nothing of it stands in the state
        frame = outcomes(night, 0.2, [1, 0, 1, 1, 0, 1])
        nights.append(frame)
        alone.append(
            watch(
                frame["predicted"].to_numpy(),
                frame["missed"].to_numpy(),
                frame["group_id"].tolist(),
            ).alarm
        )
        state = kept(
            tmp_path, fed(resumed(state, "f", at(night, 59)), pd.concat(nights), known(*nights))
        )
    assert not any(alone)
    assert state.drift.alarm
    assert state.drift.direction == "more misses than predicted"
    assert len(state.drift.groups) == 8 * 6
    whole = pd.concat(nights)
    assert (
        state.drift.first_alarm_at
        == watch(
            whole["predicted"].to_numpy(), whole["missed"].to_numpy(), whole["group_id"].tolist()
        ).first_alarm_at
    )


@given(st.integers(0, 2**31), st.lists(st.integers(0, 60), max_size=6))
@settings(deadline=None, max_examples=30)
def test_however_often_and_in_whatever_parts_it_is_fed_it_comes_to_the_same(seed, cuts):
    rng = np.random.default_rng(seed)
    frame = outcomes(1, rng.random(60), rng.random(60) < 0.3)
    frame["at"] = [at(1 + number // 20, number % 20) for number in range(60)]
    once = fed(WatchState("f"), frame, known(frame))
    state = WatchState("f")
    for cut in (*sorted(cuts), 60, 60, 30):
        state = fed(state, frame.head(cut), known(frame.head(cut)))
    assert state.fed == once.fed
    assert state.drift.groups == once.drift.groups
    assert np.allclose(state.drift.wealth, once.drift.wealth, rtol=1e-9)
    assert (state.drift.n, state.drift.first_alarm_at) == (60, once.drift.first_alarm_at)


def test_a_group_that_was_fed_is_fed_under_every_name_it_gets():
    first = outcomes(1, 0.3, [1, 0], groups=["g1", "g2"])
    state = fed(WatchState("f"), first, known(first))
    more = outcomes(2, 0.3, [1, 1, 0], groups=["a", "b", "c"])
    renamed = [("q1-0", "a"), ("q1-1", "a")]  # gold has joined both, and a new question with them
    again = fed(state, more, [*renamed, *known(more)])
    assert len(again.drift.groups) == 4
    assert again.fed == {question_mark(name) for name in ("q1-0", "q1-1", "q2-1", "q2-2")}
    reused = outcomes(
        3, 0.3, [1], groups=["g1"]
    )  # another question under a name that was used before
    assert len(fed(again, reused, known(more, reused)).drift.groups) == 5


def test_what_was_recorded_with_an_earlier_time_still_counts():
    late, early = outcomes(5, 0.3, [1]), outcomes(4, 0.3, [0])
    state = fed(
        fed(WatchState("f"), late, known(late)), pd.concat([early, late]), known(early, late)
    )
    assert state.drift.n == 2


def test_it_starts_anew_for_another_fingerprint_and_after_an_alarm_that_was_acted_on():
    frame = outcomes(1, 0.1, [1] * 40)
    state = fed(WatchState("f"), frame, known(frame))
    assert state.drift.alarm
    assert resumed(state, "f", at(2)) == state  # whoever was killed before the demotion demotes now
    after = resumed(state.demoted(at(2)), "f", at(3))
    assert after == WatchState("f", since=at(2))
    assert fed(after, frame, known(frame)) == after  # what raised the alarm raises no second one
    news = outcomes(3, 0.1, [1, 0])
    assert fed(after, pd.concat([frame, news]), known(frame, news)).drift.n == 2
    other = resumed(state, "g", at(3))
    assert other == WatchState("g", since=at(3))
    back = resumed(other, "f", at(4))
    assert fed(back, frame, known(frame)) == back
    assert resumed(None, "f", at(4)) == WatchState("f")


@pytest.mark.slow
def test_calibrated_nights_raise_few_false_alarms_and_a_shift_is_found(tmp_path):
    rng, alarms, found = np.random.default_rng(7), 0, 0
    simulations = 400
    for number in range(simulations):
        state = WatchState("f")
        shifted = number < 100
        for night in range(1, 11):
            p = rng.beta(1, 4, 40)
            y = rng.random(40) < (np.minimum(p + 0.25, 1) if shifted else p)
            frame = outcomes(night, p, y)
            state = fed(resumed(state, "f", at(night, 59)), frame, known(frame))
        found += shifted and state.drift.alarm
        alarms += not shifted and state.drift.alarm
    assert found >= 95
    assert alarms <= LEVEL * 300 + 2.33 * (300 * LEVEL * (1 - LEVEL)) ** 0.5


def test_a_state_comes_back_as_it_was(tmp_path):
    frame = outcomes(1, 0.1, [1] * 40)
    state = fed(
        WatchState("f", since=at(1)[:-8] + "0Z"), outcomes(2, 0.1, [1] * 40), known(frame)
    ).demoted(at(3))
    assert kept_watch(tmp_path, *PLACE) is None
    assert kept(tmp_path, state) == state
    assert kept(tmp_path, WatchState("g")) == WatchState("g")
    assert kept_watch(tmp_path, "tiny", "bm25", "miss_any", 5) is None


def test_a_damaged_state_is_an_input_error(tmp_path):
    state = fed(WatchState("f"), outcomes(1, 0.1, [1] * 3), [])
    keep_watch(tmp_path, *PLACE, state=state)
    path = tmp_path / "calibrators" / "watches" / "tiny" / "bm25" / "miss_any@10.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    drift = whole["drift"]
    wrong = [
        {**whole, "more": 1},
        {**whole, "since": "yesterday"},
        {**whole, "fed": ["../../x"]},
        {**whole, "fed": []},
        {**whole, "fingerprint": ""},
        *(
            {**whole, "drift": {**drift, **change}}
            for change in (
                {"wealth": []},
                {"n": 1e999},
                {"groups": drift["groups"] * 2},
                {"sum_missed": None},
                {"first_alarm_at": 9, "direction": "more misses than predicted"},
                {"direction": []},
            )
        ),
        {**whole, "drift": []},
    ]
    for damage in (
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        path.read_bytes()[:-20],
        *(json.dumps(one).encode() for one in wrong),
    ):
        path.write_bytes(damage)
        with pytest.raises(InputError) as caught:
            kept_watch(tmp_path, *PLACE)
        assert caught.value.problems[0].code == "drift_damaged", damage
        assert caught.value.problems[0].file == str(path)


def test_the_first_judgement_is_the_one_before_all_corrections_and_other_sources():
    rows = pd.DataFrame(
        {
            "claim_id": ["a", "a", "b", "b", "c", "d"],
            "outcome_id": list("123456"),
            "at": [at(2), at(1), at(1), at(2), at(1), at(3)],
            "missed": [1.0, 0.0, 1.0, 0.0, np.nan, 1.0],
            "inclusion_probability": [1.0, 1.0, np.nan, 0.5, 1.0, np.nan],
            "gold_source": ["qrels", "llm_judge", "human", "human", "qrels", "user_feedback"],
        }
    )
    assert first_judgements(rows)["outcome_id"].tolist() == ["2", "4"]
