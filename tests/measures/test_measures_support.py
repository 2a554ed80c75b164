"""Support of sentences by a slow reference, examples and human answers."""

import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.analyzer import count_documents, numbers, spell_alike, terms
from rag_eval.measures.contradiction import FUNCTION_WORDS, find_conflicts
from rag_eval.measures.support import (
    BAR,
    Label,
    _names,
    fit_bar,
    groundedness,
    retrieval_gaps,
    support,
)

DELFT = "Painters of Delft sold seven blue jars to merchants from Antwerp.".split()
IGNORED = set(terms(" ".join(FUNCTION_WORDS)))
CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("support_cases.jsonl").read_text("utf-8").splitlines()
]


def one(answer: str, *evidence: str) -> float:
    return float(groundedness([answer], [evidence]).value[0])


def content(sentence: str) -> list[str]:
    return [term for term in terms(spell_alike(sentence)) if term not in IGNORED]


def slow_score(sentence: str, evidence: list[str], *, contradicts: bool) -> float:
    """Compute the definition window by window."""
    parts = [text[start:end] for text in evidence for start, end in sentences.spans(text)]
    shown, words = [content(part) for part in parts], content(sentence)
    if not words:
        return math.nan
    windows = (set().union(*shown[at : at + 3]) for at in range(max(len(parts) - 2, 1)))
    share = max(len(set(words) & window) for window in windows) / len(set(words))
    neighbours, offered = (
        {frozenset(pair) for row in rows for pair in itertools.pairwise(row)}
        for rows in ([words], shown)
    )
    if len(set(words)) > 2:
        share = (share + 0.5 * len(neighbours & offered) / len(neighbours)) / 1.5
    stated, given_numbers = ({*numbers(spell_alike(text))} for text in (sentence, " ".join(parts)))
    names = {*terms(" ".join(_names(sentence)))}
    lacks = not stated <= given_numbers or not names <= {*terms(spell_alike(" ".join(parts)))}
    return share * (0.4 if contradicts else 0.5 if lacks else 1.0)


WORDS = st.sampled_from(
    "tower river bridge stone Old height Paris river's built 12 twelve 7 painters the of".split()
)
# "7." at the beginning of a text is the number of a list item
SENTENCE = (
    st.lists(WORDS, min_size=1, max_size=6)
    .filter(lambda words: words not in (["7"], ["12"]))
    .map(lambda words: " ".join(words).capitalize() + ".")
)
TEXT = st.lists(SENTENCE, max_size=7).map(" ".join)
ANSWER = st.lists(SENTENCE, min_size=1, max_size=3).map(" ".join)


@settings(max_examples=150)
@given(st.lists(st.tuples(ANSWER, st.lists(TEXT, max_size=3)), min_size=1, max_size=4))
def test_the_score_is_what_the_definition_says(cases):
    answers, evidence = [answer for answer, _ in cases], [texts for _, texts in cases]
    scored = groundedness(answers, evidence)
    assert len(scored.value) == len(answers)
    for at, sentence in enumerate(scored.sentences):
        shown, contradicts = evidence[scored.answer_of[at]], bool(scored.supports[at].conflicts)
        expected = slow_score(sentence, shown, contradicts=contradicts)
        assert scored.score[at] == pytest.approx(expected, abs=1e-9, nan_ok=True)


@given(ANSWER, st.lists(TEXT, min_size=1, max_size=3), st.lists(TEXT, max_size=3))
def test_layout_and_company_change_nothing(answer, texts, others):
    alone = groundedness([answer], [texts])
    split = [text[start:end] for text in texts for start, end in sentences.spans(text)]
    layouts = [[" ".join(texts)], split]
    together = groundedness(
        [answer, *[answer] * 2, *others], [texts, *layouts, *[split] * len(others)]
    )
    n = len(alone.score)
    for at in range(3):
        rows = slice(at * n, (at + 1) * n)
        np.testing.assert_array_equal(together.score[rows], alone.score)
        assert [s.window for s in together.supports[rows]] == [s.window for s in alone.supports]


def test_a_whole_sentence_of_the_evidence_says_what_it_says():
    sentence = (
        "Uses default schema if None (default).\n"
        "index_col : str or list of str, optional, default: None"
    )
    assert find_conflicts(sentence, sentence, sentence)  # the words alone misread it
    evidence = f"A first sentence stands before. {' '.join(sentence.split())}"
    (judged,) = support([sentence], [[evidence]])
    assert (judged.score, judged.conflicts) == (1.0, [])


