"""docs/rollout.md: its commands run as they stand, its example is read, its reasons are those that exist."""

import re
import shlex

import pytest
from cli_project import CONFIG
from typer.testing import CliRunner

from rag_eval.cli import app
from rag_eval.evaluation.rollout_evidence import file_evidence

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models


@pytest.fixture(scope="module")
def text(project_root):
    return (project_root / "docs" / "rollout.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_commands_run_as_they_stand(text, project):
    project.gold.rename(project.gold.parent / "handbook")
    (project.gold.parent / "handbook" / "gold_set.yaml").write_text(
        CONFIG.replace("name: tiny", "name: handbook"), encoding="utf-8"
    )
    (project.root / "pairs.jsonl").write_text(blocks(text, "json")[0], encoding="utf-8")
    commands = [
        line.removeprefix("$ rag-eval ") for line in blocks(text, "console")[0].splitlines()
    ]
    assert len(commands) == 6
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        assert result.exit_code == 0, (command, result.output)


def test_the_example_of_evidence_is_evidence(text, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(blocks(text, "json")[0], encoding="utf-8")
    found = file_evidence(path)
    assert (found.current.tolist(), found.candidate.tolist(), len(set(found.groups.tolist()))) == (
        [1, 0.5],
        [1, 1],
        2,
    )


def test_the_example_of_an_assignment_runs(text):
    names: dict = {}
    *first, last = blocks(text, "python")[0].strip().splitlines()
    exec("\n".join(first), names)  # noqa: S102 - the documentation's own lines
    assert eval(last, names) in {True, False}  # noqa: S307 - likewise


def test_every_reason_is_explained(text, project_root):
    folder = project_root / "rag_eval"
    code = (folder / "gates" / "rollout_decision.py").read_text(encoding="utf-8") + (
        folder / "evaluation" / "rollouts.py"
    ).read_text(encoding="utf-8")
    reasons = set(re.findall(r'Reason\("(\w+)"', code))
    assert len(reasons) >= 8
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in text] == []
