"""The `datasets` loader on local data; the hub is never asked."""

import pytest

from rag_eval.core.errors import InputError
from rag_eval.corpus.loaders.hf_datasets import HuggingFace
from rag_eval.corpus.loading import load_corpus

datasets = pytest.importorskip("datasets")
ROWS = {"id": [2, 1], "head": ["two", None], "text": ["second", "mail x@example.org"]}


@pytest.fixture
def base(tmp_path):
    data = datasets.Dataset.from_dict(ROWS)
    data.to_json(tmp_path / "d.jsonl")
    data.to_csv(tmp_path / "d.csv", index=False)
    data.to_parquet(tmp_path / "d.parquet")
    data.save_to_disk(tmp_path / "saved")
    return tmp_path


def spec(path, **options):
    return HuggingFace(loader="hf_datasets", path=path, title_column="head", **options)


@pytest.mark.parametrize("path", ["d.jsonl", "d.csv", "d.parquet"])
def test_local_formats_give_the_same_documents(base, path):
    corpus = load_corpus(spec(path), base)
    assert corpus.documents["doc_id"].tolist() == ["1", "2"]
    assert corpus.documents["title"].tolist() == ["", "two"]
    assert corpus.documents["text"].tolist() == ["mail [email███████", "second"]
    assert corpus.documents["source_url"].tolist() == [f"{path}#1", f"{path}#2"]
    assert corpus.about.corpus_rev == load_corpus(spec("d.csv"), base).about.corpus_rev
    assert corpus.about.masked["email"] == 1


@pytest.mark.parametrize(
    ("path", "options", "code"),
    [
        ("saved", {}, "missing_input"),
        ("d.csv", {"text_column": "body"}, "unknown_column"),
        ("broken.jsonl", {}, "bad_json"),
        ("d.txt", {}, "missing_input"),
    ],
)
def test_what_cannot_be_loaded_is_an_error(base, path, options, code):
    (base / "broken.jsonl").write_text("{")
    (base / "d.txt").write_text("x")
    with pytest.raises(InputError, match=code):
        load_corpus(spec(path, **options), base)


def test_bad_rows_are_all_named(base):
    data = {"id": ["a", "", "a", "x\n\x01y", "e"], "text": ["1", "2", "3", "4", None]}
    datasets.Dataset.from_dict(data).to_parquet(base / "bad.parquet")
    with pytest.raises(InputError) as caught:
        load_corpus(HuggingFace(loader="hf_datasets", path="bad.parquet"), base)
    assert [(problem.code, problem.line) for problem in caught.value.problems] == [
        ("bad_id", 2),
        ("duplicate_id", 3),
        ("bad_id", 4),
        ("wrong_type", 5),
    ]
