"""Every loader gives the sources of its documents: bytes, author, date, domain."""

import datetime as dt
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rag_eval.core.config import SOURCES
from rag_eval.core.errors import InputError
from rag_eval.corpus.loaders.beir import Beir
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loaders.hf_datasets import HuggingFace
from rag_eval.corpus.loaders.package_docs import PackageDocs
from rag_eval.corpus.loaders.recorded import Recorded
from rag_eval.corpus.loading import identify, load_corpus, source_bytes
from rag_eval.corpus.source import (
    author_hash,
)

FOLDER = Folder(loader="folder", path="corpus")
BEIR = Beir(loader="beir", path="corpus")
RECORDED = Recorded(loader="recorded", path="outputs.jsonl")


def write(base, name, content):
    path = base / "corpus" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def git(base, *arguments, at="2024-03-01T12:00:00+00:00"):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    options = "user.name=T user.email=t@example.org commit.gpgsign=false init.defaultBranch=main"
    identity = [part for option in options.split() for part in ("-c", option)]
    dates = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00+00:00", "GIT_COMMITTER_DATE": at}
    return subprocess.run(
        ["git", *identity, *arguments],
        cwd=base,
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | dates,
    ).stdout.strip()


def commit(base, at):
    git(base, "add", "-A")
    git(base, "commit", "-q", "-m", "change", at=at)


def dates(base, spec=FOLDER):
    sources = load_corpus(spec, base).sources
    return dict(zip(sources["doc_id"], sources["date"], strict=True))


