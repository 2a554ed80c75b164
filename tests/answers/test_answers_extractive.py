"""The extractive answerer: units, choices, invariants, features, and its bars on public data."""

import json

import numpy as np
import pytest
from answer_sets import (
    auroc,
    auroc_interval,
    clapnq,
    lsa_embed,
    minilm_embed,
    precision_recall,
    scifact_evidence,
    xquad,
)
from hypothesis import given
from hypothesis import strategies as st
from pandas_evidence import figures, pandas_evidence
from requirements import report_missing

from rag_eval.answers.extractive import (
    LEXICAL,
    MAX_ENTRY,
    MAX_SENTENCE,
    Extractive,
    Passage,
    Pool,
    cut_units,
)
from rag_eval.corpus.analyzer import DocumentFrequencies, count_documents
from rag_eval.retrieval.synonyms import Expansion

# ---- Units of a passage

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


def test_a_docstring_is_cut_into_sentences_entries_items_pointers_and_code():
    found = [(unit.kind, DOCSTRING[unit.start : unit.end]) for unit in cut_units(DOCSTRING)]
    assert found == [
        ("sentence", "Sort by the values along either axis."),
        ("sentence", "Rows are compared in their order."),
        ("sentence", "The result is new."),
        (
            "entry",
            (
                "by : str or list of str\n    Name or list of names to sort by.\n\n"
                "    * if `axis` is 0 then `by` may contain index levels"
            ),
        ),
        (
            "entry",
            (
                "na_position : {'first', 'last'}, default 'last'\n"
                "    Puts NaNs at the beginning if `first`."
            ),
        ),
        ("entry", "**kwargs\n    Passed on."),
        ("pointer", "Series.sort_values : Similar method for a Series."),
        ("code", '>>> frame.sort_values(by="a")\n   a\n0  1'),
        ("code", ">>> frame.sort_index()"),
    ]


def test_what_is_too_long_is_cut():
    entry = "key : callable\n" + "".join(
        f"    It is applied to the values of row {i} before they are sorted.\n" for i in range(40)
    )
    pieces = [unit.end - unit.start for unit in cut_units(entry)]
    assert len(pieces) > 1
    assert max(pieces) <= MAX_ENTRY
    word = cut_units("x" * 1_000_000)
    assert len(word) == 1_000_000 // MAX_SENTENCE
    assert max(unit.end - unit.start for unit in word) == MAX_SENTENCE


@given(st.text(alphabet=st.sampled_from("ab.:*->=\n \t\u3000\u2028名。é-"), max_size=300))
def test_units_lie_in_their_text_in_order_and_each_has_a_word(text):
    found = cut_units(text)
    edges = [edge for unit in found for edge in (unit.start, unit.end)]
    assert edges == sorted(edges)
    for unit in found:
        piece = text[unit.start : unit.end]
        assert piece
        assert piece == piece.strip()
        assert any(character.isalnum() for character in piece)


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


# ---- Features


def expansion(*entries):
    keys = ("terms", "means", "weight")
    rows = [dict(zip(keys, entry, strict=True)) for entry in entries]
    return Expansion.model_validate_json(json.dumps({"version": 1, "entries": rows}))


SMALL = expansion(
    (["discard", "throw away"], ["drop"], 0.5),
    (["blank"], ["missing", "empty value"], 0.8),
)
TEXT = (
    "Drop a column. Blank pages follow. Find missing parts. There is no value. An empty string "
    "has value."
)
EQUAL = DocumentFrequencies(0, {})  # every term weighs the same


def measured(question, passages, frequencies=FREQUENCIES, synonyms=None):
    values = Pool([question], [passages]).lexical(frequencies, synonyms)
    return dict(zip(LEXICAL, values.T, strict=True))


def test_function_words_of_a_question_count_for_nothing():
    found = measured("How do I get the capital of France?", [FRANCE])
    assert found["unit_coverage"][0] == 1


def test_coverage_is_the_share_of_scaled_idf():
    background = count_documents(["the capital of France", "the river", "the river Seine"])
    found = measured("river unknown", [Passage("A river. Nothing.")], background)
    river = np.log1p(1.5 / 2.5) / np.log1p(3.5 / 0.5)
    assert found["unit_coverage"].tolist() == pytest.approx([river / (river + 1), 0])
    assert found["missing"].tolist() == pytest.approx([1, 1])
    found = measured("river unknown", [Passage("A river. Nothing.")], EQUAL)
    assert found["evidence_coverage"].tolist() == pytest.approx([0.5, 0.5])


def test_neighbouring_words_of_a_question_are_a_pair_in_either_order():
    found = measured("capital France", [Passage("France has a capital. Capital, France, river.")])
    assert found["pairs"].tolist() == [1, 1]
    found = measured("river capital France", [Passage("Capital France. Capital, river, France.")])
    assert found["pairs"].tolist() == [0.5, 0.5]


def test_a_synonym_counts_its_weight():
    parts = [Passage(TEXT, "Column parts")]
    found, plain = measured("blank", parts, EQUAL, SMALL), measured("blank", parts, EQUAL)
    # The synonym "empty value" counts only where both of its words stand.
    assert found["unit_coverage"].tolist() == pytest.approx([0, 1, 0.8, 0, 0.8])
    assert plain["unit_coverage"].tolist() == [0, 1, 0, 0, 0]
    assert found["frequency"][1] == plain["frequency"][1]
    assert 0 < found["frequency"][2] < 0.8
    # "away" is a function word: it belongs to the phrase "throw away" but has no weight.
    found = measured("throw away a column", parts, EQUAL, SMALL)
    for name in ("unit_coverage", "passage_coverage", "evidence_coverage"):
        assert found[name][0] == pytest.approx((0.5 + 1) / 2)
    assert found["missing"][0] == pytest.approx(0.5)


