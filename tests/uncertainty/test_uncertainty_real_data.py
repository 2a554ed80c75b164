"""The estimator on public collections, as the benchmarks read them."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from rag_eval.uncertainty.estimator import cross_validate

pytestmark = pytest.mark.slow


@pytest.fixture
def benchmarks(shared_data, project_root, monkeypatch):
    monkeypatch.syspath_prepend(project_root / "benchmarks")
    return SimpleNamespace(
        data=importlib.import_module("miss_rate_data"),
        prior=importlib.import_module("fit_miss_prior"),
    )


@pytest.mark.parametrize(
    ("strategy", "auroc", "skill"),
    [("bm25", 0.84, 0.25), ("vector", 0.82, 0.25), ("hybrid", 0.81, 0.15)],
)
def test_scifact_is_estimated_without_a_prior(benchmarks, strategy, auroc, skill):
    labelled = benchmarks.data.judged("scifact", strategy, "minilm").labelled()
    predicted = cross_validate(labelled, prior=None, repeats=2)
    missed = labelled.missed.astype(float)
    assert np.mean([roc_auc_score(missed, row) for row in predicted]) >= auroc
    assert np.mean([benchmarks.prior.skill(row, missed) for row in predicted]) >= skill