def beir(base, *rows):
    write(base, "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def only(corpus):
    (row,) = corpus.sources.to_dict("records")
    return row


def loaded(base, **metadata):
    beir(base, {"_id": "a", "text": "t", "metadata": metadata})
    return load_corpus(BEIR, base)


def agree(spec, base):
    """Check that the bytes read again have the hashes of the frame, and return them."""
    corpus, again = load_corpus(spec, base), source_bytes(spec, base)
    assert list(corpus.sources.columns) == list(SOURCES.columns)
    assert corpus.sources["doc_id"].tolist() == corpus.documents["doc_id"].tolist() == list(again)
    assert corpus.sources["source_hash"].tolist() == [
        hashlib.sha256(data).hexdigest() for data in again.values()
    ]
    return again


def test_front_matter_of_files(tmp_path):
    write(
        tmp_path,
        "a.md",
        "---\nauthor: Jane Doe\ndate: 2024-01-31\nupdated: 2024-02-01T23:30:00-02:00\n"
        "url: https://Example.org/a\n---\nx\n",
    )
    write(
        tmp_path,
        "b.md",
        "+++\nauthors = ['Jane Doe', 'Joe Bloggs']\nlast_modified = 2023-05-06\n+++\nx\n",
    )
    write(
        tmp_path,
        "c.md",
        "---\nauthors:\n- name: Jane Doe\n  email: jane@example.org\n- 7\n---\nx\n",
    )
    write(tmp_path, "d.txt", "---\nauthor: Jane\ndate: 2024-01-31\n---\nx\n")
    corpus = load_corpus(FOLDER, tmp_path)
    assert corpus.sources["author"].tolist() == ["Jane Doe", "Jane Doe, Joe Bloggs", "Jane Doe", ""]
    assert corpus.sources["date"].tolist() == ["2024-02-02", "2023-05-06", "", ""]
    assert corpus.sources["domain"].tolist() == ["example.org", "", "", ""]
    assert corpus.sources["author_hash"][0] == author_hash("jane  DOE")
    assert corpus.unreadable_dates == 0


def test_dates_that_cannot_be_read_are_counted_and_cost_nothing_else(tmp_path):
    write(tmp_path, "a.md", "---\ntitle: Kept\ndate: 2024-02-30\n---\nx\n")
    write(tmp_path, "b.md", "---\ndate: soon\nupdated: 2024-01-31\n---\nx\n")
    write(tmp_path, "c.md", "---\ndate:\nupdated: ''\n---\nx\n")
    write(tmp_path, "d.md", "---\ndate: 2024\nupdated: [2024-01-31]\n---\nx\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path, "2025-06-07T00:00:00+00:00")
    corpus = load_corpus(FOLDER, tmp_path)
    assert corpus.sources["date"].tolist() == [
        "",
        "2024-01-31",
        "2025-06-07",
        "",
    ]  # an unreadable stated date does not fall back to the commit
    assert corpus.documents["title"][0] == "Kept"
    assert corpus.unreadable_dates == 4


def test_files_that_say_no_date_have_that_of_their_commit(tmp_path):
    write(tmp_path, "a.md", "# A\n")
    write(tmp_path, "b.txt", "b")
    write(tmp_path, "c.md", "---\ndate: 2001-02-03\n---\n# C\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path, "2024-03-01T23:30:00-02:00")
    assert dates(tmp_path) == {
        "a.md": "2024-03-02",
        "b.txt": "2024-03-02",
        "c.md": "2001-02-03",
    }  # the committer's day in UTC
    write(tmp_path, "b.txt", "bb")
    commit(tmp_path, "2024-05-01T00:00:00+00:00")
    assert dates(tmp_path) == {"a.md": "2024-03-02", "b.txt": "2024-05-01", "c.md": "2001-02-03"}
    write(tmp_path, "a.md", "# AA\n")
    write(tmp_path, "c.md", "---\ndate: 2002-02-03\n---\n# C\n")
    write(tmp_path, "new.txt", "n")
    assert dates(tmp_path) == {
        "a.md": "",
        "b.txt": "2024-05-01",
        "c.md": "2002-02-03",
        "new.txt": "",
    }
    assert load_corpus(FOLDER, tmp_path).unreadable_dates == 0


def test_the_first_commit_of_a_shallow_clone_dates_nothing(tmp_path):
    origin = tmp_path / "origin"
    write(origin, "a.txt", "a")
    git(origin, "init", "-q")
    commit(origin, "2001-01-01T00:00:00+00:00")
    write(origin, "b.txt", "b")
    commit(origin, "2024-03-01T00:00:00+00:00")
    git(tmp_path, "clone", "-q", "--depth", "1", origin.as_uri(), "clone")
    clone = tmp_path / "clone"
    seen = [(identify(FOLDER, clone), dates(clone))]
    git(clone, "fetch", "-q", "--unshallow")
    seen.append((identify(FOLDER, clone), dates(clone)))
    assert [found for _, found in seen] == [
        {"a.txt": "", "b.txt": ""},
        {"a.txt": "2001-01-01", "b.txt": "2024-03-01"},
    ]
    assert seen[0][0] != seen[1][0]


@pytest.mark.parametrize(
    ("metadata", "author", "date", "unreadable"),
    [
        ({}, "", "", 0),
        ({"author": "Jane", "authors": ["Joe"], "date": "2024-01-31"}, "Jane", "2024-01-31", 0),
        (
            {
                "author": "",
                "authors": ["Joe", None, "", "Ann"],
                "published": "2024-01-31",
                "updated": "2024-02-01 10:00:00",
            },
            "Joe, Ann",
            "2024-02-01",
            0,
        ),
        ({"author": 7, "timestamp": 1706745600}, "", "2024-02-01", 0),
        (
            {"author": {"name": "Jane"}, "last_modified": "2999-01-01", "date": False},
            "Jane",
            "2999-01-01",
            1,
        ),
        ({"authors": [["Jane"]], "date": {}, "timestamp": 1706745600000}, "", "", 2),
    ],
)
def test_metadata_of_lines(tmp_path, metadata, author, date, unreadable):
    corpus = loaded(tmp_path, **metadata)
    assert (only(corpus)["author"], only(corpus)["date"], corpus.unreadable_dates) == (
        author,
        date,
        unreadable,
    )


def test_authors_and_addresses_are_masked_and_compared_unmasked(tmp_path):
    corpus = loaded(
        tmp_path,
        author="Jane <jane@example.org>",
        url="https://me:secret@mail.example.org/jane@example.org?card=4111111111111111",
    )
    source, document = only(corpus), corpus.documents.to_dict("records")[0]
    assert source["author"] == "Jane <[email██████████>"
    assert source["author_hash"] == hashlib.sha256(b"jane <jane@example.org>").hexdigest()
    assert source["domain"] == "mail.example.org"
    assert (
        document["source_url"] == "https://mail.example.org/[email██████████?card=[card███████████"
    )
    assert (corpus.masked["email"], corpus.masked["card"]) == (1, 1)  # those of the documents frame
    plain = load_corpus(BEIR.model_copy(update={"mask_pii": False}), tmp_path)
    assert only(plain) == source | {"author": "Jane <jane@example.org>"}
    assert (
        plain.documents["source_url"][0]
        == "https://mail.example.org/jane@example.org?card=4111111111111111"
    )


def test_columns_of_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    when = [dt.datetime(2024, 1, 31, 23), None, dt.datetime(2024, 2, 1)]  # noqa: DTZ001
    table = {
        "id": [1, 2, 3],
        "text": ["one", "two ü", "three"],
        "link": ["https://example.org/1", None, ""],
        "by": [["Jane", "Joe"], None, []],
        "when": when,
        "day": [dt.date(2024, 1, 31), None, None],
        "said": ["2024-01-31T23:00:00-02:00", "soon", ""],
        "seconds": [1706745600.0, None, float("nan")],
    }
    datasets.Dataset.from_dict(table).to_parquet(tmp_path / "d.parquet")

    def spec(date, **more):
        return HuggingFace(
            loader="hf_datasets",
            path="d.parquet",
            url_column="link",
            author_column="by",
            date_column=date,
            **more,
        )

    corpus = load_corpus(spec("when"), tmp_path)
    assert corpus.documents["source_url"].tolist() == [
        "https://example.org/1",
        "d.parquet#2",
        "d.parquet#3",
    ]
    assert corpus.sources["domain"].tolist() == ["example.org", "", ""]
    assert corpus.sources["author"].tolist() == ["Jane, Joe", "", ""]
    assert corpus.sources["date"].tolist() == ["2024-01-31", "", "2024-02-01"]
    assert agree(spec("when"), tmp_path)["2"] == '{"id":"2","text":"two ü","title":""}'.encode()
    for column, days, unreadable in (
        ("day", ["2024-01-31", "", ""], 0),
        ("said", ["2024-02-01", "", ""], 1),
        ("seconds", ["2024-02-01", "", ""], 0),
    ):
        found = load_corpus(spec(column), tmp_path)
        assert (found.sources["date"].tolist(), found.unreadable_dates) == (days, unreadable), (
            column
        )
    with pytest.raises(InputError) as caught:
        load_corpus(spec("never", title_column="head"), tmp_path)
    assert (caught.value.problems[0].field, caught.value.problems[0].found) == (
        "corpus.title_column",
        "head",
    )


@pytest.mark.parametrize(
    ("metadata", "author"),
    [
        ("Author: Jane Doe\nMaintainer: Joe\nAuthor-email: Ann <ann@example.org>\n", "Jane Doe"),
        ("Author: UNKNOWN\nMaintainer: Joe\nAuthor-email: Ann <ann@example.org>\n", "Joe"),
        (
            (
                'Author-email: "Doe, Ann" <ann@example.org>, bob@example.org, Zo\u00eb '
                "<zoe@example.org>\n"
            ),
            "Doe, Ann, Zo\u00eb",
        ),
        (
            "Author-email: bob@example.org\nMaintainer-email: The Shelf Team <team@example.org>\n",
            "The Shelf Team",
        ),
        ("", ""),
    ],
)
def test_packages_have_the_author_of_their_metadata(tmp_path, monkeypatch, metadata, author):
    package = tmp_path / "shelf_by"
    package.mkdir()
    (package / "__init__.py").write_text(
        '"""A package."""\n__all__ = ["f"]\n\n\ndef f():\n    """Do \u00fc."""\n', encoding="utf-8"
    )
    info = tmp_path / "shelf_by-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: shelf-by\nVersion: 1.2\n{metadata}", encoding="utf-8"
    )
    (info / "RECORD").write_text("shelf_by/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = PackageDocs(loader="package_docs", package="shelf_by")
    assert agree(spec, Path()) == {"shelf_by.f": "Do \u00fc.".encode()}
    corpus = load_corpus(spec, Path())
    assert set(corpus.sources["author"]) == {author}
    assert set(corpus.sources["domain"]) == {"python:shelf_by"}
    assert set(corpus.sources["date"]) == {""}
    before = identify(spec, Path())
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: shelf-by\nVersion: 1.2\nAuthor: Another\n"
    )
    assert identify(spec, Path()) != before


def test_recorded_contexts_say_an_address_at_most(tmp_path):
    contexts = [
        {"id": "a", "text": "one", "url": "https://me:pw@example.org/a"},
        {"id": "b", "text": "two"},
        {"id": "b", "text": "three"},
    ]
    (tmp_path / "outputs.jsonl").write_text(
        json.dumps({"query_id": "q", "answer": None, "contexts": contexts}) + "\n"
    )
    corpus = load_corpus(RECORDED, tmp_path)
    assert agree(RECORDED, tmp_path) == {"a": b"\none", "b": b"\nthree\n\ntwo"}
    assert corpus.documents["source_url"].tolist() == ["https://example.org/a", "outputs.jsonl#b"]
    assert corpus.sources["domain"].tolist() == ["example.org", ""]
    assert set(corpus.sources["author"]) | set(corpus.sources["date"]) | set(
        corpus.sources["author_hash"]
    ) == {""}
