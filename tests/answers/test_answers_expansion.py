"""The extractive answerer with synonyms: they count in part, change nothing where there are none, and no answer depends on the batch."""

import json

import numpy as np
import pytest

from rag_eval.answers import features
from rag_eval.answers.extractive import Extractive, Passage, TermWeights
from rag_eval.answers.pool import Pool
from rag_eval.answers.terms import PoolTerms
from rag_eval.retrieval.synonyms.expansion import Expansion

SMALL = Expansion.parse(
    json.dumps(
        {
            "version": 1,
            "entries": [
                {"terms": ["discard", "throw away"], "means": ["drop"], "weight": 0.5},
                {"terms": ["blank"], "means": ["missing", "empty value"], "weight": 0.8},
                {"terms": ["so far"], "means": ["cumulative"], "weight": 0.6},
            ],
        }
    ),
    "small",
)
TEXT = "Drop a column. Blank pages follow. Find missing parts. There is no value. An empty string has value."
UNUSED = Expansion.parse(
    json.dumps(
        {"version": 1, "entries": [{"terms": ["zebra"], "means": ["horse"], "weight": 0.5}]}
    ),
    "unused",
)
QUESTIONS = [
    "How can I throw away a column?",
    "Which parts are blank?",
    "discard blank pages",
    "zebra",
    "",
    "so far",
]


PASSAGES = (Passage(TEXT, "Column parts"),)


def measured(questions, expansion, passages=PASSAGES):
    pool = Pool(questions, [list(passages)] * len(questions))
    values = features.lexical(pool, PoolTerms(pool, TermWeights(), expansion))
    return {
        name: values[:, place].reshape(len(questions), -1)
        for place, name in enumerate(features.LEXICAL)
    }


def test_a_synonym_counts_its_weight():
    found = measured(["blank"], SMALL)
    assert found["unit_coverage"][0].tolist() == pytest.approx(
        [0, 1, 0.8, 0, 0.8]
    )  # a meaning of two words needs both
    plain = measured(["blank"], None)
    assert plain["unit_coverage"][0].tolist() == [0, 1, 0, 0, 0]
    assert found["frequency"][0, 1] == plain["frequency"][0, 1]
    assert 0 < found["frequency"][0, 2] < 0.8


def test_each_word_of_a_phrase_counts():
    found = measured(["throw away a column"], SMALL)
    assert found["unit_coverage"][0, 0] == pytest.approx(
        (0.5 + 1) / 2
    )  # "away" is a function word: it makes the phrase, and counts for nothing
    assert (
        found["passage_coverage"][0, 0] == found["evidence_coverage"][0, 0] == pytest.approx(0.75)
    )
    assert found["missing"][0, 0] == pytest.approx(0.5)


def test_evidence_is_covered_by_its_best_passage_not_by_their_sum():
    passages = [
        Passage("Drop it.", rank=1),
        Passage("They drop.", rank=2),
        Passage("A dropped one.", rank=3),
    ]
    assert measured(["discard"], SMALL, passages)["evidence_coverage"][0].tolist() == [
        0.5,
        0.5,
        0.5,
    ]


def test_a_list_that_a_question_does_not_use_changes_nothing():
    plain, unused = measured(QUESTIONS[:3], None), measured(QUESTIONS[:3], UNUSED)
    for name in features.LEXICAL:
        assert np.array_equal(plain[name], unused[name]), name
    passages = [[Passage(TEXT)]] * len(QUESTIONS)
    assert (
        Extractive().answer(QUESTIONS, passages)
        == Extractive(expansion=None).answer(QUESTIONS, passages)
        == Extractive(expansion=UNUSED).answer(QUESTIONS, passages)
    )


def test_a_synonym_finds_the_sentence():
    passages = [[Passage("Rows are counted. Missing cells are removed. Columns are renamed.")]]
    question = ["What happens to blanks?"]
    assert not Extractive().answer(question, passages)[0].sentences
    its = (
        Extractive(expansion=Expansion.load("data-terms"))
        .answer(question, passages)[0]
        .sentences[0]
    )
    assert passages[0][0].text[its.start : its.end] == "Missing cells are removed."


def test_an_answer_does_not_depend_on_the_batch():
    answerer = Extractive(expansion=SMALL)
    passages = [
        [Passage(TEXT, "Column parts"), Passage("Cumulative values are dropped.", rank=2)]
    ] * len(QUESTIONS)
    together = answerer.answer(QUESTIONS, passages)
    assert together == [
        answerer.answer([question], its[:])[0]
        for question, its in zip(QUESTIONS, [[one] for one in passages], strict=True)
    ]
    assert together == answerer.answer(QUESTIONS[::-1], passages)[::-1]
