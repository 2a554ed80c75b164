import json

import pytest

from rag_eval.gold.configuration import discover, load_config
from rag_eval.gold.headings import markdown_headings
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold
from rag_eval.gold.scaffold import MAX_DRAFTS, init_gold_set
from rag_eval.records.gold_set import Folder
from rag_eval.records.problems import InputError


def test_new_gold_set_loads_and_lint_names_every_draft(smoke, smoke_frames, tmp_path):
    target = tmp_path / "gold_sets" / "manual"
    written = init_gold_set(target, smoke / "corpus")
    assert [path.name for path in written] == ["README.md", "answers.jsonl", "gold_set.yaml", "paraphrases.jsonl", "qrels.tsv", "queries.jsonl"]
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


def test_edited_draft_is_no_objection(smoke, smoke_frames, tmp_path):
    target = tmp_path / "manual"
    init_gold_set(target, smoke / "corpus")
    path = target / "queries.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0] |= {"text": "What does it cost?", "tags": []}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drafts = [problem for problem in lint(load_gold(target), smoke_frames.documents, smoke_frames.sections) if problem.code == "draft_question"]
    assert len(drafts) == MAX_DRAFTS - 1


def test_untrusted_headings_stay_data(tmp_path):
    docs = tmp_path / "do'cs: \"x\" #1"
    docs.mkdir()
    (docs / "a.md").write_text('# T\n## "quoted", {braces} & <b>tags</b>\n## tab\there\n## same\n## same\n')
    init_gold_set(tmp_path / "mine", docs)
    gold = load_gold(tmp_path / "mine")
    assert gold.queries["text"].tolist() == ['What do the documents say about "quoted", {braces} & tags?', "What do the documents say about tab here?"]
    assert (tmp_path / "mine" / load_config(tmp_path / "mine").corpus.path).resolve() == docs.resolve()


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
    [("taken", "docs", "target_exists"), ("bad name", "docs", "bad_name"), ("..", "docs", "target_exists"), ("new", "nowhere", "missing_folder"), ("new", "empty", "no_documents")],
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


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as caught:
        init_gold_set(tmp_path / "file" / "mine", tmp_path / "docs")
    assert caught.value.problems[0].code == "unwritable_folder"


def test_headings_leave_fences_quotes_and_front_matter_out():
    text = "---\ntitle: x\n---\n# A `code` *b*\n```\n# no\n```\n> # quoted\n\nUnder\n-----\n"
    assert markdown_headings(text) == [(1, "A code b"), (2, "Under")]
