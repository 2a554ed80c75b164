"""Validation as a whole, the learning curve, and that noise never becomes `measured`."""

import json
import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from rag_eval.uncertainty.labelled import Labelled
from rag_eval.uncertainty.ladder import Counts, standing
from rag_eval.uncertainty.learning import leakage_gap, learning_curve
from rag_eval.uncertainty.scores import auroc, brier, brier_skill, log_loss
from rag_eval.uncertainty.validation import validate


def labelled(n=400, groups=250, *, level=-1.0, spread=1.4, seed=1):
    """Outcomes from a logistic model of the first signal; the others say nothing."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    values = rng.normal(size=(n, 6))
    values[:, 0] = 0.6 * rng.normal(size=groups)[group] + 0.8 * values[:, 0]
    true = 1 / (1 + np.exp(-(level + spread * values[:, 0])))
    names = tuple(f"signal_{at}" for at in range(6))
    return Labelled(names, values, rng.random(n) < true, group, np.ones(n), np.arange(n)), true


def ridge(train, test):
    scaler = StandardScaler().fit(train.signals)
    model = LogisticRegression(C=0.3).fit(
        scaler.transform(train.signals), train.missed, train.weight
    )
    return model.predict_proba(scaler.transform(test.signals))[:, 1]


def out_of_fold(data, repeats, seed):
    predictions = np.empty((repeats, len(data)))
    for repeat in range(repeats):
        folds = GroupKFold(5, shuffle=True, random_state=seed + repeat)
        for train, test in folds.split(data.signals, data.missed, data.group):
            predictions[repeat, test] = ridge(data.take(train), data.take(test))
    return predictions


def test_figures_of_a_validation_and_their_denominators():
    data, true = labelled()
    predictions = np.clip(
        true + np.random.default_rng(1).normal(scale=0.02, size=(3, len(data))), 0.001, 0.999
    )
    found = validate(data, predictions, checked_together=3, seed=2, resamples=300)
    ones = np.ones(len(data))
    assert (found.n, found.repeats, found.misses) == (400, 3, int(data.missed.sum()))
    assert found.groups == len(set(data.group.tolist()))
    assert found.groups_with_misses == len(set(data.group[data.missed].tolist()))
    assert found.groups_with_hits == len(set(data.group[~data.missed].tolist()))
    assert found.brier.value == pytest.approx(
        np.mean([brier(row, data.missed, ones) for row in predictions])
    )
    assert found.log_loss.value == pytest.approx(
        np.mean([log_loss(row, data.missed, ones) for row in predictions])
    )
    assert found.skill.value == pytest.approx(
        np.mean([brier_skill(row, data.missed, data.group, ones) for row in predictions])
    )
    assert found.auroc.value == pytest.approx(auroc(predictions.mean(axis=0), data.missed, ones))
    assert found.brier.value - found.repeat_variance == pytest.approx(
        found.corp.mcb - found.corp.dsc + found.corp.unc, abs=1e-12
    )
    for figure in (
        found.miss_rate,
        found.brier,
        found.skill,
        found.auroc,
        found.slope,
        found.intercept,
        found.observed_expected,
    ):
        assert figure.low < figure.value < figure.high
    assert sum(found.histogram) == 400
    assert found.ece.null_median < found.ece.null_95 < found.ece.null_limit
    assert found.skill.low > 0.05
    assert found.slope.low < 1 < found.slope.high


def test_the_same_seed_gives_the_same_validation_and_json_holds_it():
    data, true = labelled(n=120)
    first, second = (
        validate(data, true[None, :], checked_together=1, seed=7, resamples=100).to_json()
        for _ in range(2)
    )
    assert first == second == json.loads(json.dumps(first, allow_nan=False))
    assert set(first["skill"]) == {"value", "low", "high"}
    assert first["corp"]["curve"]["predicted"] == sorted(first["corp"]["curve"]["predicted"])


def test_without_a_miss_what_cannot_be_said_is_null():
    data, _ = labelled(n=60)
    nothing = Labelled(
        data.names, data.signals, np.zeros(60, dtype=bool), data.group, data.weight, data.question
    )
    found = validate(
        nothing, np.full((2, 60), 0.02), checked_together=1, seed=1, resamples=50
    ).to_json()
    assert (
        found["auroc"]
        == found["slope"]
        == found["skill"]
        == {"value": None, "low": None, "high": None}
    )
    assert found["miss_rate"]["value"] == 0
    assert found["miss_rate"]["high"] > 0.02
    assert json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "predictions",
    [
        np.full(60, 0.5),
        np.full((1, 59), 0.5),
        np.full((0, 60), 0.5),
        np.full((1, 60), 1.2),
        np.full((1, 60), math.nan),
    ],
)
def test_what_is_no_prediction_is_refused(predictions):
    data, _ = labelled(n=60)
    with pytest.raises(ValueError, match="predictions"):
        validate(data, predictions, checked_together=1, seed=1)


def test_a_weighted_sample_speaks_for_its_population():
    data, true = labelled(n=4000, groups=4000)
    chance = np.where(true > 0.3, 1.0, 0.25)  # risky ones were all audited, of the others a quarter
    kept = np.random.default_rng(3).random(4000) < chance
    sample = Labelled(
        data.names,
        data.signals[kept],
        data.missed[kept],
        data.group[kept],
        1 / chance[kept],
        data.question[kept],
    )
    found = validate(sample, true[None, kept], checked_together=1, seed=1, resamples=200)
    everything = validate(data, true[None, :], checked_together=1, seed=1, resamples=200)
    assert found.miss_rate.low < everything.miss_rate.value < found.miss_rate.high
    assert found.skill.low < everything.skill.value < found.skill.high
    assert data.missed[kept].mean() > found.miss_rate.high  # the sample's own rate is another


def test_skill_grows_with_outcomes():
    data, true = labelled(n=900, groups=600)
    points = learning_curve(data, ridge, [30, 100, 400, 5000], repeats=12, seed=4)
    few, more, many, too_many = points
    assert few.skill < more.skill < many.skill
    best = brier_skill(true, data.missed, data.group, np.ones(900))
    assert many.skill == pytest.approx(best, abs=0.05)
    assert (few.draws, too_many.draws) == (12, 0)
    assert 30 <= few.outcomes < 33
    assert 200 < few.held_out < 250
    assert few.low < few.skill < few.high
    assert too_many.to_json()["skill"] is None
    assert learning_curve(data, ridge, [30, 100], repeats=12, seed=4) == (
        few,
        more,
    )  # the same draws, whichever other sizes are asked for


def test_training_outcomes_of_one_kind_predict_their_rate_and_are_counted():
    data, _ = labelled(n=200, groups=200, level=-3.5, spread=0.1)
    point = learning_curve(data, ridge, [8], repeats=20, seed=1)[0]
    assert (
        10 <= point.without_both < point.draws < 20
    )  # and where no held-out outcome is a miss, there is no skill


def test_held_out_groups_are_never_trained_on():
    data, _ = labelled(n=300, groups=60)

    def fitter(train, test):
        assert not set(train.group.tolist()) & set(test.group.tolist())
        return np.full(len(test), 0.3)

    assert learning_curve(data, fitter, [50, 150], repeats=5, seed=2)[1].draws == 5


def test_the_leakage_gap_is_what_random_folds_feign():
    assert leakage_gap(0.42, 0.17).to_json() == {
        "random": 0.42,
        "grouped": 0.17,
        "gap": pytest.approx(0.25),
    }


def _status(data, seed):
    found = validate(data, out_of_fold(data, 2, seed), checked_together=1, seed=seed, resamples=300)
    told = {
        "fingerprint_changed": False,
        "drift_alarm": False,
        "age_days": 1.0,
        "stale_after_days": 180,
        "own_gold_only": False,
        "n_unlabelled": 500,
    }
    return standing(Counts.of(data), found, **told).status


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_shuffled_outcomes_never_become_measured_and_true_ones_do():
    shuffled, genuine = [], []
    for trial in range(200):
        data, _ = labelled(n=320, groups=600, seed=trial)
        missed = np.random.default_rng(10_000 + trial).permutation(data.missed)
        shuffled.append(
            _status(
                Labelled(data.names, data.signals, missed, data.group, data.weight, data.question),
                trial,
            )
        )
        if trial < 30:
            genuine.append(_status(data, trial))
    assert set(shuffled) == {"provisional"}
    assert genuine.count("measured") >= 15
