"""One evaluated project for all of the viewer's tests; each has a copy of its home."""

import pytest
from viewed_project import Viewed, evaluate


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory, tracking_store):
    return evaluate(tmp_path_factory.mktemp("evaluated"), tracking_store)


@pytest.fixture
def viewed(evaluated, tmp_path):
    return Viewed(evaluated, tmp_path)
