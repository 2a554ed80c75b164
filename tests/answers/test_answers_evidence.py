"""Evidence preflights have findings and records, and their failures are handled."""

import itertools
import json
from importlib import resources

import jsonschema
import pytest
from answer_corpus import DOCS, Ranking, library, question, scored
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_jsonable_python

from rag_eval.answers.evidence import (
    MAX_EVIDENCE_CHARS,
    Events,
    Gathered,
    Preflights,
    _default_terms,
    line_starts,
)


def gather(text, *steps, corpus=None, retrieve=None, raised=0, **options):
    corpus, log = corpus or library(), Events()
    asked = question("q1", text, preflights=list(steps), **options)
    preflights = Preflights(corpus, retrieve or Ranking(corpus), None)
    return preflights.gather(asked, log, raised), log.lines


def tokens(found: Gathered) -> list[str]:
    return [item.token for item in found.evidence]


def test_retrieved_chunks_carry_the_lines_of_their_document():
    found, lines = gather("capital of France", {"kind": "retrieve"})
    assert tokens(found) == ["docs/capitals.md:1-4", "docs/capitals.md:5-6"]
    item = found.evidence[0]
    offsets = item.chunk.offsets
    assert DOCS["docs/capitals.md"][offsets.start : offsets.end] == item.chunk.text
    (record,) = found.records
    assert record.tokens == tuple(tokens(found))
    assert (record.query_id, record.kind, record.parameters) == ("q1", "retrieve", {"top_k": 10})
    snippets = [item.chunk.snippet_id for item in found.evidence]
    assert [hit["snippet_id"] for hit in record.hits] == snippets
    assert lines == ["event=preflight.step.start query_id=q1 step=0 kind=retrieve"]


def test_artifacts_keep_to_their_published_schema():
    file = resources.files("rag_eval.answers").joinpath("preflight.schema.json")
    schema = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    found, _ = gather(
        "capital of `France`",
        {"kind": "retrieve"},
        {"kind": "grep", "terms": ["Tiber", "none"]},
        {"kind": "section"},
        {"kind": "section", "sections": ["none"]},
        {"kind": "grep"},
    )
    assert len(found.records) == 5
    written = [to_jsonable_python(record) for record in found.records]
    for record in written:
        validator.validate(record)
    assert not validator.is_valid({**written[0], "tokens": ["no token"]})


@pytest.mark.parametrize(
    ("own", "raised", "expected"), [(None, 0, 1), (2, 0, 2), (None, 2, 2), (3, 2, 3)]
)
def test_top_k_of_a_step_or_the_gold_set_and_reruns_raise_it(own, raised, expected):
    ranking, step = Ranking(library()), {"kind": "retrieve", "top_k": own}
    gather("capital of France", step, retrieve=ranking, top_k=1, raised=raised)
    assert [top_k for _, top_k in ranking.calls] == [expected]


@pytest.mark.parametrize(
    ("asked", "terms"),
    [
        ("How does DataFrame.sort_values work?", ("DataFrame.sort_values",)),
        ("What is 'the Tiber' and \"Rome\"?", ("the Tiber", "Rome")),
        ("Where is `config/app.yaml`?", ("config/app.yaml",)),
        ("What is the capital of France?", ("France",)),
        ("Paris is where?", ()),
        ("Is it HTTP2 or utf8?", ("HTTP2", "utf8")),
        ("What's Bob's job, e.g. now?", ("Bob",)),
    ],
)
def test_default_terms_are_names_and_quoted_words(asked, terms):
    assert _default_terms(asked) == terms


TEXTS = ["def sort_values(by)", "DataFrame.sort_values -> x", "Rome is the capital", "rome"]


@pytest.mark.parametrize(
    ("term", "places"),
    [
        ("sort_values", [0, 1]),
        ("sort", []),
        ("rome", [2, 3]),
        ("Rome", [2]),
        ("the capital", [2]),
        ("->", [1]),
    ],
)
def test_a_term_matches_whole_words_and_capitals_as_they_stand(term, places):
    docs = {str(place): text for place, text in enumerate(TEXTS)}
    corpus = library(docs, {doc: [("s", 1, 1)] for doc in docs})
    found, _ = gather("?", {"kind": "grep", "terms": [term]}, corpus=corpus)
    assert sorted(int(item.chunk.doc_id) for item in found.evidence) == places


