"""A report with every part, for tests of its page.

Its project runs for two nights and misses some questions on purpose.
"""

from pathlib import Path
from typing import Any

import missing_project
from cli_project import Project


def evaluated_project(root: Path) -> Project:
    """Evaluate twice, so that the second night has a previous run and fitted calibrators."""
    project = Project(root)
    missing_project.make(project)
    missing_project.night(project)
    missing_project.night(project)
    return project


def evaluated_report(root: Path) -> dict[str, Any]:
    """Return the report of the second night."""
    return evaluated_project(root).report()
