"""Answers survive the store: frames and back, whatever text they hold."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.evaluation.answer_frames import from_artifact, to_frames
from rag_eval.records.answers import OUTCOMES, Answer, Evidence
from rag_eval.records.citation import CitedSpan
from rag_eval.records.retrieval import Offsets, ScoredChunk
from rag_eval.storage.artifacts import ArtifactStore

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
SCORE = st.floats(-5, 5)
COUNT = st.integers(0, 50)
CHUNKS = st.builds(
    ScoredChunk,
    **dict.fromkeys(
        (
            "doc_id",
            "section_id",
            "snippet_id",
            "source_url",
            "index_hash",
            "embed_model",
            "analyzer",
            "rev",
            "text",
        ),
        TEXT,
    ),
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
    assert from_artifact(store.memo("answers", "k", lambda: to_frames(answers))) == answers


def test_durations_are_no_part_of_what_is_kept():
    answer = Answer("q", "llm", "answered", text="x", seconds=1.0)
    slow = dataclasses.replace(answer, seconds=99.0)
    for name, frame in to_frames([answer]).items():
        assert frame.equals(to_frames([slow])[name])


def test_an_answer_without_anything_is_kept_too(tmp_path):
    made = ArtifactStore(tmp_path).memo(
        "answers", "k", lambda: to_frames([Answer("q", "llm", "failed", ("chat_timeout",))])
    )
    assert from_artifact(made)[0].codes == ("chat_timeout",)
