"""A project of one tiny gold set, apart from the surroundings of the machine."""

import os

import pytest
from cli_project import Project


@pytest.fixture(scope="session")
def tracking_store(tmp_path_factory) -> str:
    """One MLflow store for all in-process runs: creating one costs seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def project(tmp_path, monkeypatch, tracking_store) -> Project:
    for name in [name for name in os.environ if name.startswith("RAG_EVAL_") and name != "RAG_EVAL_TEST_DATA"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAG_EVAL_TRACKING_URI", tracking_store)
    monkeypatch.setenv("RAG_EVAL_LATENCY_QUERIES", "2")
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)
