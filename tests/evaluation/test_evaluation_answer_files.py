"""Every line of answers.jsonl and citations.jsonl is what its published schema says."""

import json

import jsonschema
import pytest

from rag_eval.citations.payload import payload_schema
from rag_eval.evaluation.answer_files import answer_line_schema


@pytest.fixture
def folder(project):
    assert project.invoke("run", "tiny").exit_code == 0
    return project.reports / "tiny"


def test_answers_keep_to_their_schema(folder):
    check = jsonschema.Draft202012Validator(answer_line_schema())
    rows = [
        json.loads(line)
        for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(rows) == 4
    assert [error.message for row in rows for error in check.iter_errors(row)] == []
    assert list(check.iter_errors({**rows[0], "more": 1}))


def test_citations_keep_to_theirs(folder):
    schema = payload_schema()
    check = jsonschema.Draft202012Validator(
        {"$schema": schema["$schema"], "$ref": "#/$defs/record", "$defs": schema["$defs"]}
    )
    rows = [
        json.loads(line)
        for line in (folder / "citations.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert all(row["schema_version"] == 1 for row in rows)
    valid = [row for row in rows if row.get("in_evidence")]
    assert valid
    assert [error.message for row in valid for error in check.iter_errors(row)] == []
