"""Recorded outputs: rows, refused rows, and the documents that contexts make."""

import json

import pytest

from rag_eval.core.errors import InputError, ProblemList
from rag_eval.corpus.chunking import chunk_documents
from rag_eval.corpus.loaders.recorded import (
    MAX_SHORT_CHARS,
    Citation,
    Context,
    Recorded,
    _context_id,
    _stated_payload,
    read_outputs,
)
from rag_eval.corpus.loading import load_corpus
from rag_eval.storage.hashing import text_hash

SPEC = Recorded(loader="recorded", path="outputs.jsonl")


@pytest.fixture
def write(tmp_path):
    def _write(*rows):
        path = tmp_path / "outputs.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return _write


def problems_of(path):
    with pytest.raises(InputError) as caught:
        read_outputs(path, ProblemList())
    return caught.value.problems


def row(**values):
    return {"query_id": "q1", "answer": "It is.", **values}


def test_a_full_row(write):
    payload = {"doc_id": "a.md", "offsets": {"start": 0, "end": 4, "unit": "char"}}
    contexts = [
        "A text.",
        {"id": "a.md", "text": "Of a.", "title": "A", "score": 2, "url": "https://a.example"},
        {"doc_id": "a.md", "id": "a-1", "text": "More of a."},
    ]
    facts = {"question": "Is it?", "tokens_in": 10, "tokens_out": 0}
    facts["verdict"] = "SUPPORTED"
    cited = [payload, "a.md:3-4", 2, "[1]"]
    (output,) = read_outputs(
        write(row(citations=cited, contexts=contexts, seconds=0.5, **facts)), ProblemList()
    )
    assert (output.query_id, output.answer) == ("q1", "It is.")
    assert {name: getattr(output, name) for name in facts} == facts
    assert output.citations == (
        Citation(payload=payload),
        Citation(token="a.md:3-4"),
        Citation(number=2),
        Citation(token="[1]"),
    )
    assert output.contexts == (
        Context(text="A text."),
        Context(id="a.md", text="Of a.", title="A", score=2, url="https://a.example"),
        Context(doc_id="a.md", id="a-1", text="More of a."),
    )


def test_ragas_samples(write):
    sample = {
        "user_input": "Is it?",
        "response": "It is.",
        "retrieved_contexts": ["A text.", "B text."],
        "reference": "Yes.",
        "rubrics": {"a": "b"},
    }
    other = {**sample, "query_id": "q2", "response": None}
    third = {**sample, "query_id": "q3", "retrieved_context_ids": ["a", 7]}
    plain, named, ids = read_outputs(write(sample, other, third), ProblemList())
    assert plain.query_id.startswith("q-")
    assert (plain.question, plain.answer, plain.reference) == ("Is it?", "It is.", "Yes.")
    assert [context.text for context in plain.contexts] == ["A text.", "B text."]
    assert (named.query_id, named.answer) == ("q2", None)
    (old,) = read_outputs(write({"question": "Is it?", "answer": "It is."}), ProblemList())
    assert old.query_id == plain.query_id
    assert [context.document for context in ids.contexts] == ["a", "7"]


FAULTS = [
    ({"query_id": "a\x07", "answer": "x"}, "bad_id", "query_id"),
    ({"query_id": "q1"}, "missing_key", "answer"),
    (row(answer="a\x00b"), "nul_byte", "answer"),
    (row(contexts=["x", {"title": "t"}]), "missing_key", "contexts[1]"),
    (row(question="x" * 20_001), "bad_value", "question"),
    (row(contexts=["x"] * 1001), "bad_value", "contexts"),
    (row(citations=[{}] * 1001), "bad_value", "citations"),
    (row(contexts=[{"id": 1.5, "text": "x"}]), "bad_id", "contexts[0].id"),
    (row(contexts=[{"id": "a", "text": "x", "score": "1"}]), "wrong_type", "contexts[0].score"),
    (row(citations=[1.5]), "wrong_type", "citations[0]"),
    (row(tokens_in=-1), "bad_value", "tokens_in"),
    (row(context=["x"]), "unknown_key", "context"),
    (
        {"user_input": "x", "retrieved_contexts": ["a"], "retrieved_context_ids": ["a", "b"]},
        "wrong_length",
        "retrieved_context_ids",
    ),
]


