"""The BEIR loader: what it reads, and that every line it cannot use is named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus import beir
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.records.frames import DOCUMENTS, SECTIONS
from rag_eval.records.gold_set import Beir
from rag_eval.records.problems import InputError
from rag_eval.storage.hashing import text_hash

SPEC = Beir(loader="beir", path="data")


def write(base, *lines, name="corpus.jsonl"):
    (base / "data").mkdir(exist_ok=True)
    data = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    (base / "data" / name).write_bytes(data)
    return base


def problems(base, spec=SPEC):
    with pytest.raises(InputError) as caught:
        load_corpus(spec, base)
    return [(problem.code, problem.line, problem.field) for problem in caught.value.problems]


def test_reads_documents_sections_and_revisions(tmp_path):
    write(
        tmp_path,
        {
            "_id": "b",
            "title": "B",
            "text": "second",
            "metadata": {"section_id": "book/2", "url": "https://example.org/b"},
        },
        {"_id": "a", "text": "mail x@example.org"},
        b"",
        {"_id": "c", "title": "C", "text": "", "metadata": None},
    )
    corpus = load_corpus(SPEC, tmp_path)
    documents = DOCUMENTS.check(corpus.documents)
    assert documents["doc_id"].tolist() == ["a", "b", "c"]
    assert documents["title"].tolist() == ["", "B", "C"]
    assert documents["names"].tolist() == [["a"], ["b"], ["c"]]
    assert documents["source_url"].tolist() == [
        "corpus.jsonl#a",
        "https://example.org/b",
        "corpus.jsonl#c",
    ]
    assert documents["text"][0] == "mail [email███████"
    assert (
        documents["content_hash"].tolist()
        == [text_hash(text) for text in documents["text"]]
        == documents["rev"].tolist()
    )
    assert SECTIONS.check(corpus.sections)["section_id"].tolist() == ["a", "book/2", "c"]
    assert corpus.masked == {"card": 0, "email": 1, "iban": 0, "key": 0, "phone": 0}
    assert corpus.loader == "beir"


def test_corpus_rev_depends_on_content_not_on_order(tmp_path):
    rows = [{"_id": "a", "text": "1"}, {"_id": "b", "text": "2"}]
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    (tmp_path / "z").mkdir()
    revs = [
        load_corpus(SPEC, write(tmp_path / "x", *rows)).corpus_rev,
        load_corpus(SPEC, write(tmp_path / "y", *rows[::-1])).corpus_rev,
        load_corpus(SPEC, write(tmp_path / "z", rows[0], {"_id": "b", "text": "3"})).corpus_rev,
    ]
    assert revs[0] == revs[1] != revs[2]


def test_masking_can_be_turned_off(tmp_path):
    corpus = load_corpus(
        Beir(loader="beir", path="data", mask_pii=False),
        write(tmp_path, {"_id": "a", "text": "x@example.org"}),
    )
    assert (corpus.documents["text"][0], corpus.masked) == ("x@example.org", {})


def test_lone_surrogates_become_replacement_characters_of_the_same_length(tmp_path):
    corpus = load_corpus(
        SPEC,
        write(tmp_path, b'{"_id": "a", "title": "\\ud800t", "text": "x\\udfffy \\ud83d\\ude00"}'),
    )
    assert (corpus.documents["title"][0], corpus.documents["text"][0]) == ("\ufffdt", "x\ufffdy 😀")


def test_byte_order_mark_is_passed_over_at_the_start_only(tmp_path):
    assert (
        len(load_corpus(SPEC, write(tmp_path, b'\xef\xbb\xbf{"_id": "a", "text": "x"}')).documents)
        == 1
    )
    assert problems(
        write(tmp_path, b'{"_id": "a", "text": "x"}', b'\xef\xbb\xbf{"_id": "b", "text": "x"}')
    ) == [("bad_json", 2, None)]


def test_every_bad_line_is_named(tmp_path):
    write(
        tmp_path,
        {"_id": "a", "text": "x"},
        b"{broken",
        b"[1]",
        b'{"_id": "\xff", "text": "x"}',
        {"text": "x"},
        {"_id": " ", "text": "x"},
        {"_id": 7, "text": "x"},
        {"_id": "a", "text": "again"},
        {"_id": "e", "text": 5},
        {"_id": "f", "title": ["x"]},
        {"_id": "g", "text": "a\x00b"},
        {"_id": "../etc/passwd", "text": "x"},
        {"_id": "x\n", "text": "x"},
        {"_id": "h", "text": "x", "metadata": "m"},
        {"_id": "i", "text": "x", "metadata": {"section_id": 3}},
        {"_id": "/abs", "text": "x"},
        b"[" * 100_000,
        b'{"_id": "j", "text": "x", "n": ' + b"9" * 5000 + b"}",
    )
    assert problems(tmp_path) == [
        ("bad_json", 2, None), ("bad_json", 3, None), ("not_utf8", 4, None), ("missing_id", 5, "_id"), ("missing_id", 6, "_id"), ("bad_id", 7, "_id"),
        ("duplicate_id", 8, "_id"), ("bad_type", 9, "text"), ("bad_type", 10, "title"), ("missing_text", 10, "text"), ("nul_byte", 11, "text"),
        ("path_traversal", 12, "_id"), ("bad_id", 13, "_id"), ("bad_type", 14, "metadata"), ("bad_id", 15, "metadata.section_id"),
        ("path_traversal", 16, "_id"), ("bad_json", 17, None), ("bad_json", 18, None),
    ]  # fmt: skip


def test_a_duplicate_names_both_lines_across_files(tmp_path):
    write(
        write(tmp_path, {"_id": "a", "text": "x"}),
        {"_id": "z", "text": "x"},
        {"_id": "a", "text": "y"},
        name="more.jsonl",
    )
    with pytest.raises(InputError, match=r"more\.jsonl:2: error duplicate_id .*corpus\.jsonl:1"):
        load_corpus(Beir(loader="beir", path="data", extra=("more.jsonl",)), tmp_path)


def test_documents_cannot_share_a_section_id(tmp_path):
    rows = [{"_id": name, "text": "x", "metadata": {"section_id": "s"}} for name in "ab"]
    assert problems(write(tmp_path, *rows)) == [("duplicate_section_id", 2, "section_id")]


def test_hundred_problems_are_listed_and_the_rest_counted(tmp_path):
    with pytest.raises(InputError) as caught:
        load_corpus(SPEC, write(tmp_path, *[b"x"] * 130))
    assert len(caught.value.problems) == 101
    assert "30 more problems" in caught.value.problems[-1].message


def test_too_long_lines_are_refused_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(beir, "MAX_LINE_BYTES", 100)
    long = {"_id": "a", "text": "x" * 500}
    assert problems(write(tmp_path, long, {"_id": "b", "text": "x"}, b"{", long)) == [
        ("too_long", 1, None),
        ("bad_json", 3, None),
        ("too_long", 4, None),
    ]


@pytest.mark.parametrize("lines", [(), (b"",), (b"\xef\xbb\xbf",), (b"\n \n",)])
def test_an_empty_corpus_is_an_error(tmp_path, lines):
    assert problems(write(tmp_path, *lines)) == [("empty_corpus", None, None)]


def test_missing_files_are_named(tmp_path):
    assert problems(tmp_path) == [("missing_input", None, "corpus.path")]
    write(tmp_path, {"_id": "a", "text": "x"})
    spec = Beir(loader="beir", path="data", extra=("gone.jsonl",))
    assert problems(tmp_path, spec) == [("missing_input", None, "corpus.extra[0]")]
    with pytest.raises(InputError, match=r"gone\.jsonl"):
        identify(spec, tmp_path)


def test_identity_follows_content_and_not_the_chunker(tmp_path):
    first = identify(SPEC, write(tmp_path, {"_id": "a", "text": "x"}))
    assert first == identify(
        SPEC.model_copy(update={"chunker": SPEC.chunker.model_copy(update={"max_tokens": 9})}),
        tmp_path,
    )
    assert first != identify(SPEC.model_copy(update={"mask_pii": False}), tmp_path)
    assert first != identify(SPEC, write(tmp_path, {"_id": "a", "text": "y"}))


def test_identity_does_not_parse(tmp_path):
    assert identify(SPEC, write(tmp_path, b"not json"))


@given(
    st.lists(
        st.binary(max_size=40)
        | st.builds(
            lambda i, t: json.dumps({"_id": i, "text": t}).encode(),
            st.text(max_size=5),
            st.text(max_size=9),
        ),
        max_size=6,
    )
)
def test_any_bytes_give_documents_or_problems(tmp_path_factory, lines):
    base: Path = tmp_path_factory.mktemp("beir")
    write(base, *lines)
    try:
        documents = load_corpus(SPEC, base).documents["doc_id"].tolist()
    except InputError:
        return  # any other exception is a defect
    assert documents == sorted(set(documents)) != []


def test_public_data(shared_data):
    corpus = load_corpus(
        Beir(loader="beir", path=str(shared_data / "xquad"), extra=("distractors.jsonl",)), Path()
    )
    assert len(corpus.documents) == 936
    assert "Super_Bowl_50/0" in set(corpus.sections["section_id"])
