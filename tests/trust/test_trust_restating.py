import tomllib
from pathlib import Path

import numpy as np
import pytest
from growth import growth
from poisoned_corpus import (
    FORMS,
    LOOKALIKE,
    PLAIN,
    STRATEGIES,
    UNTRUSTED,
    Poisoned,
    attack,
    json_lines,
)

from rag_eval.corpus.chunking import markdown_sections
from rag_eval.corpus.markdown import front_matter
from rag_eval.trust.restating import restated_pairs

HERE = Path(__file__).parent
QUERY = "how many bells hang in the tower of Amberley"
ASKED = f"{QUERY[:1].upper()}{QUERY[1:]}"
ANSWER = "The tower has nine bells, the oldest of them cast in 1512."
NOTHING = ("", "")


def find_pairs(queries, texts, *, titles=None, doc_ids=None, sources=None, vouched=(), warned=None):
    n = len(texts)
    return restated_pairs(
        queries,
        texts,
        titles=titles or [""] * n,
        doc_ids=doc_ids or [f"d{i}" for i in range(n)],
        sources=sources or ["pages.example"] * n,
        vouched=np.zeros(n, dtype=bool) if isinstance(vouched, tuple) else vouched,
        warned=warned,
    )


def find(texts, query=QUERY, *, allowlist=True, **owners):
    """Return (rule, severity) of each text."""
    pairs = find_pairs([query], texts, vouched=() if allowlist else None, **owners)
    found = dict(
        zip(pairs["chunk"], zip(pairs["rule"], pairs["severity"], strict=True), strict=True)
    )
    return [found.get(chunk, NOTHING) for chunk in range(len(texts))]


CASES = {
    rule: [text.format(q=QUERY, Q=ASKED, a=ANSWER) for text in texts]
    for rule, texts in tomllib.loads((HERE / "restating.toml").read_text(encoding="utf-8")).items()
}


# ---- The table


@pytest.mark.parametrize("text", CASES["running_text"])
def test_a_query_in_running_text_blocks(text):
    assert find([text]) == [("running_text", "blocked")]


@pytest.mark.parametrize("text", CASES["heading"])
def test_a_heading_warns_with_an_allowlist_and_is_nothing_without(text):
    assert find([text]) == [("heading", "warning")]
    assert find([text], allowlist=False) == [NOTHING]


@pytest.mark.parametrize("text", CASES["nothing"])
def test_an_answer_does_not_restate(text):
    assert find([text] * 5) == [NOTHING] * 5


def test_a_title_counts_as_a_heading():
    assert find([ANSWER], titles=[f"{ASKED}?"]) == [("heading", "warning")]
    assert find([ANSWER], titles=["The bells of Amberley"]) == [NOTHING]
    assert find([f"{QUERY}. {ANSWER}"], titles=[QUERY]) == [("running_text", "blocked")]


def test_without_an_allowlist_a_sentence_warns_and_a_typed_query_blocks():
    typed, written = f"{QUERY}. {ANSWER}", f"{ASKED}? {ANSWER}"
    assert find([typed], allowlist=False) == [("typed_query", "blocked")]
    assert find([written], allowlist=False) == [("running_text", "warning")]
    assert find([f"{ANSWER} {typed}"], allowlist=False) == [("running_text", "warning")]


@pytest.mark.parametrize("allowlist", [True, False])
@pytest.mark.parametrize("text", [f"{ASKED}? {ANSWER}", f"## {QUERY}?\n\n{ANSWER}"])
def test_three_documents_of_one_source_were_made_for_the_query(text, allowlist):
    assert find([text] * 3, allowlist=allowlist) == [("repeated", "blocked")] * 3
    one_document = find([text] * 3, doc_ids=["d"] * 3, allowlist=allowlist)
    three_sources = find([text] * 3, sources=["a", "b", "c"], allowlist=allowlist)
    assert "repeated" not in {rule for rule, _ in one_document + three_sources}


def test_headings_of_unknown_sources_only_warn_without_an_allowlist():
    texts = [f"## {QUERY}?\n\n{ANSWER}"] * 3
    assert find(texts, sources=[""] * 3, allowlist=False) == [("repeated", "warning")] * 3
    assert find(texts, sources=[""] * 3) == [("repeated", "blocked")] * 3


