"""Manifests: equal corpora give equal bytes, a signature that does not hold stops the run, and any single-byte change is found."""

import dataclasses
import hashlib
import json
import random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus.loading import load_corpus
from rag_eval.records.gold_set import Folder
from rag_eval.records.problems import InputError
from rag_eval.records.trust import SOURCES
from rag_eval.trust.manifest import (
    Manifest,
    check_manifest,
    make_manifest,
    manifest_bytes,
    read_manifest,
)
from rag_eval.trust.signatures import generate_key, sign_bytes


def _sources(documents: dict[str, bytes]) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "doc_id": list(documents),
            "source_hash": [hashlib.sha256(data).hexdigest() for data in documents.values()],
        },
        dtype="str",
    )
    return SOURCES.check(frame.assign(author="", author_hash="", date="", domain=""))


def _manifest(documents: dict[str, bytes]) -> Manifest:
    return Manifest(make_manifest(_sources(documents))["documents"], "not_configured")


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest_bytes(make_manifest(_sources({"a": b"1", "ü": b"2"}))))
    return path


def test_a_manifest_is_the_same_bytes_for_the_same_documents():
    one, two = _sources({"a": b"1", "ü": b"2"}), _sources({"ü": b"2", "a": b"1"})
    assert manifest_bytes(make_manifest(one)) == manifest_bytes(make_manifest(two))
    hashes = (
        "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b",
        "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35",
    )
    expected = (
        '{"documents":{"a":"%s","ü":"%s"},"schema_version":1}\n'  # sha256 of the digits 1 and 2
    )
    assert manifest_bytes(make_manifest(one)).decode("utf-8") == expected % hashes


def test_every_document_has_a_state_and_those_that_are_gone_are_listed():
    check = check_manifest(
        _sources({"same": b"1", "new": b"2", "changed": b"3"}),
        _manifest({"same": b"1", "changed": b"4", "z": b"5", "gone": b"6"}),
    )
    assert check.states == ("same", "not_in_manifest", "changed")
    assert check.gone == ("gone", "z")


def test_a_manifest_without_a_signature_is_refused_where_a_key_could_tell(written):
    with pytest.raises(InputError) as caught:
        read_manifest(written, {"press": generate_key()[1]})
    (problem,) = caught.value.problems
    assert (problem.code, problem.file) == ("unsigned_manifest", str(written))
    assert "rag-eval trust manifest --key" in problem.accepted
    assert read_manifest(written, {}).signature == "not_configured"
    assert sorted(read_manifest(written, {}).documents) == ["a", "ü"]


