"""A report with everything in it, for tests of its page: two nights of a project that misses some questions on purpose."""

from pathlib import Path
from typing import Any

import missing_project
from cli_project import Project


def evaluated_project(root: Path) -> Project:
    """Evaluate twice: the second night has a previous run and calibrators that the first one earned."""
    project = Project(root)
    missing_project.make(project)
    missing_project.night(project)
    missing_project.night(project)
    return project


def evaluated_report(root: Path) -> dict[str, Any]:
    """Return the report of the second night."""
    return evaluated_project(root).report()
