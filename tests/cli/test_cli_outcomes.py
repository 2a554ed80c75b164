"""`rag-eval outcome`, `claim` and `audit` as a person and a script meet them."""

import json
from pathlib import Path

import pytest
from cli_project import jsonl
from typer.testing import CliRunner

from rag_eval.cli.app import app
from rag_eval.core.errors import format_count
from rag_eval.storage.sql import SqlStore
from rag_eval.uncertainty.outcomes import OutcomeStore

NAMED = ("--strategy", "bm25", "--fingerprint", "f1")


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Set a screen of 160 columns, and ignore the machine's settings."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("RAG_EVAL_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def call(*arguments, home="home"):
    return CliRunner().invoke(app, [*map(str, arguments), "--home", home], catch_exceptions=False)


def fine(*arguments, **options):
    result = call(*arguments, **options)
    assert result.exit_code == 0, result.stderr
    return result


def stored():
    """Return the current outcomes of the home as rows."""
    return list(OutcomeStore(SqlStore(Path("home/rag_eval.db"))).current().itertuples())


def traffic(tmp_path, n=20, **more):
    path = tmp_path / "traffic.jsonl"
    rows = (
        {"query": f"question {at}", "retrieved": [{"id": f"d{at}", "score": 1.0}], **more}
        for at in range(n)
    )
    path.write_text(jsonl(rows), encoding="utf-8")
    return path


def test_from_traffic_to_audited_outcomes(tmp_path):
    path = traffic(tmp_path)
    imported = fine("claim", "import", path, *NAMED).stdout
    assert "20 claims imported, 0 were there already; masked: nothing" in imported
    again = fine("claim", "import", path, *NAMED).stdout
    assert "0 claims imported, 20 were there already" in again
    drawn = fine("audit", "draw", "--n", "5", "--seed", "3")
    written = "5 of 20 claims of bm25, each drawn with probability 0.25, written to audit.jsonl"
    assert written in drawn.stdout
    # An auditor's work is not overwritten.
    assert call("audit", "draw", "--n", "5", "--seed", "3").exit_code == 1
    audit = tmp_path / "audit.jsonl"
    rows = [json.loads(line) for line in audit.read_text(encoding="utf-8").splitlines()]
    rows[0] |= {"missed": True, "gold_source": "human", "missed_content": "it"}
    audit.write_text(jsonl(rows), encoding="utf-8")
    for recorded, there in ((1, 0), (0, 1)):
        told = f"{format_count(recorded, 'outcome')} recorded, {there} were there already, 4 lines"
        assert told in fine("outcome", "import", "audit.jsonl").stdout
    (outcome,) = stored()
    assert (outcome.gold_source, outcome.inclusion_probability) == ("human", 0.25)
    again = call("audit", "draw", "--n", "5", "--seed", "3", "--out", "more.jsonl")
    assert (again.exit_code, "no claim came in since the last draw" in again.stderr) == (1, True)


def test_an_import_of_traces_warns_of_those_left_out(tmp_path):
    path = tmp_path / "runs.jsonl"
    found = {"documents": [{"page_content": "At noon."}]}
    search = {"run_type": "retriever", "id": "a", "inputs": {"query": "When?"}, "outputs": found}
    path.write_text(jsonl([search, {"run_type": "llm", "id": "b"}]), encoding="utf-8")
    result = fine("claim", "import", path, *NAMED)
    assert "1 claim imported" in result.stdout
    assert f"{path}:2: warning left_out: 1 trace left out and 1 trace read: " in result.stderr
    assert "no retrieval span" in result.stderr


def test_one_judgement_is_added_and_corrected():
    words = ("outcome", "add", "--query", "What is NaN?", *NAMED)
    added = fine(*words, "--missed", "--missed-content", "ask jane.doe@example.org").stdout
    first = added.split()[-1]
    assert fine(*words, "--missed").stdout == "already there\n"
    refused = call(*words, "--hit")
    assert (refused.exit_code, first in refused.stderr) == (1, True)
    (outcome,) = stored()
    assert outcome.missed_content.startswith("ask [email█")
    fine(*words, "--hit", "--correct", "looked again")
    (outcome,) = stored()
    assert (outcome.missed, outcome.supersedes, outcome.missed_content) == (0.0, first, "")
    assert outcome.note == "looked again"
    wrong = call(*words, "--hit", "--k", "5", "--missed-content", "nothing is missed")
    assert (wrong.exit_code, len(stored())) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--query", "x", "--missed"), "[strategy]"),
        (("--query", "x", *NAMED), "[missed]"),
    ],
)
def test_a_judgement_that_cannot_be_is_told_with_its_field(arguments, said):
    result = call("outcome", "add", *arguments)
    assert (result.exit_code, said in result.stderr) == (1, True), result.stderr
    assert stored() == []


def test_a_database_that_cannot_be_used_is_told_without_its_password(monkeypatch):
    monkeypatch.setenv("RAG_EVAL_DATABASE_URL", "postgresql://me:s3cr3t-pw@127.0.0.1:1/db")
    result = call("audit", "draw", "--n", "1", "--seed", "1")
    assert result.exit_code == 1
    assert "database_failed" in result.stderr
    assert "s3cr3t" not in result.output + result.stderr
