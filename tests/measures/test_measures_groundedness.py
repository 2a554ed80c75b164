"""Groundedness against a slow reference, by example in several scripts, and on human answers and labels."""

import importlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.corpus import sentences
from rag_eval.corpus.analyzer import terms
from rag_eval.measures.content import FUNCTION_WORDS, answer_sentences, comparable, names, numbers
from rag_eval.measures.groundedness import (
    SUPPORTED,
    DocumentFrequencies,
    document_frequencies,
    groundedness,
)
from rag_eval.measures.support import INTERCEPT, PER_ANY, PER_SCORE, support_probability

IGNORED = set(terms(" ".join(FUNCTION_WORDS)))


def one(answer: str, *evidence: str) -> float:
    return float(groundedness([answer], [evidence]).value[0])


def slow_share(sentence: str, evidence: list[str], corpus: list[str]) -> tuple[float, int, int]:
    """The definition, word by word and window by window."""
    containing = [set(terms(comparable(text))) for text in corpus]

    def weight(term: str) -> float:
        n = min(max(sum(term in text for text in containing), 1), len(corpus))
        return 0.0 if term in IGNORED else math.log(1 + (len(corpus) - n + 0.5) / (n + 0.5))

    wanted = sorted(set(terms(comparable(sentence))))
    whole = sum(map(weight, wanted))
    best = (-1.0, -1, -1)
    for at, text in enumerate(evidence):
        parts = [set(terms(comparable(text[start:end]))) for start, end in sentences.spans(text)]
        for first in range(max(len(parts) - 2, 1) if parts else 0):
            found = sum(
                weight(term)
                for term in wanted
                if any(term in part for part in parts[first : first + 3])
            )
            if found > best[0] + 1e-4:
                best = (found, at, first)
    return (max(best[0], 0.0) / whole if whole else math.nan, best[1], best[2])


WORDS = st.sampled_from(
    "tower river bridge stone old height paris river's built 12 painters the of".split()
)
SENTENCE = st.lists(WORDS, min_size=1, max_size=6).map(
    lambda found: " ".join(found).capitalize() + "."
)
TEXT = st.lists(SENTENCE, min_size=0, max_size=7).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(SENTENCE, min_size=1, max_size=3).map(" ".join), st.lists(TEXT, max_size=3)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_join_gives_what_the_definition_says(cases):
    answers, evidence = [answer for answer, _ in cases], [texts for _, texts in cases]
    corpus = list(dict.fromkeys(text for texts in evidence for text in texts))
    found = groundedness(answers, evidence)
    assert len(found.value) == len(answers)
    for at, sentence in enumerate(found.sentences):
        share, text, first = (
            slow_share(sentence, evidence[found.answer_of[at]], corpus)
            if corpus
            else (found.share[at], -1, -1)
        )
        assert found.share[at] == pytest.approx(share, abs=1e-4, nan_ok=True)
        if share > 0:
            assert (found.text[at], found.first[at]) == (text, first)
    bounded = found.score[~np.isnan(found.score)]
    assert ((bounded >= 0) & (bounded <= 1)).all()
    assert (found.share_anywhere >= found.share - 1e-9)[~np.isnan(found.share)].all()


def test_an_answer_scores_the_same_in_any_company_once_the_corpus_is_given():
    corpus = [
        "The tower stands in Paris.",
        "The river Seine flows through Paris.",
        "Stone bridges are old.",
    ]
    frequencies = document_frequencies(corpus)
    alone = groundedness(["The tower is old."], [corpus], frequencies).value
    together = groundedness(
        ["The tower is old.", "Rivers flow."], [corpus, ["Ships sail on rivers."]], frequencies
    ).value
    assert alone[0] == together[0]
    assert frequencies == DocumentFrequencies(3, frequencies.counts)
    assert frequencies.counts["pari"] == 2


