import json

import numpy as np
import pytest
from growth import growth
from poisoned_corpus import PLAIN, UNTRUSTED, attack

from rag_eval.core.config import FINDINGS
from rag_eval.trust.duplicates import floods

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


def copies(n=4):
    """Return n copies of a text that differ in one word."""
    words = prose(1).split()
    return [" ".join([*words[:10], f"word{i}", *words[11:]]) for i in range(n)]


def find(texts, sources=None, vouched=None):
    """Map (row, rule) to severity; `vouched` may be one mark for all texts."""
    marks = None if vouched is None else np.full(len(texts), vouched)
    frame = FINDINGS.check(floods(texts, sources or ["pages.example"] * len(texts), vouched=marks))
    assert set(frame["check"]) <= {"flood"}
    assert frame["detail"].str.len().max() <= 200 or frame.empty
    keys = zip(frame["row"], frame["rule"], strict=True)
    return dict(zip(keys, frame["severity"], strict=True))


def all_rows(rows, rule, severity):
    return {(row, rule): severity for row in rows}


@pytest.mark.parametrize(
    ("vouched", "severity"), [(False, "blocked"), (True, "hint"), (None, "hint")]
)
def test_near_duplicates_of_one_source(vouched, severity):
    texts = [prose(7), *copies(), prose(8)]
    assert find(texts, vouched=vouched) == all_rows(range(1, 5), "near_duplicate", severity)


def test_three_copies_or_copies_in_different_sources_are_no_flood():
    assert find(copies(3), vouched=False) == {}
    assert find(copies(4), ["a", "b", "c", "d"], False) == {}


def test_near_duplicates_agree_with_all_pairs():
    random = np.random.default_rng(3)
    texts = []
    for seed in range(12):
        words = prose(seed, 60).split()
        for changed in random.integers(0, 6, size=8):
            new = list(words)
            for at in random.choice(60, size=changed, replace=False):
                new[at] = f"new{random.integers(1_000_000)}"
            texts.append(" ".join(new))
    sets = [set(zip(*(text.split()[k:] for k in range(3)), strict=False)) for text in texts]
    like = np.array([[len(one & other) / len(one | other) for other in sets] for one in sets])
    near = like >= 0.8
    for _ in texts:  # chains
        near = near | ((near.astype(int) @ near.astype(int)) > 0)
    clear = ~((like > 0.75) & (like < 0.8)).any(axis=1)
    frame = floods(texts, ["s"] * len(texts))
    copied = frame[frame["rule"] == "near_duplicate"]
    found = dict(zip(copied["row"], copied["detail"], strict=True))
    assert clear.sum() > len(texts) // 2
    assert len(found) > 4
    for row in np.flatnonzero(clear).tolist():
        group = int(near[row].sum())
        detail = f"one of {group} nearly equal documents of its source"
        assert found.get(row) == (detail if group >= 4 else None)


@pytest.mark.parametrize(
    "form", ["{q}. {p}", "{q}? {p}", "{q} {p}", "Q: {q}? {p}", "---\ntitle: {p}\n---\n{q}? {p}"]
)
def test_a_shared_question(form):
    texts = [form.format(q=QUESTION, p=passage) for passage in PASSAGES[:3]]
    weaker = "hint" if form.startswith("Q:") else "warning"  # the FAQ label makes a heading
    assert find(texts, vouched=False) == all_rows(range(3), "shared_lead", "blocked")
    assert find(texts) == all_rows(range(3), "shared_lead", weaker)
    assert find(texts, vouched=True) == {}
    assert find(texts[:2], vouched=False) == {}
    assert find(texts, ["a", "b", "c"], False) == {}


@pytest.mark.parametrize(
    ("lead", "severity"),
    [
        (f"## {QUESTION}?\n\n", "blocked"),
        ("This page belongs to the guide of the Amberley society. ", "warning"),
    ],
    ids=["heading", "statement"],
)
def test_shared_headings_and_statements(lead, severity):
    texts = [lead + passage for passage in PASSAGES[:3]]
    assert find(texts, vouched=False) == all_rows(range(3), "shared_lead", severity)
    assert find(texts) == all_rows(range(3), "shared_lead", "hint")


def test_the_place_of_a_lead_is_that_of_the_text():
    texts = [f"  {QUESTION}? {passage}" for passage in PASSAGES]
    frame = floods(texts, ["s"] * 4, vouched=np.zeros(4, dtype=bool))
    leads = frame[frame["rule"] == "shared_lead"]
    assert {texts[one.row][one.start : one.end] for one in leads.itertuples()} == {QUESTION}
    assert (frame[frame["rule"] != "shared_lead"]["start"] == -1).all()


def test_paraphrases_count_for_doubtful_sources():
    texts = [*PASSAGES, *(prose(seed) for seed in range(40))]
    sources = ["new.example"] * 4 + ["known.example"] * 40
    doubted = find(texts, sources, np.array([False] * 4 + [True] * 40))
    assert set(doubted) <= {(row, "paraphrase") for row in range(4)}
    assert find(texts, sources, vouched=True) == {}
    assert set(find(texts, sources).values()) <= {"hint"}


@pytest.mark.parametrize("name", ["xquad/corpus", "xquad/distractors", "scifact/corpus"])
def test_clean_corpora_have_no_floods(shared_data, name):
    rows = (shared_data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(row)["text"] for row in rows]
    if len(texts) < 1_000:
        assert find(texts) == {}
    found = find(texts, vouched=False)
    blocked = {row for (row, _), severity in found.items() if severity == "blocked"}
    assert len(blocked) <= 0.003 * len(texts)


def test_plain_attacks_are_mostly_paraphrase_floods(shared_data):
    its = attack(shared_data, PLAIN, UNTRUSTED)
    found = find(its.texts, its.sources, its.vouched)
    blocked = {row for (row, _), severity in found.items() if severity == "blocked"}
    assert len(blocked) >= 0.75 * 500
    assert all(its.target_of[row] >= 0 for row in blocked)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["copies", "leads", "same words"])
def test_cost_grows_with_the_number_of_documents(kind):
    def make(n):
        return {
            "copies": lambda: [prose(1)] * n,
            "leads": lambda: [f"{QUESTION}? {prose(seed, 20)}" for seed in range(n)],
            "same words": lambda: ["mill " * 120] * n,
        }[kind]()

    def run(texts):
        floods(texts, ["s"] * len(texts))

    assert growth(run, make, 200, 1_600) < 32
