import base64
import hashlib
import json
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.core.config import SOURCES
from rag_eval.core.errors import InputError
from rag_eval.trust.signatures import (
    Manifest,
    Signature,
    check_manifest,
    generate_key,
    manifest_bytes,
    read_manifest,
    read_signatures,
    sign_bytes,
    sign_documents,
    verify,
)

VECTORS = tomllib.loads((Path(__file__).parent / "rfc8032.toml").read_text(encoding="utf-8"))
GOOD = base64.b64encode(bytes(64)).decode("ascii")


@pytest.fixture(scope="module")
def key():
    private, public = generate_key()
    return private, {"press": public}


def sign(private, data, name="press"):
    return Signature(name, base64.b64decode(sign_bytes(private, data)))


@pytest.mark.parametrize("vector", VECTORS["vector"])
def test_the_vectors_of_the_standard_hold(vector):
    keys = {"k": base64.b64encode(bytes.fromhex(vector["public"])).decode()}
    signatures = {"a": Signature("k", bytes.fromhex(vector["signature"]))}
    data = bytes.fromhex(vector["message"])
    assert verify({"a": data}, signatures, keys) == {"a": "valid"}
    assert verify({"a": data + b"\n"}, signatures, keys) == {"a": "invalid"}


@pytest.mark.parametrize(
    ("state", "data", "name"),
    [
        ("valid", b"text", "press"),
        ("valid", b"text", ""),
        ("invalid", b"texd", "press"),
        ("invalid", b"texd", ""),
        ("invalid", b"text", "other"),
        ("unknown_key", b"text", "nobody"),
    ],
)
def test_every_state_has_its_cause(key, state, data, name):
    private, keys = key
    keys = {"other": generate_key()[1], **keys}
    signatures = {"a": sign(private, b"text", name)}
    assert verify({"a": data, "b": data}, signatures, keys) == {"a": state, "b": "missing"}
    assert verify({"a": data}, signatures, {}) == {"a": "not_configured"}


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_byte_of_document_or_signature_is_found(key, data, draw):
    private, keys = key
    signature = sign(private, data).data
    both = bytearray(data + signature)
    both[draw.draw(st.integers(0, len(both) - 1))] ^= draw.draw(st.integers(1, 255))
    changed, broken = bytes(both[: len(data)]), bytes(both[len(data) :])
    assert verify({"a": data}, {"a": Signature("press", signature)}, keys) == {"a": "valid"}
    assert verify({"a": changed}, {"a": Signature("press", broken)}, keys) == {"a": "invalid"}


def test_an_unreadable_private_key_is_not_quoted(key):
    private, _ = key
    secret = private.splitlines()[1]
    public = private.replace("BEGIN PRIVATE", "BEGIN PUBLIC")
    for bad in (public, private.replace(secret, secret[:-8]), secret, "", "ü"):
        with pytest.raises(InputError, match="cannot be read") as caught:
            sign_bytes(bad, b"")
        assert caught.value.problems[0].code == "bad_private_key"
        assert secret[:12] not in str(caught.value)
        assert caught.value.__suppress_context__


def test_a_private_key_of_another_kind_is_refused():
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    pem = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(InputError, match="of another kind"):
        sign_documents(pem.decode("ascii"), {"a": b""}, "press")


# ---- Files of signatures


def test_signed_documents_are_read_and_hold(key, tmp_path):
    private, keys = key
    documents = {"b/ü.md": "Grüße".encode(), "a": b"", "gone": b"2"}
    lines = sign_documents(private, documents, "press")
    assert [json.loads(line)["doc_id"] for line in lines] == ["a", "b/ü.md", "gone"]
    path = tmp_path / "signatures.jsonl"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    del documents["gone"]
    signatures, n_unknown = read_signatures(path, documents, keys)
    assert verify(documents, signatures, keys) == dict.fromkeys(documents, "valid")
    assert n_unknown == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"doc_id": None}, "wrong_type"),
        ({"key": ["press"]}, "wrong_type"),
        ({"more": 1}, "unknown_key"),
        ({"key": "nobody"}, "unknown_key"),
        ({"doc_id": "gone", "key": "nobody"}, "unknown_key"),
        ({"signature": None}, "bad_signature"),
        ({"signature": GOOD[:-4]}, "bad_signature"),
        ({"signature": "*" + GOOD[1:]}, "bad_signature"),
        ({"signature": "ü"}, "bad_signature"),
        ({"doc_id": "first"}, "duplicate_id"),
    ],
)
def test_a_line_that_is_no_signature_is_named(tmp_path, changes, code):
    path = tmp_path / "signatures.jsonl"
    first = {"doc_id": "first", "key": "press", "signature": GOOD}
    row = {"doc_id": "a", "key": "press", "signature": GOOD} | changes
    path.write_text(f"{json.dumps(first)}\n\n{json.dumps(row)}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_signatures(path, ["a", "first"], ["press"])
    [problem] = caught.value.problems
    assert (problem.code, problem.file, problem.line) == (code, str(path), 3)


# ---- Manifests


def make_sources(documents):
    hashes = [hashlib.sha256(data).hexdigest() for data in documents.values()]
    frame = pd.DataFrame({"doc_id": list(documents), "source_hash": hashes}, dtype="str")
    return SOURCES.check(frame.assign(author="", author_hash="", date="", domain="", signature=""))


def make_manifest(documents):
    recorded = json.loads(manifest_bytes(make_sources(documents)))["documents"]
    return Manifest(recorded, "not_configured")


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest_bytes(make_sources({"a": b"1", "ü": b"2"})))
    return path


