"""Clean corpora through the whole guard, every check together: hardly anything is held back."""

import pytest

from rag_eval.evaluation.inputs import open_beir, open_gold_set
from rag_eval.evaluation.trust_steps import evidence_trust
from rag_eval.settings import Settings

BLOCKED, WARNED = 0.005, 0.02


def shares(evaluation):
    verdicts = evidence_trust(evaluation).frame("trust")["verdict"]
    return (
        float((verdicts == "blocked").mean()),
        float((verdicts == "warning").mean()),
        len(verdicts),
    )


@pytest.mark.parametrize(
    ("name", "n_chunks"), [pytest.param("scifact", 5183, marks=pytest.mark.slow), ("xquad", 240)]
)
def test_hardly_anything_of_a_public_corpus_is_held_back(shared_data, tmp_path, name, n_chunks):
    blocked, warned, n = shares(
        open_beir(shared_data / name, "test", Settings(home=tmp_path / "home"))
    )
    assert n >= n_chunks
    assert blocked <= BLOCKED
    assert warned <= WARNED


def test_hardly_anything_of_the_documentation_of_pandas_is_held_back(project_root, tmp_path):
    blocked, warned, n = shares(
        open_gold_set(project_root / "gold_sets" / "pandas_api", Settings(home=tmp_path / "home"))
    )
    assert n > 5000
    assert blocked <= BLOCKED
    assert warned <= WARNED