def test_grep_ranks_by_rarity_and_records_what_matched():
    found, _ = gather("?", {"kind": "grep", "terms": ["capital", "Tiber", "nowhere"]})
    assert tokens(found) == ["docs/capitals.md:5-6", "docs/capitals.md:1-4"]
    (record,) = found.records
    assert [hit["matched"] for hit in record.hits] == [("capital", "Tiber"), ("capital",)]
    assert record.missing == ("nowhere",)
    terms = ("capital", "Tiber", "nowhere")
    assert record.parameters == {"terms": terms, "max_hits": 5}


def test_grep_takes_its_terms_from_the_question_and_keeps_to_max_hits():
    found, _ = gather("What does `capital` mean?", {"kind": "grep", "max_hits": 1})
    assert tokens(found) == ["docs/capitals.md:5-6"]
    assert found.records[0].filtered == {"blank": 0, "over_max_hits": 1}


def test_sections_that_are_named_come_whole_and_unknown_ones_are_said():
    sections = ["docs/capitals.md#south", "docs/none.md#x"]
    found, lines = gather("?", {"kind": "section", "sections": sections})
    assert tokens(found) == ["docs/capitals.md:5-6"]
    assert found.records[0].missing == ("docs/none.md#x",)
    assert len(lines) == 1
    found, lines = gather("?", {"kind": "section", "sections": sections[1:]})
    assert not found.evidence
    zero = "event=preflight.step.filtered_to_zero query_id=q1 step=0 kind=section missing=1"
    assert lines[1] == zero


def test_sections_of_what_retrieval_put_first():
    found, _ = gather("Rome capital", {"kind": "section"})
    assert tokens(found)[0] == "docs/capitals.md:5-6"
    assert len({item.chunk.section_id for item in found.evidence}) == 2


def test_failed_retrieval_is_a_fault():
    found, _ = gather("capital", {"kind": "retrieve"}, retrieve=lambda _query, _top_k: None)
    assert found.fault is not None
    assert (found.fault.code, found.evidence) == ("retrieval_error", ())


def test_a_chunk_of_an_outside_retriever_is_found_in_its_document_or_stands_alone():
    corpus = library()
    rome = scored("docs/capitals.md", "x", "Rome is the capital of Italy.", start=0)
    inside = corpus.evidence(rome, "retrieve")
    assert inside is not None
    assert inside.token == "docs/capitals.md:5"
    assert DOCS["docs/capitals.md"][inside.chunk.offsets.start :].startswith("Rome")
    alone = corpus.evidence(scored("elsewhere", "x", "a\nb\n", start=99), "retrieve")
    assert alone is not None
    offsets = alone.chunk.offsets
    assert (alone.token, offsets.start, offsets.end) == ("elsewhere:1-2", 0, 4)
    assert corpus.evidence(scored("docs/capitals.md", "x", " \n "), "retrieve") is None


def test_long_chunks_are_cut_at_a_line_end():
    text = "0123456789\n" * 2000
    corpus = library({"d": text}, {"d": [("s", 1, 2000)]})
    item = corpus.evidence(scored("d", "s", text), "retrieve")
    assert item is not None
    assert len(item.chunk.text) <= MAX_EVIDENCE_CHARS
    assert item.chunk.text == text[: item.chunk.offsets.end]
    assert item.chunk.text.endswith("9")


@given(st.text(alphabet="ab\n\r é😀\u2028", max_size=40))
def test_lines_are_those_between_line_feeds(text):
    edges = itertools.pairwise([*line_starts(text).tolist(), len(text) + 1])
    assert [text[low : high - 1] for low, high in edges] == text.split("\n")


@given(
    st.dictionaries(
        st.sampled_from(["query_id", "message"]),
        st.text() | st.integers() | st.floats() | st.booleans() | st.none(),
    )
)
def test_no_value_breaks_or_forges_an_event_line(fields):
    log = Events()
    log.add("question.done", **fields)
    (line,) = log.lines
    assert line.isascii()
    assert line.isprintable()
    assert line.split('"')[0].startswith("event=question.done")
    assert line.count("=") == 1 + len(fields)
