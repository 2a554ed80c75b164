"""Floods of one source: copies, shared leads and paraphrases; whose floods count, and that clean corpora have none."""

import gc
import json
import time

import numpy as np
import pytest

from rag_eval.records.trust import FINDINGS
from rag_eval.trust.floods import floods
from rag_eval.trust.leads import shared_leads
from rag_eval.trust.resemblance import near_duplicates
from rag_eval.trust.token_stream import Vocabulary

WORDS = [
    f"{first}{second}"
    for first in "oak elm ash yew fir bay box tea rue fig".split()
    for second in "ton ley ham wick ford dale mere".split()
]
QUESTION = "who built the old mill at Amberley"
PASSAGES = [
    "Records name Ebba Stone, a widow from the coast, as the builder.",
    "It was Ebba Stone whose masons raised the walls within two summers.",
    "The deed of the abbey credits the work to Ebba Stone and her sons.",
    "Ebba Stone paid for the timber and led the work herself.",
]


def prose(seed, n=80):
    return " ".join(np.random.default_rng(seed).choice(WORDS, size=n))


def severities(texts, sources=None, vouched=None):
    frame = floods(texts, sources or ["pages.example"] * len(texts), vouched=vouched)
    FINDINGS.check(frame)
    assert set(frame["check"]) <= {"flood"}
    assert frame["detail"].str.len().max() <= 200 if len(frame) else True
    return {
        (row, rule): severity
        for row, rule, severity in zip(frame["row"], frame["rule"], frame["severity"], strict=True)
    }


def nobody(n):
    return np.zeros(n, dtype=bool)


def everybody(n):
    return np.ones(n, dtype=bool)


def copies(n=4):
    """One text with another tenth word in each copy."""
    words = prose(1).split()
    return [" ".join([*words[:10], f"word{i}", *words[11:]]) for i in range(n)]


def test_near_duplicates_of_one_source():
    texts = [prose(7), *copies(), prose(8)]
    assert severities(texts, vouched=nobody(6)) == {
        (row, "near_duplicate"): "blocked" for row in range(1, 5)
    }
    assert severities(texts, vouched=everybody(6)) == {
        (row, "near_duplicate"): "hint" for row in range(1, 5)
    }
    assert severities(texts) == {(row, "near_duplicate"): "hint" for row in range(1, 5)}


def test_three_copies_or_copies_in_different_sources_are_no_flood():
    assert severities(copies(3), vouched=nobody(3)) == {}
    assert severities(copies(4), ["a", "b", "c", "d"], nobody(4)) == {}


def test_who_is_vouched_for_is_told_document_by_document():
    found = severities(copies(), vouched=np.array([True, False, False, True]))
    assert [found[row, "near_duplicate"] for row in range(4)] == [
        "hint",
        "blocked",
        "blocked",
        "hint",
    ]


def test_near_duplicates_agree_with_all_pairs():
    random = np.random.default_rng(3)
    base = [prose(seed, 60).split() for seed in range(12)]
    texts = []
    for words in base:
        for changed in random.integers(0, 12, size=5):
            at = random.choice(60, size=changed, replace=False)
            texts.append(
                " ".join(
                    f"new{random.integers(1_000_000)}" if place in at else word
                    for place, word in enumerate(words)
                )
            )
    sets = [set(zip(*(text.split()[k:] for k in range(3)), strict=False)) for text in texts]
    like = np.array([[len(one & other) / len(one | other) for other in sets] for one in sets])
    near = like >= 0.8
    for _ in texts:  # chains
        near = near | ((near.astype(int) @ near.astype(int)) > 0)
    clear = ~((like > 0.75) & (like < 0.8)).any(axis=1)
    found = near_duplicates(Vocabulary().read(texts), np.zeros(len(texts), dtype=np.int64))
    assert near.sum(axis=1).max() > 1
    assert clear.sum() > len(texts) // 2
    assert found[clear].tolist() == near.sum(axis=1)[clear].tolist()


@pytest.mark.parametrize(
    "form", ["{q}. {p}", "{q}? {p}", "{q} {p}", "Q: {q}? {p}", "---\ntitle: {p}\n---\n{q}? {p}"]
)
def test_a_shared_question(form):
    texts = [form.format(q=QUESTION, p=passage) for passage in PASSAGES[:3]]
    weaker = "hint" if form.startswith("Q:") else "warning"  # the label of a FAQ makes it a heading
    assert severities(texts, vouched=nobody(3)) == {
        (row, "shared_lead"): "blocked" for row in range(3)
    }
    assert severities(texts) == {(row, "shared_lead"): weaker for row in range(3)}
    assert severities(texts, vouched=everybody(3)) == {}
    assert severities(texts[:2], vouched=nobody(2)) == {}
    assert severities(texts, ["a", "b", "c"], nobody(3)) == {}


