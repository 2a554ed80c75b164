import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.uncertainty.folds import grouped_folds, random_folds


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=120), st.integers(1, 12), st.integers(0, 5)
)
def test_a_group_is_never_split_and_no_fold_is_heavier_than_it_must_be(groups, n_folds, seed):
    group = np.array(groups)
    fold = grouped_folds(group, n_folds, np.random.default_rng(seed))
    for code in np.unique(group):
        assert len(np.unique(fold[group == code])) == 1
    assert sorted(np.unique(fold)) == list(range(min(n_folds, len(np.unique(group)))))
    sizes = np.bincount(fold, minlength=n_folds)
    assert (
        sizes.max() - sizes.min() <= np.bincount(group).max()
    )  # the heaviest got its last group while it was the lightest


def test_folds_are_dealt_anew_by_the_generator_and_only_by_it():
    group = np.arange(200)
    first, again, other = (
        grouped_folds(group, 10, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_random_folds_are_equal_and_split_groups():
    fold = random_folds(103, 10, np.random.default_rng(0))
    assert set(np.bincount(fold).tolist()) == {10, 11}
    assert len(np.unique(fold[:10])) > 1


@pytest.mark.parametrize(
    "deal",
    [
        lambda n: grouped_folds([1, 2], n, np.random.default_rng(0)),
        lambda n: random_folds(2, n, np.random.default_rng(0)),
    ],
)
def test_no_folds_are_refused(deal):
    with pytest.raises(ValueError, match="found 0 folds"):
        deal(0)