def test_a_statement_may_be_repeated_by_a_text():
    statement = "the nine bells of Amberley were cast by nuns"
    begins = f"{statement}. So the legend says."
    holds = f"So the old legend of the valley says: {statement}."
    headed = f"## {statement}\n\nSo the legend says."
    warned = [("first_words", "warning"), NOTHING, NOTHING]
    assert find([begins, holds, headed], statement) == warned
    assert find([begins, f"{begins} Or not.", headed], statement) == [("repeated", "blocked")] * 3
    assert find([holds] * 3, statement) == [NOTHING] * 3


def test_a_second_warning_about_the_chunk_blocks():
    texts = [f"## {QUERY}?\n\n{ANSWER}"] * 2
    assert find(texts, warned=np.array([False, True])) == [
        ("heading", "warning"),
        ("heading", "blocked"),
    ]
    assert find([ANSWER], warned=np.array([True])) == [NOTHING]


def test_sources_that_are_vouched_for_are_not_looked_at():
    pairs = find_pairs([QUERY], [f"{QUERY}. {ANSWER}"] * 2, vouched=np.array([True, False]))
    assert pairs["chunk"].tolist() == [1]


# ---- Readings

LAKE = "how deep is the lake in summer"
LAKE_WORDS = LAKE.split()
DEPTH = "It is nine metres deep, says this page."
DRESSES = {
    "bold_words": " ".join(f"<b>{word}</b>" for word in LAKE_WORDS),
    "bold_without_blanks": "".join(f"<b>{word}</b>" for word in LAKE_WORDS),
    "attributes": " ".join(f'<span title="a>b">{word}</span>' for word in LAKE_WORDS),
    "unknown_elements": " ".join(f"<x-y>{word}</x-y>" for word in LAKE_WORDS),
    "escaped_tags": " ".join(f"&lt;i&gt;{word}&lt;/i&gt;" for word in LAKE_WORDS),
    "comments": " ".join(f"{word}<!-- and -->" for word in LAKE_WORDS),
    "zero_width": " ".join(f"{word[0]}\u200b{word[1:]}" for word in LAKE_WORDS),
    "zero_width_blanks": "\u200b".join(LAKE_WORDS),
    "cyrillic": LAKE.replace("e", "е").replace("a", "а"),
    "entities": LAKE.replace("e", "&#101;").replace("o", "&#x6f;"),
    "full_width": "".join(c if c == " " else chr(ord(c) + 0xFEE0) for c in LAKE),
    "split_words": " ".join(f"<i>{word[0]}</i>{word[1:]}" for word in LAKE_WORDS),
}


@pytest.mark.parametrize("name", DRESSES)
def test_a_dressed_question_blocks(name):
    assert find([f"{DRESSES[name]}? {DEPTH}"], LAKE) == [("running_text", "blocked")]


@pytest.mark.parametrize("text", ["<h2>{}?</h2><p>x</p>", "<b>{}?</b> x", "## {} &amp; more\n\nx"])
def test_a_dressed_heading_is_no_graver(text):
    assert find([text.format(LAKE)], LAKE)[0][1] != "blocked"


@pytest.mark.parametrize(
    ("title", "text", "expected"),
    [
        ("How deep is the", "lake in summer? {}", ("running_text", "blocked")),
        ("How d\u200beep is the", "<b>lake</b> in summer? {}", ("running_text", "blocked")),
        ("How deep is the.", "lake in summer? {}", NOTHING),
        ("How deep is the lake in summer", "{}", ("heading", "warning")),
        ("How deep is the lake in summer", f"# {LAKE}\n\n{{}}", ("heading", "warning")),
    ],
    ids=["split", "dressed", "ended", "title", "title_and_heading"],
)
def test_title_and_text_are_read_together(title, text, expected):
    assert find([text.format(DEPTH)], LAKE, titles=[title]) == [expected]


