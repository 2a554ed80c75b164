"""The Parquet loader on files, folders and an object store in memory."""

import datetime as dt

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.corpus.loaders.hf_datasets import HuggingFace
from rag_eval.corpus.loaders.parquet import Parquet
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.gold.configuration import permitted

ROWS = {
    "key": [3, 1, 2],
    "title": ["three", None, "two"],
    "body": ["third", "mail x@example.org", "second"],
    "url": ["https://example.org/3", None, ""],
    "author": [["Jane", "Joe"], None, []],
    "date": [dt.date(2024, 1, 31), None, dt.date(2024, 2, 1)],
    "unread": [0, 0, 0],
}
COLUMNS = {
    "id_column": "key",
    "text_column": "body",
}


def write(place, rows=ROWS, first=0, last=None):
    with fsspec.open(str(place), "wb") as stream:
        pq.write_table(pa.table(rows).slice(first, last), stream)


def spec(path, **columns):
    return Parquet(loader="parquet", path=path, **(columns or COLUMNS))


def test_a_file_gives_the_documents_of_a_data_set(tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "d.parquet")
    ours = load_corpus(spec("d.parquet"), tmp_path)
    theirs = load_corpus(HuggingFace(loader="hf_datasets", path="d.parquet", **COLUMNS), tmp_path)
    for name in ("documents", "sections", "sources"):
        assert getattr(ours, name).equals(getattr(theirs, name))
    assert ours.documents["doc_id"].tolist() == ["1", "2", "3"]
    assert ours.sources["author"].tolist() == ["", "", "Jane, Joe"]
    assert ours.about.corpus_rev == theirs.about.corpus_rev


def test_a_folder_and_an_object_store_give_the_same_documents(tmp_path):
    (tmp_path / "all" / "deep").mkdir(parents=True)
    write(tmp_path / "d.parquet")
    for root in (tmp_path / "all", "memory://bucket/all"):
        write(f"{root}/b.parquet", first=0, last=2)
        write(f"{root}/deep/a.parquet", first=2)
    (tmp_path / "all" / "notes.txt").write_text("no documents")
    revisions = {
        load_corpus(spec(path), tmp_path).about.corpus_rev
        for path in ("d.parquet", "all", "memory://bucket/all")
    }
    assert len(revisions) == 1


@pytest.mark.parametrize("path", ["all", "memory://changing/all"])
def test_a_changed_file_changes_the_identity(tmp_path, path):
    root = path if "://" in path else tmp_path / path
    write(f"{root}/a.parquet") if "://" in path else (root.mkdir(), write(root / "a.parquet"))
    before = identify(spec(path), tmp_path)
    assert identify(spec(path), tmp_path) == before
    write(f"{root}/a.parquet", ROWS | {"unread": [0, 0, 1]})
    assert identify(spec(path), tmp_path) != before


def test_bad_rows_are_named_by_file_and_row(tmp_path):
    (tmp_path / "all").mkdir()
    write(tmp_path / "all" / "a.parquet", {"id": ["a", "", "b"], "text": ["1", "2", None]})
    write(tmp_path / "all" / "b.parquet", {"id": ["c", "a"], "text": ["1", "2"]})
    with pytest.raises(InputError) as caught:
        load_corpus(spec("all", id_column="id"), tmp_path)
    found = [(problem.code, problem.file, problem.line) for problem in caught.value.problems]
    assert found == [
        ("bad_id", "all/a.parquet", 2),
        ("wrong_type", "all/a.parquet", 3),
        ("duplicate_id", "all/b.parquet", 2),
    ]


@pytest.mark.parametrize(
    ("path", "columns", "code"),
    [
        ("absent", {}, "missing_input"),
        ("unknown-store://bucket", {}, "not_loadable"),
        ("broken.parquet", {}, "not_loadable"),
        ("d.parquet", {"id_column": "key", "text_column": "words"}, "unknown_column"),
        ("d.parquet", {"id_column": "key", "text_column": "unread"}, "wrong_type"),
        ("none.parquet", {}, "empty_corpus"),
    ],
)
def test_what_cannot_be_loaded_is_an_error(tmp_path, path, columns, code):
    write(tmp_path / "d.parquet")
    write(tmp_path / "none.parquet", last=0)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=code):
        load_corpus(spec(path, **columns), tmp_path)


@pytest.mark.parametrize(
    ("path", "is_allowed"),
    [
        ("s3://bucket/corpora", True),
        ("s3://bucket/corpora/a/b.parquet", True),
        ("s3://bucket/corpora2", False),
        ("s3://bucket/corpora/../private", False),
        ("s3://bucket/corpora/a::s3://private/x", False),
    ],
)
def test_addresses_lie_below_a_listed_one(tmp_path, path, is_allowed):
    settings = Settings(corpus_roots=("s3://bucket/corpora/", str(tmp_path / "s3:")))
    config = GoldSetConfig(
        name="x",
        corpus={"loader": "parquet", "path": path},
        strategies=[{"name": "bm25", "kind": "bm25"}],
    )
    if is_allowed:
        assert permitted(config, tmp_path / "gold", settings).corpus.path == path
    else:
        with pytest.raises(InputError, match="outside_gold_set"):
            permitted(config, tmp_path / "gold", settings)


@pytest.mark.parametrize("root", ["s3://", "file:///srv", "s3:///bucket"])
def test_a_root_names_a_bucket(root):
    with pytest.raises(ValueError, match="scheme://bucket"):
        Settings(corpus_roots=(root,))
