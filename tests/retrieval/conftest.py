"""Shared data of tests of retrieval."""

import pytest
from corpora import scifact


@pytest.fixture(scope="session")
def scifact_data(shared_data):
    return scifact(shared_data)
