"""Every loader gives the sources of its documents: bytes, author, date, domain."""

import datetime as dt
import hashlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.core.frames import SOURCES
from rag_eval.corpus.loaders.beir import Beir
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loading import (
    _domain_of,
    _without_user,
    author_hash,
    day_of,
    latest_day,
    load_corpus,
)

FOLDER = Folder(loader="folder", path="corpus")
BEIR = Beir(loader="beir", path="corpus")


def dates(base, spec=FOLDER):
    sources = load_corpus(spec, base).sources
    return dict(zip(sources["doc_id"], sources["date"], strict=True))


def only(corpus):
    (row,) = corpus.sources.to_dict("records")
    return row


@pytest.fixture
def load_line(checkout):
    """Load a BEIR corpus of one document with this metadata."""

    def load(**metadata):
        row = {"_id": "a", "text": "t", "metadata": metadata}
        checkout.write("corpus.jsonl", json.dumps(row) + "\n")
        return load_corpus(BEIR, checkout.base)

    return load


def agree(spec, base):
    """Check that the frame has the hashes of the sources' bytes, and return the bytes."""
    corpus = load_corpus(spec, base)
    sources = {document.doc_id: document.source for document in spec.read(base).documents}
    assert list(corpus.sources.columns) == list(SOURCES.columns)
    assert corpus.sources["doc_id"].tolist() == corpus.documents["doc_id"].tolist()
    assert dict(zip(corpus.sources["doc_id"], corpus.sources["source_hash"], strict=True)) == {
        doc_id: hashlib.sha256(data).hexdigest() for doc_id, data in sources.items()
    }
    return sources


def test_front_matter_of_files(checkout):
    for name, front in {
        "a.md": "---\nauthor: Jane Doe\ndate: 2024-01-31\nupdated: 2024-02-01T23:30:00-02:00\n"
        "url: https://Example.org/a\n---\n",
        "b.md": "+++\nauthors = ['Jane Doe', 'Joe Bloggs']\nlast_modified = 2023-05-06\n+++\n",
        "c.md": "---\nauthors:\n- name: Jane Doe\n  email: jane@example.org\n- 7\n---\n",
        "d.txt": "---\nauthor: Jane\ndate: 2024-01-31\n---\n",
    }.items():
        checkout.write(name, front + "x\n")
    corpus = load_corpus(FOLDER, checkout.base)
    assert corpus.sources["author"].tolist() == ["Jane Doe", "Jane Doe, Joe Bloggs", "Jane Doe", ""]
    assert corpus.sources["date"].tolist() == ["2024-02-02", "2023-05-06", "", ""]
    assert corpus.sources["domain"].tolist() == ["example.org", "", "", ""]
    assert corpus.sources["author_hash"][0] == author_hash("jane  DOE")


def test_dates_that_cannot_be_read_cost_nothing_else(checkout):
    checkout.write("a.md", "---\ntitle: Kept\ndate: never\n---\nx\n")
    checkout.write("b.md", "---\ndate: soon\nupdated: 2024-01-31\n---\nx\n")
    checkout.write("c.md", "---\ndate:\nupdated: ''\n---\nx\n")
    checkout.write("d.md", "---\ndate: 2024\nupdated: [2024-01-31]\n---\nx\n")
    checkout.git("init", "-q")
    checkout.commit("2025-06-07T00:00:00+00:00")
    corpus = load_corpus(FOLDER, checkout.base)
    # an unreadable stated date does not fall back to the commit
    assert corpus.sources["date"].tolist() == ["", "2024-01-31", "2025-06-07", ""]
    assert corpus.documents["title"][0] == "Kept"


def test_files_that_say_no_date_have_that_of_their_commit(checkout):
    checkout.write("a.md", "# A\n")
    checkout.write("b.txt", "b")
    checkout.write("c.md", "---\ndate: 2001-02-03\n---\n# C\n")
    checkout.git("init", "-q")
    checkout.commit("2024-03-01T23:30:00-02:00")  # the next day in UTC
    expected = {"a.md": "2024-03-02", "b.txt": "2024-03-02", "c.md": "2001-02-03"}
    assert dates(checkout.base) == expected
    checkout.write("a.md", "# AA\n")
    checkout.write("new.txt", "n")
    assert dates(checkout.base) == expected | {"a.md": "", "new.txt": ""}


