"""Reports for tests of panels: one that is evaluated once, and copies of it that a test may change."""

import copy
from typing import Any

import missing_project
import pytest
from cli_project import Project


@pytest.fixture(scope="session")
def first_night(tmp_path_factory) -> dict[str, Any]:
    """Report of two strategies that miss a third of their questions and of an iterative one over the first; nobody may change it."""
    project = Project(tmp_path_factory.mktemp("panels"))
    missing_project.make(project)
    missing_project.configure(
        project, missing_project.BM25, missing_project.VECTOR, missing_project.ITERATIVE
    )
    missing_project.night(project)
    return project.report()


@pytest.fixture
def report(first_night) -> dict[str, Any]:
    """A copy as the second night would have it: the miss rates that the first one earned are stated."""
    found = copy.deepcopy(first_night)
    for entry in found["uncertainty"]["strategies"].values():
        entry |= {"status": "provisional", "stated": copy.deepcopy(entry["observed"]["miss_any"])}
        entry.pop("reason", None)
    return found
