"""Fixtures that every suite may ask for."""

import os
from pathlib import Path

import pytest
from cli_project import Project

ROOT = Path(__file__).resolve().parents[1]
PAGES = "RAG_EVAL_HTML_REPORT"
os.environ.setdefault(PAGES, "false")
"""A page costs more than all else of a tiny run; tests of what runs leave behind ask for it (`pages`)."""


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data sets, kept outside the project; RAG_EVAL_TEST_DATA names another place."""
    folder = Path(os.environ.get("RAG_EVAL_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "scifact" / "corpus.jsonl").is_file():
        pytest.skip(
            f"public test data not found at {folder}; set RAG_EVAL_TEST_DATA to run this test"
        )
    return folder


@pytest.fixture(scope="session")
def tracking_store(tmp_path_factory) -> str:
    """One MLflow store for all in-process runs: creating one costs seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(scope="module")
def pages():
    """Runs write their page, as they do for a person."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PAGES, "true")
        yield


@pytest.fixture
def project(tmp_path, monkeypatch, tracking_store) -> Project:
    """A project of one tiny gold set, apart from the surroundings of the machine."""
    for name in [
        name
        for name in os.environ
        if name.startswith("RAG_EVAL_") and name not in {"RAG_EVAL_TEST_DATA", PAGES}
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAG_EVAL_TRACKING_URI", tracking_store)
    monkeypatch.setenv("RAG_EVAL_LATENCY_QUERIES", "2")
    monkeypatch.setenv("RAG_EVAL_PRIMARY_GOLD_SET", "tiny")
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)