def test_a_shared_heading_is_less_without_an_allowlist_and_a_statement_always():
    headings = [f"## {QUESTION}?\n\n{passage}" for passage in PASSAGES[:3]]
    statements = [
        f"This page belongs to the guide of the Amberley society. {passage}"
        for passage in PASSAGES[:3]
    ]
    for texts, severity in ((headings, "blocked"), (statements, "warning")):
        assert severities(texts, vouched=nobody(3)) == {
            (row, "shared_lead"): severity for row in range(3)
        }
        assert severities(texts) == {(row, "shared_lead"): "hint" for row in range(3)}


def test_questions_that_only_begin_alike_are_not_shared():
    texts = [
        f"What is the best way to repair a {thing}? {passage}"
        for thing, passage in zip(["roof", "wheel", "sluice"], PASSAGES, strict=False)
    ]
    assert shared_leads(texts, ["s"] * 3, 3) == []


def test_the_place_of_a_lead_is_that_of_the_text():
    texts = [f"  {QUESTION}? {passage}" for passage in PASSAGES]
    frame = floods(texts, ["s"] * 4, vouched=nobody(4))
    leads = frame[frame["rule"] == "shared_lead"]
    assert {
        texts[row][start:end]
        for row, start, end in zip(leads["row"], leads["start"], leads["end"], strict=True)
    } == {QUESTION}
    assert (frame[frame["rule"] != "shared_lead"]["start"] == -1).all()


def test_paraphrases_count_for_those_whom_nobody_vouches_for():
    fillers = [prose(seed) for seed in range(40)]
    texts = [*PASSAGES, *fillers]
    n = len(texts)
    sources = ["new.example"] * 4 + ["known.example"] * 40
    doubted = np.array([False] * 4 + [True] * 40)
    found = severities(texts, sources, doubted)
    assert set(found) <= {(row, "paraphrase") for row in range(4)}
    assert severities(texts, sources, everybody(n)) == {}
    assert set(severities(texts, sources).values()) <= {"hint"}


def test_nothing_and_empty_texts():
    assert severities([], []) == {}
    assert severities(["", "?", "--- ", "# "] * 3, vouched=nobody(12)) == {}


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="2 sources"):
        floods(["a"], ["x", "y"])


def corpora(shared_data):
    for name in ("xquad/corpus.jsonl", "xquad/distractors.jsonl", "scifact/corpus.jsonl"):
        yield (
            name,
            [
                json.loads(line)["text"]
                for line in (shared_data / name).read_text(encoding="utf-8").splitlines()
            ],
        )


def test_clean_corpora_have_no_floods(shared_data):
    for name, texts in corpora(shared_data):
        if len(texts) < 1_000:
            assert severities(texts) == {}, name
        blocked = {
            row
            for (row, _), severity in severities(texts, vouched=nobody(len(texts))).items()
            if severity == "blocked"
        }
        assert len(blocked) <= 0.003 * len(texts), name


def test_docstrings_are_nobodys_flood():
    pandas = pytest.importorskip("pandas")
    texts = [
        doc
        for owner in (pandas.DataFrame, pandas.Series, pandas.Index)
        for name in dir(owner)
        if not name.startswith("_") and (doc := getattr(owner, name).__doc__ or "")
    ]
    assert len(texts) > 400
    for vouched in (None, everybody(len(texts))):
        found = severities(texts, ["python:pandas"] * len(texts), vouched)
        assert found  # near duplicates by nature, which are seen and accuse nobody
        assert set(found.values()) == {"hint"}


def test_a_plain_form_of_the_attack_is_mostly_a_paraphrase_flood(shared_data):
    from poisoned_corpus import PLAIN, UNTRUSTED, attack

    its = attack(shared_data, PLAIN, UNTRUSTED)
    found = severities(its.texts, its.sources, its.vouched)
    blocked = {row for (row, _), severity in found.items() if severity == "blocked"}
    assert len(blocked) >= 0.75 * 500
    assert all(its.target_of[row] >= 0 for row in blocked)


@pytest.mark.parametrize("kind", ["copies", "leads", "same words"])
def test_cost_grows_with_the_number_of_documents(kind):
    def seconds(n):
        texts = {
            "copies": [prose(1)] * n,
            "leads": [f"{QUESTION}? {prose(seed, 20)}" for seed in range(n)],
            "same words": ["mill " * 120] * n,
        }[kind]
        gc.disable()
        started = time.process_time()
        if kind == "leads":
            shared_leads(texts, ["s"] * n, 3)
        else:
            floods(texts, ["s"] * n)
        taken = time.process_time() - started
        gc.enable()
        return taken

    seconds(100)
    small, large = min(seconds(250) for _ in range(3)), min(seconds(2_000) for _ in range(2))
    assert large < 8 * 4 * small + 0.2
