import dataclasses
import json
import math

import numpy as np
import pytest

from rag_eval.measures.aggregate import aggregate, within_query

GROUPS = np.arange(4)


def test_failed_scores_zero_and_empty_gold_is_left_out():
    values = [[1.0, 0.5], [0.9, 0.9], [math.nan, math.nan], [0.5, 0.1]]
    records = aggregate(
        ["R@10", "Judged@10"],
        values,
        GROUPS,
        seed=1,
        failed=[False, True, False, False],
        ineligible=[False, False, True, False],
    )
    recall, judged = records
    assert (
        recall.label,
        recall.n_attempted,
        recall.n_scored,
        recall.n_failed,
        recall.n_ineligible,
    ) == ("R@10", 4, 3, 1, 1)
    assert recall.value == pytest.approx(1.5 / 3)
    assert recall.judged_at_k == pytest.approx(0.6 / 3)
    assert math.isnan(judged.judged_at_k)
    assert recall.ci_low < recall.value < recall.ci_high


def test_failed_on_empty_gold_is_ineligible_not_zero():
    (record,) = aggregate(
        ["RR"],
        [0.5, 0.5, math.nan, 0.5],
        GROUPS,
        seed=1,
        failed=[False, False, True, False],
        ineligible=[False, False, True, False],
    )
    assert (record.value, record.n_failed, record.n_ineligible) == (0.5, 0, 1)


def test_failed_distance_is_as_bad_as_can_be():
    (record,) = aggregate(
        ["delta_s"], [0.2, math.nan], [0, 1], seed=1, failed=[False, True], failed_value=1.0
    )
    assert (record.value, record.n_scored, record.n_failed) == (0.6, 2, 1)


def test_runs_are_averaged_inside_the_query_first():
    values, query_of = [1.0, 1.0, 1.0, 0.0, math.nan, 1.0], [0, 0, 0, 1, 1, 1]
    (record,) = aggregate(["R@5"], values, [0, 1], seed=1, query_of=query_of)
    assert record.value == pytest.approx(0.75)
    (with_failure,) = aggregate(
        ["R@5"],
        values,
        [0, 1],
        seed=1,
        query_of=query_of,
        failed=[False, False, True, False, False, False],
    )
    assert with_failure.value == pytest.approx((2 / 3 + 0.5) / 2)
    assert (with_failure.n_failed, with_failure.n_scored) == (1, 2)


def test_nothing_scored_is_nan_with_its_denominators():
    (record,) = aggregate(["R@5"], [math.nan, math.nan], [0, 1], seed=1)
    assert all(
        math.isnan(part)
        for part in (record.value, record.ci_low, record.ci_high, record.judged_at_k)
    )
    assert (record.n_attempted, record.n_scored, record.n_failed, record.n_ineligible) == (
        2,
        0,
        0,
        2,
    )
    (empty,) = aggregate(["R@5"], np.empty((0, 1)), np.empty(0, dtype=int), seed=1)
    assert (empty.n_attempted, empty.n_scored) == (0, 0)


def test_ineligible_may_differ_by_measure_and_a_query_without_runs_is_ineligible():
    mask = [[False, True], [False, False], [False, False]]
    one, two = aggregate(
        ["R@5", "RR"], [[1.0, 1.0], [0.0, 0.5]], [0, 1, 2], seed=1, query_of=[0, 1], ineligible=mask
    )
    assert (one.n_scored, one.n_ineligible, one.value) == (2, 1, 0.5)
    assert (two.n_scored, two.n_ineligible, two.value) == (1, 2, 0.5)


def test_records_hold_plain_python_values():
    """Dagster metadata and JSON refuse numpy scalars."""
    (record,) = aggregate(["R@5"], [1.0, 0.0], [0, 1], seed=1)
    assert {type(part) for part in dataclasses.astuple(record)} == {str, float, int}
    assert json.loads(json.dumps(dataclasses.asdict(record)))["n_scored"] == 2


def test_within_query_gives_nan_without_values():
    np.testing.assert_array_equal(
        within_query([[1.0], [math.nan], [0.0]], [0, 1, 0], 3), [[0.5], [math.nan], [math.nan]]
    )


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="labels"):
        aggregate(["a", "b"], [[1.0]], [0], seed=1)
    with pytest.raises(ValueError, match="query_of"):
        aggregate(["a"], [1.0, 2.0], [0], seed=1)
