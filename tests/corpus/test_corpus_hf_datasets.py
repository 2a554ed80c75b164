"""The `datasets` loader on local data; the hub is never asked."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.corpus.loaders.hf_datasets import HuggingFace
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import permitted

datasets = pytest.importorskip("datasets")
ROWS = {"id": [2, 1], "title": ["two", None], "text": ["second", "mail x@example.org"]}


@pytest.fixture
def base(tmp_path):
    data = datasets.Dataset.from_dict(ROWS)
    data.to_json(tmp_path / "d.jsonl")
    data.to_csv(tmp_path / "d.csv", index=False)
    data.to_parquet(tmp_path / "d.parquet")
    data.save_to_disk(tmp_path / "saved")
    return tmp_path


def spec(path, **options):
    return HuggingFace(loader="hf_datasets", path=path, **options)


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


@pytest.mark.parametrize("kind", ["Image", "Audio", "Video", "Pdf"])
def test_a_file_opens_nothing_that_its_rows_name(tmp_path, kind):
    features = {"id": {"dtype": "string", "_type": "Value"}, "text": {"_type": kind}}
    about = {b"huggingface": json.dumps({"info": {"features": features}})}
    (tmp_path / "private").write_text("x")
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for address in ("http://127.0.0.1:9/x", str(tmp_path / "private")):
        values = pa.array([{"bytes": None, "path": address}], struct)
        table = pa.table({"id": ["a"], "text": values}).replace_schema_metadata(about)
        pq.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(InputError) as caught:  # datasets opening it fails as not_loadable
            load_corpus(HuggingFace(loader="hf_datasets", path="x.parquet"), tmp_path)
        assert [problem.code for problem in caught.value.problems] == ["wrong_type"]


@pytest.mark.parametrize(
    ("path", "roots", "is_allowed"),
    [
        ("someone/data", (), False),
        ("someone/data", ("hf://datasets/else",), False),
        ("someone/data", ("hf://datasets/someone",), True),
        ("someone/data.jsonl", (), True),  # a file
    ],
)
def test_the_hub_is_asked_only_below_a_listed_address(tmp_path, path, roots, is_allowed):
    config = GoldSetConfig(
        name="x",
        corpus={"loader": "hf_datasets", "path": path},
        strategies=[{"name": "bm25", "kind": "bm25"}],
    )
    settings = Settings(corpus_roots=roots)
    if is_allowed:
        assert permitted(config, tmp_path, settings).corpus.path == path
    else:
        with pytest.raises(InputError, match=r"outside_gold_set.*hf://datasets/someone/data"):
            permitted(config, tmp_path, settings)