def test_rare_words_of_the_corpus_weigh_more():
    corpus = ["The tower is in Paris.", "The tower is old.", "The tower is tall.", "Iron rusts."]
    rare, common = (
        groundedness([answer], [["The tower is made of iron."]], count_documents(corpus)).value[0]
        for answer in ("Wood and iron.", "Wood and towers.")
    )
    assert rare > common


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_support(case):
    assert (one(case["answer"], *case["evidence"]) >= BAR) == case["supported"]


@pytest.mark.parametrize("answer", ["", "  ", "...", "[1]", "It is.", "•"])
def test_an_answer_without_content_has_no_value(answer):
    assert math.isnan(one(answer, "The capital of France is Paris."))


@pytest.mark.parametrize(
    ("sentence", "verdict", "lacks"),
    [
        ("The old tower stands by the river.", "supported", ()),
        ("The old tower stands by the river with cows.", "supported", ()),
        (
            "The old tower stands by the river, where brown cows often graze.",
            "partly",
            ("brown", "cows", "graze"),
        ),
        ("Brown cows graze.", "unsupported", ("Brown", "cows", "graze")),
        ("The old cows.", "unsupported", ()),
    ],
)
def test_an_invented_clause_is_named(sentence, verdict, lacks):
    (found,) = support([sentence], [["The old tower stands by the river since 1889."]])
    assert (found.verdict(), found.lacks) == (verdict, lacks)
    scored = groundedness([sentence], [["The old tower stands by the river since 1889."]])
    assert scored.supported[0] == (verdict == "supported")


def test_a_bar_is_fitted_to_labels_and_judged_out_of_fold():
    text = ["The old iron tower stands by the wide river."]
    kinds = [("The old iron tower stands by water.", True), ("The old bridge stands here.", False)]
    labels = [Label(str(n), *kinds[n % 2][:1], text, kinds[n % 2][1]) for n in range(20)]
    fitted = fit_bar(labels)
    assert one(kinds[1][0], *text) < fitted.bar < one(kinds[0][0], *text)
    assert (fitted.accuracy, fitted.n) == (1.0, 20)
    words, rng = text[0].split(), random.Random(3)
    noise = [
        Label(
            str(n),
            " ".join([*words[: rng.randint(2, 9)], *DELFT[: rng.randint(0, 9)]]),
            text,
            n % 2 < 1,
        )
        for n in range(40)
    ]
    assert fit_bar(noise).accuracy < 0.55
    with pytest.raises(ValueError, match="1 questions with other"):
        fit_bar([*labels[::2], labels[1]])


def interval(
    own: np.ndarray, other: np.ndarray, resamples: int = 2000
) -> tuple[float, float, float]:
    """Return the AUROC of pairs of the same question, with a 95 % bootstrap interval.

    The bootstrap draws questions.
    """
    wins = (own[:, None] > other) + 0.5 * (own[:, None] == other)
    n = len(own)
    weights = np.random.default_rng(5).multinomial(n, np.full(n, 1 / n), size=resamples) / n
    low, high = np.quantile(((weights @ wins) * weights).sum(axis=1), [0.025, 0.975])
    return float(wins.mean()), float(low), float(high)


@pytest.fixture(scope="module")
def clapnq(shared_data):
    """Return the human answers and the passage of each answer."""
    lines = (shared_data / "clapnq" / "clapnq_dev_answerable.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row["output"][0]["answer"] for row in rows], [row["passages"][0] for row in rows]


@pytest.mark.parametrize("by", ["title", "text"])
def test_clapnq_answers_are_told_apart_on_their_own_and_the_nearest_other_passage(clapnq, by):
    from sklearn.feature_extraction.text import TfidfVectorizer

    answers, passages = clapnq
    texts = np.array([passage["text"] for passage in passages])
    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    vectors = vectorizer.fit_transform([passage[by] for passage in passages])
    likeness = (vectors @ vectors.T).toarray()
    likeness[texts[:, None] == texts] = -1
    shown = [[text] for text in (*texts, *texts[likeness.argmax(axis=1)])]
    value = groundedness([*answers, *answers], shown).value
    assert not np.isnan(value).any()
    auroc, low, high = interval(*np.split(value, 2))
    assert auroc >= 0.97, (auroc, low, high)
    assert low >= 0.96, (auroc, low, high)


def test_human_answers_use_their_own_passage_and_no_other(clapnq):
    answers, shown = clapnq[0], [[passage["text"]] for passage in clapnq[1]]
    own, other = (retrieval_gaps(answers, texts) for texts in (shown, shown[1:] + shown[:1]))
    # A passage without its title often lacks the name that an answer repeats from the question.
    assert sum(found.violation for found in own) <= 0.05 * len(answers)
    assert sum(found.violation for found in other) >= 0.98 * len(answers)
    # These answers hold no phrase about sources, so only the content decides.
    assert {found.reason for found in own + other} <= {"content_used", "content_unused"}
