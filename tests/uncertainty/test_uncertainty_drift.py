"""The drift monitor against a slow reference, and its alarms where the truth is known."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.core.errors import InputError
from rag_eval.pipeline.calibration_stores import keep_watch, kept_watch
from rag_eval.storage.home import Home
from rag_eval.uncertainty.drift import (
    BETS,
    PACE,
    UNSTAKED,
    WATCHED,
    WatchState,
    _watch,
    feed,
    question_mark,
    resume,
)
from rag_eval.uncertainty.outcomes import first_judgements
from rag_eval.uncertainty.status import Series


def names(n, start=0):
    return [f"g{at}" for at in range(start, start + n)]


def slow_e_values(excess, tolerance):
    """Compute the capital after each group, one bet and one stake at a time."""
    found = []
    for sign in (1, -1):
        capital, waits = [(1 - UNSTAKED) / len(BETS)] * len(BETS), UNSTAKED
        for count, z in enumerate(excess):
            left = UNSTAKED * (1 + (count + 1) / PACE) ** -0.5
            capital = [
                (c + (waits - left) / len(BETS)) * (1 + bet * (sign * z - tolerance))
                for c, bet in zip(capital, BETS, strict=True)
            ]
            waits = left
            found.append(sum(capital) + waits)
    return np.array(found).reshape(2, -1).T


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_it_is_the_capital_of_the_bets(pairs):
    p, y = np.array([a for a, _ in pairs]), np.array([float(b) for _, b in pairs])
    states = [_watch(p[:n], y[:n], names(n)) for n in range(1, len(p) + 1)]
    found = [drift.e_values for drift in states]
    assert np.allclose(found, slow_e_values(y - p, 0.05), rtol=1e-9)


def test_a_group_counts_once_with_the_mean_of_its_outcomes():
    p, y = np.array([0.2, 0.4, 0.1, 0.6]), np.array([1.0, 0.0, 0.0, 1.0])
    drift = _watch(p, y, ["a", "b", "b", "a"])
    assert (drift.n, drift.groups) == (4, ("a", "b"))
    assert drift.sum_missed == pytest.approx(1.0)
    assert drift.sum_predicted == pytest.approx(0.4 + 0.25)
    expected = slow_e_values(np.array([0.6, -0.25]), 0.05)[-1]
    assert np.allclose(drift.e_values, expected)
    again = _watch(np.array([0.0, 0.3]), np.array([1.0, 1.0]), ["a", "c"], drift)
    assert (again.n, again.groups) == (5, ("a", "b", "c"))


def alarms(n, rate, sims, seed, *, size=1):
    """Watch `sims` streams whose miss rate exceeds the predicted rate by `rate`."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(sims):
        group = np.repeat(np.arange(n), size)
        p = np.clip(rng.beta(0.5, 2, n) * 0.8 + 0.1, 0, 1)[group]
        y = rng.random(n)[group] < p + rate  # one draw decides all of a group
        found.append(_watch(p, y.astype(float), [str(code) for code in group]))
    return found


def test_it_rarely_alarms_within_the_tolerance():
    for rate, size in ((0.0, 1), (0.05, 1), (-0.05, 1), (0.05, 3)):
        assert sum(drift.alarm for drift in alarms(1000, rate, 100, 1, size=size)) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "size"), [(0.0, 1), (0.05, 1), (-0.05, 1), (0.05, 4)])
def test_false_alarms_stay_under_two_per_cent_to_five_thousand_groups(rate, size):
    found = alarms(5000, rate, 500, 2, size=size)
    assert sum(drift.alarm for drift in found) / 500 <= 0.02


def test_it_finds_fifteen_points_soon_and_ten_later():
    # clipping at 0 makes the negative shift smaller than 15 points for the surest questions
    for rate, direction, least in ((0.15, "more", 38), (-0.15, "fewer", 30)):
        found = alarms(1000, rate, 40, 3)
        assert sum(f"{direction} misses" in (drift.direction or "") for drift in found) >= least
    assert sum(drift.alarm for drift in alarms(3000, 0.1, 40, 4)) >= 36


def test_an_alarm_stays_and_says_when_and_which_way():
    drift = _watch(np.full(60, 0.1), np.ones(60), names(60))
    assert drift.alarm
    assert drift.direction == "more misses than predicted"
    at = drift.first_alarm_at
    assert _watch(np.full(at, 0.1), np.ones(at), names(at)).e_values[0] >= 100
    assert _watch(np.full(at - 1, 0.1), np.ones(at - 1), names(at - 1)).e_values[0] < 100
    later = _watch(np.full(500, 0.9), np.zeros(500), names(500, 60), drift)
    assert (later.first_alarm_at, later.direction) == (at, drift.direction)
    other = _watch(np.full(60, 0.9), np.zeros(60), names(60))
    assert other.direction == "fewer misses than predicted"


SERIES = Series("tiny", "bm25", "miss_any", 10)


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
    rows = pd.concat(frames)
    return list(zip(rows["query_id"], rows["group_id"], strict=True))


def watched(frame):
    """Return the state of a monitor that saw these outcomes only."""
    columns = (frame[name].to_numpy() for name in ("predicted", "missed"))
    return _watch(*columns, frame["group_id"].tolist())


