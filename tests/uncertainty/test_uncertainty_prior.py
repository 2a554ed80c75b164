import json

import numpy as np
import pytest

from rag_eval.uncertainty.estimator import PRIOR_KINDS, Prior, load_prior
from rag_eval.uncertainty.signals import SIGNALS


@pytest.mark.parametrize("kind", PRIOR_KINDS)
def test_the_shipped_prior_knows_the_signals_and_says_where_it_comes_from(kind):
    prior = load_prior(kind)
    assert prior.names == SIGNALS
    assert prior.provenance["kind"] == kind
    assert prior.provenance["fitted_by"] == "benchmarks/fit_miss_prior.py"
    fitted = {"scifact", "xquad_sentences", "clapnq"}
    assert set(prior.provenance["fitted_on"]) == fitted
    assert set(prior.provenance["held_out"]) == fitted | {"pandas_api"}
    for its in prior.provenance["fitted_on"].values():
        assert all(
            part["outcomes"] >= part["groups"] > 0 < part["misses"] < part["outcomes"]
            for part in its.values()
        )


def test_a_prior_fitted_without_scifact_has_skill_on_it_with_25_outcomes():
    held = load_prior().provenance["held_out"]["scifact"]
    assert {strategy.split("/")[1] for strategy in held} == {"bm25", "vector", "hybrid"}
    assert all(figures["skill_at_25"] >= 0.10 for figures in held.values())


def test_kinds_differ_and_share_their_intercept():
    priors = [load_prior(kind) for kind in PRIOR_KINDS]
    assert len({prior.id for prior in priors}) == len(PRIOR_KINDS)
    assert len({prior.intercept for prior in priors}) == 1


def test_a_prior_is_read_back_exactly_and_brought_into_another_order():
    prior = Prior(("a", "b"), (0.1, -0.3), -1.7, (0.9, 0.2, 0.4), {"seed": 0})
    assert Prior.from_json(json.loads(json.dumps(prior.to_json()))) == prior
    assert prior.over(["b", "new", "a"]).tolist() == [-0.3, 0.0, 0.1]
    np.testing.assert_allclose(prior.spread_over(["b", "new", "a"]), [0.4, 0.3, 0.2])
