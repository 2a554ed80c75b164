"""Evidence preflights: what they find, what they record, and how they fail."""

import json
from importlib import resources

import jsonschema
import pytest
from answer_corpus import DOCS, Ranking, evidence, library, scored
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.codes import Fault
from rag_eval.answers.events import Events, event_line
from rag_eval.answers.evidence import MAX_EVIDENCE_CHARS, line_span, line_starts, merged
from rag_eval.answers.grep_terms import default_terms, find_terms
from rag_eval.answers.preflights import Gathered, Preflights, check_patterns, depends_on_top_k
from rag_eval.answers.questions import Question, plan
from rag_eval.records.answer_settings import Answers
from rag_eval.records.problems import InputError


def gather(
    question: str, *steps: dict, retrieve=None, raised=None, **options
) -> tuple[Gathered, list[str]]:
    config = Answers.model_validate({"preflights": list(steps), **options})
    corpus, log = library(), Events()
    (found,) = Preflights(corpus, retrieve or Ranking(corpus)).gather(
        [plan(Question("q1", question), config)], [log], raised
    )
    return found, log.lines


def tokens(found: Gathered) -> list[str]:
    return [item.token for item in found.evidence]


def test_retrieved_chunks_carry_the_lines_of_their_document():
    found, lines = gather("capital of France", {"kind": "retrieve"})
    assert tokens(found) == ["docs/capitals.md:1-4", "docs/capitals.md:5-6"]
    item = found.evidence[0]
    assert (
        DOCS["docs/capitals.md"][item.chunk.offsets.start : item.chunk.offsets.end]
        == item.chunk.text
    )
    (artifact,) = found.artifacts
    assert artifact["tokens"] == tokens(found)
    assert (
        artifact["schema_version"],
        artifact["query_id"],
        artifact["kind"],
        artifact["parameters"],
    ) == (1, "q1", "retrieve", {"top_k": 10})
    assert [hit["snippet_id"] for hit in artifact["hits"]] == [
        item.chunk.snippet_id for item in found.evidence
    ]
    json.dumps(artifact, allow_nan=False)
    assert lines == ["event=preflight.step.start query_id=q1 step=0 kind=retrieve"]


def test_artifacts_keep_to_their_published_schema():
    schema = json.loads(
        resources.files("rag_eval.answers")
        .joinpath("preflight.schema.json")
        .read_text(encoding="utf-8")
    )
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
    assert len(found.artifacts) == 5
    for artifact in found.artifacts:
        validator.validate(artifact)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**found.artifacts[0], "tokens": ["no token"]})


def test_top_k_is_the_steps_own_or_the_gold_sets_and_reruns_raise_it():
    for own, raised, expected in ((None, None, 1), (2, None, 2), (None, 2, 2), (3, 2, 3)):
        corpus = library()
        ranking = Ranking(corpus)
        gather(
            "capital of France",
            {"kind": "retrieve", "top_k": own},
            retrieve=ranking,
            top_k=1,
            raised=raised,
        )
        assert [top_k for _, top_k in ranking.calls] == [expected]


def test_many_questions_are_retrieved_in_one_call_for_each_top_k():
    corpus, config = (
        library(),
        Answers.model_validate(
            {
                "preflights": [
                    {"kind": "retrieve"},
                    {"kind": "section"},
                    {"kind": "retrieve", "top_k": 2},
                ]
            }
        ),
    )
    ranking = Ranking(corpus)
    plans = [plan(Question(f"q{n}", "capital of Italy"), config) for n in range(50)]
    found = Preflights(corpus, ranking).gather(plans, [Events() for _ in plans])
    assert [(len(queries), top_k) for queries, top_k in ranking.calls] == [(50, 2), (50, 10)]
    assert len({tuple(tokens(one)) for one in found}) == 1


