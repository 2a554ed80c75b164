"""Groundedness against a slow reference, examples and human answers; retrieval gaps (FK019)."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.corpus import chunking as sentences
from rag_eval.corpus.analyzer import count_documents, terms
from rag_eval.measures.groundedness import (
    FUNCTION_WORDS,
    SUPPORTED,
    Gap,
    _names,
    comparable,
    groundedness,
    numbers,
    retrieval_gaps,
)

IGNORED = set(terms(" ".join(FUNCTION_WORDS)))


def read_cases(name):
    lines = Path(__file__).with_name(name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def one(answer: str, *evidence: str) -> float:
    return float(groundedness([answer], [evidence]).value[0])


def slow_terms(sentence: str) -> dict[object, float]:
    """Return the words and pairs of a sentence with their weights."""
    words = [term for term in terms(comparable(sentence)) if term not in IGNORED]
    pairs = itertools.pairwise(words) if len(words) > 2 else ()
    return {**dict.fromkeys(words, 1.0), **dict.fromkeys(pairs, 0.25)}


def slow_score(sentence: str, evidence: list[str], *, contradicts: bool) -> float:
    """Compute the definition term by term and window by window."""
    parts = [text[start:end] for text in evidence for start, end in sentences.spans(text)]
    found = [{*slow_terms(part)} for part in parts]
    wanted = slow_terms(sentence)

    def weight(first: int) -> float:
        window = set().union(*found[first : first + 3])
        return sum(weight for term, weight in wanted.items() if term in window)

    best = max(range(max(len(parts) - 2, 1)), key=weight)

    def value(holds: list[bool]) -> float:
        away = [max(best - at, at - best - 2, 0) for at, held in enumerate(holds) if held]
        return max(2 ** (-min(away) / 4), 0.3) if away else 0.0

    share = sum(weight * value([term in part for part in found]) for term, weight in wanted.items())
    whole = sum(wanted.values())
    in_window = numbers(" ".join(parts[best : best + 3]).lower().replace("twelve", "12"))
    anywhere = {term for part in found for term in part}
    lacks = not {*numbers(sentence)} <= {*in_window}
    lacks |= not {*terms(" ".join(_names(sentence)))} <= anywhere
    factor = 0.4 if contradicts else 0.5 if lacks else 1.0
    return share / whole * factor if whole else math.nan


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
def test_the_join_gives_what_the_definition_says(cases):
    answers, evidence = [answer for answer, _ in cases], [texts for _, texts in cases]
    found = groundedness(answers, evidence)
    assert len(found.value) == len(answers)
    for at, sentence in enumerate(found.sentences):
        own, contradicts = evidence[found.answer_of[at]], bool(found.conflicts[at])
        expected = slow_score(sentence, own, contradicts=contradicts)
        assert found.score[at] == pytest.approx(expected, abs=1e-9, nan_ok=True)


@given(ANSWER, st.lists(TEXT, min_size=1, max_size=3), st.lists(TEXT, max_size=3))
def test_layout_and_company_change_nothing(answer, texts, others):
    alone = groundedness([answer], [texts])
    split = [text[start:end] for text in texts for start, end in sentences.spans(text)]
    layouts = [[" ".join(texts)], split, ["</s>".join(texts)]]
    together = groundedness(
        [answer, *[answer] * 3, *others], [texts, *layouts, *[split] * len(others)]
    )
    n = len(alone.score)
    for at in range(4):
        np.testing.assert_array_equal(together.score[at * n : (at + 1) * n], alone.score)
        assert together.window[at * n : (at + 1) * n] == alone.window


def test_rare_words_of_the_corpus_weigh_more():
    corpus = ["The tower is in Paris.", "The tower is old.", "The tower is tall.", "Iron rusts."]
    rare, common = (
        groundedness([answer], [["The tower is made of iron."]], count_documents(corpus)).value[0]
        for answer in ("Wood and iron.", "Wood and towers.")
    )
    assert rare > common


def test_blocks_do_not_change_scores(monkeypatch):
    answers = [f"The tower {n} stands by the river. Old stone bridges." for n in range(30)]
    tower, bridge = "Tower {} is old. It stands by a river. Stone it is.", "A bridge. A river."
    evidence = [[tower.format(number), bridge][: number % 3] for number in range(30)]
    whole = groundedness(answers, evidence)
    monkeypatch.setattr("rag_eval.measures.groundedness._BLOCK", 3)
    parts = groundedness(answers, evidence)
    for name in ("score", "share", "value"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


@pytest.mark.parametrize("case", read_cases("support_cases.jsonl"), ids=lambda case: case["case"])
def test_support(case):
    assert (one(case["answer"], *case["evidence"]) >= SUPPORTED) == case["supported"]


@pytest.mark.parametrize("answer", ["", "  ", "...", "[1]", "It is.", "•"])
def test_an_answer_without_content_has_no_value(answer):
    assert math.isnan(one(answer, "The capital of France is Paris."))


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


# retrieval gaps (FK019)

FRANCE = ("The capital of France is Paris.",)
CASES = read_cases("gap_cases.jsonl")
BROKEN = {"content_unused", "citation_unsupported", "empty_answer"}
"""Reasons that break the rule."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["answer"][:40] or "(empty)")
def test_gap_verdict(case):
    (found,) = retrieval_gaps([case["answer"]], [case["retrieved"]])
    assert (found.reason, found.violation) == (case["reason"], case["reason"] in BROKEN)


