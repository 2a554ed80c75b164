"""A SQLite file and a PostgreSQL database, for tests of stores."""

import postgres_server
import pytest


@pytest.fixture(scope="session")
def server():
    with postgres_server.running() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Return the URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return postgres_server.new_database(request.getfixturevalue("server"))
