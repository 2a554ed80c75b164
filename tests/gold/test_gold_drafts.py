"""Drafts quote passages drawn at random, and untrusted replies of a model are checked."""

import json

import pytest
from fake_llm import FakeLLM

from rag_eval.core.types import ChatError, Reply
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.gold.loading import read_gold
from rag_eval.gold.scaffold import MAX_DRAFTS, ask_for_drafts, draw_drafts


@pytest.fixture
def corpus(tmp_path):
    def read(**texts):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
        return load_corpus(Folder(loader="folder", path="."), tmp_path)

    return read


def test_passages_are_drawn_alike_from_all_sections(corpus):
    many = "".join(f"## Part {n}\n\nPart {n} has a button of its own.\n\n" for n in range(300))
    found = corpus(a=many, b="# Few\n\nIt is too short.\n\n- This list item is no sentence.\n")
    drafts = draw_drafts(found)
    assert len(drafts) == MAX_DRAFTS
    assert drafts == draw_drafts(found), "the seed is fixed"
    assert all(draft.is_draft and not draft.text for draft in drafts)
    numbers = [int(draft.places[0][0].rpartition("-")[2]) for draft in drafts]
    assert len(set(numbers)) == MAX_DRAFTS
    assert 3 <= sum(number < 100 for number in numbers) <= 13
    assert drafts[0].places[0][1] == f"Part {numbers[0]} has a button of its own."


def test_a_sentence_that_stands_twice_is_not_quoted(corpus):
    text = "# A\n\n" + "The lamp is on all night. " * 20 + "The door is closed by ten."
    (draft,) = draw_drafts(corpus(a=text))
    assert draft.places == (("a.md#a", "The door is closed by ten."),)


PASSAGE = "# Logs\n\nThe size of a log\nis limited to ten megabytes. " + "More is said here. " * 12
GOOD = {
    "question": "How large can a log get?",
    "quote": "The size of a log is limited to ten megabytes.",
}
DROPPED = {
    "not in the form that was asked for": [
        "no JSON",
        json.dumps({**GOOD, "more": 1}),
        json.dumps({**GOOD, "question": "x" * 141}),
        json.dumps({**GOOD, "quote": ""}),
        json.dumps([GOOD]),
    ],
    "a quote that is not in the passage exactly once": [
        json.dumps({**GOOD, "quote": "The size of a log is unlimited."}),
        json.dumps({**GOOD, "quote": "More is said here. More"}),
    ],
    "a question with control characters": [json.dumps({**GOOD, "question": "How large\x1b[31m?"})],
}


def test_replies_of_a_model_are_checked_and_dropped_ones_are_counted(corpus):
    found, sent = corpus(a=PASSAGE), []

    def draft(text):
        def ask(messages):
            sent.extend(messages)
            return Reply(text, 1, 1, "stop")

        return ask_for_drafts(found, ask, threads=1)

    for text in (json.dumps(GOOD), f"```json\n{json.dumps(GOOD)}\n```"):
        (drafted,), dropped = draft(text)
        assert drafted.text == GOOD["question"]
        assert drafted.places == (("a.md#logs", "The size of a log\nis limited to ten megabytes."),)
        assert drafted.is_draft
        assert not dropped
    assert json.loads(sent[1].content) == PASSAGE, "the passage is data: one JSON string"
    for reason, replies in DROPPED.items():
        for text in replies:
            assert draft(text) == ([], {reason: 1}), text


def test_an_endpoint_that_fails_ends_the_drafts(corpus):
    def ask(_):
        raise ChatError("refused", "no key")

    with pytest.raises(ChatError):
        ask_for_drafts(corpus(a=PASSAGE), ask, threads=2)


LONG = "A manual says much.\n\n" + "It says more than one can read. " * 8


@pytest.mark.parametrize(
    ("model", "drafts", "says"),
    [
        ("drafting", ["What about midnight.?"], "2 drafts"),
        ("error_reply", [], "2 replies were dropped: not in the form"),
        ("unauthorized", None, "endpoint_refused"),
    ],
)
def test_a_configured_endpoint_writes_the_drafts(project, monkeypatch, model, drafts, says):
    docs = project.root / "docs"
    docs.mkdir()
    (docs / "a.md").write_text(f"# A\n\n{LONG}\n\nThe shop closes at midnight.\n")
    (docs / "b.md").write_text(f"# B\n\n{LONG}\n\nThe shop closes at midnight.\n")
    with FakeLLM() as server:
        endpoint = {"base_url": server.base_url, "model": model, "max_retries": 0}
        monkeypatch.setenv("RAG_EVAL_ENDPOINTS", json.dumps({"local": endpoint}))
        done = project.command(
            "init", "mine", "--docs", docs, "--llm", exit_code=int(drafts is None)
        )
    assert says in done.output
    folder = project.root / "gold_sets" / "mine"
    if drafts is None:
        assert not folder.exists()
        return
    gold = read_gold(folder, load_config(folder))
    assert set(gold.queries["text"]) == set(drafts)
    assert all(tags == ["draft"] for tags in gold.queries["tags"])
    assert set(gold.anchors["quote"]) == ({"The shop closes at midnight."} if drafts else set())


def test_without_an_endpoint_llm_is_refused(project):
    done = project.command("init", "mine", "--docs", project.corpus, "--llm", exit_code=1)
    assert "no_endpoint" in done.stderr
