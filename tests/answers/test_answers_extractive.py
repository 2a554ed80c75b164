"""The extractive answerer: sentences, choices, the threshold, and its bars on public data."""

import pytest
from answer_sets import clapnq, figures, scifact

from rag_eval.answers.extractive import (
    Extractive,
    Passage,
    _split_sentences,
)
from rag_eval.core.config import Answers
from rag_eval.corpus.analyzer import DocumentFrequencies, count_documents

PARIS = "The river Seine flows through it. Paris is the capital of France. It exports wine."
FRANCE = Passage(PARIS, "France")
GERMANY = Passage("Berlin is the capital of Germany.", "Germany")
CAPITAL = "What is the capital of France?"
EQUAL = DocumentFrequencies(0, {})
"""Every word weighs the same."""


def answer(question, passages, abstain_below=0.39, frequencies=EQUAL):
    return Extractive(frequencies, abstain_below).answer(question, passages)


def texts(passages, extract):
    return [passages[place].text[start:end] for place, start, end, _ in extract.sentences]


def test_sentences_have_no_underlined_headings_and_are_cut_where_too_long():
    text = "Sort it. Or not.\n\nNotes\n-----\nOf all.\n\n...\n\n" + "word " * 1000
    found = [text[start:end] for start, end in _split_sentences(text)]
    assert found[:3] == ["Sort it.", "Or not.", "Of all."]
    assert [len(piece) for piece in found[3:]] == [1999, 1994, 1004]


@pytest.mark.parametrize(
    ("question", "passages", "sentence"),
    [
        (CAPITAL, [FRANCE], "Paris is the capital of France."),
        ("capital of Germany?", [FRANCE, GERMANY], "Berlin is the capital of Germany."),
        (
            "Назовите: столица России",
            [Passage("Столица России — Москва. Она стоит на реке."), Passage("a" * 9000)],
            "Столица России — Москва.",
        ),
    ],
)
def test_best_sentence(question, passages, sentence):
    assert texts(passages, answer(question, passages))[0] == sentence


@pytest.mark.parametrize(
    ("question", "passages"),
    [
        *(("", [FRANCE]), ("?!", [FRANCE]), (CAPITAL, []), (CAPITAL, [Passage("")])),
        *((CAPITAL, [Passage(" \n\t ", "France")]), ("what is it?", [Passage("...")])),
    ],
)
def test_nothing_to_say(question, passages):
    assert answer(question, passages, 0) == ((), 0, False)


def test_score_is_the_share_of_the_weight_of_the_words():
    background = count_documents(["the capital of France", "the river", "the river Seine"])
    (sentence,) = answer("river unknown", [Passage("A river.")], 0, background).sentences
    river, unknown = 0.470004, 2.079442  # ln(1 + 1.5 / 2.5), ln(1 + 3.5 / 0.5)
    assert sentence.score == pytest.approx(river / (river + unknown), abs=1e-5)
    half = answer("river lake", [Passage("A river."), Passage("A river, dark.", "Lake")], 0)
    assert [(one.passage, one.score) for one in half.sentences] == [(1, 0.675), (0, 0.5)]


def test_only_the_first_passages_are_cited_and_a_copy_never():
    copies = [FRANCE, Passage("Paris is  the capital\nof France.", "France"), GERMANY]
    found = answer(CAPITAL, [*copies, Passage("What is the capital of France?")], 0)
    assert found.sentences[0].passage == 0
    assert {sentence.passage for sentence in found.sentences} <= {0, 2}


def test_the_threshold_decides_and_changes_nothing_else():
    always, never = (answer(CAPITAL, [GERMANY], least) for least in (0, 1))
    assert (always.answered, never.answered) == (True, False)
    assert always[:2] == never[:2]


BARS = {
    clapnq: {"best_right": 0.60, "precision": 0.56, "recall": 0.42, "refused_unanswerable": 0.40},
    scifact: {"best_right": 0.46, "precision": 0.38, "recall": 0.52},
}


@pytest.mark.slow
@pytest.mark.parametrize("read", BARS, ids=lambda read: read.__name__)
def test_bars_on_public_data(read, shared_data):
    answer_set = read(shared_data)
    answerer = Extractive(count_documents(answer_set.background), Answers().abstain_below)
    extracts = list(map(answerer.answer, answer_set.questions, answer_set.passages))
    found = figures(answer_set, extracts)
    assert {name: value for name, value in BARS[read].items() if found[name] < value} == {}
    assert found["refused_answerable"] <= 0.13


def test_an_answer_does_not_depend_on_the_questions_before():
    answerer = Extractive(DocumentFrequencies(20, {"capit": 3, "franc": 2}), 0.39)
    before = answerer.answer(CAPITAL, [GERMANY, FRANCE])
    answerer.answer("Which river flows through the wine of Berlin?", [FRANCE])
    assert answerer.answer(CAPITAL, [GERMANY, FRANCE]) == before


def test_several_documents_are_cited_if_their_sentences_fit_as_well():
    passages = [
        Passage("Paris is the capital of France.", "Cities"),
        Passage("The capital of France has been Paris since 987.", "History"),
        Passage("Dogs bark at night.", "Animals"),
    ]
    assert [one.passage for one in answer(CAPITAL, passages).sentences] == [0, 1]