JOE_AND_ANN = {
    "author": "",
    "authors": ["Joe", None, "", "Ann"],
    "published": "2024-01-31",
    "updated": "2024-02-01 10:00:00",
}
FUTURE = {"author": {"name": "Jane"}, "last_modified": "2999-01-01", "date": False}


@pytest.mark.parametrize(
    ("metadata", "author", "date"),
    [
        ({}, "", ""),
        ({"author": "Jane", "authors": ["Joe"], "date": "2024-01-31"}, "Jane", "2024-01-31"),
        (JOE_AND_ANN, "Joe, Ann", "2024-02-01"),
        ({"author": 7, "timestamp": 1706745600}, "", "2024-02-01"),
        (FUTURE, "Jane", "2999-01-01"),
        ({"authors": [["Jane"]], "date": {}, "timestamp": 1706745600000}, "", ""),
    ],
)
def test_metadata_of_lines(load_line, metadata, author, date):
    source = only(load_line(**metadata))
    assert (source["author"], source["date"]) == (author, date)


def test_authors_and_addresses_are_masked_and_compared_unmasked(load_line, tmp_path):
    place = "mail.example.org/jane@example.org?card=4111111111111111"
    author = "Jane <jane@example.org>"
    corpus = load_line(author=author, url=f"https://me:secret@{place}")
    source, document = only(corpus), corpus.documents.to_dict("records")[0]
    assert source["author"] == "Jane <[email██████████>"
    assert source["author_hash"] == hashlib.sha256(b"jane <jane@example.org>").hexdigest()
    assert source["domain"] == "mail.example.org"
    masked = "https://mail.example.org/[email██████████?card=[card███████████"
    assert document["source_url"] == masked
    assert (corpus.about.masked["email"], corpus.about.masked["card"]) == (
        1,
        1,
    )  # documents frame only
    plain = load_corpus(BEIR.model_copy(update={"mask_pii": False}), tmp_path)
    assert only(plain) == source | {"author": author}
    assert plain.documents["source_url"][0] == f"https://{place}"


ANN, TEAM = "Ann <ann@example.org>", "The Shelf Team <team@example.org>"


# ---- Dates

EAST = dt.timezone(dt.timedelta(hours=14))


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2024-01-31", "2024-01-31"),
        (" 20240131 ", "2024-01-31"),
        ("2024-01-31T23:30:00.123456789-02:00", "2024-02-01"),
        ("1706745600", "2024-02-01"),
        (dt.date(2024, 1, 31), "2024-01-31"),
        (dt.datetime(2024, 1, 31, 23), "2024-01-31"),  # noqa: DTZ001 - without a zone
        (dt.datetime(2024, 2, 1, 1, tzinfo=EAST), "2024-01-31"),
    ],
)
def test_read(value, day):
    assert day_of(value) == day


WORDS = "yesterday 2024 2024-01 2024-02-30 2024-13-01 31.01.2024 2024-01-31T25:00"
NUMBERS = [2024, 20240131, True, math.nan, math.inf, 1e300, 10**400, 1706745600000, -(10**12)]


@pytest.mark.parametrize("value", [*WORDS.split(), *NUMBERS, None, "", [2024, 1, 31], dt.time(1)])
def test_unreadable(value):
    assert day_of(value) == ""
    assert latest_day([value, "2024-01-31"]) == "2024-01-31"


# ---- Addresses

DOMAINS = (Path(__file__).parent / "domains.jsonl").read_text("utf-8").splitlines()


@pytest.mark.parametrize(("address", "domain"), [*map(json.loads, DOMAINS)])
def test_domains(address, domain):
    assert _domain_of(address) == domain


@given(
    st.text("abcXYZ:!$&'*%20.\u00fc", max_size=30),
    st.sampled_from(["https", "postgresql+psycopg", "ftp"]),
)
def test_user_and_password_leave_the_address_and_the_domain_stays(user, scheme):
    address = f"{scheme}://{user}@example.org:80/a@b?c@d"
    assert _without_user(address) == f"{scheme}://example.org:80/a@b?c@d"
    assert _domain_of(_without_user(address)) == ("" if scheme.startswith("p") else "example.org")
