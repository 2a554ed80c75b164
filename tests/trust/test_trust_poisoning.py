"""The bars of the two checks: planted passages stay out of what is retrieved, clean questions keep their documents, FAQ pages stay in."""

import json
from pathlib import Path

import numpy as np
import pytest
from poisoned_corpus import (
    FORMS,
    LOOKALIKE,
    PLAIN,
    STRATEGIES,
    UNTRUSTED,
    attack,
    json_lines,
    outcome,
)

from rag_eval.corpus.markdown import front_matter
from rag_eval.corpus.sections import of_markdown
from rag_eval.trust.floods import floods
from rag_eval.trust.restating import restates

FAQ = Path(__file__).parent / "faq"
ASKED = [form for form in FORMS if form != PLAIN]
WHOLE = "floods+restates"


@pytest.mark.parametrize(
    "spec",
    [STRATEGIES[0], pytest.param(STRATEGIES[1], marks=pytest.mark.slow)],
    ids=lambda spec: spec.name,
)
@pytest.mark.parametrize("source", [UNTRUSTED, LOOKALIKE])
@pytest.mark.parametrize("form", ["question. passage", "Question? passage", "## question"])
def test_the_form_with_the_question_is_kept_out(shared_data, tmp_path, form, source, spec):
    its = attack(shared_data, form, source)
    without, guarded = outcome(its, spec, tmp_path), outcome(its, spec, tmp_path, guard=WHOLE)
    assert without.own >= 0.9
    assert guarded.poisoned <= 0.05
    assert guarded.upper <= 0.05
    assert guarded.recall >= without.recall - 0.005


@pytest.mark.parametrize("allowlist", [True, False])
@pytest.mark.parametrize("form", ASKED)
def test_retrieval_time_alone_keeps_out_what_was_planted_for_the_question(
    shared_data, tmp_path, form, allowlist
):
    its = attack(shared_data, form, UNTRUSTED)
    guarded = outcome(its, STRATEGIES[0], tmp_path, guard="restates", allowlist=allowlist)
    assert guarded.own <= 0.01
    assert guarded.recall >= outcome(its, STRATEGIES[0], tmp_path).recall - 0.005


def test_the_form_without_the_question_is_held_back_in_part_and_only_by_the_allowlist(
    shared_data, tmp_path
):
    its = attack(shared_data, PLAIN, UNTRUSTED)
    without, guarded = (
        outcome(its, STRATEGIES[0], tmp_path),
        outcome(its, STRATEGIES[0], tmp_path, guard=WHOLE),
    )
    blind = outcome(its, STRATEGIES[0], tmp_path, guard=WHOLE, allowlist=False)
    assert without.own >= 0.9
    assert guarded.own <= 0.5
    assert blind.own == without.own


def test_a_clean_corpus_loses_nothing(shared_data, tmp_path):
    its = attack(shared_data, PLAIN, UNTRUSTED, per_target=0)
    without = outcome(its, STRATEGIES[0], tmp_path).recall
    for allowlist in (True, False):
        assert (
            outcome(its, STRATEGIES[0], tmp_path, guard=WHOLE, allowlist=allowlist).recall
            >= without - 0.005
        )


def test_questions_of_public_sets_are_hardly_ever_restated_by_their_documents(shared_data):
    """Nobody is vouched for, so that every restatement counts."""
    xquad = [document["text"] for document in json_lines(shared_data / "xquad" / "corpus.jsonl")]
    asked = [
        query["text"]
        for query in json_lines(shared_data / "xquad" / "queries.jsonl")
        + json_lines(shared_data / "xquad" / "paraphrases.jsonl")
    ]
    clapnq = [
        row
        for name in ("answerable", "unanswerable")
        for row in json_lines(shared_data / "clapnq" / f"clapnq_dev_{name}.jsonl")
    ]
    for queries, texts in (
        (asked, xquad),
        ([row["input"] for row in clapnq], [row["passages"][0]["text"] for row in clapnq]),
    ):
        n = len(texts)
        found = restates(
            queries,
            texts,
            titles=[""] * n,
            doc_ids=[str(i) for i in range(n)],
            sources=["s"] * n,
            vouched=np.zeros(n, dtype=bool),
        )
        assert len(found.pairs) <= 0.002 * len(queries)


def pages(cut):
    """FAQ pages, whole or section by section: texts, titles, names and domains."""
    rows = []
    for path in sorted(FAQ.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        values, start = front_matter(text)
        title = str(values["title"])
        spans = (
            [(0, len(text))]
            if cut == "whole"
            else [
                (section.start, section.end)
                for section in of_markdown(path.name, title, text, start)
            ]
        )
        rows += [
            (text[low:high], title, path.name, str(values["url"]).split("/")[2])
            for low, high in spans
        ]
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("cut", ["whole", "sections"])
@pytest.mark.parametrize("standing", ["allowed", "not listed", "no allowlist"])
@pytest.mark.parametrize("domain", ["own", "one for all", "unknown"])
def test_faq_pages_are_not_blocked_when_their_questions_are_asked(cut, standing, domain):
    texts, titles, names, sources = pages(cut)
    sources = {
        "own": sources,
        "one for all": ["help.example"] * len(texts),
        "unknown": [""] * len(texts),
    }[domain]
    questions = [row["question"] for row in json_lines(FAQ / "questions.jsonl")]
    assert len(set(names)) == 30
    vouched = {
        "allowed": np.ones(len(texts), dtype=bool),
        "not listed": np.zeros(len(texts), dtype=bool),
        "no allowlist": None,
    }[standing]
    found = restates(
        questions, texts, titles=titles, doc_ids=names, sources=sources, vouched=vouched
    )
    assert found.blocked.nnz == 0
    assert (found.warned.nnz >= 100) == (
        standing == "not listed"
    )  # they are seen, and only warned of
    if cut == "whole":
        assert floods(texts, sources, vouched=vouched).empty


def test_every_faq_question_stands_in_its_page():
    for line in (FAQ / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert row["question"] in (FAQ / row["page"]).read_text(encoding="utf-8")
