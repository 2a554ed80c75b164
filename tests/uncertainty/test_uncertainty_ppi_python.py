"""Prediction-powered means agree with ppi-python, the package of the method's authors.

ppi-python brings numba and a download tool, so `make test-integrations` runs these tests in an
environment of their own. A missing package skips them, or fails them with
RAG_EVAL_REQUIRE_INTEGRATIONS=1.
"""

import os

import numpy as np
import pytest

from rag_eval.uncertainty.traffic import _prediction_powered

try:
    import ppi_py
except ImportError as error:
    if os.environ.get("RAG_EVAL_REQUIRE_INTEGRATIONS") == "1":
        raise
    pytest.skip(
        f"ppi-python is not installed ({error}); `make test-integrations` runs this test in an "
        "environment that has it",
        allow_module_level=True,
    )


def independent_queries(n_labelled, n_unlabelled, seed, knows):
    """Make outcomes, their predictions and predictions without an outcome."""
    rng = np.random.default_rng(seed)
    n = n_labelled + n_unlabelled
    hard = rng.normal(size=n)
    outcome = (rng.random(n) < 1 / (1 + np.exp(1 - 2 * hard))).astype(float)
    seen = knows * hard + (1 - knows**2) ** 0.5 * rng.normal(size=n)
    predicted = 1 / (1 + np.exp(1 - 2 * knows * seen))
    return outcome[:n_labelled], predicted[:n_labelled], predicted[n_labelled:]


@pytest.mark.parametrize("knows", [1.0, 0.6, 0.2])
@pytest.mark.parametrize(("n_labelled", "n_unlabelled"), [(60, 240), (500, 500), (800, 8000)])
def test_the_estimate_is_that_of_ppi_python(n_labelled, n_unlabelled, knows):
    n = n_labelled
    outcome, predicted, unlabelled = independent_queries(n, n_unlabelled, 7, knows)
    ours = _prediction_powered(
        np.concatenate([outcome, np.full(n_unlabelled, np.nan)]),
        np.concatenate([predicted, unlabelled]),
        np.arange(n + n_unlabelled),
    )
    data = outcome, predicted, unlabelled
    value = ppi_py.ppi_mean_pointestimate(*data, lam=ours.power)
    assert ours.value == pytest.approx(float(np.squeeze(value)), abs=1e-12)

    def half_width(power, *, alpha=0.05):
        low, high = ppi_py.ppi_mean_ci(*data, alpha=alpha, lam=power)
        return float(np.squeeze(high - low)) / 2

    # Both packages choose the weight that makes the interval short. They estimate the weight by
    # different sums, so the weights differ slightly and the widths are almost equal.
    best = min(half_width(power) for power in np.linspace(0, 1, 201))
    assert half_width(ours.power) <= best * 1.001
    low, high = ppi_py.ppi_mean_ci(*data, alpha=0.05)
    assert half_width(ours.power) <= float(np.squeeze(high - low)) / 2 * 1.001


def test_labels_alone_are_the_classical_mean():
    outcome, predicted, unlabelled = independent_queries(200, 600, 3, 1.0)
    ours = _prediction_powered(
        np.concatenate([outcome, np.full(600, np.nan)]),
        np.concatenate([predicted, unlabelled]),
        np.arange(800),
    )
    value = ppi_py.ppi_mean_pointestimate(outcome, predicted, unlabelled, lam=0)
    assert ours.labels_value == pytest.approx(float(np.squeeze(value)))
