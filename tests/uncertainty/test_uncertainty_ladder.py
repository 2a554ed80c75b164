"""The status ladder, condition by condition."""

import dataclasses
import json

import numpy as np
import pytest

from rag_eval.records.uncertainty import STATUSES
from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.ladder import Counts, Standing, standing
from rag_eval.uncertainty.resampling import Figure
from rag_eval.uncertainty.validation import validate

FINE = {
    "fingerprint_changed": False,
    "drift_alarm": False,
    "age_days": 3.0,
    "stale_after_days": 180,
    "own_gold_only": False,
    "n_unlabelled": 50,
}
NONE, FEW, ENOUGH = Counts(0, 0, 0, 0), Counts(40, 25, 5, 5), Counts(260, 200, 30, 30)


@pytest.fixture(scope="module")
def good():
    """A validation that meets every condition, from predictions that are true."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=600)
    true = 1 / (1 + np.exp(-(-1 + 1.5 * x)))
    data = Labelled(
        ("x",), x[:, None], rng.random(600) < true, np.arange(600), np.ones(600), np.arange(600)
    )
    return validate(data, true[None, :], checked_together=2, seed=1, resamples=300)


def status(counts, validation=None, **changes):
    return standing(counts, validation, **{**FINE, **changes}).status


def test_every_step_from_absent_to_measured(good):
    assert status(NONE, n_unlabelled=0) == "absent"
    assert status(NONE, n_unlabelled=1) == "uncalibrated"
    assert status(NONE, n_unlabelled=49) == "uncalibrated"
    assert status(NONE) == "prior"
    assert status(FEW) == "provisional"
    assert status(FEW, good) == "provisional"
    assert status(ENOUGH) == "provisional"  # nothing validated
    assert status(ENOUGH, good) == "measured"


@pytest.mark.parametrize("name", ["groups", "groups_with_misses", "groups_with_hits"])
def test_one_group_less_is_one_step_less(good, name):
    for counts, under in ((FEW, "prior"), (ENOUGH, "provisional")):
        less = dataclasses.replace(counts, **{name: getattr(counts, name) - 1})
        assert status(less, good) == under


def test_many_outcomes_of_few_groups_do_not_count(good):
    assert status(dataclasses.replace(FEW, outcomes=5000, groups=24), good) == "prior"


def test_no_step_is_left_out(good):
    assert status(ENOUGH, good, n_unlabelled=49) == "uncalibrated"


def test_every_condition_of_a_measured_rate_is_needed(good):
    slope = good.slope
    worse = {
        "skill": dataclasses.replace(good, skill=Figure(0.3, 0.0, 0.6)),
        "slope": dataclasses.replace(good, slope=Figure(1.26, slope.low, slope.high)),
        "ece": dataclasses.replace(
            good, ece=dataclasses.replace(good.ece, value=good.ece.null_limit + 1e-9)
        ),
        "smece": dataclasses.replace(
            good, smece=dataclasses.replace(good.smece, value=good.smece.null_limit + 1e-9)
        ),
    }
    for name, validation in worse.items():
        found = standing(ENOUGH, validation, **FINE)
        assert found.status == "provisional"
        assert [condition.name for condition in found.unmet] == [name]
    for slope in (0.79, float("nan")):
        assert (
            status(ENOUGH, dataclasses.replace(good, slope=Figure(slope, 0.1, 3))) == "provisional"
        )
    for edge in (0.8, 1.25):
        assert status(ENOUGH, dataclasses.replace(good, slope=Figure(edge, 0.1, 3))) == "measured"
    assert (
        status(ENOUGH, dataclasses.replace(good, skill=Figure(0.3, float("nan"), float("nan"))))
        == "provisional"
    )


def test_gold_of_the_strategy_itself_earns_nothing(good):
    assert status(ENOUGH, good, own_gold_only=True) == "prior"


@pytest.mark.parametrize(
    "change", [{"fingerprint_changed": True}, {"drift_alarm": True}, {"age_days": 180.5}]
)
def test_what_rested_on_outcomes_goes_stale_at_once(good, change):
    for counts in (FEW, ENOUGH):
        assert status(counts, good, **change) == "stale"
    for unlabelled, kept in ((0, "absent"), (1, "uncalibrated"), (50, "prior")):
        assert status(NONE, n_unlabelled=unlabelled, **change) == kept
    assert status(ENOUGH, good, age_days=180.0) == "measured"


def test_where_no_prior_is_shipped_none_is_promised_and_outcomes_need_none(good):
    why = "none for miss_any@5"
    assert status(NONE, no_prior=why) == "uncalibrated"
    assert status(dataclasses.replace(FEW, groups=24), no_prior=why) == "uncalibrated"
    assert status(NONE, n_unlabelled=0, no_prior=why) == "absent"
    unmet = [
        dataclasses.astuple(one)
        for one in standing(NONE, None, **FINE, no_prior=why).unmet
        if one.status == "prior"
    ]
    assert unmet == [
        (
            "shipped_prior",
            False,
            why,
            "a shipped prior for this target, K and kind of strategy; or what provisional needs",
            "prior",
        )
    ]
    assert status(FEW, good, no_prior=why) == "provisional"
    assert status(ENOUGH, good, no_prior=why) == "measured"
    assert standing(ENOUGH, good, **FINE, no_prior=why).unmet == ()
    assert (
        status(ENOUGH, good, no_prior=why, own_gold_only=True) == "uncalibrated"
    )  # nothing is fitted to it


def test_what_the_next_run_will_not_repeat_earns_nothing(good):
    changes = "changes with this run"
    for counts in (FEW, ENOUGH):
        assert status(counts, good, base_changes=True) == "stale"
        assert status(counts, good, base_changes=False) == status(counts, good)
    assert status(NONE, base_changes=True) == "prior"
    found = next(
        one
        for one in standing(FEW, None, **FINE, base_changes=True).conditions
        if one.name == "same_base_calibrator"
    )
    assert (found.met, changes in found.found, found.status) == (False, True, "stale")
    assert "same_base_calibrator" not in {
        one.name for one in standing(FEW, None, **FINE).conditions
    }  # a strategy without a base has none to wait for


def test_only_earned_rates_discount(good):
    assert [name for name in STATUSES if Standing(name, ()).discounts] == [
        "provisional",
        "measured",
    ]
    assert standing(ENOUGH, good, **FINE).discounts
    assert not standing(ENOUGH, good, **{**FINE, "drift_alarm": True}).discounts


def test_conditions_say_what_was_found_and_what_is_needed():
    found = standing(FEW, None, **FINE)
    written = json.loads(json.dumps(found.to_json()))
    assert written["status"] == "provisional"
    unmet = {
        (condition["status"], condition["name"]): (condition["found"], condition["needed"])
        for condition in written["conditions"]
        if not condition["met"]
    }
    assert unmet[("measured", "misses")] == ("5", "at least 30")
    assert unmet[("measured", "validation")] == ("none", "grouped cross-validation")


def test_counts_are_of_distinct_groups():
    missed = np.array([True, True, False, False, True])
    data = Labelled(
        (), np.zeros((5, 0)), missed, np.array([0, 0, 0, 1, 2]), np.ones(5), np.arange(5)
    )
    assert Counts.of(data) == Counts(5, 3, 2, 2)
