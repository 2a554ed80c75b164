"""The shipped priors, and the file that holds them."""

import json
from importlib.resources import files

import pytest

from rag_eval.uncertainty.estimator import PRIOR_FILE, PRIOR_KINDS, Prior
from rag_eval.uncertainty.signals import SIGNALS


@pytest.mark.parametrize("kind", PRIOR_KINDS)
def test_the_shipped_prior_knows_the_signals(kind):
    assert Prior.shipped(kind).names == SIGNALS


def test_the_file_says_where_the_priors_come_from():
    text = (files("rag_eval.uncertainty") / PRIOR_FILE).read_text(encoding="utf-8")
    provenance = json.loads(text)["provenance"]
    assert provenance["fitted_by"] == "benchmarks/fit_miss_prior.py"
    single = {"scifact", "xquad_sentences", "clapnq"}
    many = {"xquad_paragraphs", "xquad_articles", "clapnq_passages"}
    kinds = {kind: set(sets) for kind, sets in provenance["fitted_on"].items()}
    assert kinds == {"single answer": single, "many relevant": many}
    assert set(provenance["held_out"]) == single | many | {"pandas_api", "npl"}
    # A prior that was fitted without SciFact orders its misses, and has skill without outcomes.
    held = provenance["held_out"]["scifact"]
    assert {strategy.split("/")[1] for strategy in held} == {"bm25", "vector", "hybrid"}
    assert all(figures["alone_auroc"] >= 0.79 for figures in held.values())
    assert all(figures["alone_skill"] >= 0.10 for figures in held.values())


def test_kinds_differ_and_share_their_intercept():
    assert Prior.fitted_on().startswith("single answer: scifact, ")
    priors = [Prior.shipped(kind) for kind in PRIOR_KINDS]
    assert len({prior.id for prior in priors}) == len(PRIOR_KINDS)
    assert len({prior.intercept for prior in priors}) == 1


def test_a_prior_is_read_back_exactly_and_brought_into_another_order():
    prior = Prior(("a", "b"), (0.1, -0.3), -1.7, 0.9)
    assert Prior.from_json(json.loads(json.dumps(prior.to_json()))) == prior
    assert prior.over(["b", "new", "a"]).tolist() == [-0.3, 0.0, 0.1]
