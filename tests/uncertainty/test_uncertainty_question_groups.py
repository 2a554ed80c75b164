"""Groups of the gold's questions and of what else was asked are the connected components of both together."""

from rag_eval.uncertainty.question_groups import Asked, document_tie, question_groups, words_tie

GOLD = {"b": "a", "a": "a", "c": "c", "d": "d"}
TIES = [
    ("a", document_tie("x")),
    ("b", document_tie("x")),
    ("c", document_tie("y")),
    ("d", document_tie("z")),
    ("c", words_tie("q-1")),
    ("d", words_tie("q-1")),
]


def test_the_gold_alone_keeps_its_groups_even_where_two_of_its_questions_have_the_same_words():
    assert question_groups(GOLD, TIES, []).of_gold == GOLD
    assert (
        question_groups(
            GOLD,
            TIES,
            [Asked("c", "old name"), Asked("elsewhere", "elsewhere", (document_tie("unknown"),))],
        ).of_gold
        == GOLD
    )


def test_words_and_documents_join_a_question_to_the_gold_and_the_gold_gives_the_name():
    found = question_groups(
        GOLD,
        TIES,
        [
            Asked("0", "0", (document_tie("x"),)),
            Asked("1", "1", (document_tie("new"),)),
            Asked("2", "2", (document_tie("new"),)),
        ],
    )
    assert [found.group(name, name) for name in ("0", "1", "2", "b", "c")] == [
        "a",
        "1",
        "1",
        "a",
        "c",
    ]
    assert question_groups(GOLD, TIES, [Asked("mine", "mine", (words_tie("q-1"),))]).of_gold == {
        "b": "a",
        "a": "a",
        "c": "c",
        "d": "c",
    }
    assert (
        question_groups(GOLD, TIES, [Asked("q-1", "q-1")]).group("q-1", "q-1") == "c"
    )  # its id is its words


def test_what_was_asked_ties_gold_groups_and_its_own_names():
    found = question_groups(
        GOLD,
        TIES,
        [
            Asked("p", "p", (document_tie("x"), document_tie("z"))),
            Asked("p", "r"),
            Asked("s", "r"),
            Asked("t", "c"),
        ],
    )
    assert found.of_gold == {"b": "a", "a": "a", "c": "c", "d": "a"}
    assert {
        name: found.group(name, group)
        for name, group in (("p", "p"), ("s", "r"), ("t", "c"), ("unknown", "own"))
    } == {"p": "a", "s": "a", "t": "c", "unknown": "own"}


def test_a_question_with_a_gold_id_is_that_question_and_its_documents_count():
    found = question_groups(
        GOLD,
        TIES,
        [
            Asked("d", "what the gold called it then", (document_tie("y"),)),
            Asked("e", "what the gold called it then"),
        ],
    )
    assert found.of_gold == {"b": "a", "a": "a", "c": "c", "d": "c"}
    assert found.group("d", "what the gold called it then") == "c"
    assert found.group("e", "what the gold called it then") == "what the gold called it then"
