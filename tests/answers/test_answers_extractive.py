import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.answers.extractive import (
    LEXICAL,
    Extractive,
    Passage,
    Pool,
    PoolTerms,
    TermWeights,
    feature_names,
    lexical,
    load,
    signal_names,
)
from rag_eval.answers.units import units
from rag_eval.retrieval.synonyms import Expansion

settings.register_profile("no-deadline", deadline=None, max_examples=50)
settings.load_profile("no-deadline")

FRANCE = Passage(
    "Paris is the capital of France. It lies on the Seine. The country exports wine and cheese.",
    "France",
    rank=1,
)
GERMANY = Passage("Berlin is the capital of Germany. The Spree flows through it.", "Germany", 2)


def texts(passages, extract):
    return [passages[its.passage].text[its.start : its.end] for its in extract.sentences]


# choosing


def test_the_sentence_that_answers_is_first_and_the_signal_tells_the_passages_apart():
    answerer = Extractive()
    right, wrong = answerer.answer(
        ["What is the capital of France?"] * 2,
        [[FRANCE], [Passage("Dogs bark at night. Cats sleep.", "Animals")]],
    )
    assert texts([FRANCE], right)[0] == "Paris is the capital of France."
    assert right.answered
    assert not wrong.answered
    assert wrong.signal == 0
    assert wrong.sentences == ()  # no word of the question is in the evidence


def test_the_passage_that_answers_wins_over_a_better_ranked_one():
    found = Extractive(max_sentences=1).answer(
        ["What is the capital of Germany?"], [[FRANCE, GERMANY]]
    )[0]
    assert texts([FRANCE, GERMANY], found) == ["Berlin is the capital of Germany."]


def test_the_embedder_sees_each_text_once_in_one_call():
    calls = []

    def embed(batch):
        calls.append(list(batch))
        return np.full((len(batch), 2), np.sqrt(0.5), dtype=np.float32)

    Extractive(embed).answer(
        ["capital of France?", "capital of Germany?"], [[FRANCE, GERMANY], [FRANCE, GERMANY]]
    )
    assert len(calls) == 1
    assert len(calls[0]) == 2 + len(set(calls[0][2:]))


def test_nearness_decides_where_words_cannot():
    vectors = {"qui": (1, 0), "pes": (0.9, np.sqrt(1 - 0.81)), "feles": (0, 1)}

    def embed(batch):
        return np.array(
            [next(vector for word, vector in vectors.items() if word in text) for text in batch],
            dtype=np.float32,
        )

    passages = [Passage("Ecce feles.\n\nEcce pes.")]
    assert texts(passages, Extractive(embed, max_sentences=1).answer(["qui?"], [passages])[0]) == [
        "Ecce pes."
    ]


@pytest.mark.parametrize(
    ("question", "passages"),
    [
        ("", [FRANCE]),
        ("?!", [FRANCE]),
        ("What is the capital of France?", []),
        ("What is the capital of France?", [Passage("", "")]),
        ("What is the capital of France?", [Passage(" \n\t ", "France")]),
        ("what is it?", [Passage("...", "")]),
    ],
)
def test_nothing_to_say(question, passages):
    def embed(batch):
        return np.ones((len(batch), 1), dtype=np.float32)

    for answerer in (Extractive(), Extractive(embed)):
        found = answerer.answer([question], [passages])[0]
        assert not found.answered
        assert found.sentences == ()
        assert found.signal == 0


def test_an_empty_batch():
    assert Extractive().answer([], []) == []


def test_questions_and_lists_of_passages_must_match():
    with pytest.raises(ValueError, match="2 questions, 1 lists"):
        Extractive().answer(["a", "b"], [[FRANCE]])


def test_other_scripts_and_a_word_without_end():
    passages = [
        Passage("東京は日本の首都です。富士山は高い。", "日本"),
        Passage("Столица России — Москва. Она стоит на реке.", "Россия"),
        Passage("a" * 1_000_000 + " столица", ""),
    ]
    found = Extractive().answer(["Назовите: столица России"], [passages])[0]
    assert texts(passages, found)[0] == "Столица России — Москва."


def test_a_sentence_that_many_passages_have_is_cited_once_from_the_best_ranked():
    copies = [
        Passage("Paris is  the capital of France.", "France", 3),
        Passage("Paris is the capital\nof France.", "France", 2),
        GERMANY,
    ]
    found = Extractive(abstain_below=0).answer(["What is the capital of France?"], [copies])[0]
    cited = [its.passage for its in found.sentences]
    assert cited.count(0) + cited.count(1) == 1
    assert cited[0] == 1


def test_code_and_pointers_stand_behind_what_says_the_same():
    passages = [
        Passage(
            "See Also\n--------\nFrame.tail : Last rows of a frame.\n\nExamples\n--------\n"
            ">>> last rows of a frame\n\nNotes\n-----\nLast rows of a frame.",
            "Frame",
        )
    ]
    assert texts(
        passages, Extractive(max_sentences=1).answer(["last rows of a frame"], [passages])[0]
    ) == ["Last rows of a frame."]


