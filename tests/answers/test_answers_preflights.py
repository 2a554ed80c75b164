"""Evidence preflights have findings and records, and their failures are handled."""

import itertools
import json
from importlib import resources

import jsonschema
import pytest
from answer_corpus import DOCS, Ranking, evidence, library, question, scored
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_jsonable_python

from rag_eval.answers.codes import Events, event_line
from rag_eval.answers.evidence import (
    MAX_EVIDENCE_CHARS,
    Gathered,
    Preflights,
    Withheld,
    check_patterns,
    default_terms,
    find_terms,
    line_span,
    line_starts,
)
from rag_eval.core.errors import InputError


def run_all(questions, corpus=None, retrieve=None, raised=0):
    corpus, logs = corpus or library(), [Events() for _ in questions]
    preflights = Preflights(corpus, retrieve or Ranking(corpus), Withheld())
    return preflights.gather(questions, logs, raised), logs


def gather(text, *steps, retrieve=None, raised=0, **options):
    asked = question("q1", text, preflights=list(steps), **options)
    (found,), (log,) = run_all([asked], retrieve=retrieve, raised=raised)
    return found, log.lines


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
    assert [hit.snippet_id for hit in record.hits] == snippets
    assert lines == ["event=preflight.step.start query_id=q1 step=0 kind=retrieve"]