def kept(home, state):
    """Save a state, and return the state that the next night reads."""
    keep_watch(Home(home), SERIES, state)
    return kept_watch(Home(home), SERIES)


def test_evidence_adds_up_over_many_nights(tmp_path):
    state, alone, nights = WatchState("f"), [], []
    for night in range(1, 9):  # every night has its own calibrator, which the state does not hold
        nights.append(outcomes(night, 0.2, [1, 0, 1, 1, 0, 1]))
        alone.append(watched(nights[-1]).alarm)
        state = resume(state, "f", at(night, 59))
        state = kept(tmp_path, feed(state, pd.concat(nights), known(*nights)))
    assert not any(alone)
    assert state.drift.direction == "more misses than predicted"
    assert len(state.drift.groups) == 8 * 6
    assert state.drift.first_alarm_at == watched(pd.concat(nights)).first_alarm_at


@given(st.integers(0, 2**31), st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=30)
def test_feeding_in_parts_or_again_changes_nothing(seed, cuts):
    rng = np.random.default_rng(seed)
    frame = outcomes(1, rng.random(60), rng.random(60) < 0.3)
    frame["at"] = [at(1 + number // 20, number % 20) for number in range(60)]
    once = feed(WatchState("f"), frame, known(frame))
    state = WatchState("f")
    for cut in (*sorted(cuts), 60, 60, 30):
        state = feed(state, frame.head(cut), known(frame.head(cut)))
    assert state.fed == once.fed
    assert state.drift.groups == once.drift.groups
    assert np.allclose(state.drift.wealth, once.drift.wealth, rtol=1e-9)
    assert (state.drift.n, state.drift.first_alarm_at) == (60, once.drift.first_alarm_at)


def test_a_renamed_group_counts_once():
    first = outcomes(1, 0.3, [1, 0], groups=["g1", "g2"])
    state = feed(WatchState("f"), first, known(first))
    more = outcomes(2, 0.3, [1, 1, 0], groups=["a", "b", "c"])
    # Gold has joined the groups g1 and g2 and a new question into the group a.
    renamed = [("q1-0", "a"), ("q1-1", "a")]
    again = feed(state, more, [*renamed, *known(more)])
    assert len(again.drift.groups) == 4
    assert again.fed == {question_mark(name) for name in ("q1-0", "q1-1", "q2-1", "q2-2")}
    # A new question is in group g1, and an old group had this name before.
    reused = outcomes(3, 0.3, [1], groups=["g1"])
    assert len(feed(again, reused, known(more, reused)).drift.groups) == 5


def test_the_monitor_starts_anew():
    frame = outcomes(1, 0.1, [1] * 40)
    state = feed(WatchState("f"), frame, known(frame))
    assert state.drift.alarm
    assert resume(state, "f", at(2)) == state  # a demotion that a kill prevented happens now
    after = resume(dataclasses.replace(state, demoted_at=at(2)), "f", at(3))
    assert after == WatchState("f", since=at(2))
    assert feed(after, frame, known(frame)) == after  # the same outcomes raise no second alarm
    news = outcomes(3, 0.1, [1, 0])
    assert feed(after, pd.concat([frame, news]), known(frame, news)).drift.n == 2
    other = resume(state, "g", at(3))
    assert other == WatchState("g", since=at(3))
    back = resume(other, "f", at(4))
    assert feed(back, frame, known(frame)) == back
    assert resume(None, "f", at(4)) == WatchState("f")


def test_a_kept_state_comes_back(tmp_path):
    frame = outcomes(1, 0.1, [1] * 40)
    state = WatchState("f", since=at(1)[:-8] + "0Z")
    state = feed(state, outcomes(2, 0.1, [1] * 40), known(frame))
    state = dataclasses.replace(state, demoted_at=at(3))
    assert kept_watch(Home(tmp_path), SERIES) is None
    assert kept(tmp_path, state) == state
    assert kept(tmp_path, WatchState("g")) == WatchState("g")
    assert kept_watch(Home(tmp_path), Series("tiny", "bm25", "miss_any", 5)) is None


def test_a_damaged_state_is_an_input_error(tmp_path):
    state = feed(WatchState("f"), outcomes(1, 0.1, [1] * 3), [])
    keep_watch(Home(tmp_path), SERIES, state)
    path = tmp_path / "calibrators" / "watches" / "tiny" / "bm25" / "miss_any@10.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    drift = whole["drift"]
    changes = (
        {"wealth": []},
        {"wealth": [[math.inf] * 6, [0.0] * 6]},
        {"sum_missed": None},
        {"direction": "sideways"},
    )
    wrong = [
        {"more": 1},
        {"since": "yesterday"},
        {"fed": ["../../x"]},
        {"fed": []},
        {"fingerprint": ""},
        {"drift": []},
        *({"drift": {**drift, **change}} for change in changes),
    ]
    damaged = [json.dumps({**whole, **change}).encode() for change in wrong]
    for damage in (b"", b"[]", b"\xff\xfe", b"[" * 100_000, path.read_bytes()[:-20], *damaged):
        path.write_bytes(damage)
        with pytest.raises(InputError) as caught:
            kept_watch(Home(tmp_path), SERIES)
        assert caught.value.problems[0].code == "drift_damaged", damage
        assert caught.value.problems[0].file == str(path)


def test_the_first_judgement_precedes_corrections():
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
