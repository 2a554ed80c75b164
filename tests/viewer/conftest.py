"""One evaluated project for all of the viewer's tests; each has a copy of its home."""

import pytest
from shared_runs import MadeOnce
from viewed_project import Viewed, evaluate


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory, tracking_store) -> MadeOnce:
    return MadeOnce(lambda: evaluate(tmp_path_factory.mktemp("evaluated"), tracking_store))


@pytest.fixture
def viewed(evaluated, tmp_path):
    return Viewed(evaluated.get(), tmp_path)
