"""Recorded outputs are read as a gold set."""

import json

import pytest

from rag_eval.core.config import GoldSetConfig
from rag_eval.corpus.chunking import chunk_documents
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold, read_gold
from rag_eval.gold.resolving import resolve

CONFIG = GoldSetConfig.model_validate(
    {
        "name": "mine",
        "corpus": {"loader": "recorded", "path": "outputs.jsonl"},
        "strategies": [{"name": "bm25", "kind": "bm25"}],
    }
)
CONTEXTS = [
    {"id": "a.md", "text": "First of a."},
    {"id": "a.md", "text": "First of a. Second of a."},
]
OUTPUTS = [
    {"query_id": "q1", "question": "What?", "answer": "x", "contexts": CONTEXTS},
    {"query_id": "q2", "answer": None, "contexts": ["Another text."]},
    {"user_input": "How?", "query_id": "q3", "response": "y", "reference": "z"},
]


@pytest.fixture
def folder(tmp_path):
    def _write(outputs=OUTPUTS, qrels=(), **files):
        for name, rows in {"outputs": outputs, **files}.items():
            lines = "\n".join(map(json.dumps, rows))
            (tmp_path / f"{name}.jsonl").write_text(lines + "\n", encoding="utf-8")
        if qrels:
            rows = "".join(f"{query}\t{doc}\t1\n" for query, doc in qrels)
            (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
        return tmp_path

    return _write


def resolved(folder):
    gold = load_gold(folder, CONFIG)
    loaded = load_corpus(CONFIG.corpus, folder)
    chunks = chunk_documents(loaded.documents, loaded.sections, CONFIG.corpus.chunker)
    problems = lint(gold, loaded.documents, loaded.sections)
    return problems, resolve(gold, loaded.documents, loaded.sections, chunks), chunks


def test_questions_come_from_the_outputs(folder):
    gold = load_gold(folder(), CONFIG)
    assert gold.layout == "recorded"
    assert gold.queries["text"].tolist() == ["What?", "q2", "How?"]
    problems, found, _ = resolved(folder())
    assert not [problem for problem in problems if problem.severity == "error"]
    assert all(frame.empty for frame in found.qrels.values())
    assert len(found.spans) == len(found.span_chunks) == 0


@pytest.mark.parametrize("files", [{}, {"queries": [{"query_id": "a", "text": "What?"}]}])
def test_traces_left_out_are_a_warning_of_the_set(folder, files):
    documents = {"documents": [{"page_content": "First."}]}
    search = {"run_type": "retriever", "id": "a", "inputs": {"query": "What?"}}
    place = folder([search | {"outputs": documents}, {"run_type": "llm", "id": "b"}], **files)
    problems, found, _ = resolved(place)
    assert found.gold.queries["query_id"].tolist() == ["a"]
    (warning,) = (problem for problem in problems if problem.code == "left_out")
    assert (warning.severity, warning.file) == ("warning", str(place / "outputs.jsonl"))
    assert "1 trace left out and 1 trace read" in warning.message


def test_the_gold_is_the_questions_not_the_answers(folder):
    def hash_gold(first, *others):
        return load_gold(folder([OUTPUTS[0] | first, *others]), CONFIG).gold_hash

    before = load_gold(folder(), CONFIG).gold_hash
    assert hash_gold({"seconds": 1}, *OUTPUTS[1:]) == before
    assert hash_gold({"question": "Which?"}, *OUTPUTS[1:]) != before


def test_what_was_not_retrieved_stays_in_the_denominator(folder):
    said = ("First of a.", "Third of a", "Fifth of a")
    quotes = [
        {"query_id": "q1", "doc_id": "a.md", "anchors": [{"quote": quote} for quote in said]},
        {"query_id": "q2", "doc_id": "gone.md", "anchors": [{"quote": "Gone."}]},
    ]
    judged = [("q3", "gone.md"), ("q1", "a.md#fourth")]
    problems, found, chunks = resolved(folder(answers=quotes, qrels=judged))
    assert {problem.severity for problem in problems} == {"warning"}
    document = found.qrels["document"]
    assert sorted(zip(document["query_id"], document["item_id"], strict=True)) == [
        ("q1", "a.md"),
        ("q2", "gone.md"),
        ("q3", "gone.md"),
    ]
    assert len(found.spans) == 4
    carried = found.span_chunks
    assert set(found.spans["query_id"].iloc[carried["span"]]) == {"q1"}
    # Only the quote within a passage has a chunk. Missed quotes have no chunk.
    assert carried["span"].nunique() == 1
    assert set(chunks["doc_id"].iloc[carried["chunk"]]) == {"a.md"}


def test_outputs_and_questions_that_do_not_match_are_named(folder):
    asked = [{"query_id": "q1", "text": "What?"}, {"query_id": "q9", "text": "Who?"}]
    gold = read_gold(folder(queries=asked), CONFIG)
    assert gold.queries["query_id"].tolist() == ["q1", "q9"]
    assert [(problem.code, problem.severity, problem.line) for problem in gold.problems] == [
        ("unknown_query", "warning", 2),
        ("unknown_query", "warning", 3),
        ("missing_output", "warning", 2),
    ]
