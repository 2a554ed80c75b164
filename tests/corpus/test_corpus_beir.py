"""The BEIR loader reads valid lines and names every line that it cannot use."""

import json

import pytest

from rag_eval.core.errors import InputError
from rag_eval.core.frames import DOCUMENTS, SECTIONS
from rag_eval.corpus.loaders.beir import Beir
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.storage.hashing import text_hash

SPEC = Beir(loader="beir", path="data")


def write(base, *lines):
    (base / "data").mkdir(exist_ok=True)
    data = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    (base / "data" / "corpus.jsonl").write_bytes(data)
    return base


def problems(base, spec=SPEC):
    with pytest.raises(InputError) as caught:
        load_corpus(spec, base)
    return [(problem.code, problem.line, problem.field) for problem in caught.value.problems]


def test_reads_documents_sections_and_revisions(tmp_path):
    about = {"section_id": "book/2", "url": "https://example.org/b", "page": 12}
    write(
        tmp_path,
        {"_id": "b", "title": "B", "text": "second", "metadata": about},
        {"_id": "a", "text": "mail x@example.org"},
        b"",
        {"_id": "c", "title": "C", "text": "", "metadata": None},
    )
    corpus = load_corpus(SPEC, tmp_path)
    documents = DOCUMENTS.check(corpus.documents)
    assert documents["doc_id"].tolist() == ["a", "b", "c"]
    assert documents["title"].tolist() == ["", "B", "C"]
    assert documents["names"].tolist() == [["a"], ["b"], ["c"]]
    assert documents["page"].tolist() == ["", "12", ""]
    addresses = ["corpus.jsonl#a", "https://example.org/b", "corpus.jsonl#c"]
    assert documents["source_url"].tolist() == addresses
    assert documents["text"][0] == "mail [email███████"
    hashes = [text_hash(text) for text in documents["text"]]
    assert documents["content_hash"].tolist() == documents["rev"].tolist() == hashes
    assert SECTIONS.check(corpus.sections)["section_id"].tolist() == ["a", "book/2", "c"]
    assert corpus.about.masked == {"card": 0, "email": 1, "iban": 0, "key": 0, "phone": 0}
    assert corpus.about.loader == "beir"


def test_lone_surrogates_become_replacement_characters_of_the_same_length(tmp_path):
    line = b'{"_id": "a", "title": "\\ud800t", "text": "x\\udfffy \\ud83d\\ude00"}'
    documents = load_corpus(SPEC, write(tmp_path, line)).documents
    assert (documents["title"][0], documents["text"][0]) == ("\ufffdt", "x\ufffdy 😀")


def test_every_bad_line_is_named(tmp_path):
    write(
        tmp_path,
        {"_id": "a", "text": "x"},
        b"{broken",
        b"[1]",
        b'{"_id": "\xff", "text": "x"}',
        {"text": "x"},
        {"_id": " ", "text": "x"},
        {"_id": True, "text": "x"},
        {"_id": "a", "text": "again"},
        {"_id": "e", "text": 5},
        {"_id": "f", "title": ["x"]},
        {"_id": "g", "text": "a\x00b"},
        {"_id": 1.5, "text": "x"},
        {"_id": "x\ny", "text": "x"},
        {"_id": "h", "text": "x", "metadata": "m"},
        {"_id": "i", "text": "x", "metadata": {"section_id": []}},
        {"_id": "x" * 1001, "text": "x"},
        b"[" * 100_000,
        b'{"_id": "j", "text": "x", "n": ' + b"9" * 5000 + b"}",
    )
    expected = """
        2:bad_json:None 3:not_an_object:None 4:bad_encoding:None 5:missing_key:_id
        6:bad_id:_id 7:bad_id:_id 8:duplicate_id:_id 9:wrong_type:text
        10:wrong_type:title 10:missing_key:text 11:nul_byte:text 12:bad_id:_id 13:bad_id:_id
        14:wrong_type:metadata 15:bad_id:metadata.section_id 16:bad_id:_id
        17:too_deep:None 18:bad_json:None
    """
    found = [f"{line}:{code}:{field}" for code, line, field in problems(tmp_path)]
    assert found == expected.split()


def test_documents_cannot_share_a_section_id(tmp_path):
    rows = [{"_id": name, "text": "x", "metadata": {"section_id": "s"}} for name in "ab"]
    assert problems(write(tmp_path, *rows)) == [("duplicate_section_id", None, "section_id")]


def test_missing_files_and_an_empty_corpus_are_named(tmp_path):
    assert problems(tmp_path) == [("missing_input", None, "corpus.path")]
    assert problems(write(tmp_path, b"\n \n")) == [("empty_corpus", None, "corpus")]


def test_identity_follows_content_and_not_the_chunker(tmp_path):
    first = identify(SPEC, write(tmp_path, {"_id": "a", "text": "x"}))
    chunker = SPEC.chunker.model_copy(update={"max_tokens": 9})
    assert first == identify(SPEC.model_copy(update={"chunker": chunker}), tmp_path)
    assert first != identify(SPEC.model_copy(update={"mask_pii": False}), tmp_path)
    assert first != identify(SPEC, write(tmp_path, {"_id": "a", "text": "y"}))
