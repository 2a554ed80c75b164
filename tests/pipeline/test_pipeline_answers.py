"""Answer stages: stored answers, files and their schemas, retrieval gaps (FK019), and c0."""

import json
from importlib import resources

import jsonschema
import numpy as np
import pandas as pd
import pytest
from answer_corpus import evidence
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import published

from rag_eval.core.types import OUTCOMES, Answer, CitedSpan, Evidence, Offsets, ScoredChunk
from rag_eval.pipeline.answers import answer_gaps, from_frames, to_frames
from rag_eval.pipeline.miss_rates import leave_groups_out
from rag_eval.storage.artifacts import ArtifactStore

PAYLOAD_TEXTS = "doc_id section_id snippet_id source_url index_hash embed_model analyzer rev text"
PAYLOAD_TEXTS = PAYLOAD_TEXTS.split()
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCORE = st.floats(-5, 5)
COUNT = st.integers(0, 50)
CHUNKS = st.builds(
    ScoredChunk,
    **dict.fromkeys(PAYLOAD_TEXTS, TEXT),
    offsets=st.builds(Offsets, COUNT, COUNT),
    tokens=COUNT,
    score_raw=SCORE,
    score_norm=SCORE,
    k_pos=COUNT,
    k_final=COUNT,
    rerank_score=st.none() | SCORE,
)
EVIDENCE = st.builds(
    Evidence,
    token=TEXT,
    chunk=CHUNKS,
    kind=st.sampled_from(["retrieve", "grep", "section", "recorded"]),
    first_line=COUNT,
    last_line=COUNT,
)
SPANS = st.builds(
    CitedSpan,
    segment=st.integers(-1, 5),
    evidence=st.integers(-1, 5),
    doc_id=TEXT,
    start=st.integers(-1, 50),
    end=st.integers(-1, 50),
    quote=TEXT,
)
ANSWERS = st.builds(
    Answer,
    query_id=TEXT,
    mode=st.sampled_from(["deterministic", "llm", "recorded"]),
    outcome=st.sampled_from(OUTCOMES),
    codes=st.lists(TEXT, max_size=3).map(tuple),
    text=TEXT,
    verdict=TEXT,
    citations=st.lists(SPANS, max_size=3).map(tuple),
    evidence=st.lists(EVIDENCE, max_size=3).map(tuple),
    signal=st.none() | st.floats(0, 1),
    delta_s=st.none() | st.floats(0, 1),
    lambda_state=TEXT,
    attempts=COUNT,
    top_k=COUNT,
    tokens_in=COUNT,
    tokens_out=COUNT,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ANSWERS, max_size=4, unique_by=lambda answer: answer.query_id))
def test_answers_come_back_as_they_were(tmp_path_factory, answers):
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    kept = store.memo("answers", "k", lambda: to_frames(answers))
    assert from_frames(*map(kept.frame, ("answers", "cited", "evidence"))) == answers


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


def test_refusals_and_failures_leave_nothing_unused():
    found = [
        Answer(outcome, "llm", outcome, text="error: no atlas", evidence=tuple(evidence()))
        for outcome in OUTCOMES
    ]
    gaps = answer_gaps(found, "answer")
    assert {found[at].outcome for at in gaps} == {"answered", "not_found", "insufficient_evidence"}
    assert {gap.reason for gap in gaps.values()} == {"content_unused"}


SEEN = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({group for group, _ in rows}) > 1
)


@given(SEEN)
def test_right_answers_of_a_group_are_measured_on_all_others(rows):
    right = np.array([right for _, right in rows], dtype=np.float64)
    seen = pd.DataFrame({"right": right, "group": [group for group, _ in rows]})
    found = leave_groups_out(seen, lambda others: others["right"].mean())
    assert found.keys() == {group for group, _ in rows}
    for group, share in found.items():
        assert share == pytest.approx(seen.loc[seen["group"] != group, "right"].mean())
