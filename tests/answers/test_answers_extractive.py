import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.answers.extractive import (
    LEXICAL,
    Extractive,
    Passage,
    Pool,
    cut_units,
    lexical,
    weigh_terms,
)
from rag_eval.corpus.analyzer import DocumentFrequencies, count_documents
from rag_eval.retrieval.synonyms import Expansion

PARIS = "Paris is the capital of France. It lies on the Seine. The country exports wine and cheese."
FRANCE = Passage(PARIS, "France", rank=1)
GERMANY = Passage("Berlin is the capital of Germany. The Spree flows through it.", "Germany", 2)
CAPITAL = "What is the capital of France?"


def texts(passages, extract):
    return [passages[one.passage].text[one.start : one.end] for one in extract.sentences]


def best(question, passages, embed=None):
    """Return the text of the first sentence of an answer."""
    (found,) = Extractive(embed, max_sentences=1).answer([question], [passages])
    return texts(passages, found)[0]


# ---- Choosing


def test_answer_comes_first_and_the_signal_tells_passages_apart():
    dogs = [Passage("Dogs bark at night. Cats sleep.", "Animals")]
    right, wrong = Extractive().answer([CAPITAL] * 2, [[FRANCE], dogs])
    assert texts([FRANCE], right)[0] == "Paris is the capital of France."
    assert right.answered
    # The evidence has no word of the question.
    assert (wrong.answered, wrong.signal, wrong.sentences) == (False, 0, ())


SORTED = Passage(
    "See Also\n--------\nFrame.tail : Last rows of a frame.\n\nExamples\n--------\n"
    ">>> last rows of a frame\n\nNotes\n-----\nLast rows of a frame."
)
SCRIPTS = [
    Passage("東京は日本の首都です。富士山は高い。", "日本"),
    Passage("Столица России — Москва. Она стоит на реке.", "Россия"),
    Passage("a" * 1_000_000 + " столица"),
]


@pytest.mark.parametrize(
    ("question", "passages", "sentence"),
    [
        ("capital of Germany?", [FRANCE, GERMANY], "Berlin is the capital of Germany."),
        ("last rows of a frame", [SORTED], "Last rows of a frame."),  # not the code or See Also
        ("Назовите: столица России", SCRIPTS, "Столица России — Москва."),
    ],
)
def test_best_sentence(question, passages, sentence):
    assert best(question, passages) == sentence


def test_embedder_sees_each_text_once_in_one_call():
    calls = []

    def embed(batch):
        calls.append(list(batch))
        return np.full((len(batch), 2), np.sqrt(0.5), dtype=np.float32)

    Extractive(embed).answer([CAPITAL, "capital of Germany?"], [[FRANCE, GERMANY]] * 2)
    assert [len(call) for call in calls] == [2 + len(set(calls[0][2:]))]


def test_nearness_decides_where_words_cannot():
    vectors = {"qui": (1, 0), "pes": (0.9, np.sqrt(1 - 0.81)), "feles": (0, 1)}

    def embed(batch):
        near = [next(vector for word, vector in vectors.items() if word in text) for text in batch]
        return np.array(near, dtype=np.float32)

    assert best("qui?", [Passage("Ecce feles.\n\nEcce pes.")], embed) == "Ecce pes."


@pytest.mark.parametrize(
    ("question", "passages"),
    [
        *(("", [FRANCE]), ("?!", [FRANCE]), (CAPITAL, []), (CAPITAL, [Passage("")])),
        *((CAPITAL, [Passage(" \n\t ", "France")]), ("what is it?", [Passage("...")])),
    ],
)
def test_nothing_to_say(question, passages):
    for embed in (None, lambda batch: np.ones((len(batch), 1), dtype=np.float32)):
        (found,) = Extractive(embed).answer([question], [passages])
        assert (found.answered, found.sentences, found.signal) == (False, (), 0)


def test_of_copies_the_best_ranked_is_cited_once():
    copies = [
        Passage("Paris is  the capital of France.", "France", 3),
        Passage("Paris is the capital\nof France.", "France", 2),
        GERMANY,
    ]
    (found,) = Extractive(abstain_below=0).answer([CAPITAL], [copies])
    cited = [one.passage for one in found.sentences]
    assert cited[0] == 1
    assert 0 not in cited
    assert cited.count(1) == 1


def test_threshold_decides_and_changes_nothing_else():
    asked = [CAPITAL, "Which river flows through Berlin?"], [[FRANCE], [GERMANY]]
    always, never = (Extractive(abstain_below=least).answer(*asked) for least in (0, 1))
    assert [one.answered for one in (*always, *never)] == [True, True, False, False]
    assert [(one.sentences, one.signal) for one in always] == [
        (one.sentences, one.signal) for one in never
    ]


# ---- Invariants

words = st.sampled_from(
    "capital France river Paris exports wine cheese the of in 1999 Seine long 名前".split()
)
sentence = st.lists(words, min_size=1, max_size=8).map(lambda it: " ".join(it).capitalize() + ".")
passage_text = st.lists(sentence, max_size=5).map(" ".join) | st.text(max_size=60)
question = st.lists(words, min_size=1, max_size=6).map(" ".join) | st.text(max_size=20)
titles = st.sampled_from(["", "France", "River"])
ranked = st.lists(st.tuples(passage_text, titles), max_size=5).map(
    lambda pairs: [Passage(text, name, rank) for rank, (text, name) in enumerate(pairs, start=1)]
)
batches = st.lists(st.tuples(question, ranked), min_size=1, max_size=4)