def test_equal_documents_give_equal_manifests(written):
    assert manifest_bytes(make_sources({"ü": b"2", "a": b"1"})) == written.read_bytes()
    one, two = (hashlib.sha256(data).hexdigest() for data in (b"1", b"2"))
    expected = f'{{"documents":{{"a":"{one}","ü":"{two}"}},"schema_version":1}}\n'
    assert written.read_text(encoding="utf-8") == expected
    manifest = read_manifest(written, {})
    assert check_manifest(make_sources({"a": b"1", "ü": b"2"}), manifest).states == ("same", "same")


def test_every_document_has_a_state_and_missing_ones_are_listed():
    manifest = make_manifest({"same": b"1", "changed": b"4", "z": b"5", "gone": b"6"})
    check = check_manifest(make_sources({"same": b"1", "new": b"2", "changed": b"3"}), manifest)
    assert check.states == ("same", "not_in_manifest", "changed")
    assert check.gone == ("gone", "z")


def test_an_unsigned_manifest_is_refused_where_a_key_could_tell(written):
    with pytest.raises(InputError) as caught:
        read_manifest(written, {"press": generate_key()[1]})
    [problem] = caught.value.problems
    assert (problem.code, problem.file) == ("unsigned_manifest", str(written))
    assert "rag-eval trust manifest --key" in problem.accepted
    assert read_manifest(written, {}).signature == "not_configured"


@pytest.mark.parametrize("form", ["{}", "press {}\n"])
def test_a_signature_beside_the_manifest_must_hold(written, key, form):
    private, keys = key
    beside = written.with_name("manifest.json.sig")
    beside.write_text(form.format(sign_bytes(private, written.read_bytes())), encoding="ascii")
    assert read_manifest(written, keys).signature == "signed"
    assert read_manifest(written, {}).signature == "not_configured"
    data = bytearray(written.read_bytes())
    for at in (0, len(data) // 2, len(data) - 1):
        data[at] ^= 1
        written.write_bytes(bytes(data))
        with pytest.raises(InputError, match="invalid_signature") as caught:
            read_manifest(written, keys)
        assert caught.value.problems[0].file == str(beside)
        data[at] ^= 1


def test_a_sidecar_that_proves_nothing_is_refused(written, key):
    private, keys = key
    beside = written.with_name("manifest.json.sig")
    signature = sign_bytes(private, written.read_bytes())
    for text, code in (
        (sign_bytes(generate_key()[0], written.read_bytes()), "invalid_signature"),
        (f"nobody {signature}", "unknown_key"),
        ("nothing", "bad_signature"),
    ):
        beside.write_text(text, encoding="ascii")
        with pytest.raises(InputError, match=code):
            read_manifest(written, keys)


@pytest.mark.parametrize(
    ("content", "code", "field"),
    [
        (None, "missing_file", None),
        ("[]", "not_an_object", None),
        ("{", "bad_json", None),
        ('{"schema_version": 1, "schema_version": 1}', "duplicate_key", None),
        ('{"documents": {}}', "missing_key", "schema_version"),
        ('{"schema_version": 2, "documents": {}}', "bad_value", "schema_version"),
        ('{"schema_version": 1}', "missing_key", "documents"),
        ('{"schema_version": 1, "documents": []}', "wrong_type", "documents"),
        ('{"schema_version": 1, "documents": {}, "more": 1}', "unknown_key", "more"),
        ('{"schema_version": 1, "documents": {"a": 1}}', "wrong_type", "documents.a"),
        ('{"schema_version": 1, "documents": {"a": "00"}}', "bad_value", "documents.a"),
    ],
)
def test_a_bad_manifest_is_named(tmp_path, content, code, field):
    path = tmp_path / "manifest.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_manifest(path, {})
    [problem] = caught.value.problems
    assert (problem.code, problem.field, problem.file) == (code, field, str(path))
