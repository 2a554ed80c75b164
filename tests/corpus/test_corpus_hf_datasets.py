"""The `datasets` loader on local data; the hub is never asked."""

import json

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
    assert corpus.about.corpus_rev == load_corpus(spec("saved"), base).about.corpus_rev
    assert corpus.about.masked["email"] == 1


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
        ("bad_id", 2),
        ("duplicate_id", 3),
        ("bad_id", 4),
        ("wrong_type", 5),
    ]


def test_a_data_set_reads_no_file_outside_its_folder(base):
    (base / "secret.jsonl").write_text('{"id": "a", "text": "secret"}\n', encoding="utf-8")
    (base / "data").mkdir()
    (base / "data" / "a.jsonl").write_text('{"id": "a", "text": "fine"}\n', encoding="utf-8")
    spec = HuggingFace(loader="hf_datasets", path="data")
    assert list(load_corpus(spec, base).documents["text"]) == ["fine"]
    card = f"---\nconfigs:\n- config_name: default\n  data_files: {base}/secret.jsonl\n---\n"
    (base / "data" / "README.md").write_text(card, encoding="utf-8")
    with pytest.raises(InputError, match="outside_folder"):
        load_corpus(spec, base)


def test_a_saved_data_set_reads_no_file_outside_its_folder(base):
    datasets.Dataset.from_dict({"id": ["a"], "text": ["secret"]}).save_to_disk(base / "theirs")
    datasets.Dataset.from_dict({"id": ["a"], "text": ["fine"]}).save_to_disk(base / "ours")
    state = json.loads((base / "ours" / "state.json").read_text(encoding="utf-8"))
    state["_data_files"] = [{"filename": f"../theirs/{state['_data_files'][0]['filename']}"}]
    (base / "ours" / "state.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(InputError, match="outside_folder"):
        load_corpus(HuggingFace(loader="hf_datasets", path="ours"), base)
