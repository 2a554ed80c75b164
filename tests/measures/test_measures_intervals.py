"""Records of measures: means over queries with every denominator."""

import dataclasses
import json
import math

import numpy as np
import pytest

from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.overlap import SharedGold


def apart(n):
    """Return the gold of n questions that share no document."""
    return SharedGold.of_groups(np.arange(n))


# records


def test_failed_scores_zero_and_empty_gold_is_left_out():
    values = [[1.0, 0.5], [0.9, 0.9], [math.nan, math.nan], [0.5, 0.1]]
    failed, ineligible = [False, True, True, False], [False, False, True, False]
    recall, judged = aggregate(
        ["R@10", "Judged@10"], values, apart(4), failed=failed, ineligible=ineligible
    )
    counts = (recall.n_attempted, recall.n_scored, recall.n_failed, recall.n_ineligible)
    assert (recall.label, *counts) == ("R@10", 4, 3, 1, 1)
    assert recall.value == pytest.approx(1.5 / 3)
    assert recall.judged_at_k == pytest.approx(0.6 / 3)
    assert math.isnan(judged.judged_at_k)
    assert recall.ci_low < recall.value < recall.ci_high


def test_a_failed_distance_is_as_bad_as_can_be():
    (record,) = aggregate(
        ["delta_s"], [0.2, math.nan], apart(2), failed=[False, True], failed_value=1.0
    )
    assert (record.value, record.n_scored, record.n_failed) == (0.6, 2, 1)


def test_runs_are_averaged_inside_the_query_first():
    values, query_of = [1.0, 1.0, 1.0, 0.0, math.nan, 1.0], [0, 0, 0, 1, 1, 1]
    (record,) = aggregate(["R@5"], values, apart(2), query_of=query_of)
    assert record.value == pytest.approx(0.75)
    failed = [False, False, True, False, False, False]
    (record,) = aggregate(["R@5"], values, apart(2), query_of=query_of, failed=failed)
    assert record.value == pytest.approx((2 / 3 + 0.5) / 2)
    assert (record.n_failed, record.n_scored) == (1, 2)
    np.testing.assert_array_equal(
        within_query([[1.0], [math.nan], [0.0]], [0, 1, 0], 3), [[0.5], [math.nan], [math.nan]]
    )


def test_nothing_scored_is_nan_with_its_denominators():
    (record,) = aggregate(["R@5"], [math.nan, math.nan], apart(2))
    shown = (record.value, record.ci_low, record.ci_high, record.judged_at_k)
    assert all(map(math.isnan, shown))
    assert (record.n_attempted, record.n_scored, record.n_ineligible) == (2, 0, 2)
    (empty,) = aggregate(["R@5"], np.empty((0, 1)), apart(0))
    assert (empty.n_attempted, empty.n_scored) == (0, 0)


def test_eligibility_may_differ_by_measure():
    mask = [[False, True], [False, False], [False, False]]
    one, two = aggregate(
        ["R@5", "RR"], [[1.0, 1.0], [0.0, 0.5]], apart(3), query_of=[0, 1], ineligible=mask
    )
    assert (one.n_scored, one.n_ineligible, one.value) == (2, 1, 0.5)
    assert (two.n_scored, two.n_ineligible, two.value) == (1, 2, 0.5)
    # Dagster metadata and JSON refuse numpy scalars
    assert {type(part) for part in dataclasses.astuple(one)} == {str, float, int}
    assert json.loads(json.dumps(dataclasses.asdict(one)))["n_scored"] == 2
