"""`rag-eval gate` and `rollout` as a person and a script meet them."""

from xml.etree import ElementTree as ET

import pytest
from cli_project import CONFIG
from typer.testing import CliRunner

from rag_eval.cli.app import app

FILES = {"gate-verdict.xml", "gate-verdict.md"}
GATES = "gates: {required: [], advisory: [acceptance], min_queries: 50}"


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def junit(folder):
    return ET.parse(folder / "gate-verdict.xml").getroot()  # noqa: S314 - what was just written here


def gate(project, *arguments):
    return call("gate", *arguments, "--home", project.home)


@pytest.fixture
def failed(project, shared_runs):
    """Return a project after one run whose required gate failed."""
    asked = "{required: [acceptance], advisory: [trust, stability], min_queries: 2}"
    floors = "{mrr: '>= 0.99', recall_at_5: '>= 0.01'}"
    config = CONFIG.replace(GATES, f"gates: {asked}\nacceptance: {floors}")
    (project.gold / "gold_set.yaml").write_text(config, encoding="utf-8")
    shared_runs.run(project, exit_code=2)
    return project


def test_a_failed_required_gate_is_exit_2_and_every_file_says_so(failed):
    result = gate(failed)
    assert result.exit_code == 2
    assert "required gates failed: acceptance.mrr" in result.stderr
    assert "FAILED: required 1 of 2 met" in result.stdout
    folder = failed.reports / "tiny"
    assert "3 scored, worth 3" in (folder / "gate-verdict.md").read_text(encoding="utf-8")
    assert {path.name for path in folder.iterdir()} >= FILES
    assert junit(folder).get("failures") == "1"
    assert "❌" in (folder / "gate-verdict.md").read_text(encoding="utf-8")
    assert gate(failed, "tiny").exit_code == 2


def test_a_run_is_named_and_nothing_is_written(failed):
    folder, run_id = failed.reports / "tiny", failed.report()["run_id"]
    written = {name: (folder / name).stat().st_mtime_ns for name in FILES}  # the run wrote them
    for name in ("latest", run_id, run_id[:15]):
        assert gate(failed, "--run", name).exit_code == 2
    assert {name: (folder / name).stat().st_mtime_ns for name in FILES} == written


def test_what_cannot_be_judged_is_exit_1(failed):
    for arguments in (
        ["../tiny"],
        ["none"],
        ["--run", "none"],
        ["--run", failed.reports / "tiny" / "retrieval-metrics.json"],
        ["another", "--run", "latest"],
    ):
        result = gate(failed, *arguments)
        assert result.exit_code == 1, arguments
        assert "error" in result.stderr
    (path,) = (failed.home / "runs").glob("*.json")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"status": "fail"', '"status": "pass"'), encoding="utf-8")
    refused = gate(failed, "--run", failed.report()["run_id"])
    assert (refused.exit_code, "content_hash" in refused.stderr) == (1, True)
    path.write_text(text[:-200], encoding="utf-8")
    assert gate(failed).exit_code == 1


def test_a_run_is_accepted_as_the_baseline(failed):
    accept = ("--accept", "--who", "Ada", "--why", "known and [b]agreed[/b]")
    refused = gate(failed, *accept)
    assert (refused.exit_code, "gates_failed" in refused.stderr) == (1, True)
    accepted = gate(failed, "tiny", *accept, "--force")
    assert accepted.exit_code == 2, accepted.stderr
    assert f"accepted: {failed.report()['run_id']}" in accepted.stdout
    assert "who" in gate(failed, "--accept").stderr


def test_a_small_set_is_held_with_figures_and_reason(project, shared_runs):
    shared_runs.run(project)
    words = ("vector", "tiny", "--measure", "mrr")
    result = call("rollout", *words, "--home", project.home)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("HOLD (vector against bm25)")
    for part in (
        "mrr of bm25",
        "mrr of vector",
        "too_few_questions: fewer than 30 independent questions on 3 questions (worth 3",
        "document level, run 2",
    ):
        assert part in result.stdout
