import re
from functools import partial

import pytest

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.corpus.loaders import formats
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import discover, load_config
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import load_gold
from rag_eval.gold.scaffold import MAX_DRAFTS, init_gold_set, read_questions
from rag_eval.pipeline.corpus import AdmittedChunks
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import open_runner


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
    assert "answer_contract" in config.gates.required
    gold = load_gold(target)
    assert 3 <= len(gold.queries) <= MAX_DRAFTS
    problems = lint(gold, smoke_frames.documents, smoke_frames.sections)
    drafts = [problem for problem in problems if problem.code == "draft_question"]
    assert [problem.line for problem in drafts] == list(range(1, len(gold.queries) + 1))
    assert {problem.code for problem in problems} == {"draft_question", "missing_paraphrases"}
    assert len(gold.anchors) == len(gold.queries), "each draft quotes its passage"


@pytest.mark.parametrize(
    ("name", "docs", "code"),
    [
        ("taken", "docs", "target_exists"),
        ("..", "docs", "target_exists"),
        ("new", "nowhere", "missing_folder"),
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


PAGE = "---\nurl: {url}\n---\n# Logs {name}\n\nLogs of {name} are kept for ten days.\n"


@pytest.mark.parametrize(
    ("urls", "domains"),
    [
        (["https://docs.example.org/a", "https://docs.example.org/b"], ("docs.example.org",)),
        (["https://docs.example.org/a", "https://other.example/b"], ()),
        (["https://docs.example.org/a", ""], ()),
        (["", ""], ()),
    ],
    ids=["one domain", "two domains", "one without address", "no address"],
)
def test_one_domain_of_all_documents_is_trusted_alone(tmp_path, urls, domains):
    docs, settings = tmp_path / "docs", Settings(home=tmp_path / "home", corpus_roots=[tmp_path])
    docs.mkdir()
    for name, url in zip("ab", urls, strict=True):
        (docs / f"{name}.md").write_text(PAGE.format(name=name, url=url))
    init_gold_set(tmp_path / "sets" / "mine", docs)
    trust = load_config(tmp_path / "sets" / "mine").trust
    assert trust.domains == domains
    assert trust.unlisted == ("block" if domains else "warn")

    def count_indexed():
        evaluation = open_gold_set(tmp_path / "sets" / "mine", settings)
        return open_runner(evaluation).get(AdmittedChunks).chunks["doc_id"].nunique()

    assert count_indexed() == 2
    (docs / "c.md").write_text("# Planted\n\nLogs are kept for ever, says this page.\n")
    assert count_indexed() == (2 if domains else 3)


CSV = """\
question,document,quote
How long are logs kept?,a.md,"Logs are kept
for ten days."
How long are logs kept?,b.txt,ten days
Who made it?,,
"""


@pytest.fixture
def manual(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Logs\n\nLogs are kept for ten days.\n\nTwice. Twice.\n")
    (docs / "b.txt").write_text("ten days\n")
    return docs


def read(path, text, docs):
    path.write_text(text, encoding="utf-8")
    return init_gold_set(path.parent / "mine", docs, partial(read_questions, path))[0]


def test_questions_of_a_csv_file_become_a_gold_set(tmp_path, manual):
    path = tmp_path / "questions.csv"
    assert read(path, f"\ufeff{CSV}", manual) == 2
    gold = load_gold(tmp_path / "mine")
    corpus = load_corpus(load_config(tmp_path / "mine").corpus, tmp_path / "mine")
    assert gold.queries["text"].tolist() == ["How long are logs kept?", "Who made it?"]
    assert gold.queries["answerable"].tolist() == [True, False]
    assert gold.anchors["doc"].tolist() == ["a.md", "b.txt"]
    problems = lint(gold, corpus.documents, corpus.sections)
    assert {problem.severity for problem in problems} == {"warning"}


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("Q?,aa.md,Logs", "dangling_target", r"\[document\]"),
        ("Q?,a.md,Logs are eaten", "anchor_not_found", r"\[quote\].*word for word"),
        ("Q?,a.md,Twice.", "anchor_ambiguous", "lines? 5"),
        ("Q?,a.md,", "missing_key", "quote"),
        ('Q?,a.md,"Logs', "bad_csv", "quotation marks"),
    ],
)
def test_a_fault_of_a_csv_file_names_its_line(tmp_path, manual, line, code, says):
    with pytest.raises(InputError) as caught:
        read(tmp_path / "q.csv", f"{CSV}{line}\n", manual)
    (problem,) = caught.value.problems
    assert (problem.code, problem.line) == (code, 6), str(problem)
    assert re.search(says, str(problem))
    assert not (tmp_path / "mine").exists()


def test_a_file_that_cannot_be_read_is_left_out(tmp_path, manual):
    (manual / "picture.png").write_bytes(b"\x89PNG")
    (manual / "broken.pdf").write_bytes(b"%PDF-1.4 broken")
    (manual / "latin.txt").write_bytes(b"caf\xe9")
    target = tmp_path / "sets" / "mine"
    _, broken = init_gold_set(target, manual)
    assert broken.keys() == {"broken.pdf", "latin.txt"}
    assert "PDF cannot be read" in broken["broken.pdf"]
    spec = load_config(target).corpus
    assert spec.exclude == ("broken.pdf", "latin.txt")
    assert load_corpus(spec, target).documents["doc_id"].tolist() == ["a.md", "b.txt"]


def test_a_missing_reader_is_named_and_nothing_is_left_out(tmp_path, manual, monkeypatch):
    (manual / "page.html").write_text("<p>x</p>", encoding="utf-8")
    monkeypatch.setattr(formats, "explain_missing", lambda *_: "install rag_eval[documents]")
    with pytest.raises(InputError, match=r"missing_package.*install rag_eval\[documents\]"):
        init_gold_set(tmp_path / "mine", manual)
    assert not (tmp_path / "mine").exists()
