"""What is found of BIPIA's attacks, and said of clean corpora; bounds are below what was seen (see `benchmarks/topic_shift.py`)."""

import json
from pathlib import Path

import numpy as np
import pytest

from rag_eval.corpus import package_docs, sentences
from rag_eval.records.gold_set import PackageDocs
from rag_eval.trust.topic_shift import topic_shift

pytestmark = pytest.mark.slow  # minutes in sum; `make test-all` runs them

PLAIN = (
    "Information Retrieval",
    "Content Creation",
    "Learning and Tutoring",
    "Language Translation",
    "Programming Help",
)


def bodies(path):
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def attacks(shared_data, part):
    return json.loads(
        (shared_data / "bipia" / f"{part}_attack_train.json").read_text(encoding="utf-8")
    )


def planted(text, what, place):
    """The text with the attack on a line of its own, and where the attack begins."""
    if place == "start":
        return f"{what}\n{text}", 0
    if place == "end":
        return f"{text}\n{what}", len(text) + 1
    at = min(sentences.borders(text) or [len(text)], key=lambda cut: abs(cut - len(text) / 2))
    before = text[:at].rstrip()
    return f"{before}\n{what}\n{text[at:]}", len(before) + 1


def share_found(documents, what):
    """Share of the attacks touched by a finding, each in another document, a twenty-fifth of the corpus at a time."""
    rng = np.random.default_rng(3)
    jobs = [(attack, place) for attack in what for place in ("start", "middle", "end")]
    size = len(documents) // 25
    hits = []
    for low in range(0, len(jobs), size):
        texts, held = list(documents), {}
        for row, (attack, place) in zip(
            rng.choice(len(documents), size, replace=False).tolist(),
            jobs[low : low + size],
            strict=False,
        ):
            texts[row], start = planted(documents[row], attack, place)
            held[row] = (start, start + len(attack))
        found = topic_shift(texts, ["one.example"] * len(texts))
        inside = found[found["rule"] == "inside_document"]
        hits += [
            ((inside["row"] == row) & (inside["start"] < end) & (inside["end"] > start)).any()
            for row, (start, end) in held.items()
        ]
    return np.mean(hits)


def warned(documents, rule):
    found = topic_shift(documents, ["one.example"] * len(documents))
    return found.loc[found["rule"] == rule, "row"].nunique() / len(documents)


def pandas_documentation():
    return [
        document.text
        for document in package_docs.load(
            PackageDocs(loader="package_docs", package="pandas", min_chars=150), Path()
        ).documents
    ]


def test_plain_questions_and_tasks_in_paragraphs_of_xquad(shared_data):
    text = attacks(shared_data, "text")
    assert (
        share_found(
            bodies(shared_data / "xquad" / "corpus.jsonl"),
            [attack for kind in PLAIN for attack in text[kind]],
        )
        >= 0.70
    )


def test_code_in_paragraphs_of_xquad(shared_data):
    code = attacks(shared_data, "code")
    assert (
        share_found(
            bodies(shared_data / "xquad" / "corpus.jsonl"),
            [attack for those in code.values() for attack in those[:2]],
        )
        >= 0.90
    )


@pytest.mark.slow
def test_attacks_in_the_documentation_of_pandas(shared_data):
    documents, text, code = (
        pandas_documentation(),
        attacks(shared_data, "text"),
        attacks(shared_data, "code"),
    )
    assert share_found(documents, [attack for kind in PLAIN for attack in text[kind]]) >= 0.70
    assert share_found(documents, [attack for those in code.values() for attack in those]) >= 0.90


def test_clean_paragraphs_are_rarely_warned_of(shared_data):
    for name in ("corpus", "distractors"):
        documents = bodies(shared_data / "xquad" / f"{name}.jsonl")
        assert warned(documents, "inside_document") <= 0.008
        assert warned(documents, "against_source") <= 0.004


@pytest.mark.slow
def test_clean_abstracts_and_documentation_are_rarely_warned_of(shared_data):
    for documents in (bodies(shared_data / "scifact" / "corpus.jsonl"), pandas_documentation()):
        assert warned(documents, "inside_document") <= 0.008
        assert warned(documents, "against_source") <= 0.004


@pytest.mark.slow
def test_paragraphs_of_an_encyclopedia_are_unlike_the_documentation_of_pandas(shared_data):
    documents, strangers = (
        pandas_documentation(),
        bodies(shared_data / "xquad" / "distractors.jsonl")[::40],
    )
    found = topic_shift(
        [*documents, *strangers], ["one.example"] * (len(documents) + len(strangers))
    )
    rows = set(found.loc[found["rule"] == "against_source", "row"])
    assert (
        len(rows & set(range(len(documents), len(documents) + len(strangers)))) / len(strangers)
        >= 0.9
    )