def letters(batch):
    """Return unit vectors of shape (n, 6); a text's vector does not depend on its batch."""
    counts = np.array([[text.count(letter) + 0.5 for letter in "aeionr"] for text in batch])
    counts = counts.reshape(len(batch), 6)
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)


FREQUENCIES = DocumentFrequencies(20, {"capit": 3, "franc": 2, "river": 5})


@given(batches, st.integers(1, 4), st.booleans())
def test_spans_are_whole_units_of_their_passages(batch, most, embedded):
    embed = letters if embedded else None
    answerer = Extractive(embed, max_sentences=most, frequencies=FREQUENCIES)
    for (_, passages), found in zip(batch, answerer.answer(*zip(*batch, strict=True)), strict=True):
        assert 0 <= found.signal <= 1
        assert len(found.sentences) <= most
        scores = [one.score for one in found.sentences]
        assert scores == sorted(scores, reverse=True)
        plain = [" ".join(text.lower().split()) for text in texts(passages, found)]
        assert len(set(plain)) == len(plain)
        for one in found.sentences:
            units = cut_units(passages[one.passage].text)
            assert (one.start, one.end) in {(unit.start, unit.end) for unit in units}


@given(batches, st.booleans())
def test_batch_gives_what_single_questions_give(batch, embedded):
    answerer = Extractive(letters if embedded else None, frequencies=FREQUENCIES)
    together = answerer.answer(*zip(*batch, strict=True))
    assert together == answerer.answer(*zip(*batch, strict=True))
    alone = [answerer.answer([asked], [passages])[0] for asked, passages in batch]
    for one, other in zip(together, alone, strict=True):
        assert one.signal == pytest.approx(other.signal, abs=2e-6)
        scores = [[sentence.score for sentence in found.sentences] for found in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=2e-6)
        if not embedded:
            assert one == other


# ---- Weights


def test_term_weights_are_scaled_idf():
    background = count_documents(["the capital of France", "the river", "the river Seine"])
    vocabulary = {"river": 0, "franc": 1, "unknown": 2}
    river, france, unknown = weigh_terms(background, vocabulary)
    assert river == pytest.approx(np.log1p(1.5 / 2.5) / np.log1p(3.5 / 0.5))
    assert river < france < unknown == 1
    assert weigh_terms(DocumentFrequencies(0, {}), vocabulary).tolist() == [1, 1, 1]


# ---- Features and synonyms


def expansion(*entries):
    keys = ("terms", "means", "weight")
    rows = [dict(zip(keys, entry, strict=True)) for entry in entries]
    return Expansion.model_validate_json(json.dumps({"version": 1, "entries": rows}))


SMALL = expansion(
    (["discard", "throw away"], ["drop"], 0.5),
    (["blank"], ["missing", "empty value"], 0.8),
    (["so far"], ["cumulative"], 0.6),
)
TEXT = (
    "Drop a column. Blank pages follow. Find missing parts. There is no value. An empty string "
    "has value."
)
PASSAGES = (Passage(TEXT, "Column parts"),)


def measured(questions, synonyms, passages=PASSAGES):
    pool = Pool(questions, [list(passages)] * len(questions))
    values = lexical(pool, DocumentFrequencies(0, {}), synonyms)
    return dict(zip(LEXICAL, values.T, strict=True))


def test_function_words_of_a_question_count_for_nothing():
    found = measured(["How do I get the capital of France?"], None, [FRANCE])
    assert found["unit_coverage"][0] == 1


def test_a_synonym_counts_its_weight():
    found, plain = measured(["blank"], SMALL), measured(["blank"], None)
    # The synonym "empty value" counts only where both of its words stand.
    assert found["unit_coverage"].tolist() == pytest.approx([0, 1, 0.8, 0, 0.8])
    assert plain["unit_coverage"].tolist() == [0, 1, 0, 0, 0]
    assert found["frequency"][1] == plain["frequency"][1]
    assert 0 < found["frequency"][2] < 0.8


def test_each_word_of_a_phrase_counts():
    # "away" is a function word: it belongs to the phrase "throw away" but has no weight.
    found = measured(["throw away a column"], SMALL)
    for name in ("unit_coverage", "passage_coverage", "evidence_coverage"):
        assert found[name][0] == pytest.approx((0.5 + 1) / 2)
    assert found["missing"][0] == pytest.approx(0.5)


def test_evidence_is_covered_by_its_best_passage_not_by_their_sum():
    passages = [Passage(text) for text in ("Drop it.", "They drop.", "A dropped one.")]
    assert measured(["discard"], SMALL, passages)["evidence_coverage"].tolist() == [0.5] * 3


def test_a_synonym_finds_the_sentence():
    passages = [Passage("Rows are counted. Missing cells are removed. Columns are renamed.")]
    asked = ["What happens to blanks?"], [passages]
    assert not Extractive().answer(*asked)[0].sentences
    (found,) = Extractive(expansion=Expansion.load("data-terms")).answer(*asked)
    assert texts(passages, found)[0] == "Missing cells are removed."
