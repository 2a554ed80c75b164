"""Hypothesis without deadlines, and an empty database of each kind."""

import postgres_server
import pytest
from hypothesis import settings

# no test may depend on the clock
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture(scope="session")
def server():
    with postgres_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path) -> str:
    """Return the address of a new database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return postgres_server.new_database(request.getfixturevalue("server"))
