"""Hypothesis without deadlines, because no test may depend on the clock, and shared data."""

import pytest
from corpora import scifact
from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(scope="session")
def scifact_data(shared_data):
    return scifact(shared_data)
