"""Fixtures of the tests of measures."""

import importlib.util

import pytest
from requirements import report_missing

from rag_eval.retrieval.dense import has_model, model_folder
from rag_eval.retrieval.embedding.embedders import MiniLmEmbedder


@pytest.fixture(scope="session")
def minilm(tmp_path_factory):
    """Return the sentence model of this machine."""
    if not has_model():
        report_missing("minilm", "the model all-MiniLM-L6-v2 is not on this machine")
    return MiniLmEmbedder(model_folder(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="session")
def reference(shared_data):
    """Return the reference implementation of intervals, which lies beside the public data."""
    path = shared_data.parent / "tools" / "overlap_interval.py"
    if not path.is_file():
        pytest.skip(f"no reference implementation at {path}")
    spec = importlib.util.spec_from_file_location("overlap_interval", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
