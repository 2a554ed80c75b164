"""The commands and the example of docs/rollout.md run, and its reasons exist in the code."""

import re
import shlex

import pytest
from cli_project import CONFIG
from typer.testing import CliRunner

from rag_eval.cli.app import app


@pytest.fixture(scope="module")
def text(project_root):
    return (project_root / "docs" / "rollout.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_commands_run_as_they_stand(text, project):
    project.gold.rename(project.gold.parent / "handbook")
    (project.gold.parent / "handbook" / "gold_set.yaml").write_text(
        CONFIG.replace("name: tiny", "name: handbook"), encoding="utf-8"
    )
    commands = [
        line.removeprefix("$ rag-eval ") for line in blocks(text, "console")[0].splitlines()
    ]
    assert len(commands) == 3
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        assert result.exit_code == 0, (command, result.output)


def test_the_example_of_an_assignment_runs(text):
    names: dict = {}
    *first, last = blocks(text, "python")[0].strip().splitlines()
    exec("\n".join(first), names)  # noqa: S102 - the documentation's own lines
    assert eval(last, names) in {True, False}  # noqa: S307 - likewise


def test_every_reason_is_explained(text, project_root):
    code = (project_root / "rag_eval" / "gates" / "rollout.py").read_text(encoding="utf-8")
    reasons = {
        "degraded",
        "not_worse",
        "not_excluded",
        "too_few_questions",
        "not_paired",
        "no_base",
    }
    assert [reason for reason in reasons if f'"{reason}"' not in code] == []
    assert [reason for reason in reasons if f"`{reason}`" not in text] == []