@pytest.mark.parametrize(
    ("question", "terms"),
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
def test_default_terms_are_names_and_quoted_words(question, terms):
    assert default_terms(question) == terms


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
    (artifact,) = found.artifacts
    assert [hit["matched"] for hit in artifact["hits"]] == [["capital", "Tiber"], ["capital"]]
    assert artifact["missing"] == ["nowhere"]
    assert artifact["parameters"] == {
        "terms": ["capital", "Tiber", "nowhere"],
        "patterns": [],
        "max_hits": 5,
    }


def test_grep_takes_its_terms_from_the_question_and_keeps_to_max_hits():
    found, _ = gather("What does `capital` mean?", {"kind": "grep", "max_hits": 1})
    assert tokens(found) == ["docs/capitals.md:5-6"]
    assert found.artifacts[0]["filtered"] == {"blank": 0, "over_max_hits": 1}


def test_grep_by_pattern():
    found, _ = gather("?", {"kind": "grep", "patterns": [r"def \w+\("]})
    assert tokens(found) == ["api/frame.py:1-3"]
    assert found.evidence[0].chunk.k_final == 1


def test_patterns_that_do_not_compile_are_all_named_before_anything_runs():
    config = Answers.model_validate(
        {"preflights": [{"kind": "grep", "patterns": ["(", "ok", "["]}]}
    )
    with pytest.raises(InputError) as caught:
        check_patterns([plan(Question("q1", "?"), config)])
    assert [(problem.code, problem.found) for problem in caught.value.problems] == [
        ("bad_pattern", "("),
        ("bad_pattern", "["),
    ]


def test_a_pattern_that_runs_out_of_time_fails_its_own_question_only():
    corpus = library({"d": "a" * 60 + "b"}, {"d": [("s", 1, 1)]})
    plans = [
        plan(
            Question(str(n), "aaa"),
            Answers.model_validate({"preflights": [{"kind": "grep", "patterns": [pattern]}]}),
        )
        for n, pattern in enumerate([r"(a|a)*$", "b"])
    ]
    slow, quick = Preflights(corpus, Ranking(corpus)).gather(plans, [Events(), Events()])
    assert (slow.evidence, slow.fault and slow.fault.code) == ((), "pattern_timeout")
    assert (tokens(quick), quick.fault) == (["d:1"], None)


def test_sections_that_are_named_come_whole_and_unknown_ones_are_said():
    found, lines = gather(
        "?", {"kind": "section", "sections": ["docs/capitals.md#south", "docs/none.md#x"]}
    )
    assert tokens(found) == ["docs/capitals.md:5-6"]
    assert found.artifacts[0]["missing"] == ["docs/none.md#x"]
    assert len(lines) == 1
    found, lines = gather("?", {"kind": "section", "sections": ["docs/none.md#x"]})
    assert not found.evidence
    assert (
        lines[1]
        == "event=preflight.step.filtered_to_zero query_id=q1 step=0 kind=section missing=1"
    )


def test_sections_of_what_retrieval_put_first():
    found, _ = gather("Rome capital", {"kind": "section", "max_sections": 1})
    assert tokens(found) == ["docs/capitals.md:5-6"]
    assert found.artifacts[0]["filtered"]["over_max_sections"] == 1


def test_a_section_of_several_chunks_comes_in_the_order_of_the_text():
    corpus = library({"d": "one\ntwo\nthree\nfour"}, {"d": [("s", 1, 4)]})
    assert corpus.section_rows("d#s") == [0]
    assert corpus.section_rows("d#t") is None


def test_what_two_steps_find_stays_where_it_was_found_first():
    found, _ = gather("Rome Tiber", {"kind": "grep", "terms": ["Tiber"]}, {"kind": "retrieve"})
    assert tokens(found) == ["docs/capitals.md:5-6", "docs/capitals.md:1-4"][: len(tokens(found))]
    assert found.evidence[0].kind == "grep"
    assert [artifact["step"] for artifact in found.artifacts] == [0, 1]
    assert merged([found.evidence, found.evidence]) == found.evidence


def test_a_step_that_finds_nothing_is_an_event():
    found, lines = gather("zzz", {"kind": "retrieve"}, {"kind": "grep", "terms": ["zzz"]})
    assert found == Gathered((), found.artifacts)
    assert [line.split()[0] for line in lines] == [
        "event=preflight.step.start",
        "event=preflight.step.filtered_to_zero",
    ] * 2


def test_a_retriever_that_fails_for_one_question_fails_that_question_only():
    corpus = library()
    ranking = Ranking(corpus)

    def flaky(queries, top_k):
        if "poison" in queries:
            raise ConnectionError("down")
        return ranking(queries, top_k)

    plans = [plan(Question(text, text), Answers()) for text in ("capital", "poison", "Rome")]
    found = Preflights(corpus, flaky).gather(plans, [Events() for _ in plans])
    assert [one.fault and one.fault.code for one in found] == [None, "retrieval_error", None]
    assert found[0].evidence
    assert found[2].evidence


def test_a_retriever_that_loses_results_is_noticed():
    corpus = library()
    (found,) = Preflights(corpus, lambda _queries, _top_k: []).gather(
        [plan(Question("q", "capital"), Answers())], [Events()]
    )
    assert found.fault == Fault("retrieval_error", "retrieval failed for this question.")


@pytest.mark.parametrize(
    ("steps", "depends"),
    [
        ([{"kind": "retrieve"}], True),
        ([{"kind": "section"}], True),
        ([{"kind": "section", "sections": ["a"]}], False),
        ([{"kind": "grep"}], False),
    ],
)
def test_which_steps_depend_on_top_k(steps, depends):
    assert depends_on_top_k(Answers.model_validate({"preflights": steps}).preflights) is depends


def test_a_chunk_of_an_outside_retriever_is_found_in_its_document_or_stands_alone():
    corpus = library()
    inside = corpus.evidence(
        scored("docs/capitals.md", "x", "Rome is the capital of Italy.", start=0), "retrieve"
    )
    assert inside is not None
    assert (inside.token, DOCS["docs/capitals.md"][inside.chunk.offsets.start :][:4]) == (
        "docs/capitals.md:5",
        "Rome",
    )
    alone = corpus.evidence(scored("elsewhere", "x", "a\nb\n", start=99), "retrieve")
    assert alone is not None
    assert (alone.token, alone.chunk.offsets.start, alone.chunk.offsets.end) == (
        "elsewhere:1-2",
        0,
        4,
    )
    assert corpus.evidence(scored("docs/capitals.md", "x", " \n "), "retrieve") is None


def test_long_chunks_are_cut_at_a_line_end():
    text = "0123456789\n" * 2000
    item = library({"d": text}, {"d": [("s", 1, 2000)]}).evidence(
        scored("d", "s", text), "retrieve"
    )
    assert item is not None
    assert len(item.chunk.text) <= MAX_EVIDENCE_CHARS
    assert item.chunk.text == text[: item.chunk.offsets.end]
    assert item.chunk.text.endswith("9")


@given(st.text(alphabet="ab\n\r é😀\u2028", max_size=40))
def test_lines_are_those_between_line_feeds(text):
    starts = line_starts(text).tolist()
    assert [
        text[low : high - 1] for low, high in zip(starts, [*starts[1:], len(text) + 1], strict=True)
    ] == text.split("\n")


@given(st.integers(1, 6), st.integers(0, 5))
def test_the_span_of_cited_lines_holds_their_text(first, more):
    item = evidence("docs/capitals.md#west")[0]
    span = line_span(item, first, first + more)
    wanted = "\n".join(DOCS["docs/capitals.md"].split("\n")[first - 1 : first + more]).strip()
    if first + more > item.last_line or not wanted:
        assert span is None
    else:
        assert span is not None
        assert DOCS["docs/capitals.md"][slice(*span)] == wanted


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


@pytest.mark.parametrize("name", ["a b", "a=b", "", "A", "a\nb"])
def test_names_of_events_and_keys_are_never_data(name):
    with pytest.raises(ValueError, match="is not a name"):
        event_line(name, {})
    with pytest.raises(ValueError, match="is not a name"):
        event_line("ok", {name: 1})
