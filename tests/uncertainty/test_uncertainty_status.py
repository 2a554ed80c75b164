"""The status ladder, and its record in SQLite and PostgreSQL."""

import dataclasses
import datetime as dt
import multiprocessing

import numpy as np
import pytest

from rag_eval.core.records import Interval
from rag_eval.measures.overlap import SharedGold
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.miss_rate_report import Condition, OutcomeCounts
from rag_eval.uncertainty.status import (
    Series,
    Situation,
    count_outcomes,
    judge_status,
    promotions,
)
from rag_eval.uncertainty.validation import Labelled, validate

FINE = Situation(age_days=3.0, stale_after_days=180, n_unlabelled=50)
NAMES = ("outcomes", "groups", "groups_with_misses", "groups_with_hits")


def counted(*numbers):
    return OutcomeCounts(**dict(zip(NAMES, numbers, strict=True)))


def figure(value, low, high):
    return Interval(value=value, low=low, high=high)


def with_fields(record, **changes):
    return record.model_copy(update=changes)


NONE, FEW, ENOUGH = counted(0, 0, 0, 0), counted(40, 25, 5, 5), counted(260, 200, 30, 30)


@pytest.fixture(scope="module")
def good():
    """Return a validation that meets every condition, from the true probabilities."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=600)
    true = 1 / (1 + np.exp(-(-1 + 1.5 * x)))
    data = Labelled(
        ("x",), x[:, None], rng.random(600) < true, np.arange(600), np.ones(600), np.arange(600)
    )
    return validate(data, true[None, :], checked_together=2, seed=1)


def judge(counts, validation=None, **changes):
    return judge_status(counts, validation, dataclasses.replace(FINE, **changes))


def status(counts, validation=None, **changes):
    return judge(counts, validation, **changes).status


def unmet_of(standing):
    return [condition for condition in standing.conditions if not condition.met]


def test_every_step_from_absent_to_measured(good):
    for n_unlabelled, low in ((0, "absent"), (1, "uncalibrated"), (49, "uncalibrated")):
        assert status(NONE, n_unlabelled=n_unlabelled) == low
    assert status(NONE) == "prior"
    assert status(FEW) == "provisional"
    assert status(FEW, good) == "provisional"
    assert status(ENOUGH) == "provisional"  # no validation
    assert status(ENOUGH, good) == "measured"


@pytest.mark.parametrize("name", ["groups", "groups_with_misses", "groups_with_hits"])
def test_one_group_less_is_one_step_less(good, name):
    for counts, under in ((FEW, "prior"), (ENOUGH, "provisional")):
        less = with_fields(counts, **{name: getattr(counts, name) - 1})
        assert status(less, good) == under


@pytest.mark.parametrize(
    ("changes", "unmet"),
    [
        ({"skill": figure(0.3, 0.0, 0.6)}, ["skill"]),
        ({"skill": figure(0.3, None, None)}, ["skill"]),
        ({"slope": figure(1.26, 0.1, 3)}, ["slope"]),
        ({"slope": figure(0.79, 0.1, 3)}, ["slope"]),
        ({"slope": figure(None, 0.1, 3)}, ["slope"]),
        ({"slope": figure(0.8, 0.1, 3)}, []),
        ({"slope": figure(1.25, 0.1, 3)}, []),
    ],
)
def test_every_condition_of_a_measured_rate_is_needed(good, changes, unmet):
    found = judge(ENOUGH, with_fields(good, **changes))
    assert found.status == ("provisional" if unmet else "measured")
    assert [condition.name for condition in unmet_of(found)] == unmet


@pytest.mark.parametrize(
    ("changes", "discounts"),
    [
        ({}, True),
        ({"skill": figure(0.01, -0.2, 0.2)}, True),
        ({"skill": figure(0.0, -0.2, 0.2)}, False),
        ({"skill": figure(None, None, None)}, False),
        ({"observed_expected": figure(1.4, 1.01, 1.9)}, False),
        ({"observed_expected": figure(1.4, None, None)}, False),
    ],
)
def test_harmful_or_biased_predictions_discount_nothing(good, changes, discounts):
    found = judge(FEW, with_fields(good, **changes))
    assert (found.status, found.discounts) == ("provisional", discounts)
    assert not judge(NONE, with_fields(good, **changes)).discounts
    assert not judge(FEW, with_fields(good, **changes), trusted=False).discounts


def test_an_error_beyond_chance_or_gold_of_the_strategy_itself_earns_less(good):
    ece = with_fields(good.ece, inside=False)
    assert status(ENOUGH, with_fields(good, ece=ece)) == "provisional"
    assert status(ENOUGH, good, own_gold_only=True) == "prior"


def test_statuses_that_rest_on_old_outcomes_go_stale(good):
    for counts in (FEW, ENOUGH):
        assert status(counts, good, age_days=180.5) == "stale"
    for unlabelled, kept in ((0, "absent"), (1, "uncalibrated"), (50, "prior")):
        assert status(NONE, n_unlabelled=unlabelled, age_days=180.5) == kept
    assert status(ENOUGH, good, age_days=180.0) == "measured"


def test_a_status_without_a_shipped_prior(good):
    why = "none for miss_any@5"
    assert status(NONE, no_prior=why) == "uncalibrated"
    assert status(with_fields(FEW, groups=24), no_prior=why) == "uncalibrated"
    assert status(NONE, n_unlabelled=0, no_prior=why) == "absent"
    needed = "a shipped prior for this target, K and kind of strategy; or what provisional needs"
    (unmet,) = [one for one in unmet_of(judge(NONE, no_prior=why)) if one.status == "prior"]
    facts = {"name": "shipped_prior", "met": False, "found": why, "needed": needed}
    assert unmet.dump() == {**facts, "status": "prior"}
    assert status(FEW, good, no_prior=why) == "provisional"
    assert status(ENOUGH, good, no_prior=why) == "measured"
    assert unmet_of(judge(ENOUGH, good, no_prior=why)) == []
    # No calibrator is fitted to gold that comes from the strategy itself.
    assert status(ENOUGH, good, no_prior=why, own_gold_only=True) == "uncalibrated"


def test_a_changing_base_calibrator_makes_stale(good):
    changes = "changes with this run"
    for counts in (FEW, ENOUGH):
        assert status(counts, good, base_changes=True) == "stale"
        assert status(counts, good, base_changes=False) == status(counts, good)
    assert status(NONE, base_changes=True) == "prior"
    conditions = {one.name: one for one in judge(FEW, base_changes=True).conditions}
    found = conditions["same_base_calibrator"]
    assert (found.met, changes in found.found, found.status) == (False, True, "stale")
    # A strategy without a base has no such condition.
    assert "same_base_calibrator" not in {one.name for one in judge(FEW).conditions}


def test_counts_are_of_distinct_groups():
    missed = np.array([True, True, False, False, True])
    data = Labelled(
        (), np.zeros((5, 0)), missed, np.array([0, 0, 0, 1, 2]), np.ones(5), np.arange(5)
    )
    assert count_outcomes(data) == counted(5, 3, 2, 2)


CONDITION = Condition(name="n", met=False, found="1", needed="2", status="prior")
SERIES = Series("scifact", "bm25", "miss_any", 10)
AT = dt.datetime(2026, 3, 1, 2, 0, tzinfo=dt.UTC)


def record(store, status, series=SERIES, **changes):
    given = {"strategy_fingerprint": "f", "figures": None, "at": AT, **changes}
    return series.record(store, status, **given)


def test_changes_are_appended_with_figures_before_and_after(place):
    store, other = SqlStore(place), dataclasses.replace(SERIES, k=5)
    steps = "absent uncalibrated uncalibrated provisional measured measured stale".split()
    written = []
    for number, step in enumerate(steps):
        more = {"figures": {"skill": number}, "calibrator_id": f"c{number}"}
        options = {"strategy_fingerprint": f"f{number}", "reasons": [CONDITION], **more}
        written.append(record(store, step, **options))
    record(store, "prior", other)
    assert [number for number, change in enumerate(written) if change] == [1, 3, 4, 6]
    rows = promotions(store, SERIES)
    assert [{name: row[name] for name in ("old_status", "new_status", "at")} for row in rows] == [
        change.dump() for change in written if change
    ]
    assert [(row["number"], row["new_status"]) for row in rows] == [
        *((1, "uncalibrated"), (2, "provisional"), (3, "measured"), (4, "stale"))
    ]
    assert rows[0]["figures_before"] is None
    last = rows[3]
    assert (last["figures_before"], last["figures_after"]) == ({"skill": 4}, {"skill": 6})
    known = last["strategy_fingerprint"], last["calibrator_id"], last["at"]
    assert known == ("f6", "c6", "2026-03-01T02:00:00+00:00")
    assert last["reasons"] == [CONDITION.dump()]
    assert [row["new_status"] for row in promotions(store, other)] == ["prior"]


def _promote(place, ready):
    store = SqlStore(place)
    ready.wait()
    record(store, "prior")


@pytest.mark.slow
def test_writers_at_once_write_a_change_once(place):
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(4)
    writers = [context.Process(target=_promote, args=(place, ready)) for _ in range(4)]
    for act in ("start", "join"):
        for writer in writers:
            getattr(writer, act)()
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert [(row["number"], row["new_status"]) for row in promotions(SqlStore(place))] == [
        (1, "prior")
    ]


def test_effective_questions_count_where_chains_were_split():
    n = 120
    question = np.arange(n)
    missed = np.random.default_rng(3).random(n) < 0.4
    items = (question[:, None] + np.arange(4)).ravel()
    shared = SharedGold.of_pairs(np.repeat(question, 4), items, n)
    data = Labelled(("x",), np.zeros((n, 1)), missed, question, np.ones(n), question, shared)
    found = count_outcomes(data)
    assert found.outcomes == n
    assert 30 < found.groups < n
    assert found.groups_with_misses + found.groups_with_hits in {found.groups, found.groups - 1}
    whole = dataclasses.replace(data, group=np.zeros(n, dtype=np.int64))
    assert count_outcomes(whole).groups == 1
