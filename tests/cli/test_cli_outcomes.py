"""`rag-eval outcome`, `claim` and `audit` as a person and a script meet them."""

import csv
import json

import pandas as pd
import pytest
from cli_project import jsonl
from typer.testing import CliRunner

from rag_eval.cli.app import app
from rag_eval.core.errors import format_count

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


def listed(*arguments, **options):
    return [
        json.loads(line)
        for line in fine("outcome", "list", "--json", *arguments, **options).stdout.splitlines()
    ]


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
    sources = ("human", "user_feedback")
    assert [len(listed("--gold-source", source)) for source in sources] == [1, 0]
    shown = fine("outcome", "list").stdout
    assert "human (0.25)" in shown
    assert (
        "1 of 1 outcomes; judged 1 in 1 groups, missed 1; 1 with a known probability can fit "
        "a calibrator"
    ) in shown
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
    assert "run_type=retriever" in result.stderr


def test_one_judgement_is_added_corrected_and_withdrawn():
    said = ("outcome", "add", "--query", "What is NaN?", *NAMED)
    first = fine(*said, "--missed", "--missed-content", "ask jane.doe@example.org").stdout.split()[
        -1
    ]
    assert fine(*said, "--missed").stdout == f"already there: {first}\n"
    refused = call(*said, "--hit")
    assert (refused.exit_code, first in refused.stderr) == (1, True)
    second = fine(
        "outcome", "add", "--correct", first[:10], "--hit", "--note", "looked again"
    ).stdout.split()[-1]
    late = call("outcome", "add", "--correct", first)
    assert (late.exit_code, second in late.stderr) == (1, True)
    assert [
        (row["outcome_id"], row["missed"], row["supersedes"], row["missed_content"])
        for row in listed()
    ] == [(second, False, first, None)]
    fine("outcome", "add", "--correct", second)
    assert "withdrawn" in fine("outcome", "list").stdout
    assert [row["missed"] for row in listed("--all")] == [True, False, None]
    assert listed("--all")[0]["missed_content"].startswith("ask [email█")
    for other in (("--hit", "--k", "5"), ("--hit", "--missed-content", "nothing is missed")):
        assert call("outcome", "add", "--correct", second, *other).exit_code == 1
    absent = call("outcome", "add", "--correct", "0123", "--hit")
    assert (absent.exit_code, "unknown_outcome" in absent.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--query", "x", "--missed"), "[strategy]"),
        (("--query", "x", *NAMED), "missed is needed"),
    ],
)
def test_a_judgement_that_cannot_be_is_told_with_its_field(arguments, said):
    result = call("outcome", "add", *arguments)
    assert (result.exit_code, said in result.stderr) == (1, True), result.stderr
    assert listed() == []


def test_an_export_is_restored_whole_and_tables_read_it(tmp_path):
    rows = [
        {"query": f"=question {n}", "query_id": f"=q{n}", "missed": True, "gold_source": "human"}
        for n in range(3)
    ]
    (tmp_path / "judged.jsonl").write_text(jsonl(rows), encoding="utf-8")
    fine("outcome", "import", "judged.jsonl", *NAMED)
    first = listed()[0]["outcome_id"]
    fine("outcome", "add", "--correct", first, "--hit")
    fine("outcome", "export", "all.jsonl")
    assert fine("outcome", "import", "all.jsonl", "--restore", home="other").stdout.startswith(
        "4 outcomes recorded, 0"
    )
    fine("outcome", "export", "again.jsonl", home="other")
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()
    assert fine("outcome", "import", "all.jsonl", "--restore").stdout.startswith(
        "0 outcomes recorded, 4"
    )
    for name, n in (("now.csv", 3), ("now.parquet", 3), ("now.jsonl", 4)):
        assert fine("outcome", "export", name).stdout == f"{n} outcomes written to {name}\n"
    table = pd.read_parquet(tmp_path / "now.parquet")
    assert sorted(table["missed"]) == [0.0, 1.0, 1.0]
    with (tmp_path / "now.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["query_id"] for row in rows] == [
        f"'{name}" for name in table["query_id"]
    ]  # the leading quote stops a spreadsheet formula
    refused = call("outcome", "export", "now.xlsx")
    assert (refused.exit_code, ".csv, .jsonl, .parquet" in refused.stderr) == (1, True)
    assert not (tmp_path / "now.xlsx").exists()
    assert not list(tmp_path.glob(".partial-*"))


def test_a_database_that_cannot_be_used_is_told_without_its_password(monkeypatch):
    monkeypatch.setenv("RAG_EVAL_DATABASE_URL", "postgresql://me:s3cr3t-pw@127.0.0.1:1/db")
    result = call("outcome", "list")
    assert result.exit_code == 1
    assert "database_failed" in result.stderr
    assert "s3cr3t" not in result.output + result.stderr


def test_feedback_in_spans_becomes_outcomes(tmp_path, project_root):
    text = (project_root / "tests" / "corpus" / "foreign" / "openinference.jsonl").read_text()
    root, search = map(json.loads, text.splitlines())
    prefix = "annotations.0.annotation"
    label = {f"{prefix}.label": "something_missing", f"{prefix}.annotator_kind": "HUMAN"}
    paths = [tmp_path / name for name in ("day-1.jsonl", "day-2.jsonl")]
    paths[0].write_text(jsonl([root | {"attributes": root["attributes"] | label}]))
    paths[1].write_text(jsonl([search]))
    for added, there in ((1, 0), (0, 1)):
        said = fine("claim", "import", *paths, *NAMED).stdout
        assert f"{format_count(added, 'claim')} imported, {there} were there already" in said
        assert f"feedback: {format_count(added, 'outcome')} recorded, {there} were there" in said
    (outcome,) = listed("--gold-source", "user_feedback")
    fine("audit", "draw", "--n", "5", "--seed", "3")
    claim = json.loads((tmp_path / "audit.jsonl").read_text())
    assert claim["query"] == "When is the ferry?"
    assert (outcome["claim_id"], outcome["missed"]) == (claim["claim_id"], True)
    assert (outcome["feedback"], outcome["inclusion_probability"]) == ("something_missing", None)
