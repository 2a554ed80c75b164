import pytest

from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_beir_gold, read_gold

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
    (ASKED, {"qrels": "q1\ta.md\t0\n"}, "answerable_without_target error queries.jsonl 2"),
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


def test_dangling_target_suggests_a_name(make_gold, corpus_frames):
    frames = corpus_frames({"guide/install.md": "# First\nx\n", "other.md": "y"})
    folder = make_gold([GOOD], "q0\tguide/instal.md\t1\nq0\tguide/install.md#frist\t1\n")
    accepted = [
        problem.accepted
        for problem in lint(read_gold(folder), frames.documents, frames.sections)
        if problem.code == "dangling_target"
    ]
    assert "did you mean guide/install.md?" in accepted[0]
    assert "did you mean guide/install.md#first?" in accepted[1]


def test_plain_beir_needs_no_flags_and_gets_one_warning_for_all_paraphrases(
    shared_data, corpus_frames
):
    frames = corpus_frames({"d": "x"})
    gold = load_beir_gold(shared_data / "xquad", "test")
    codes = {problem.code: problem for problem in lint(gold, frames.documents, frames.sections)}
    assert set(codes) == {"dangling_target", "more_problems", "paraphrase_equals_question"}
    assert codes["paraphrase_equals_question"].severity == "warning"
    assert codes["paraphrase_equals_question"].message.startswith("1896 of 9520")
