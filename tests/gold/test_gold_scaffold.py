import pytest

from rag_eval.core.errors import InputError
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import discover, load_config
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold
from rag_eval.gold.scaffold import MAX_DRAFTS, init_gold_set


def test_new_gold_set_loads_and_lint_names_every_draft(smoke, smoke_frames, tmp_path):
    target = tmp_path / "gold_sets" / "manual"
    init_gold_set(target, smoke / "corpus")
    names = "README.md answers.jsonl gold_set.yaml paraphrases.jsonl qrels.tsv queries.jsonl"
    assert sorted(path.name for path in target.iterdir()) == names.split()
    assert list(discover(tmp_path / "gold_sets")) == ["manual"]
    config = load_config(target)
    assert isinstance(config.corpus, Folder)
    assert (target / config.corpus.path).resolve() == (smoke / "corpus").resolve()
    assert [strategy.kind for strategy in config.strategies] == ["bm25", "vector", "hybrid"]
    gold = load_gold(target)
    assert len(gold.queries) == MAX_DRAFTS
    problems = lint(gold, smoke_frames.documents, smoke_frames.sections)
    drafts = [problem for problem in problems if problem.code == "draft_question"]
    assert [problem.line for problem in drafts] == list(range(1, MAX_DRAFTS + 1))
    assert {problem.code for problem in problems} == {"draft_question", "missing_paraphrases"}
    documents = {target.partition("#")[0] for target in gold.judgements["target"]}
    assert len(documents) == 10, "no document fills the drafts alone"


def test_documents_without_headings_give_their_names(tmp_path):
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "sub" / "release_notes.txt").write_text("# not a heading in plain text\n")
    init_gold_set(tmp_path / "mine", docs)
    gold = load_gold(tmp_path / "mine")
    assert gold.queries["text"].tolist() == ["What do the documents say about release notes?"]
    assert gold.judgements["target"].unique().tolist() == ["sub/release_notes.txt"]


@pytest.mark.parametrize(
    ("name", "docs", "code"),
    [
        ("taken", "docs", "target_exists"),
        ("..", "docs", "target_exists"),
        ("new", "nowhere", "missing_folder"),
        ("new", "empty", "no_documents"),
    ],
)
def test_refusals_leave_nothing_behind(tmp_path, name, docs, code):
    for folder in ("docs", "empty", "sets/taken"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text("# A\n")
    (tmp_path / "sets" / "taken" / "mine.txt").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as caught:
        init_gold_set(tmp_path / "sets" / name, tmp_path / docs)
    assert [problem.code for problem in caught.value.problems] == [code]
    assert sorted(tmp_path.rglob("*")) == before


HEADINGS = """\
---
title: x
---
intro

# Guide

## Why does it ring\x07 \x1b[31mtwice\x85?

## Retries\u202e, and & back-off/pause

### Ask jane@example.org

## Really??

## `code` *and* C++

## ???

## Same

## Same!

```
# in a fence
```

> # quoted

Under
-----
"""


def test_drafts_name_the_sections_of_the_corpus_and_lint_sees_only_drafts(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text(HEADINGS, encoding="utf-8")
    (docs / "b.md").write_bytes(HEADINGS.replace("Retries", "Tries").replace("\n", "\r\n").encode())
    init_gold_set(tmp_path / "mine", docs)
    gold = load_gold(tmp_path / "mine")
    corpus = load_corpus(load_config(tmp_path / "mine").corpus, tmp_path / "mine")
    question = dict(zip(gold.queries["query_id"], gold.queries["text"], strict=True))
    asked = {
        target: question[query_id]
        for query_id, target in zip(
            gold.judgements["query_id"], gold.judgements["target"], strict=True
        )
    }
    assert set(asked) <= set(corpus.sections["section_id"])
    about = "What do the documents say about"
    assert {
        target.removeprefix("a.md#guide/"): text
        for target, text in asked.items()
        if target.startswith("a.md")
    } == {
        "why-does-it-ring-31mtwice": "Why does it ring [31mtwice?",
        "retries-and-back-offpause": f"{about} Retries , and & back-off/pause?",
        "retries-and-back-offpause/ask-email": f"{about} Ask [email██████████?",
        "really": "Really?",
        "code-and-c": f"{about} code and C++?",
        "under": f"{about} Under?",
    }
    assert {problem.code for problem in lint(gold, corpus.documents, corpus.sections)} == {
        "draft_question",
        "missing_paraphrases",
    }
