"""The extractive answerer by itself: what may be cited, what is chosen, and what it may never depend on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.answers import abstention
from rag_eval.answers.candidates import MAX_ENTRY, MAX_SENTENCE, units
from rag_eval.answers.coefficients import feature_names, load
from rag_eval.answers.extractive import Extractive, Passage, TermWeights
from rag_eval.answers.pool import Pool
from rag_eval.answers.terms import PoolTerms

settings.register_profile("no-deadline", deadline=None, max_examples=50)
settings.load_profile("no-deadline")

DOCSTRING = """Sort by the values along either axis.

Rows are compared in their order. The result is new.

Parameters
----------
by : str or list of str
    Name or list of names to sort by.

    * if `axis` is 0 then `by` may contain index levels
na_position : {'first', 'last'}, default 'last'
    Puts NaNs at the beginning if `first`.
**kwargs
    Passed on.

See Also
--------
Series.sort_values : Similar method for a Series.

Examples
--------
>>> frame.sort_values(by="a")
   a
0  1

>>> frame.sort_index()
"""

FRANCE = Passage(
    "Paris is the capital of France. It lies on the Seine. The country exports wine and cheese.",
    "France",
    rank=1,
)
GERMANY = Passage(
    "Berlin is the capital of Germany. The Spree flows through it.", "Germany", 0.8, 2
)


def texts(passages, extract):
    return [passages[its.passage].text[its.start : its.end] for its in extract.sentences]


# units


def test_a_docstring_is_cut_into_sentences_entries_items_pointers_and_code():
    found = [(unit.kind, DOCSTRING[unit.start : unit.end]) for unit in units(DOCSTRING)]
    assert found == [
        ("sentence", "Sort by the values along either axis."),
        ("sentence", "Rows are compared in their order."),
        ("sentence", "The result is new."),
        (
            "entry",
            "by : str or list of str\n    Name or list of names to sort by.\n\n    * if `axis` is 0 then `by` may contain index levels",
        ),
        (
            "entry",
            "na_position : {'first', 'last'}, default 'last'\n    Puts NaNs at the beginning if `first`.",
        ),
        ("entry", "**kwargs\n    Passed on."),
        ("pointer", "Series.sort_values : Similar method for a Series."),
        ("code", '>>> frame.sort_values(by="a")\n   a\n0  1'),
        ("code", ">>> frame.sort_index()"),
    ]


def test_list_items_are_units_of_their_own():
    text = "Choose one:\n\n- red, which\n  is warm\n- blue\n\nThen go on. Stop."
    assert [text[unit.start : unit.end] for unit in units(text)] == [
        "Choose one:",
        "- red, which\n  is warm",
        "- blue",
        "Then go on.",
        "Stop.",
    ]


def test_what_is_too_long_is_cut():
    entry = "key : callable\n" + "".join(
        f"    It is applied to the values of row {i} before they are sorted.\n" for i in range(40)
    )
    pieces = [unit.end - unit.start for unit in units(entry)]
    assert len(pieces) > 1
    assert max(pieces) <= MAX_ENTRY
    word = units("x" * 1_000_000)
    assert len(word) == 1_000_000 // MAX_SENTENCE
    assert max(unit.end - unit.start for unit in word) == MAX_SENTENCE


@given(st.text(alphabet=st.sampled_from("ab.:*->=\n \t\u3000\u2028名。é-"), max_size=300))
def test_units_lie_in_their_text_in_order_and_each_has_a_word(text):
    found = units(text)
    edges = [edge for unit in found for edge in (unit.start, unit.end)]
    assert edges == sorted(edges)
    for unit in found:
        piece = text[unit.start : unit.end]
        assert piece
        assert piece == piece.strip()
        assert any(character.isalnum() for character in piece)


@given(
    st.lists(
        st.text(alphabet=st.characters(categories=["L", "N"]), min_size=1, max_size=8),
        min_size=1,
        max_size=30,
    )
)
def test_plain_prose_loses_no_word(words):
    text = " ".join(words)
    assert " ".join(text[unit.start : unit.end] for unit in units(text)).split() == text.split()


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
        Passage("Paris is  the capital of France.", "France", 0.5, 3),
        Passage("Paris is the capital\nof France.", "France", 0.9, 2),
        GERMANY,
    ]
    found = Extractive(abstain_below=0).answer(["What is the capital of France?"], [copies])[0]
    cited = [its.passage for its in found.sentences]
    assert cited.count(0) + cited.count(1) == 1
    assert cited[0] == 1


def test_code_and_pointers_stand_behind_what_says_the_same():
    passages = [
        Passage(
            "See Also\n--------\nFrame.tail : Last rows of a frame.\n\nExamples\n--------\n>>> last rows of a frame\n\nNotes\n-----\nLast rows of a frame.",
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
    return [Passage(text, name, 1 / rank, rank) for rank, (text, name) in enumerate(pairs, start=1)]


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
            weights.of(vocabulary),
            strict=True,
        )
    )
    assert found["unknown"] == 1
    assert found["river"] == pytest.approx(np.log1p(1.5 / 2.5) / np.log1p(3.5 / 0.5))
    assert found["river"] < found["franc"] < 1
    assert TermWeights().of(vocabulary).tolist() == [1, 1, 1]


def test_function_words_of_a_question_count_for_nothing():
    pool = Pool(["How do I get the capital of France?"], [[FRANCE]])
    assert PoolTerms(pool, TermWeights()).questions.sum() == 2


@pytest.mark.parametrize("model", ["lexical", "lsa", "sentence"])
def test_every_feature_has_its_weight(model):
    weights = load(model)
    assert weights.features == feature_names(model)
    assert len(weights.sentence) == len(weights.features)
    assert len(weights.signal) == len(abstention.signal_names(weights.features))
    assert np.isfinite(
        [*weights.sentence, *weights.signal, weights.sentence_bias, weights.signal_bias]
    ).all()
    assert 0 < weights.threshold < 1
