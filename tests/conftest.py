"""Fixtures that every suite may ask for."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data sets, kept outside the project; RAG_EVAL_TEST_DATA names another place."""
    folder = Path(os.environ.get("RAG_EVAL_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "scifact" / "corpus.jsonl").is_file():
        pytest.skip(f"public test data not found at {folder}; set RAG_EVAL_TEST_DATA to run this test")
    return folder
