"""Recorded outputs: what a row may say, what is refused with its place, and the documents that contexts make."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus import recorded, recorded_rows
from rag_eval.corpus.chunking import chunk_documents
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.corpus.recorded import rankings, read_outputs
from rag_eval.corpus.recorded_rows import Citation, Context, context_id
from rag_eval.records.gold_set import Recorded
from rag_eval.records.problems import InputError
from rag_eval.storage.hashing import text_hash

SPEC = Recorded(loader="recorded", path="outputs.jsonl")


@pytest.fixture
def write(tmp_path):
    def _write(*rows):
        path = tmp_path / "outputs.jsonl"
        path.write_text(
            "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
            encoding="utf-8",
        )
        return path

    return _write


def problems_of(path):
    with pytest.raises(InputError) as caught:
        read_outputs(path, "outputs.jsonl")
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
    (output,) = read_outputs(
        write(
            row(
                question="Is it?",
                citations=[payload, "a.md:3-4", 2, "[1]"],
                contexts=contexts,
                tokens_in=10,
                tokens_out=0,
                seconds=0.5,
                verdict="SUPPORTED",
            )
        )
    )
    assert (
        output.query_id,
        output.question,
        output.answer,
        output.tokens_in,
        output.tokens_out,
        output.seconds,
        output.verdict,
    ) == ("q1", "Is it?", "It is.", 10, 0, 0.5, "SUPPORTED")
    assert output.citations == (
        Citation(payload=payload),
        Citation(token="a.md:3-4"),
        Citation(number=2),
        Citation(token="[1]"),
    )
    assert output.contexts == (
        Context(context_id("A text."), "A text.", named=False),
        Context("a.md", "Of a.", title="A", score=2, url="https://a.example"),
        Context("a.md", "More of a.", snippet="a-1"),
    )


def test_null_and_empty_answers_differ(write):
    none, empty = read_outputs(
        write(row(answer=None, error="timed out"), row(query_id="q2", answer=""))
    )
    assert (none.answer, none.error, empty.answer) == (None, "timed out", "")


def test_ragas_samples(write):
    sample = {
        "user_input": "Is it?",
        "response": "It is.",
        "retrieved_contexts": ["A text.", "B text."],
        "reference": "Yes.",
        "rubrics": {"a": "b"},
    }
    plain, named, ids = read_outputs(
        write(
            sample,
            {**sample, "query_id": "q2", "response": None},
            {**sample, "query_id": "q3", "retrieved_context_ids": ["a", 7]},
        )
    )
    assert plain.query_id.startswith("q-")
    assert (plain.question, plain.answer, plain.reference) == ("Is it?", "It is.", "Yes.")
    assert [context.text for context in plain.contexts] == ["A text.", "B text."]
    assert (named.query_id, named.answer) == ("q2", None)
    assert [context.document for context in ids.contexts] == ["a", "7"]


FAULTS = [
    ({"answer": "x"}, "missing_key", "query_id"),
    ({"query_id": 1, "answer": "x"}, "wrong_type", "query_id"),
    ({"query_id": "a b", "answer": "x"}, "bad_id", "query_id"),
    ({"query_id": "../a", "answer": "x"}, "bad_id", "query_id"),
    ({"query_id": "q1"}, "missing_key", "answer"),
    (row(answer=3), "wrong_type", "answer"),
    (row(answer="a\x00b"), "nul_byte", "answer"),
    (row(question=["x"]), "wrong_type", "question"),
    (row(question="x" * 20_001), "text_too_long", "question"),
    (row(contexts="x"), "wrong_type", "contexts"),
    (row(contexts=[3]), "wrong_type", "contexts[0]"),
    (row(contexts=["x", {"title": "t"}]), "missing_key", "contexts[1]"),
    (row(contexts=[{"id": "../a", "text": "x"}]), "path_traversal", "contexts[0].id"),
    (row(contexts=[{"id": 5, "text": "x"}]), "bad_id", "contexts[0].id"),
    (row(contexts=[{"id": "a", "text": 5}]), "wrong_type", "contexts[0].text"),
    (row(contexts=[{"id": "a", "text": "x", "score": "1"}]), "wrong_type", "contexts[0].score"),
    (row(contexts=["x"] * 1001), "too_many", "contexts"),
    (row(citations=[{}] * 1001), "too_many", "citations"),
    (row(citations=[1.5]), "wrong_type", "citations[0]"),
    (row(citations=[True]), "wrong_type", "citations[0]"),
    (row(citations=[" "]), "wrong_type", "citations[0]"),
    (row(tokens_in=-1), "bad_number", "tokens_in"),
    (row(tokens_in=1.5), "wrong_type", "tokens_in"),
    (row(tokens_out=True), "wrong_type", "tokens_out"),
    (row(seconds="1"), "wrong_type", "seconds"),
    (row(verdict="x" * 65), "text_too_long", "verdict"),
    (row(context=["x"]), "unknown_key", "context"),
    (row(citation=[1]), "unknown_key", "citation"),
    ({"user_input": 3, "response": "x"}, "wrong_type", "user_input"),
    (
        {"user_input": "x", "retrieved_contexts": ["a"], "retrieved_context_ids": ["a", "b"]},
        "wrong_length",
        "retrieved_context_ids",
    ),
]


@pytest.mark.parametrize(("values", "code", "field"), FAULTS)
def test_a_fault_names_its_place(write, values, code, field):
    (problem,) = problems_of(write(row(query_id="first"), values))
    assert (problem.code, problem.file, problem.line, problem.field) == (
        code,
        "outputs.jsonl",
        2,
        field,
    )
    assert problem.accepted


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[1]", "bad_json"),
        ("{", "bad_json"),
        ('{"query_id": "a", "answer": "x", "seconds": NaN}', "bad_json"),
        ('{"query_id": "a", "query_id": "b"}', "bad_json"),
        ("[" * 100_000, "bad_json"),
    ],
)
def test_broken_lines(write, line, code):
    (problem,) = problems_of(write(row(query_id="first"), line))
    assert (problem.code, problem.line) == (code, 2)


def test_files_that_cannot_be_read(tmp_path, write, monkeypatch):
    assert problems_of(tmp_path / "none.jsonl")[0].code == "missing_file"
    assert problems_of(write())[0].code == "empty_file"
    (tmp_path / "outputs.jsonl").write_bytes(b'{"query_id": "\xff"}\n')
    assert problems_of(tmp_path / "outputs.jsonl")[0].code == "not_utf8"
    monkeypatch.setattr(recorded, "MAX_LINE_BYTES", 60)
    assert [problem.code for problem in problems_of(write(row(answer="x" * 100), row()))] == [
        "too_long"
    ]
    monkeypatch.setattr(recorded, "MAX_FILE_BYTES", 10)
    assert problems_of(tmp_path / "outputs.jsonl")[0].code == "file_too_large"


def test_a_second_output_of_a_question_is_refused(write):
    (problem,) = problems_of(write(row(), row(query_id="q2"), row()))
    assert (problem.code, problem.line, problem.found) == ("duplicate_id", 3, "q1")
    assert "line 1" in problem.message


def test_all_faults_at_once_and_no_more_than_a_hundred(write):
    found = problems_of(write(*[{"query_id": f"q{number}"} for number in range(150)]))
    assert len(found) == 101
    assert found[-1].code == "more_problems"


def test_foreign_keys_and_cut_characters_are_taken(write):
    (output,) = read_outputs(
        write('\ufeff{"query_id": "q1", "answer": "cut \\ud83d", "model": "m", "trace": {"a": 1}}')
    )
    assert output.answer == "cut \ufffd"


def test_rankings_are_the_contexts_in_order(write):
    contexts = [
        {"id": "b", "text": "B"},
        {"id": "a", "text": "A", "score": 0.5},
        {"id": "b", "text": "B"},
        "C",
    ]
    found = rankings(read_outputs(write(row(contexts=contexts), row(query_id="q2"))))
    assert [(one.id, one.text) for one in found["q1"]] == [
        ("b", "B"),
        ("a", "A"),
        (context_id("C"), "C"),
    ]
    assert found["q1"][1].score == 0.5
    assert math.isnan(found["q1"][0].score)
    assert found["q2"] == []


def test_each_context_is_a_document(write, tmp_path):
    write(
        row(
            contexts=[
                "A text.\n ",
                {
                    "id": "a.md",
                    "text": "Mail me@example.org",
                    "title": "T",
                    "url": "https://a.example",
                },
            ]
        ),
        row(query_id="q2", contexts=["A text.\n "]),
    )
    loaded = load_corpus(SPEC, tmp_path)
    documents = loaded.documents.set_index("doc_id")
    assert sorted(documents.index) == sorted(["a.md", context_id("A text.\n ")])
    assert documents.loc["a.md", "text"] == "Mail me@example.org"
    assert documents.loc["a.md", "source_url"] == "https://a.example"
    assert set(documents["title"]) == {""}
    assert documents.loc["a.md", "rev"] == text_hash("Mail me@example.org")
    chunks = chunk_documents(loaded.documents, loaded.sections, SPEC.chunker)
    assert sorted(chunks["text"]) == ["A text.\n ", "Mail me@example.org"]


def test_several_texts_of_one_id_are_passages_of_one_document(write, tmp_path):
    one, two = (
        {"doc_id": "a.md", "id": "a-1", "text": "First passage. "},
        {"doc_id": "a.md", "text": "Second\n\npassage."},
    )
    write(row(contexts=[one, two]), row(query_id="q2", contexts=[two]))
    loaded = load_corpus(SPEC, tmp_path)
    chunks = chunk_documents(loaded.documents, loaded.sections, SPEC.chunker)
    assert loaded.documents["doc_id"].tolist() == ["a.md"]
    assert sorted(chunks["text"]) == ["First passage. ", "Second\n\npassage."]
    assert set(chunks["doc_id"]) == {"a.md"}
    assert "a-1" in set(chunks["section_id"])
    text = loaded.documents["text"][0]
    assert all(
        text[start:end] == piece
        for start, end, piece in zip(chunks["start"], chunks["end"], chunks["text"], strict=True)
    )


def test_the_order_of_the_rows_changes_no_document(write, tmp_path):
    rows = [
        row(
            query_id=f"q{number}",
            contexts=[{"id": "a", "text": f"passage {number % 3}"}, f"text {number}"],
        )
        for number in range(5)
    ]
    write(*rows)
    forward = load_corpus(SPEC, tmp_path)
    before = identify(SPEC, tmp_path)
    write(*reversed(rows))
    backward = load_corpus(SPEC, tmp_path)
    assert forward.corpus_rev == backward.corpus_rev
    assert forward.documents.equals(backward.documents)
    assert identify(SPEC, tmp_path) != before  # what is read has changed, what it says has not


def test_outputs_without_any_context_are_no_corpus(write, tmp_path):
    write(row(), row(query_id="q2", contexts=[]))
    with pytest.raises(InputError) as caught:
        load_corpus(SPEC, tmp_path)
    assert caught.value.problems[0].code == "empty_corpus"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "doc_id", "text", "score", "url", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*recorded_rows.OWN_KEYS, *recorded_rows.RAGAS_KEYS, "other"]),
        VALUES,
        max_size=8,
    )
)
def test_any_object_is_read_or_refused(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("any") / "outputs.jsonl"
    path.write_text(json.dumps(values), encoding="utf-8")
    refused, outputs = (), []
    try:
        outputs = read_outputs(path)
    except InputError as error:
        refused = error.problems
    assert len(outputs) == (0 if refused else 1)
    assert all(problem.line == 1 and problem.code for problem in refused)
    rankings(outputs)