@pytest.mark.parametrize(
    "options", [{"max_sentences": 0}, {"abstain_below": 1.5}, {"abstain_below": -0.1}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="accepted"):
        Extractive(**options)


def test_the_threshold_decides_and_nothing_else():
    questions, passages = (
        ["What is the capital of France?", "Which river flows through Berlin?"],
        [[FRANCE], [GERMANY]],
    )
    always, never = (
        Extractive(abstain_below=0).answer(questions, passages),
        Extractive(abstain_below=1).answer(questions, passages),
    )
    assert [its.answered for its in always] == [True, True]
    assert [its.answered for its in never] == [False, False]
    assert [(its.sentences, its.signal) for its in always] == [
        (its.sentences, its.signal) for its in never
    ]


# invariants

words = st.sampled_from(
    [
        "capital",
        "France",
        "river",
        "Paris",
        "exports",
        "wine",
        "cheese",
        "the",
        "of",
        "in",
        "1999",
        "Seine",
        "long",
        "名前",
    ]
)
sentence = st.lists(words, min_size=1, max_size=8).map(lambda its: " ".join(its).capitalize() + ".")
passage_text = st.one_of(st.lists(sentence, max_size=5).map(" ".join), st.text(max_size=60))
question = st.one_of(st.lists(words, min_size=1, max_size=6).map(" ".join), st.text(max_size=20))
title = st.sampled_from(["", "France", "River"])


def ranked(pairs):
    return [Passage(text, name, rank) for rank, (text, name) in enumerate(pairs, start=1)]


batches = st.lists(
    st.tuples(question, st.lists(st.tuples(passage_text, title), max_size=4).map(ranked)),
    min_size=1,
    max_size=4,
)


def letters(batch):
    """A deterministic embedder whose vectors do not depend on the batch."""
    counts = np.array(
        [[text.count(letter) + 0.5 for letter in "aeionr"] for text in batch]
    ).reshape(len(batch), 6)
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


WEIGHTS = TermWeights({"capit": 3, "franc": 2, "river": 5}, 20)


@given(batches, st.integers(1, 4), st.booleans())
def test_spans_lie_in_their_passages_and_are_whole_units(batch, most, embedded):
    answerer = Extractive(letters if embedded else None, max_sentences=most, term_weights=WEIGHTS)
    for (_, passages), found in zip(batch, answerer.answer(*zip(*batch, strict=True)), strict=True):
        assert 0 <= found.signal <= 1
        assert len(found.sentences) <= most
        scores = [its.score for its in found.sentences]
        assert scores == sorted(scores, reverse=True)
        said = [" ".join(text.lower().split()) for text in texts(passages, found)]
        assert len(set(said)) == len(said)
        for its in found.sentences:
            assert (its.start, its.end) in {
                (unit.start, unit.end) for unit in units(passages[its.passage].text)
            }


@given(batches, st.booleans())
def test_a_batch_gives_what_one_by_one_gives(batch, embedded):
    answerer = Extractive(letters if embedded else None, term_weights=WEIGHTS)
    together = answerer.answer(*zip(*batch, strict=True))
    assert together == answerer.answer(*zip(*batch, strict=True))
    alone = [answerer.answer([asked], [passages])[0] for asked, passages in batch]
    for one, other in zip(together, alone, strict=True):
        assert one.signal == pytest.approx(other.signal, abs=2e-6)
        assert [its.score for its in one.sentences] == pytest.approx(
            [its.score for its in other.sentences], abs=2e-6
        )
        if not embedded:
            assert one == other


@given(
    question,
    st.lists(st.tuples(passage_text, title), max_size=5).map(ranked),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_passages_are_given_changes_nothing(asked, passages, random):
    shuffled = random.sample(passages, len(passages))
    answerer = Extractive(term_weights=WEIGHTS)
    first, second = answerer.answer([asked, asked], [passages, shuffled])
    assert first.signal == second.signal
    assert [
        (passages[its.passage].rank, its.start, its.end, its.score) for its in first.sentences
    ] == [(shuffled[its.passage].rank, its.start, its.end, its.score) for its in second.sentences]


# weights


def test_term_weights_are_scaled_idf():
    weights = TermWeights.of_texts(["the capital of France", "the river", "the river Seine"])
    found = dict(
        zip(
            vocabulary := {"river": 0, "franc": 1, "unknown": 2},
            weights.weigh(vocabulary),
            strict=True,
        )
    )
    assert found["unknown"] == 1
    assert found["river"] == pytest.approx(np.log1p(1.5 / 2.5) / np.log1p(3.5 / 0.5))
    assert found["river"] < found["franc"] < 1
    assert TermWeights().weigh(vocabulary).tolist() == [1, 1, 1]


def test_function_words_of_a_question_count_for_nothing():
    pool = Pool(["How do I get the capital of France?"], [[FRANCE]])
    assert PoolTerms(pool, TermWeights()).questions.sum() == 2


@pytest.mark.parametrize("model", ["lexical", "lsa", "sentence"])
def test_every_feature_has_its_weight(model):
    weights = load(model)
    assert weights.features == feature_names(model)
    assert len(weights.sentence) == len(weights.features)
    assert len(weights.signal) == len(signal_names(weights.features))
    assert np.isfinite(
        [*weights.sentence, *weights.signal, weights.sentence_bias, weights.signal_bias]
    ).all()
    assert 0 < weights.threshold < 1


# synonyms

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
TEXT = (
    "Drop a column. Blank pages follow. Find missing parts. There is no value. An empty string "
    "has value."
)
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
    values = lexical(pool, PoolTerms(pool, TermWeights(), expansion))
    return {
        name: values[:, place].reshape(len(questions), -1) for place, name in enumerate(LEXICAL)
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
    for name in LEXICAL:
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
