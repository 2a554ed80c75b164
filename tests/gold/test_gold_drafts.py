"""Drafts ask what a user would ask, quote their passage, and untrusted replies are checked."""

import json
from collections import Counter

import pytest
from fake_llm import FakeLLM

from rag_eval.core.types import ChatError, Reply
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.gold.drafts import MAX_DRAFTS, ask_for_drafts, make_drafts
from rag_eval.gold.loading import read_gold

SECTIONS = {
    "Why does it ring twice?": (
        "The alarm rings again after a minute.",
        "",
    ),
    "How to reset your password": (
        "A link in the mail opens the form.",
        "How do I reset my password?",
    ),
    "Logs": (
        "To rotate the logs, set `max_size` in the [settings](settings.md).",
        "How do I rotate the logs?",
    ),
    "Backups": (
        "If you want to keep your backups for a year, raise the limit.",
        "How do I keep my backups for a year?",
    ),
    "Retries": (
        "If the server does not answer within a minute, the call fails.",
        "What happens if the server does not answer within a minute?",
    ),
    "Change sets": (
        "A change set is a list of edits that belong together.",
        "What is a change set?",
    ),
    "Export": (
        "Use the `dump` command to write every table to disk.",
        "How do I write every table to disk?",
    ),
    "Highlights": ("Many things are faster now than they were before.", None),
    "Notes": ("If this option is given, the command prints more.", None),
    "Switch": ("When set to zero, the number has no bound.", None),
    "Stop": ("To stop the work (i.e. all of it), press the key.", None),
    "Pointers": ("When used with care, the command is fast enough.", None),
}
"""Heading -> first sentence, and the question (empty: the heading) or None."""


@pytest.fixture
def corpus(tmp_path):
    def read(**texts):
        for name, text in texts.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
        return load_corpus(Folder(loader="folder", path="."), tmp_path)

    return read


def test_rules_ask_what_a_passage_answers_and_skip_the_rest(corpus):
    found = corpus(
        a="# Guide\n\n"
        + "\n\n".join(f"## {head}\n\n{text}" for head, (text, _) in SECTIONS.items())
    )
    expected = {
        asked or head: text for head, (text, asked) in SECTIONS.items() if asked is not None
    }
    drafts = make_drafts(found)
    assert {draft.text: draft.places[0][1] for draft in drafts} == expected
    ids = set(found.sections["section_id"])
    assert all(draft.is_draft and draft.places[0][0] in ids for draft in drafts)


def test_a_task_is_preferred_to_a_condition(corpus):
    text = "# Doors\n\nIf the bell rings twice, somebody waits.\n\nTo open a door, turn the key.\n"
    assert [draft.text for draft in make_drafts(corpus(a=text))] == ["How do I open a door?"]


def test_folders_take_turns_whatever_their_number_of_documents(corpus):
    folders = ["big", "deep/first", "deep/last", "other", "."]
    n_documents = dict(zip(folders, [60, 30, 1, 2, 1], strict=True))
    texts = {}
    for folder, n_files in n_documents.items():
        part = (
            "## Part {}\n\nTo turn part " + folder.strip(".") + " {} {} on, press the button.\n\n"
        )
        for at in range(n_files):
            texts[f"{folder}/{at:02}"] = "".join(part.format(n, at, n) for n in range(30))
    drafts = make_drafts(corpus(**texts))
    names = [draft.places[0][0].partition("#")[0].rpartition("/")[0] for draft in drafts]
    assert Counter(names) == {"big": 6, "deep/first": 3, "deep/last": 3, "other": 6, "": 6}
    assert len({draft.places[0][0].partition("#")[0] for draft in drafts}) == 6 + 3 + 1 + 2 + 1


def test_drafts_are_spread_over_documents_and_bounded(corpus):
    many = "".join(f"## Part {n}\n\nTo turn part {n} on, press the button.\n\n" for n in range(40))
    drafts = make_drafts(corpus(a=many, b="# B\n\nTo leave the room, open the door.\n"))
    assert len(drafts) == MAX_DRAFTS
    assert drafts[1].text == "How do I leave the room?"


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
        ("drafting", ["What about midnight.?"], "2 draft questions"),
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
    (project.root / "docs").mkdir()
    done = project.command("init", "mine", "--docs", project.root / "docs", "--llm", exit_code=1)
    assert "no_endpoint" in done.stderr
