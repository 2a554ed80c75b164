"""Lint lists every fault of a gold set."""

import json

import pandas as pd
import pytest

from rag_eval.gold.lint import (
    _find_language,
    lint,
    sparse_sections,
)
from rag_eval.gold.loading import load_gold, read_gold

TEXTS = {"a.md": "# Alpha\nThe tern flies far.\n", "b.md": "plain text about gulls"}
GOOD = {"query_id": "q0", "text": "How far does it fly?", "answerable": True}
GOOD_PARAPHRASE = {"query_id": "q0", "paraphrase_id": "p1", "text": "flight range"}


@pytest.fixture
def lint_gold(make_gold, corpus_frames):
    """Return a function that lints a gold set of a good question and a given question.

    The function returns (code, severity, file, line) of each problem.
    """

    def run(query, *, qrels="q1\ta.md\t1\n", answers=None, paraphrases=None):
        own = [{"query_id": "q1", "paraphrase_id": "p1", "text": "something of its own"}]
        given = own if paraphrases is None else paraphrases
        wordings = [GOOD_PARAPHRASE, *given]
        folder = make_gold([GOOD, query], "q0\ta.md\t1\n" + qrels, answers, wordings)
        frames = corpus_frames(TEXTS)
        return [
            (problem.code, problem.severity, problem.file.rsplit("/", 1)[1], problem.line)
            for problem in lint(read_gold(folder), frames.documents, frames.sections)
        ]

    return run


def test_a_good_set_has_no_objection(lint_gold):
    assert lint_gold({"query_id": "q1", "text": "What is it?", "answerable": True}) == []


ASKED_IN = {
    "Wie weit fliegt die Seeschwalbe und wie lange?": ["1 of 2 questions", "German"],
    "Как далеко летит крачка?": ["1 of 2 questions", "Cyrillic"],
    "アジサシはどこまで飛ぶ？": [],
}


@pytest.mark.parametrize(("text", "parts"), ASKED_IN.items())
def test_languages_without_an_analyzer_are_one_warning(make_gold, corpus_frames, text, parts):
    frames = corpus_frames({**TEXTS, **{f"{at}.md": text for at in range(3)}})
    asked = {"query_id": "q1", "text": text, "answerable": True}
    folder = make_gold([GOOD, asked], "q0\ta.md\t1\nq1\tb.md\t1\n")
    problems = lint(read_gold(folder), frames.documents, frames.sections)
    found = [problem for problem in problems if problem.code == "unserved_language"]
    assert [problem.severity for problem in found] == ["warning"] * bool(parts)
    for problem in found:
        assert all(part in problem.message for part in [*parts, "3 of 5 documents"])


def paraphrases(**texts):
    rows = [{"query_id": "q1", "paraphrase_id": name, "text": texts[name]} for name in texts]
    return {"paraphrases": rows}


ASKED = {"text": "a", "answerable": True}
ANSWER = {"query_id": "q1", "doc_id": "a.md"}
FLAG = {"answerable": True}
CASES = [
    ({"text": "a"}, {}, "missing_answerable error queries.jsonl 2"),
    (FLAG | {"text": "  "}, {}, "empty_text error queries.jsonl 2"),
    (FLAG | {"text": "a\x1b[C"}, {}, "control_character warning queries.jsonl 2"),
    (ASKED | {"tags": ["draft"]}, {}, "draft_question error queries.jsonl 2"),
    (ASKED, {"qrels": ""}, "answerable_without_target error queries.jsonl 2"),
    (ASKED, {"qrels": "q1\ta.md\t0\n"}, "nothing_relevant warning queries.jsonl 2"),
    (ASKED | {"answerable": False}, {}, "unanswerable_with_target error queries.jsonl 2"),
    (ASKED, {"qrels": "q1\tgone.md\t1\n"}, "dangling_target error qrels.tsv 3"),
    (
        ASKED,
        {"answers": [ANSWER | {"anchors": [{"quote": "zz"}]}]},
        "anchor_not_found error answers.jsonl 1",
    ),
    (
        ASKED,
        {"answers": [ANSWER | {"anchors": [{"quote": "f"}]}]},
        "anchor_ambiguous error answers.jsonl 1",
    ),
    (
        ASKED,
        {"answers": [{"query_id": "q1", "decoy": {"doc_id": "a.md"}}]},
        "decoy_is_target error answers.jsonl 1",
    ),
    (
        ASKED,
        {
            "qrels": "q1\ta.md\t1\nq1\tb.md\t0\n",
            "answers": [{"query_id": "q1", "doc_id": "b.md", "anchors": [{"quote": "gulls"}]}],
        },
        "contradicting_judgement error answers.jsonl 1",
    ),
    (ASKED, {"paraphrases": []}, "missing_paraphrases warning queries.jsonl 2"),
    (
        FLAG | {"text": "What IS it"},
        paraphrases(p="  what is: it?"),
        "paraphrase_equals_question error paraphrases.jsonl 2",
    ),
    (
        ASKED,
        paraphrases(p1="b c", p2="B, c!"),
        "paraphrases_equal error paraphrases.jsonl 3",
    ),
    (ASKED, paraphrases(p=" "), "empty_text error paraphrases.jsonl 2"),
]


@pytest.mark.parametrize(("query", "more", "expected"), CASES)
def test_each_objection_has_its_place(lint_gold, query, more, expected):
    [found] = lint_gold({"query_id": "q1", **query}, **more)
    assert " ".join(map(str, found)) == expected


def test_duplicate_ids_are_listed_with_everything_else(lint_gold):
    again = {"query_id": "q0", "text": "again", "answerable": True}
    found = lint_gold(again, qrels="q0\tgone\t1\n", paraphrases=[])
    assert [code for code, *_ in found] == ["duplicate_id", "few_queries", "dangling_target"]


def test_plain_beir_needs_no_flags_and_gets_one_warning_for_all_paraphrases(
    shared_data, corpus_frames
):
    frames = corpus_frames({"d": "x"})
    gold = load_gold(shared_data / "xquad", split="test")
    codes = {problem.code: problem for problem in lint(gold, frames.documents, frames.sections)}
    equal = {"paraphrase_equals_question", "paraphrases_equal"}
    assert set(codes) == {"dangling_target", "more_problems"} | equal
    assert {codes[code].severity for code in equal} == {"warning"}
    assert sum(int(codes[code].message.split()[0]) for code in equal) == 1896


# ---- Languages


@pytest.mark.parametrize("text", ["", "ポンプは", "水泵", "import os as la", "α = 3.5 and β", "ª"])
def test_served_texts_have_no_language(text):
    assert not _find_language(text)


@pytest.mark.parametrize("file", ["scifact/corpus", "scifact/queries", "npl/queries"])
def test_no_english_text_is_taken_for_another_language(shared_data, file):
    lines = (shared_data / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()
    assert not any(_find_language(json.loads(line)["text"]) for line in lines)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"a#one": 3, "a#two": 5}, None),
        ({"a#one": 2, "a#two": 3}, "1 of 2 relevant sections have fewer than 3 questions"),
        ({}, None),
    ],
)
def test_sections_with_few_questions_are_counted(asked, message):
    rows = [(f"q{at}", section, 1) for section, n in asked.items() for at in range(n)]
    rows.append(("q9", "a#not", 0))
    found = sparse_sections(pd.DataFrame(rows, columns=["query_id", "item_id", "gain"]))
    assert [problem.code for problem in found] == ["few_questions_in_sections"] * bool(message)
    assert all(message in problem.message for problem in found)
