"""Reports for tests of panels: one evaluated report, and copies that a test may change."""

import copy
from typing import Any

import missing_project
import pytest
from cli_project import set_apart
from shared_runs import MadeOnce


@pytest.fixture(scope="session")
def first_night(tmp_path_factory, tracking_store) -> MadeOnce:
    """Make a report of two strategies that miss a third of the questions, and an iterative one."""

    def make() -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            project = set_apart(patch, tmp_path_factory.mktemp("panels"), tracking_store)
            patch.delenv("RAG_EVAL_LATENCY_QUERIES")
            missing_project.make(project)
            strategies = (missing_project.BM25, missing_project.VECTOR, missing_project.ITERATIVE)
            missing_project.configure(project, *strategies)
            missing_project.night(project)
            return project.report()

    return MadeOnce(make)


@pytest.fixture
def report(first_night) -> dict[str, Any]:
    """Return a copy of the report that looks like the report of a second night.

    Its stated miss rates are the observed rates of the first night.
    """
    found = copy.deepcopy(first_night.get())
    for entry in found["uncertainty"]["strategies"].values():
        entry |= {"status": "provisional", "stated": copy.deepcopy(entry["observed"]["miss_any"])}
        entry.pop("reason", None)
    return found
