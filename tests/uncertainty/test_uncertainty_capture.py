"""Capture-recapture: a lower bound with its warning, never a recall."""

import numpy as np
import pytest

from rag_eval.uncertainty.capture import WARNING, capture


def test_it_is_chapmans_estimate_less_its_error():
    first = np.array([True] * 60 + [False] * 20)
    second = np.array([True] * 30 + [False] * 30 + [True] * 20)
    found = capture(first, second)
    assert (found.found_by_first, found.found_by_second, found.found_by_both) == (60, 50, 30)
    estimate = 61 * 51 / 31 - 1
    error = (61 * 51 * 30 * 20 / (31**2 * 32)) ** 0.5
    assert found.at_least_missed == int(estimate - 1.645 * error - 80)
    assert 0 < found.at_least_missed < estimate - 80


def test_independent_retrievers_are_bounded_from_below():
    rng, under = np.random.default_rng(1), 0
    for _ in range(400):
        first, second = rng.random(300) < 0.5, rng.random(300) < 0.6
        known = first | second
        under += capture(first[known], second[known]).at_least_missed <= int((~known).sum())
    assert under / 400 >= 0.92


def test_it_is_shown_with_its_warning_only():
    found = capture(np.array([True, False]), np.array([True, False]))
    assert found.at_least_missed == 0
    assert found.text.startswith("At least 0 relevant documents were missed by both retrievers, which found 1.")
    assert WARNING in found.text
    assert found.to_json()["text"] == found.text
    assert capture(np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)).at_least_missed == 0
    with pytest.raises(ValueError, match="one of each"):
        capture(np.zeros(2, dtype=bool), np.zeros(3, dtype=bool))