def test_human_answers_use_their_own_passage_and_no_other(clapnq):
    answers, shown = clapnq[0], [[passage["text"]] for passage in clapnq[1]]
    own, other = (retrieval_gaps(answers, texts) for texts in (shown, shown[1:] + shown[:1]))
    # A passage without its title often lacks the name that an answer repeats from the question.
    assert sum(found.violation for found in own) <= 0.05 * len(answers)
    assert sum(found.violation for found in other) >= 0.98 * len(answers)
    # These answers hold no phrase about sources, so only the content decides.
    assert {found.reason for found in own + other} <= {"content_used", "content_unused"}


@pytest.mark.parametrize(
    "answer", ["Berlin lies on the Spree.", "", "Without the documents: Berlin."]
)
def test_retrieval_that_sets_the_tone_is_exempt(answer):
    (found,) = retrieval_gaps([answer], [FRANCE], purpose="context")
    assert found == Gap("context_only")


def test_a_citation_counts_if_it_supports_a_sentence():
    cases = [
        ("The capital of France is Berlin.", True, "cited"),
        ("The capital of France is Berlin.", False, "citation_unsupported"),
        ("The capital of France is Berlin.", None, "content_unused"),
        ("According to the document, it is Rome.", None, "refers_to_sources"),
        ("According to the document, it is Rome.", False, "citation_unsupported"),
        ("The documents do not mention Berlin.", False, "acknowledged"),
        ("The capital of France is Paris.", False, "content_used"),
    ]
    answers, cites, reasons = zip(*cases, strict=True)
    found = retrieval_gaps(answers, [FRANCE] * len(cases), cites=cites)
    assert [gap.reason for gap in found] == list(reasons)


def test_a_verifier_decides_in_place_of_the_words():
    berlin, paris = "The capital of France is Berlin.", "The capital of France is Paris."
    cases = [
        (paris, 0.1, None, "content_unused"),
        (paris, 0.1, False, "citation_unsupported"),
        (berlin, 0.9, None, "content_used"),
        (berlin, math.nan, None, "no_verdict"),
        (berlin, math.nan, True, "cited"),
        (berlin, 0.1, "no_verdict", "no_verdict"),
        (berlin, 0.9, "no_verdict", "content_used"),
        ("According to the document, it is Rome.", 0.1, "no_verdict", "no_verdict"),
    ]
    for answer, verdict, cites, reason in cases:
        shown = [*FRANCE, "It lies on the Seine."]

        def score(sentences, texts, verdict=verdict, shown=shown):
            assert texts == ["\n\n".join(shown)] * len(sentences)
            return np.full(len(sentences), verdict)

        (found,) = retrieval_gaps([answer], [shown], cites=[cites], score=score)
        assert (found.reason, found.violation) == (reason, reason in BROKEN)


def test_what_decided_is_named_and_short():
    (reference, used) = retrieval_gaps(
        ["As described in the documents, so it is.", "Paris is the capital of France. " * 40],
        [FRANCE, FRANCE],
    )
    assert reference.detail == "As described in the documents"
    assert used.detail == "Paris is the capital of France."
    assert len(retrieval_gaps(["paris france capital " * 400], [FRANCE])[0].detail) <= 120


@given(st.text(max_size=400))
@settings(max_examples=200)
def test_any_text_can_be_judged(text):
    (found,) = retrieval_gaps([text], [FRANCE])
    assert found.violation == (found.reason in BROKEN)
