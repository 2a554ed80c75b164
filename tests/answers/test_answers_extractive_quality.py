"""The extractive answerer reaches its bars on public data, also on questions outside any fit."""

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
from pandas_evidence import figures, pandas_evidence
from requirements import report_missing

from rag_eval.answers.extractive import Extractive
from rag_eval.corpus.analyzer import count_documents

pytestmark = pytest.mark.slow


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


def lexical(its):
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


@pytest.mark.parametrize("answerer", [lexical, embedded_default])
def test_clapnq_sentences_and_abstention_without_a_model(clapnq_set, answerer):
    model = answerer(clapnq_set)
    found = model.answer(clapnq_set.questions, clapnq_set.passages)
    check_sentences(clapnq_set, found, 0.58, 0.55)
    parts = halves(clapnq_set)
    check_abstention(model, clapnq_set.carried, signals(found), parts, least=0.70, lower=0.65)


def test_clapnq_with_minilm(clapnq_set, minilm):
    its = clapnq_set.every(3)
    model = with_model(its, minilm)
    found = model.answer(its.questions, its.passages)
    check_sentences(its, found, 0.58, 0.58)
    check_abstention(model, its.carried, signals(found), halves(its), least=0.80, lower=0.80)


def test_xquad_the_right_paragraph_is_told_from_the_nearest_wrong_one(xquad_sets):
    right, wrong = xquad_sets["xquad"], xquad_sets["xquad_wrong"]
    model = embedded_default(right)
    signal = np.concatenate(
        [signals(model.answer(its.questions, its.passages)) for its in (right, wrong)]
    )
    positive = np.repeat([True, False], len(right.questions))
    parts = {name: np.tile(rows, 2) for name, rows in halves(right).items()}
    check_abstention(model, positive, signal, parts, least=0.82, lower=0.82)


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


def test_scifact_rationales_with_words_alone(shared_data):
    its = scifact_evidence(shared_data)
    check_sentences(its, lexical(its).answer(its.questions, its.passages), 0.34, 0.65)


def test_scifact_rationales_with_minilm(shared_data, minilm):
    its = scifact_evidence(shared_data).every(3)
    found = with_model(its, minilm).answer(its.questions, its.passages)
    check_sentences(its, found, 0.36, 0.68)
    _, recall = precision_recall(found, its.gold)
    assert recall.mean() >= 0.70


def test_answers_of_pandas_api(project_root, tmp_path):
    evidence = pandas_evidence(project_root, tmp_path)
    answers = evidence.answerer().answer(evidence.variants["text"].tolist(), evidence.passages)
    found, with_refused = (
        figures(evidence, answers, ignore_refusals=ignored) for ignored in (False, True)
    )
    assert found["citation_validity"] == 1.0
    assert found["answered_unanswerable"] <= 3
    # Most of the 150 questions are refused, because their evidence lacks the gold.
    assert found["cited"] >= 10
    assert with_refused["cited"] >= 150
    assert found["citation_precision"] >= 0.50 > with_refused["citation_precision"] >= 0.07
