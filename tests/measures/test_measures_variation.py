import math

import numpy as np
import pytest

from rag_eval.measures.variation import (
    flip_matrix,
    seeds_change_nothing,
    variance_shares,
    wording_range,
)

NAN = math.nan


def nested(rng, shape, sd):
    """Values with known standard deviations of question, wording and seed."""
    q, w, s = shape
    return (
        rng.normal(0, sd[0], (q, 1, 1))
        + rng.normal(0, sd[1], (q, w, 1))
        + rng.normal(0, sd[2], (q, w, s))
    )


@pytest.mark.parametrize("ragged", [False, True])
def test_shares_recover_the_components_they_were_made_of(ragged):
    rng = np.random.default_rng(4)
    values = nested(rng, (4000, 3, 2), (2.0, 1.0, 0.5))
    if ragged:
        values[rng.random(values.shape) < 0.3] = NAN
        values[:50] = NAN
    shares = variance_shares(values)
    np.testing.assert_allclose(
        [shares.query, shares.paraphrase, shares.seed], np.array([4, 1, 0.25]) / 5.25, atol=0.02
    )
    assert shares.n_runs == np.count_nonzero(~np.isnan(values))
    assert shares.n_queries == np.count_nonzero(~np.isnan(values).all(axis=(1, 2)))


def test_missing_levels_are_not_estimated():
    rng = np.random.default_rng(4)
    one_seed = variance_shares(nested(rng, (2000, 3, 1), (1.0, 1.0, 0.0)))
    assert math.isnan(one_seed.seed)
    np.testing.assert_allclose([one_seed.query, one_seed.paraphrase], [0.5, 0.5], atol=0.05)
    one_wording = variance_shares(nested(rng, (2000, 1, 3), (1.0, 0.0, 1.0)))
    assert math.isnan(one_wording.paraphrase)
    np.testing.assert_allclose([one_wording.query, one_wording.seed], [0.5, 0.5], atol=0.05)
    single = variance_shares(nested(rng, (2000, 1, 1), (1.0, 0.0, 0.0)))
    assert single.query == 1
    assert variance_shares(nested(rng, (1, 3, 2), (1.0, 1.0, 1.0))).n_queries == 1


def test_identical_seeds_have_no_share():
    values = np.repeat(np.random.default_rng(1).random((30, 3, 1)), 2, axis=2)
    assert variance_shares(values).seed == 0


@pytest.mark.parametrize(
    "values",
    [np.full((3, 2, 2), 0.1), np.full((3, 2, 2), NAN), np.empty((0, 2, 2)), np.zeros((2, 2, 2))],
)
def test_nothing_varies(values):
    shares = variance_shares(values)
    assert all(math.isnan(part) for part in (shares.query, shares.paraphrase, shares.seed))


def test_flip_matrix_has_its_denominators():
    hits = np.array(
        [[[1, 1], [0, 0], [1, 1]], [[1, 1], [1, 0], [NAN, NAN]], [[0, NAN], [1, NAN], [0, 0]]]
    )
    share, n = flip_matrix(hits)
    np.testing.assert_allclose(share, [[0, 2.5 / 3, 0], [2.5 / 3, 0, 1], [0, 1, 0]])
    assert n.tolist() == [[3, 3, 2], [3, 3, 2], [2, 2, 2]]
    nothing = flip_matrix(np.array([[[1.0], [NAN]]]))
    assert math.isnan(nothing.share[0, 1])
    assert nothing.n.tolist() == [[1, 0], [0, 0]]


def test_worst_mean_and_best_wording():
    found = wording_range([[[1, 0], [1, 1], [NAN, NAN]], [[NAN, NAN], [NAN, NAN], [NAN, NAN]]])
    np.testing.assert_array_equal(found.worst, [0.5, NAN])
    np.testing.assert_array_equal(found.mean, [0.75, NAN])
    np.testing.assert_array_equal(found.best, [1, NAN])
    assert found.n_wordings.tolist() == [2, 0]


def test_seeds_change_nothing():
    assert seeds_change_nothing([[[1, 1], [0, 0]]]) is True
    assert seeds_change_nothing([[[1, 1], [0, 1]]]) is False
    assert seeds_change_nothing([[[NAN, 1], [0, 0.0]]]) is True
    assert seeds_change_nothing([[[NAN, 1], [0, NAN]]]) is None
    assert seeds_change_nothing([[[1], [0]]]) is None
    assert seeds_change_nothing(np.array([[[[1, 2, -1], [1, 2, -1]]]])) is True
    assert seeds_change_nothing(np.array([[[[1, 2, 3], [1, 3, 2]]]])) is False
    assert seeds_change_nothing(np.array([[[[1, 2], [1, 2], [-1, -1]]]])) is True
    assert seeds_change_nothing(np.array([[[True, False]]])) is False


def test_shape_is_checked():
    with pytest.raises(ValueError, match="n_wordings"):
        flip_matrix([[1, 0]])
