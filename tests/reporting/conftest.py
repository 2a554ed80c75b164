"""Reports for tests of panels: one evaluated report, and copies that a test may change."""

import copy
from typing import Any

import missing_project
import pytest
from cli_project import set_apart
from shared_runs import SharedRuns


@pytest.fixture(scope="session")
def first_night(tmp_path_factory, tracking_store, shared_runs: SharedRuns) -> dict[str, Any]:
    """Return a report of two strategies that miss a third of the questions, and an iterative one.

    It looks like the report of a second night: its stated miss rates are the observed rates.
    """
    with pytest.MonkeyPatch.context() as patch:
        project = set_apart(patch, tmp_path_factory.mktemp("panels"), tracking_store)
        missing_project.make(project)
        strategies = (missing_project.BM25, missing_project.VECTOR, missing_project.ITERATIVE)
        missing_project.configure(project, *strategies)
        (ran,) = shared_runs.run(project)
        missing_project.fits(project)
    for entry in ran.report["uncertainty"]["strategies"].values():
        entry |= {"status": "provisional", "stated": copy.deepcopy(entry["observed"]["miss_any"])}
        entry.pop("reason", None)
    return ran.report


@pytest.fixture
def report(first_night) -> dict[str, Any]:
    """Return a copy of the report that a test may change."""
    return copy.deepcopy(first_night)