@pytest.mark.parametrize("form", ["{}", "press {}\n"])
def test_a_signature_beside_the_manifest_must_hold(written, form):
    private, public = generate_key()
    beside = written.with_name("manifest.json.sig")
    beside.write_text(form.format(sign_bytes(private, written.read_bytes())), encoding="ascii")
    assert read_manifest(written, {"press": public}).signature == "signed"
    assert read_manifest(written, {}).signature == "not_configured"
    data = bytearray(written.read_bytes())
    for at in (0, len(data) // 2, len(data) - 1):
        data[at] ^= 1
        written.write_bytes(bytes(data))
        with pytest.raises(InputError, match="invalid_signature") as caught:
            read_manifest(written, {"press": public})
        assert caught.value.problems[0].file == str(beside)
        data[at] ^= 1


def test_a_signature_by_a_key_that_is_not_configured_is_refused(written):
    private, public = generate_key()
    beside = written.with_name("manifest.json.sig")
    beside.write_text(sign_bytes(private, written.read_bytes()), encoding="ascii")
    with pytest.raises(InputError, match="invalid_signature"):
        read_manifest(written, {"other": generate_key()[1]})
    beside.write_text(f"nobody {sign_bytes(private, written.read_bytes())}", encoding="ascii")
    with pytest.raises(InputError, match="unknown_key"):
        read_manifest(written, {"press": public})
    beside.write_text("nothing", encoding="ascii")
    with pytest.raises(InputError, match="bad_signature"):
        read_manifest(written, {"press": public})
    beside.unlink()
    beside.symlink_to(written.with_name("nowhere"))
    with pytest.raises(InputError, match="not_a_file"):
        read_manifest(written, {"press": public})


HASH = "0" * 64


@pytest.mark.parametrize(
    ("content", "code", "field"),
    [
        ("[]", "bad_json", None),
        ("{", "bad_json", None),
        (
            '{"schema_version": 1, "documents": {"a": "%s", "a": "%s"}}'.replace("%s", HASH),
            "bad_json",
            None,
        ),
        ('{"schema_version": 1, "documents": NaN}', "bad_json", None),
        ('{"documents": {}}', "bad_schema_version", "schema_version"),
        ('{"schema_version": 2, "documents": {}}', "bad_schema_version", "schema_version"),
        ('{"schema_version": true, "documents": {}}', "bad_schema_version", "schema_version"),
        ('{"schema_version": 1}', "bad_type", "documents"),
        ('{"schema_version": 1, "documents": []}', "bad_type", "documents"),
        ('{"schema_version": 1, "documents": {}, "more": 1}', "unknown_field", "more"),
        ('{"schema_version": 1, "documents": {"a": 1}}', "bad_hash", "documents.a"),
        (
            '{"schema_version": 1, "documents": {"a": "%s"}}'.replace("%s", HASH[1:]),
            "bad_hash",
            "documents.a",
        ),
        (
            '{"schema_version": 1, "documents": {"a": "%s"}}'.replace("%s", "A" * 64),
            "bad_hash",
            "documents.a",
        ),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path, content, code, field):
    path = tmp_path / "manifest.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_manifest(path, {})
    assert [(one.code, one.field, one.file) for one in caught.value.problems] == [
        (code, field, str(path))
    ]


def test_a_manifest_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="missing_file"):
        read_manifest(tmp_path / "manifest.json", {})
    with pytest.raises(InputError, match="not_a_file"):
        read_manifest(tmp_path, {})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("manifest") / "manifest.json"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(place, data):
    path = place
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_manifest(path, {})


def _changed(data: bytes, kind: str, at: int, byte: int) -> bytes:
    """One byte flipped to another, inserted, or deleted."""
    if kind == "delete":
        return data[:at] + data[at + 1 :]
    return data[:at] + bytes([byte]) + data[at + (kind == "flip") :]


def _places(n: int, data: bytes, kind: str, numbers: random.Random) -> int:
    """A random place; of every ten documents one has its first byte changed and one its last, where insertion means in front and at the end."""
    last = len(data) - (kind != "insert")
    return {0: 0, 1: last}.get(n % 10, numbers.randint(0, last))


@pytest.mark.parametrize("kind", ["flip", "insert", "delete"])
def test_any_changed_byte_of_a_thousand_documents_is_found(kind):
    numbers = random.Random(4)
    documents = {f"{n}.md": numbers.randbytes(numbers.randint(1, 400)) for n in range(1000)}
    changed = {}
    for n, (doc_id, data) in enumerate(documents.items()):
        at = _places(n, data, kind, numbers)
        byte = (
            (data[at] + numbers.randint(1, 255)) % 256 if kind == "flip" else numbers.randrange(256)
        )
        changed[doc_id] = _changed(data, kind, at, byte)
    manifest = _manifest(documents)
    assert check_manifest(_sources(documents), manifest).states == ("same",) * 1000
    assert check_manifest(_sources(changed), manifest).states == ("changed",) * 1000


def _letter(place: random.Random, *, but: int | None = None) -> int:
    return place.choice([letter for letter in b"abcdefghijklmnopqrstuvwxyz \n#" if letter != but])


@pytest.mark.parametrize("kind", ["flip", "insert", "delete"])
def test_any_changed_byte_of_a_thousand_files_is_found_through_their_loader(tmp_path, kind):
    """Texts that stay readable; what is no text any more, the loader refuses by name."""
    numbers = random.Random(5)
    folder = tmp_path / "corpus"
    folder.mkdir()
    documents = {
        f"{n:03}.md": b"---\ntitle: a\n---\n# b\n" * (n % 2)
        + bytes(_letter(numbers) for _ in range(numbers.randint(20, 200)))
        for n in range(1000)
    }
    for name, data in documents.items():
        (folder / name).write_bytes(data)
    spec = Folder(loader="folder", path="corpus")
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest_bytes(make_manifest(load_corpus(spec, tmp_path).sources)))
    assert read_manifest(path, {}) == dataclasses.replace(
        _manifest(documents), signature="not_configured"
    )
    for n, (name, data) in enumerate(documents.items()):
        at = _places(n, data, kind, numbers)
        (folder / name).write_bytes(
            _changed(data, kind, at, _letter(numbers, but=data[at] if kind == "flip" else None))
        )
    check = check_manifest(load_corpus(spec, tmp_path).sources, read_manifest(path, {}))
    assert check.states == ("changed",) * 1000
    assert check.gone == ()


def test_a_manifest_survives_writing_and_reading(tmp_path):
    sources = _sources({"a": b"1", "b c/ü": b"2"})
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest_bytes(make_manifest(sources)))
    assert (
        read_manifest(path, {}).documents
        == make_manifest(sources)["documents"]
        == json.loads(path.read_bytes())["documents"]
    )
    assert check_manifest(sources, read_manifest(path, {})).states == ("same", "same")
