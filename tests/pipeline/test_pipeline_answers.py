"""Answer stages: files and their schemas, retrieval gaps (FK019), and c0."""

import json
import re
from importlib import resources

import jsonschema
import numpy as np
import pandas as pd
import pytest
from answer_corpus import evidence
from cited_answers import numbered
from hypothesis import given
from hypothesis import strategies as st
from schemas import published

from rag_eval.answers.evidence import with_units
from rag_eval.answers.replies import parse_reply
from rag_eval.answers.scoring import _find_gaps
from rag_eval.core.config import Answers
from rag_eval.core.types import OUTCOMES, Answer
from rag_eval.measures.support import citation_support
from rag_eval.uncertainty.claims import _leave_groups_out


@pytest.fixture
def folder(project, shared_runs):
    shared_runs.run(project)
    return project.reports / "tiny"


def rows(folder, name):
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


def test_lines_of_answers_and_citations_keep_to_their_schemas(folder):
    answers, citations = rows(folder, "answers.jsonl"), rows(folder, "citations.jsonl")
    check = jsonschema.Draft202012Validator(published("answer-line"))
    assert len(answers) == 4
    assert [error.message for row in answers for error in check.iter_errors(row)] == []
    assert not check.is_valid({**answers[0], "more": 1})
    payload = resources.files("rag_eval.core") / "citation_payload.schema.json"
    definitions = json.loads(payload.read_text("utf-8"))["$defs"]
    record = jsonschema.Draft202012Validator({"$ref": "#/$defs/record", "$defs": definitions})
    valid = [row for row in citations if row.get("in_evidence")]
    assert valid
    assert [error.message for row in valid for error in record.iter_errors(row)] == []
    assert {row["schema_version"] for row in citations} == {1}


def block(row):
    return {key: row[key] for key in ("citations", "answer", "ΔS", "λ")}


def test_auditable_lines_keep_to_their_schema_and_are_read_as_replies(folder):
    lines, answers = rows(folder, "auditable-answers.jsonl"), rows(folder, "answers.jsonl")
    check = jsonschema.Draft202012Validator(published("auditable-answer-line"))
    assert [error.message for row in lines for error in check.iter_errors(row)] == []
    assert not check.is_valid({**lines[0], "error": "x", "fix": "y"})
    assert [row["query_id"] for row in lines] == sorted(row["query_id"] for row in answers)
    settings, outcomes = Answers(response_schema="auditable"), {}
    for row in lines:
        parsed = parse_reply(json.dumps(block(row)), settings, analyze_only=False)
        outcomes[row["query_id"]] = parsed.outcome
        assert parsed.delta_s == row["ΔS"]
        assert (row["λ"] is None) == ("λ" in row.get("why", {}))
    assert outcomes == {row["query_id"]: row["outcome"] for row in answers}
    traced = dict(re.findall(r" qid=(\S+) .* deltaS=(\S+)", (folder / "traces.log").read_text()))
    assert {row["query_id"]: row["ΔS"] for row in lines} == {
        query_id: None if value == "-" else pytest.approx(float(value))
        for query_id, value in traced.items()
    }


def test_refusals_and_failures_leave_nothing_unused():
    found = [
        Answer(outcome, "llm", outcome, text="error: no atlas", evidence=tuple(evidence()))
        for outcome in OUTCOMES
    ]
    gaps = _find_gaps(found, [[] for _ in found], "answer")
    assert {found[at].outcome for at in gaps} == {"answered", "not_found", "insufficient_evidence"}
    assert {gap.reason for gap in gaps.values()} == {"content_unused"}


def test_a_real_citation_of_a_wrong_claim_is_a_gap():
    source = {1: "The capital of France is Paris."}
    found = [
        numbered("q", text, source)
        for text in ("The capital of France is Berlin [1].", "It is Paris, capital of France [1].")
    ]
    gaps = _find_gaps(found, citation_support(found), "answer")
    assert [gap.reason for gap in gaps.values()] == ["citation_unsupported", "cited"]


SEEN = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({group for group, _ in rows}) > 1
)


@given(SEEN)
def test_right_answers_of_a_group_are_measured_on_all_others(rows):
    right = np.array([right for _, right in rows], dtype=np.float64)
    seen = pd.DataFrame({"right": right, "group": [group for group, _ in rows]})
    found = _leave_groups_out(seen, lambda others: others["right"].mean())
    assert found.keys() == {group for group, _ in rows}
    for group, share in found.items():
        assert share == pytest.approx(seen.loc[seen["group"] != group, "right"].mean())


def test_units_that_equal_chunks_add_no_snippet():
    columns = {"doc_id": ["d"], "section_id": ["d"], "start": [0], "end": [4], "text": ["text"]}
    chunks = pd.DataFrame({**columns, "chunk_id": ["c"], "tokens": [1]})
    units = pd.DataFrame({**columns, "unit_id": ["u"], "chunk": [0]})
    pd.testing.assert_frame_equal(with_units(chunks, units), chunks, check_dtype=False)
    both = with_units(chunks, units.assign(chunk=-1))
    assert both["chunk_id"].tolist() == ["c", "u"]
    assert both["start"].tolist() == [0, 0]
