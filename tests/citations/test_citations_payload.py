"""Payloads of real retrieved chunks keep their published schema, and the schema refuses what the validator's structural rules refuse."""

import json

import jsonschema
import numpy as np
import pytest

from rag_eval.citations.live_index import LiveIndex
from rag_eval.citations.payload import (
    citation_records,
    payload,
    payload_schema,
    record_schema,
    scored_chunk,
)
from rag_eval.citations.validators import validate
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.index_steps import IndexOpener, corpus_index
from rag_eval.evaluation.inputs import open_gold_set
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.answers import Evidence
from rag_eval.records.citation import REQUIRED, CitedSpan
from rag_eval.records.problems import InputError
from rag_eval.records.retrieval import RetrievalOptions
from rag_eval.retrieval.service import RetrievalService
from rag_eval.settings import Settings

QUESTIONS = (
    "What happens to a job that fails?",
    "How are alerts sent?",
    "Where are results stored?",
)


@pytest.fixture(scope="module")
def smoke(project_root, tmp_path_factory):
    """Chunks that every strategy of the smoke gold set retrieves, by strategy, and the live index."""
    home = tmp_path_factory.mktemp("citations")
    evaluation = open_gold_set(
        project_root / "gold_sets" / "smoke",
        Settings.model_validate({"home": home / "home", "reports": home / "reports"}),
    )
    opener = IndexOpener(evaluation)
    about = corpus_index(evaluation, opener).json("about")
    corpus, chunks = corpus_snapshot(evaluation), admitted_chunks(evaluation)
    documents = corpus.frame("documents")
    found = {}
    for name, strategy in opener().strategies.items():
        kind = strategy.spec.kind
        service = RetrievalService(
            {kind: strategy},
            documents,
            corpus_rev="r",
            default=kind,
            seed=evaluation.config.seeds[0],
        )
        found[name] = [
            chunk
            for result in service.batch_retrieve(QUESTIONS, RetrievalOptions(top_k=5))
            for chunk in result.chunks
        ]
    hashes = [entry["index_hash"] for entry in about["strategies"].values()]
    return found, LiveIndex.from_frames(
        documents, corpus.frame("sections"), chunks.frame("chunks"), hashes, ANALYZER
    )


@pytest.fixture(scope="module")
def validator():
    schema = payload_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def good(smoke):
    return payload(next(iter(smoke[0].values()))[0])


def test_payloads_of_every_strategy_keep_the_schema_and_are_ok(smoke, validator):
    found, live = smoke
    assert found
    for name, chunks in found.items():
        assert chunks, name
        records = [json.loads(json.dumps(payload(chunk), allow_nan=False)) for chunk in chunks]
        for record in records:
            validator.validate(record)
        quoting = [
            {**record, "quote": chunk.text} for record, chunk in zip(records, chunks, strict=True)
        ]
        assert validate(quoting, live).passed, name
        assert [
            scored_chunk(record, chunk.text) for record, chunk in zip(records, chunks, strict=True)
        ] == chunks


@pytest.mark.parametrize("name", [*REQUIRED, "k_pos"])
def test_the_schema_asks_for_every_field(good, validator, name):
    without = {key: value for key, value in good.items() if key != name}
    code = "trace_incomplete" if name == "k_pos" else f"missing_{name}"
    assert not validator.is_valid(without)
    assert validate([without]).codes == (code,)
    assert not validator.is_valid({**good, name: None})
    assert validate([{**good, name: None}]).codes == (code,)
    with pytest.raises(InputError) as caught:
        scored_chunk(without, "")
    assert [problem.code for problem in caught.value.problems] == [code]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        *(
            ({name: bad}, f"missing_{name}")
            for name in REQUIRED
            if name not in {"offsets", "embed_model", "tokens"}
            for bad in ("", " ", 3, [], True)
        ),
        *(({"tokens": bad}, "missing_tokens") for bad in (-1, 1.5, "3", True, 2**53)),
        ({"embed_model": 3}, "missing_embed_model"),
        *(
            ({"offsets": bad}, "bad_offsets")
            for bad in (
                [1, 2],
                "1-2",
                {},
                {"start": -1, "end": 2, "unit": "char"},
                {"start": 0, "end": 0, "unit": "char"},
                {"start": 0, "end": 2, "unit": "byte"},
                {"start": True, "end": 2, "unit": "char"},
                {"start": 0, "end": 2},
            )
        ),
        *(({"window": bad}, "bad_offsets") for bad in (1, {}, {"pre": -1, "post": 0})),
        *(({"page": bad}, "bad_offsets") for bad in (-1, "", 1.5)),
        *(({"score_raw": bad}, "missing_score") for bad in ("1", True, [])),
        ({"score_norm": 2}, "missing_score"),
        ({"score_raw": None, "score_norm": None}, "missing_score"),
        *(({"k_pos": bad}, "trace_incomplete") for bad in (0, 1.5, "1", True)),
        ({"rerank_score": 0.5, "k_final": None}, "trace_incomplete"),
        ({"rerank_score": "high"}, "trace_incomplete"),
    ],
)
def test_what_the_rules_refuse_the_schema_refuses(good, validator, change, code):
    record = {**good, **change}
    assert validate([record]).codes == (code,)
    assert not validator.is_valid(record)


def test_the_schema_is_strict_and_knows_the_lines_of_a_file(good, validator):
    assert not validator.is_valid({})
    assert not validator.is_valid({**good, "colour": "red"})
    line = {
        **good,
        "query_id": "q",
        "segment": 0,
        "quote": "x",
        "reranked": False,
        "order": ["citations", "answer"],
        "cited_before_answer": True,
        "in_evidence": True,
    }
    assert not validator.is_valid(line)
    record = jsonschema.Draft202012Validator(record_schema())
    record.validate(line)
    assert not record.is_valid({**line, "colour": "red"})
    assert not record.is_valid({**line, "reranked": True, "k_final": None})


def test_citations_of_an_answer_say_what_the_answer_said(smoke):
    found, live = smoke
    chunk = next(
        chunk
        for chunks in found.values()
        for chunk in chunks
        if chunk.offsets.end - chunk.offsets.start > 20
    )
    evidence = [Evidence(f"{chunk.doc_id}:1", chunk, "retrieve", 1, 1)]
    start = chunk.offsets.start
    right = CitedSpan(0, 0, chunk.doc_id, start, start + 10, chunk.text[:10])
    wrong = CitedSpan(1, 0, chunk.doc_id, start, start + 10, "Never said")
    fabricated = CitedSpan(2, -1, "made-up.md", -1, -1)
    records = citation_records("q", [right, wrong, fabricated], evidence, cited_before_answer=True)
    assert validate(records, live).codes == ("ok", "quote_mismatch", "unknown_snippet")
    assert validate(
        citation_records("q", [right], evidence, cited_before_answer=False), live
    ).codes == ("explained_before_cited",)


def test_scores_that_are_not_there_stay_away(good):
    chunk = scored_chunk(
        {key: value for key, value in good.items() if key not in {"score_norm", "k_final"}}, "text"
    )
    assert np.isnan(chunk.score_norm)
    assert "score_norm" not in payload(chunk)
    assert chunk.k_final == chunk.k_pos