@pytest.mark.parametrize(("values", "code", "field"), FAULTS)
def test_a_fault_names_its_place(write, values, code, field):
    (problem,) = problems_of(write(row(query_id="first"), values))
    assert (problem.code, problem.line, problem.field) == (code, 2, field)
    assert problem.file.endswith("outputs.jsonl")
    assert problem.accepted


def test_a_second_output_of_a_question_is_refused(write):
    (problem,) = problems_of(write(row(), row(query_id="q2"), row()))
    assert (problem.code, problem.line, problem.found) == ("duplicate_id", 3, "q1")
    assert "outputs.jsonl:1" in problem.message


def test_each_context_is_a_document(write, tmp_path):
    text = "Mail me@example.org"
    named = {"id": "a.md", "text": text, "title": "T", "url": "https://a.example"}
    write(row(contexts=["A text.\n ", named]), row(query_id="q2", contexts=["A text.\n "]))
    loaded = load_corpus(SPEC, tmp_path)
    documents = loaded.documents.set_index("doc_id")
    assert sorted(documents.index) == sorted(["a.md", _context_id("A text.\n ")])
    assert documents.loc["a.md", "text"] == text
    assert documents.loc["a.md", "source_url"] == "https://a.example"
    assert documents["title"].to_dict() == {"a.md": "T", _context_id("A text.\n "): ""}
    assert documents.loc["a.md", "rev"] == text_hash(text)
    chunks = chunk_documents(loaded.documents, loaded.sections, SPEC.chunker)
    assert sorted(chunks["text"]) == ["A text.\n ", text]


def test_several_texts_of_one_id_are_passages_of_one_document(write, tmp_path):
    one = {"doc_id": "a.md", "id": "a-1", "text": "First passage. "}
    two = {"doc_id": "a.md", "text": "Second\n\npassage."}
    write(row(contexts=[one, two]), row(query_id="q2", contexts=[two]))
    loaded = load_corpus(SPEC, tmp_path)
    chunks = chunk_documents(loaded.documents, loaded.sections, SPEC.chunker)
    assert loaded.documents["doc_id"].tolist() == ["a.md"]
    assert sorted(chunks["text"]) == ["First passage. ", "Second\n\npassage."]
    assert set(chunks["doc_id"]) == {"a.md"}
    assert "a-1" in set(chunks["section_id"])
    text = loaded.documents["text"][0]
    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in chunks.itertuples())


def test_outputs_without_any_context_are_no_corpus(write, tmp_path):
    write(row(), row(query_id="q2", contexts=[]))
    with pytest.raises(InputError) as caught:
        load_corpus(SPEC, tmp_path)
    assert caught.value.problems[0].code == "empty_corpus"


def test_values_keep_their_type_so_that_a_wrong_one_stays_wrong():
    plain = {
        "doc_id": "a",
        "tokens": 3,
        "offsets": {"start": 0, "end": 5, "unit": "char"},
        "score_raw": -0.5,
        "segment": True,
        "cited_before_answer": "yes",
        "page": None,
    }
    assert _stated_payload(plain) == plain
    wrong = {"tokens": float("nan"), "k_pos": 10**400, "rev": "x" * 10**6}
    odd = _stated_payload(wrong | {"window": {"a": {"b": {"c": 1}}}, "section_id": [1, {2}]})
    assert (odd["tokens"], odd["k_pos"]) == ("a number out of range",) * 2
    assert len(odd["rev"]) == MAX_SHORT_CHARS
    assert odd["window"] == {"a": {"b": "..."}}
    assert odd["section_id"] == [1, "..."]
