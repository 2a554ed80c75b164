"""The `datasets` loader on local data; the hub is never asked."""

import pytest

from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.records.gold_set import HuggingFace
from rag_eval.records.problems import InputError

datasets = pytest.importorskip("datasets")
ROWS = {"id": [2, 1], "head": ["two", None], "text": ["second", "mail x@example.org"]}


@pytest.fixture
def base(tmp_path):
    data = datasets.Dataset.from_dict(ROWS)
    data.to_json(tmp_path / "d.jsonl")
    data.to_csv(tmp_path / "d.csv", index=False)
    data.to_parquet(tmp_path / "d.parquet")
    data.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(
        tmp_path / "splits"
    )
    (tmp_path / "folder").mkdir()
    data.to_json(tmp_path / "folder" / "train.jsonl")
    return tmp_path


def spec(path, **options):
    return HuggingFace(loader="hf_datasets", path=path, title_column="head", **options)


@pytest.mark.parametrize("path", ["d.jsonl", "d.csv", "d.parquet", "saved", "splits", "folder"])
def test_local_formats_give_the_same_documents(base, path):
    corpus = load_corpus(spec(path), base)
    assert corpus.documents["doc_id"].tolist() == ["1", "2"]
    assert corpus.documents["title"].tolist() == ["", "two"]
    assert corpus.documents["text"].tolist() == ["mail [email███████", "second"]
    assert corpus.documents["source_url"].tolist() == [f"{path}#1", f"{path}#2"]
    assert corpus.corpus_rev == load_corpus(spec("saved"), base).corpus_rev
    assert corpus.masked["email"] == 1


def test_other_split(base):
    assert load_corpus(spec("splits", split="test"), base).documents["doc_id"].tolist() == ["2"]


@pytest.mark.parametrize(
    ("path", "options", "code"),
    [
        ("splits", {"split": "dev"}, "unknown_split"),
        ("d.csv", {"text_column": "body"}, "unknown_column"),
        ("broken.jsonl", {}, "not_loadable"),
        ("d.txt", {}, "unknown_format"),
    ],
)
def test_what_cannot_be_loaded_is_an_error(base, path, options, code):
    (base / "broken.jsonl").write_text("{")
    (base / "d.txt").write_text("x")
    with pytest.raises(InputError, match=code):
        load_corpus(spec(path, **options), base)


def test_bad_rows_are_all_named(base):
    data = {"id": ["a", "", "a", "../x", "e"], "text": ["1", "2", "3", "4", None]}
    datasets.Dataset.from_dict(data).to_parquet(base / "bad.parquet")
    with pytest.raises(InputError) as caught:
        load_corpus(HuggingFace(loader="hf_datasets", path="bad.parquet"), base)
    assert [(problem.code, problem.line) for problem in caught.value.problems] == [
        ("missing_id", 2), ("duplicate_id", 3), ("path_traversal", 4), ("missing_text", 5),
    ]  # fmt: skip


def test_changed_files_are_read_again(base):
    before = identify(spec("d.jsonl"), base), load_corpus(spec("d.jsonl"), base).corpus_rev
    (base / "d.jsonl").write_text('{"id": "1", "head": "", "text": "new"}\n')
    after = identify(spec("d.jsonl"), base), load_corpus(spec("d.jsonl"), base).corpus_rev
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_identity_of_hub_data_is_name_and_revision(base):
    assert identify(spec("owner/name", revision="a"), base) != identify(
        spec("owner/name", revision="b"), base
    )
    assert identify(spec("saved"), base) != identify(spec("splits"), base)


def test_progress_bars_are_as_before(base):
    datasets.enable_progress_bars()
    load_corpus(spec("d.jsonl"), base)
    assert not datasets.are_progress_bars_disabled()