WIDE = f"tower {'bells ' * 200}of Amberley {'hang ' * 200}how many? "
PIECES = [f"{QUERY} ", "how ", "bells\n", "- ", "**Q: ", "<h2>how many bells ", "how? ", WIDE]


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_cost_grows_with_the_text(piece):
    def run(text):
        find_pairs([QUERY, "how how how how how how"], [text], vouched=None)

    # The query at the end lets a wide window begin at every term of the query before it.
    assert growth(run, lambda n: piece * (n // len(piece)) + ASKED, 10_000, 80_000) < 28


# ---- Bars: planted passages stay out, clean questions keep their documents, FAQ pages stay in


@pytest.mark.parametrize(
    "spec",
    [STRATEGIES[0], pytest.param(STRATEGIES[1], marks=pytest.mark.slow)],
    ids=lambda spec: spec.name,
)
@pytest.mark.parametrize("source", [UNTRUSTED, LOOKALIKE])
@pytest.mark.parametrize("form", ["question. passage", "Question? passage", "## question"])
def test_passages_with_the_question_are_kept_out(shared_data, tmp_path, form, source, spec):
    poisoned = Poisoned(attack(shared_data, form, source), spec, tmp_path)
    without, guarded = poisoned.outcome(guard=""), poisoned.outcome()
    assert without.own >= 0.9
    assert guarded.poisoned <= guarded.upper <= 0.05
    assert guarded.recall >= without.recall - 0.005


@pytest.mark.slow
@pytest.mark.parametrize("allowlist", [True, False])
@pytest.mark.parametrize("form", [form for form in FORMS if form != PLAIN])
def test_retrieval_time_alone_keeps_them_out(shared_data, tmp_path, form, allowlist):
    poisoned = Poisoned(attack(shared_data, form, UNTRUSTED), STRATEGIES[0], tmp_path)
    guarded = poisoned.outcome(guard="restates", allowlist=allowlist)
    assert guarded.own <= 0.01
    assert guarded.recall >= poisoned.outcome(guard="").recall - 0.005


def test_passages_without_the_question_need_an_allowlist_or_all_warnings(shared_data, tmp_path):
    poisoned = Poisoned(attack(shared_data, PLAIN, UNTRUSTED), STRATEGIES[0], tmp_path)
    without = poisoned.outcome(guard="")
    assert without.own >= 0.9
    assert poisoned.outcome().own <= 0.1
    assert poisoned.outcome(allowlist=False).own == without.own
    assert poisoned.outcome(allowlist=False, withheld=("blocked", "warning")).own <= 0.1


def test_one_page_of_a_faq_needs_a_judgement_of_its_source(shared_data, tmp_path):
    its = attack(shared_data, "## question", UNTRUSTED, per_target=1)
    poisoned = Poisoned(its, STRATEGIES[0], tmp_path)
    assert poisoned.outcome(allowlist=False).own >= 0.9
    assert poisoned.outcome(unlisted="allow").own >= 0.9
    assert poisoned.outcome(unlisted="warn").own <= 0.15
    assert poisoned.outcome(unlisted="block").poisoned == 0


@pytest.mark.parametrize("allowlist", [True, False])
def test_a_clean_corpus_loses_nothing(shared_data, tmp_path, allowlist):
    its = attack(shared_data, PLAIN, UNTRUSTED, per_target=0)
    poisoned = Poisoned(its, STRATEGIES[0], tmp_path)
    guarded = poisoned.outcome(allowlist=allowlist, withheld=("blocked", "warning"))
    assert guarded.recall >= poisoned.outcome(guard="").recall - 0.005
    assert guarded.n_dropped == 0


def read_pages(cut):
    """Return texts, titles, names and domains of the FAQ pages, whole or section by section."""
    rows = []
    for path in sorted((HERE / "faq").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        values, start = front_matter(text)
        title, domain = str(values["title"]), str(values["url"]).split("/")[2]
        sections = markdown_sections(path.name, title, text, start)
        spans = [(one.start, one.end) for one in sections] if cut else [(0, len(text))]
        rows += [(text[low:high], title, path.name, domain) for low, high in spans]
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "sections"])
@pytest.mark.parametrize("standing", ["allowed", "not listed", "no allowlist"])
@pytest.mark.parametrize("domain", ["own", "unknown"])
def test_faq_pages_are_not_blocked_for_their_questions(cut, standing, domain):
    texts, titles, names, sources = read_pages(cut)
    assert len(set(names)) == 30
    if domain != "own":
        sources = [""] * len(texts)
    vouched = None if standing == "no allowlist" else np.full(len(texts), standing == "allowed")
    questions = [row["question"] for row in json_lines(HERE / "faq" / "questions.jsonl")]
    owners = {"titles": titles, "doc_ids": names, "sources": sources}
    pairs = find_pairs(questions, texts, vouched=vouched, **owners)
    assert "blocked" not in set(pairs["severity"])
    # The check finds unlisted pages, but it only warns of them.
    assert (len(pairs) >= 100) == (standing == "not listed")