def test_evidence_is_covered_by_its_best_passage_not_by_their_sum():
    passages = [Passage(text) for text in ("Drop it.", "They drop.", "A dropped one.")]
    found = measured("discard", passages, EQUAL, SMALL)
    assert found["evidence_coverage"].tolist() == [0.5] * 3


# ---- Bars on public data, also on questions outside any fit


@pytest.fixture(scope="module")
def minilm():
    embed = minilm_embed()
    if embed is None:
        report_missing("minilm", "the model all-MiniLM-L6-v2 is not on this machine")
    return embed


@pytest.fixture(scope="module")
def clapnq_set(shared_data):
    return clapnq(shared_data)


@pytest.fixture(scope="module")
def xquad_sets(shared_data):
    return xquad(shared_data)


def words_only(its):
    return Extractive(frequencies=count_documents(its.background))


def embedded_default(its):
    embed = lsa_embed(its.background)
    return Extractive(embed, embedding="lsa", frequencies=count_documents(its.background))


def with_model(its, minilm):
    return Extractive(minilm, frequencies=count_documents(its.background))


def halves(its):
    return {
        "all": np.ones(len(its.held_out), dtype=bool),
        "fitted": ~its.held_out,
        "held out": its.held_out,
    }


def check_sentences(its, extracts, least_precision, least_recall):
    precision, recall = precision_recall(extracts, its.gold)
    for part, rows in halves(its).items():
        used = rows & its.answerable
        found = precision[used].mean(), recall[used].mean()
        assert found[0] >= least_precision, (part, found)
        assert found[1] >= least_recall, (part, found)


def check_abstention(answerer, positive, signal, parts, *, least, lower):
    """Check how well the signal tells positive questions from the others.

    The lower bound of the AUROC over the whole sample is at least `lower`. The AUROC of each part
    is at least `least`. The answerer refuses fewer than 15 % of the positive questions of a part.
    """
    assert auroc_interval(positive, signal, resamples=500)[0] >= lower
    for part, rows in parts.items():
        assert auroc(positive[rows], signal[rows]) >= least, part
        assert (signal[rows & positive] < answerer.abstain_below).mean() < 0.15, part


def signals(extracts):
    return np.array([its.signal for its in extracts])


@pytest.mark.slow
@pytest.mark.parametrize("answerer", [words_only, embedded_default])
def test_clapnq_sentences_and_abstention_without_a_model(clapnq_set, answerer):
    model = answerer(clapnq_set)
    found = model.answer(clapnq_set.questions, clapnq_set.passages)
    check_sentences(clapnq_set, found, 0.58, 0.55)
    parts = halves(clapnq_set)
    check_abstention(model, clapnq_set.carried, signals(found), parts, least=0.70, lower=0.65)


@pytest.mark.slow
def test_clapnq_with_minilm(clapnq_set, minilm):
    its = clapnq_set.every(3)
    model = with_model(its, minilm)
    found = model.answer(its.questions, its.passages)
    check_sentences(its, found, 0.58, 0.58)
    check_abstention(model, its.carried, signals(found), halves(its), least=0.80, lower=0.80)


@pytest.mark.slow
def test_xquad_the_right_paragraph_is_told_from_the_nearest_wrong_one(xquad_sets):
    right, wrong = xquad_sets["xquad"], xquad_sets["xquad_wrong"]
    model = embedded_default(right)
    signal = np.concatenate(
        [signals(model.answer(its.questions, its.passages)) for its in (right, wrong)]
    )
    positive = np.repeat([True, False], len(right.questions))
    parts = {name: np.tile(rows, 2) for name, rows in halves(right).items()}
    check_abstention(model, positive, signal, parts, least=0.82, lower=0.82)


@pytest.mark.slow
def test_the_signal_is_about_as_often_right_as_it_says(xquad_sets):
    its = xquad_sets["xquad_open"]
    found = embedded_default(its).answer(its.questions, its.passages)
    precision, _ = precision_recall(
        [type(one)(one.sentences[:1], one.signal, answered=one.answered) for one in found], its.gold
    )
    sure = signals(found) >= 0.7
    unsure = (signals(found) < 0.4) & its.answerable
    assert its.held_out[sure].sum() > 100
    assert np.nanmean(precision[sure & its.held_out]) >= 0.8
    assert np.nanmean(precision[unsure]) <= 0.6


@pytest.mark.slow
def test_scifact_rationales_with_words_alone(shared_data):
    its = scifact_evidence(shared_data)
    check_sentences(its, words_only(its).answer(its.questions, its.passages), 0.34, 0.65)


@pytest.mark.slow
def test_scifact_rationales_with_minilm(shared_data, minilm):
    its = scifact_evidence(shared_data).every(3)
    found = with_model(its, minilm).answer(its.questions, its.passages)
    check_sentences(its, found, 0.36, 0.68)
    _, recall = precision_recall(found, its.gold)
    assert recall.mean() >= 0.70


@pytest.mark.slow
def test_answers_of_pandas_api(project_root, tmp_path):
    evidence = pandas_evidence(project_root, tmp_path)
    answers = evidence.answerer().answer(evidence.variants["text"].tolist(), evidence.passages)
    found, with_refused = (
        figures(evidence, answers, ignore_refusals=ignored) for ignored in (False, True)
    )
    assert found["citation_validity"] == 1.0
    assert found["answered_unanswerable"] <= 8
    # Most of the 309 questions are refused, because their evidence lacks the gold.
    assert found["cited"] >= 20
    assert with_refused["cited"] >= 300
    assert found["citation_precision"] >= 0.15 > with_refused["citation_precision"] >= 0.07
