"""`rag-eval rollout` as a person and a script meet it."""

import json
import re

import pytest
import typer
from cli_project import jsonl
from typer.testing import CliRunner

from rag_eval.cli import app
from rag_eval.gates.rollout_assignment import assignment

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """As wide a screen as a log has, whatever an earlier test left behind."""
    monkeypatch.setenv("COLUMNS", "120")


def rollout(project, *arguments):
    folders = [
        "--home",
        project.home,
        *(("--gold-sets", project.root / "gold_sets") if arguments[0] == "plan" else ()),
    ]
    return CliRunner().invoke(
        app, ["rollout", *map(str, (*arguments, *folders))], catch_exceptions=False
    )


def plan(project, *more):
    return rollout(project, "plan", "tiny", "--current", "bm25", "--candidate", "vector", *more)


def pairs(project, lost, n=3000, name="pairs.jsonl"):
    path = project.root / name
    path.write_text(
        jsonl(
            {
                "query": f"{name} {at}",
                "current": at % 5 != 0,
                "candidate": at % 5 != 0 and at % 100 >= lost,
            }
            for at in range(n)
        ),
        encoding="utf-8",
    )
    return path


def test_every_command_of_the_group_has_help_and_so_has_every_option():
    group = typer.main.get_command(app).commands["rollout"]
    assert sorted(group.commands) == ["decide", "plan"]
    for name, command in group.commands.items():
        assert command.help
        assert [
            parameter.name
            for parameter in command.params
            if not getattr(parameter, "help", None) and parameter.name != "help"
        ] == []
        assert CliRunner().invoke(app, ["rollout", name, "--help"]).exit_code == 0


def test_a_plan_is_a_table_with_what_it_rests_on_and_what_comes_next(project):
    result = plan(project)
    assert result.exit_code == 0, result.stderr
    for said in (
        "10 %",
        "50 %",
        "100 %",
        "12,561",
        "125,610",
        "3 (3 in all)",
        "no kept run",
        "80 % power",
        "6.5 %",
        "rollout decide tiny --candidate vector",
    ):
        assert said in result.stdout
    again = plan(project)
    assert (again.exit_code, "rollout_running" in again.stderr) == (1, True)
    assert plan(project, "--restart", "--detect", "0.2").exit_code == 0


def test_promote_is_0_and_roll_back_is_2_with_every_figure_beside_its_interval(project):
    plan(project, "--detect", "0.5")
    held = rollout(
        project, "decide", "tiny", "--candidate", "vector", "--evidence", pairs(project, 0, n=50)
    )
    assert (held.exit_code, held.stdout.split()[0]) == (0, "HOLD")
    assert "too_few_questions" in held.stdout
    promoted = rollout(
        project, "decide", "tiny", "--candidate", "vector", "--evidence", pairs(project, 0)
    )
    assert promoted.exit_code == 0
    assert promoted.stdout.startswith("PROMOTE to 50 % (candidate vector at 10 %)")
    worse = pairs(project, 30, name="worse.jsonl")
    dry = rollout(
        project, "decide", "tiny", "--candidate", "vector", "--evidence", worse, "--dry-run"
    )
    assert (dry.exit_code, "nothing written" in dry.stdout) == (2, True)
    rolled_back = rollout(project, "decide", "tiny", "--candidate", "vector", "--evidence", worse)
    assert rolled_back.exit_code == 2
    assert rolled_back.stdout.startswith("ROLL BACK (candidate vector at 50 %)")
    assert re.search(
        r"recall_at_10 of vector +0\.\d{3} \[0\.\d\d, 0\.\d\d\] +1,\d{3} \(1,\d{3} independent\)",
        rolled_back.stdout,
    )
    assert re.search(
        r"difference +-0\.\d{4} \[-0\.\d{4}, -0\.\d{4}\] +0 better, \d+ worse, \d,\d{3} equal",
        rolled_back.stdout,
    )
    assert re.search(r"degradation .* \d\d\.\d % \[\d\d\.\d %, \d\d\.\d %\]", rolled_back.stdout)
    assert "of 3,000 questions are the candidate's at this stage" in rolled_back.stdout
    after = rollout(project, "decide", "tiny", "--candidate", "vector", "--evidence", worse)
    assert (after.exit_code, "rollout_ended" in after.stderr) == (1, True)


def test_errors_of_evidence_name_file_line_and_field(project):
    plan(project)
    path = project.root / "pairs.jsonl"
    path.write_text(
        jsonl(
            [
                {"query": "a", "current": 1, "candidate": 1},
                {"query": "\x1b[2J", "current": "yes\x9b", "candidate": 1, "x\u202e": 1},
            ]
        ),
        encoding="utf-8",
    )
    result = rollout(project, "decide", "tiny", "--candidate", "vector", "--evidence", path)
    assert result.exit_code == 1
    assert f"{path}:2: error bad_value [current]" in result.stderr
    assert "2 errors" in result.stderr
    assert not ESCAPES.search(result.stderr)


def test_a_file_name_is_shown_by_its_name_and_escaped(project):
    plan(project)
    path = project.root / "p\x1b[31m\u202e.jsonl"
    path.write_text(jsonl([{"query": "a", "current": 1, "candidate": 1}]), encoding="utf-8")
    result = rollout(project, "decide", "tiny", "--candidate", "vector", "--evidence", path)
    assert result.exit_code == 0
    assert not ESCAPES.search(result.stdout)
    kept = (project.home / "rollouts" / "tiny" / "vector.json").read_text(encoding="utf-8")
    assert str(project.root) not in kept
    assert not ESCAPES.search(kept.rstrip("\n"))


def test_no_text_of_a_question_is_kept(project):
    plan(project, "--detect", "0.5")
    salt = json.loads(
        (project.home / "rollouts" / "tiny" / "vector.json").read_text(encoding="utf-8")
    )["events"][0]["plan_id"]
    path = pairs(project, 0, name="secret-questions.jsonl")
    assert any(assignment(f"secret-questions.jsonl {at}", salt) < 0.1 for at in range(3000))
    assert (
        rollout(project, "decide", "tiny", "--candidate", "vector", "--evidence", path).exit_code
        == 0
    )
    kept = (project.home / "rollouts" / "tiny" / "vector.json").read_text(encoding="utf-8")
    assert "secret-questions.jsonl 1" not in kept


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "tiny"],
        ["decide"],
        ["decide", "tiny"],
        ["none"],
        ["plan", "tiny", "--current", "bm25", "--candidate", "vector", "--detect", "x"],
    ],
)
def test_a_mistyped_command_is_no_roll_back(project, arguments):
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "rag_eval.cli", "rollout", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=project.root,
    )
    assert done.returncode == 1, done.stderr