def test_artifacts_keep_to_their_published_schema():
    file = resources.files("rag_eval.answers").joinpath("preflight.schema.json")
    schema = json.loads(file.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    found, _ = gather(
        "capital of `France`",
        {"kind": "retrieve"},
        {"kind": "grep", "patterns": ["Tiber", "none"]},
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


def test_many_questions_are_retrieved_in_one_call_for_each_top_k():
    steps = [{"kind": "retrieve"}, {"kind": "section"}, {"kind": "retrieve", "top_k": 2}]
    ranking = Ranking(library())
    asked = [question(f"q{n}", "capital of Italy", preflights=steps) for n in range(50)]
    found, _ = run_all(asked, retrieve=ranking)
    assert [(len(queries), top_k) for queries, top_k in ranking.calls] == [(50, 2), (50, 10)]
    assert len({tuple(tokens(one)) for one in found}) == 1


@pytest.mark.parametrize(
    ("asked", "terms"),
    [
        ("How does DataFrame.sort_values work?", ("DataFrame.sort_values",)),
        ("What does sort_values() return?", ("sort_values",)),
        ("What is 'the Tiber' and \"Rome\"?", ("the Tiber", "Rome")),
        ("Where is `config/app.yaml`?", ("config/app.yaml",)),
        ("What is the capital of France?", ("France",)),
        ("Paris is where?", ()),
        ("Is it HTTP2 or utf8?", ("HTTP2", "utf8")),
        ("What's Bob's job, e.g. now?", ("Bob",)),
        ("plain words only", ()),
        ("", ()),
    ],
)
def test_default_terms_are_names_and_quoted_words(asked, terms):
    assert default_terms(asked) == terms


@pytest.mark.parametrize(
    ("term", "places"),
    [
        ("sort_values", [0, 1]),
        ("sort", []),
        ("Sort_values", []),
        ("rome", [2, 3]),
        ("Rome", [2]),
        ("the capital", [2]),
        ("->", [1]),
        ("values(by", []),
        ("sort_values(by", [0]),
        ("ROME", []),
    ],
)
def test_a_term_matches_whole_words_and_capitals_as_they_stand(term, places):
    texts = ["def sort_values(by)", "DataFrame.sort_values -> x", "Rome is the capital", "rome"]
    assert find_terms([term], texts) == {term: places}


@given(
    st.lists(st.text(alphabet="aB_. -", min_size=1, max_size=6).filter(str.strip), max_size=4),
    st.lists(st.text(alphabet="aAbB_. -", max_size=20), max_size=6),
)
def test_finding_terms_in_one_pass_agrees_with_a_search_of_every_text(terms, texts):
    def slow(term: str, text: str) -> bool:
        fold = str if any(letter.isupper() for letter in term) else str.lower
        word = [letter.isalnum() or letter == "_" for letter in f" {text} "]
        places = [at for at in range(len(text)) if fold(text[at : at + len(term)]) == fold(term)]
        starts, ends = term[0].isalnum() or term[0] == "_", term[-1].isalnum() or term[-1] == "_"
        return any(
            not (starts and word[at]) and not (ends and word[at + len(term) + 1]) for at in places
        )

    assert find_terms(terms, texts) == {
        term: [place for place, text in enumerate(texts) if slow(term, text)] for term in terms
    }


def test_grep_ranks_by_rarity_and_records_what_matched():
    found, _ = gather("?", {"kind": "grep", "terms": ["capital", "Tiber", "nowhere"]})
    assert tokens(found) == ["docs/capitals.md:5-6", "docs/capitals.md:1-4"]
    (record,) = found.records
    assert [hit.matched for hit in record.hits] == [("capital", "Tiber"), ("capital",)]
    assert record.missing == ("nowhere",)
    terms = ("capital", "Tiber", "nowhere")
    assert record.parameters == {"terms": terms, "patterns": (), "max_hits": 5}


def test_grep_takes_its_terms_from_the_question_and_keeps_to_max_hits():
    found, _ = gather("What does `capital` mean?", {"kind": "grep", "max_hits": 1})
    assert tokens(found) == ["docs/capitals.md:5-6"]
    assert found.records[0].filtered == {"blank": 0, "over_max_hits": 1}


def test_patterns_that_do_not_compile_are_all_named():
    steps = [{"kind": "grep", "patterns": ["(", "ok", "["]}]
    with pytest.raises(InputError) as caught:
        check_patterns([question("q1", "?", preflights=steps)])
    found = [(problem.code, problem.found) for problem in caught.value.problems]
    assert found == [("bad_pattern", "("), ("bad_pattern", "[")]


def test_pattern_that_runs_out_of_time_fails_its_own_question_only():
    corpus = library({"d": "a" * 60 + "b"}, {"d": [("s", 1, 1)]})
    asked = [
        question(pattern, "aaa", preflights=[{"kind": "grep", "patterns": [pattern]}])
        for pattern in (r"(a|a)*$", "b")
    ]
    (slow, quick), _ = run_all(asked, corpus)
    assert (slow.evidence, slow.fault and slow.fault.code) == ((), "pattern_timeout")
    assert (tokens(quick), quick.fault) == (["d:1"], None)


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
    found, _ = gather("Rome capital", {"kind": "section", "max_sections": 1})
    assert tokens(found) == ["docs/capitals.md:5-6"]
    assert found.records[0].filtered["over_max_sections"] == 1


def test_what_two_steps_find_stays_where_it_was_found_first():
    found, _ = gather("Rome Tiber", {"kind": "grep", "terms": ["Tiber"]}, {"kind": "retrieve"})
    assert tokens(found) == ["docs/capitals.md:5-6", "docs/capitals.md:1-4"][: len(tokens(found))]
    assert found.evidence[0].kind == "grep"
    assert [record.step for record in found.records] == [0, 1]
    assert len(set(tokens(found))) == len(tokens(found))


def test_failed_retrieval_fails_that_question_only():
    ranking = Ranking(library())

    def flaky(queries, top_k):
        pairs = zip(queries, ranking(queries, top_k), strict=True)
        return [None if query == "poison" else one for query, one in pairs]

    asked = [question(text, text) for text in ("capital", "poison", "Rome")]
    found, _ = run_all(asked, retrieve=flaky)
    assert [one.fault and one.fault.code for one in found] == [None, "retrieval_error", None]
    assert [bool(one.evidence) for one in found] == [True, False, True]


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


@given(st.integers(1, 6), st.integers(0, 5))
def test_the_span_of_cited_lines_holds_their_text(first, more):
    item = evidence("docs/capitals.md#west")[0]
    text, span = DOCS["docs/capitals.md"], line_span(item, first, first + more)
    wanted = "\n".join(text.split("\n")[first - 1 : first + more]).strip()
    if first + more > item.last_line or not wanted:
        assert span is None
    else:
        assert text[slice(*span)] == wanted


@given(
    st.dictionaries(
        st.sampled_from(["query_id", "message"]),
        st.text() | st.integers() | st.floats() | st.booleans() | st.none(),
    )
)
def test_no_value_breaks_or_forges_an_event_line(fields):
    line = event_line("question.done", fields)
    assert line.isascii()
    assert line.isprintable()
    assert line.split('"')[0].startswith("event=question.done")
    assert line.count("=") == 1 + len(fields)