def test_blocks_do_not_change_scores(monkeypatch):
    answers = [
        f"The tower {number} stands by the river. Old stone bridges." for number in range(30)
    ]
    evidence = [
        [
            f"Tower {number} is old. It stands by a river. Stone it is.",
            "A bridge. A painter. A river. A tower.",
        ][: number % 3]
        for number in range(30)
    ]
    whole = groundedness(answers, evidence)
    monkeypatch.setattr("rag_eval.measures.windows._CELLS", 40)
    monkeypatch.setattr("rag_eval.measures.groundedness._BLOCK", 3)
    parts = groundedness(answers, evidence)
    for name in ("score", "share", "numbers_share", "names_share", "text", "first", "value"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


SUPPORTED_CASES = {
    "reworded": ("Paris is the capital of France.", "The capital of France is Paris."),
    "spread over three sentences": (
        "The iron tower was painted brown in 1899.",
        "It is made of iron. The tower stands in Paris. It was painted brown in 1899.",
    ),
    "thousands": ("The hall seats 12,500 people.", "The hall seats 12500 people."),
    "decimal comma": (
        "Die Insel misst 3,5 Quadratkilometer.",
        "Die Insel misst 3.5 Quadratkilometer.",
    ),
    "spelled out": ("The village has 7 churches.", "The village has seven churches."),
    "named one sentence, it the next": (
        "The Eiffel Tower is repainted every seven years with brown paint.",
        "The Eiffel Tower stands in Paris. It is iron. Ships pass. Dogs bark. It is repainted with brown paint every seven years.",
    ),
    "citation marks aside": (
        "The village has seven churches [12].",
        "The village has seven churches.",
    ),
    "code": ("Call `df.sort_values()` to sort.", "Sort a frame with df.sort_values(by)."),
    "German": (
        "Die Donau mündet in das Schwarze Meer.",
        "Die Donau ist ein Fluss. Die Donau mündet in das Schwarze Meer.",
    ),
    "Chinese": ("巴黎是法国的首都。", "法国的首都是巴黎。"),
    "Japanese": ("東京は日本の首都です。", "日本の首都は東京です。人口は多い。"),
    "Thai": ("กรุงเทพเป็นเมืองหลวง", "กรุงเทพเป็นเมืองหลวงของประเทศไทย"),
    "Korean": ("서울은 대한민국의 수도이다.", "대한민국의 수도는 서울이다."),
    "Hindi": ("दिल्ली भारत की राजधानी है।", "भारत की राजधानी दिल्ली है।"),
    "Russian": ("Москва является столицей России.", "Столицей России является Москва."),
    "Arabic": ("القاهرة هي عاصمة مصر", "عاصمة مصر هي القاهرة"),
    "decomposed accents": ("Le cafe\u0301 est ferme\u0301.", "Le café est fermé."),
}
UNSUPPORTED_CASES = {
    "other names": ("The capital of Germany is Berlin.", "The capital of France is Paris."),
    "number changed": ("The tower is 330 metres tall.", "The tower is 300 metres tall."),
    "year changed": (
        "The bridge over the river was opened in 1932.",
        "The bridge over the river was opened in 1923.",
    ),
    "spread too far": (
        "Iron tower painted brown.",
        "Iron is a metal. Ships sail. Dogs bark. Cows eat. A tower. Fish swim. Bees fly. Brown bears.",
    ),
    "other identifier": (
        "Use `frame.sort_index` here.",
        "Use frame.sort_values and frame.set_flags.",
    ),
    "Chinese": ("柏林是德国的城市。", "巴黎位于法国北部。"),
    "Russian": ("Берлин находится в Германии.", "Москва является столицей России."),
    "no evidence": ("The capital of France is Paris.",),
    "empty evidence": ("The capital of France is Paris.", ""),
}


@pytest.mark.parametrize("case", SUPPORTED_CASES)
def test_supported(case):
    answer, *evidence = SUPPORTED_CASES[case]
    assert one(answer, *evidence) >= SUPPORTED


@pytest.mark.parametrize("case", UNSUPPORTED_CASES)
def test_not_supported(case):
    answer, *evidence = UNSUPPORTED_CASES[case]
    assert one(answer, *evidence) < SUPPORTED


@pytest.mark.parametrize("answer", ["", "  ", "...", "[1]", "It is.", "•"])
def test_an_answer_without_content_has_no_value(answer):
    assert math.isnan(one(answer, "The capital of France is Paris."))


def test_nothing_at_all():
    found = groundedness([], [])
    assert len(found.value) == len(found.score) == 0
    with pytest.raises(ValueError, match="2 answers but evidence for 1"):
        groundedness(["a", "b"], [[]])


def test_the_mean_and_the_share_are_over_sentences():
    found = groundedness(
        ["The capital of France is Paris. Dogs bark loudly."], [["The capital of France is Paris."]]
    )
    assert found.score.tolist() == [1.0, 0.0]
    assert (found.value[0], found.supported[0]) == (0.5, 0.5)


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_read(text):
    for sentence in answer_sentences(text):
        assert sentence.strip()
        names(sentence)
        numbers(sentence)
    found = groundedness([text], [[text]])
    assert (found.share[~np.isnan(found.share)] > 0).all()


def test_hostile_sizes_take_no_quadratic_time():
    for text in (
        "[" * 50_000,
        "1." * 50_000,
        "_." * 50_000,
        "\n- " * 20_000,
        "A." * 30_000,
        "中" * 50_000,
    ):
        groundedness([text], [[text]])


def interval(
    own: np.ndarray, other: np.ndarray, resamples: int = 2000
) -> tuple[float, float, float]:
    """AUROC of pairs that belong to the same question, with a 95 % bootstrap interval over questions."""
    wins = (own[:, None] > other) + 0.5 * (own[:, None] == other)
    weights = np.random.default_rng(5).multinomial(
        len(own), np.full(len(own), 1 / len(own)), size=resamples
    ) / len(own)
    low, high = np.quantile(((weights @ wins) * weights).sum(axis=1), [0.025, 0.975])
    return float(wins.mean()), float(low), float(high)


@pytest.mark.parametrize("by", ["title", "text"])
def test_clapnq_answers_are_told_apart_on_their_own_and_the_nearest_other_passage(shared_data, by):
    from sklearn.feature_extraction.text import TfidfVectorizer

    rows = [
        json.loads(line)
        for line in (shared_data / "clapnq" / "clapnq_dev_answerable.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    ]
    answers, passages = (
        [row["output"][0]["answer"] for row in rows],
        [row["passages"][0] for row in rows],
    )
    texts = [passage["text"] for passage in passages]
    vectors = TfidfVectorizer(stop_words="english", sublinear_tf=True).fit_transform(
        [passage[by] for passage in passages]
    )
    likeness = (vectors @ vectors.T).toarray()
    likeness[np.array([[one == two for two in texts] for one in texts])] = -1
    nearest = likeness.argmax(axis=1)
    value = groundedness(
        [*answers, *answers], [[text] for text in texts] + [[texts[at]] for at in nearest]
    ).value
    assert not np.isnan(value).any()
    auroc, low, high = interval(value[: len(rows)], value[len(rows) :])
    assert auroc >= 0.97, (auroc, low, high)
    assert low >= 0.96, (auroc, low, high)


@pytest.fixture(scope="module")
def expertqa(shared_data, project_root):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(project_root / "benchmarks"))
        script = importlib.import_module("fit_groundedness")
    claims = script.load(shared_data)
    return script, claims, np.nan_to_num(groundedness(claims.texts, claims.evidence).value)


def test_expertqa_labels_are_reached_and_the_shipped_coefficients_are_the_fitted_ones(expertqa):
    from sklearn.metrics import brier_score_loss, roc_auc_score

    script, claims, score = expertqa
    seen, unseen = claims.fitted, ~claims.fitted
    np.testing.assert_allclose(
        script.fit(score[seen], claims.supported[seen]), [INTERCEPT, PER_SCORE, PER_ANY], atol=0.002
    )
    probability, truth = support_probability(score[unseen]), claims.supported[unseen]
    assert roc_auc_score(truth, probability) >= 0.77
    assert brier_score_loss(truth, probability) < 0.7 * truth.mean() * (1 - truth.mean())
    assert script.calibration_error(truth, probability) < 0.05


def test_support_probability_rises_with_the_score_and_keeps_nan():
    probability = support_probability(np.linspace(0, 1, 50))
    assert (np.diff(probability) > 0).all()
    assert probability[0] < 0.1
    assert probability[-1] > 0.7
    assert np.isnan(support_probability([np.nan])).all()
