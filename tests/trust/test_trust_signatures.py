"""Signatures: those of RFC 8032 hold, every change is found, and files that hold none are refused by line and field."""

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_eval.records.problems import InputError
from rag_eval.records.trust import Trust
from rag_eval.trust.signature_files import read_sidecars, read_signatures
from rag_eval.trust.signatures import (
    Signature,
    generate_key,
    load_keys,
    sign_bytes,
    sign_documents,
    verify,
)

# RFC 8032, section 7.1, tests 1 to 3: public key, message, signature
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


def _b64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode("ascii")


@pytest.fixture(scope="module")
def key():
    private, public = generate_key()
    return private, {"press": public}


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_the_vectors_of_the_standard_hold(public, message, signature):
    signatures = {"a": Signature("k", bytes.fromhex(signature))}
    assert verify({"a": bytes.fromhex(message)}, signatures, {"k": _b64(public)}) == {"a": "valid"}
    assert verify({"a": bytes.fromhex(message) + b"\n"}, signatures, {"k": _b64(public)}) == {
        "a": "invalid"
    }


def test_every_state_has_its_cause(key):
    private, keys = key
    signature = base64.b64decode(sign_bytes(private, b"text"))
    other = generate_key()[1]
    documents = {
        "good": b"text",
        "changed": b"texd",
        "stranger": b"text",
        "bare": b"text",
        "any": b"text",
        "none": b"texd",
    }
    signatures = {
        "good": Signature("press", signature),
        "changed": Signature("press", signature),
        "stranger": Signature("nobody", signature),
        "any": Signature("", signature),
        "none": Signature("", signature),
        "gone": Signature("press", signature),
    }
    states = {
        "good": "valid",
        "changed": "invalid",
        "stranger": "unknown_key",
        "bare": "missing",
        "any": "valid",
        "none": "invalid",
    }
    assert verify(documents, signatures, {"other": other, **keys}) == states
    assert verify(documents, signatures, {"press": other})["good"] == "invalid"
    assert verify(documents, signatures, {}) == dict.fromkeys(documents, "not_configured")


def test_only_the_bytes_of_signed_documents_are_asked_for(key):
    private, keys = key
    asked = []

    class Lazy(dict):
        def __getitem__(self, doc_id):
            asked.append(doc_id)
            return super().__getitem__(doc_id)

    verify(
        Lazy(a=b"x", b=b"y"),
        {"b": Signature("press", base64.b64decode(sign_bytes(private, b"y")))},
        keys,
    )
    assert asked == ["b"]


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_byte_of_document_or_signature_is_found(key, data, draw):
    private, keys = key
    signature = base64.b64decode(sign_bytes(private, data))
    at = draw.draw(st.integers(0, len(data) + len(signature) - 1))
    both = bytearray(data + signature)
    both[at] ^= draw.draw(st.integers(1, 255))
    changed = {"a": bytes(both[: len(data)])}
    assert verify({"a": data}, {"a": Signature("press", signature)}, keys) == {"a": "valid"}
    assert verify(changed, {"a": Signature("press", bytes(both[len(data) :]))}, keys) == {
        "a": "invalid"
    }


def test_what_is_signed_is_read_and_holds(key, tmp_path):
    private, keys = key
    documents = {"b/ü.md": "Grüße".encode(), "a": b""}
    lines = sign_documents(private, documents, "press")
    assert [json.loads(line)["doc_id"] for line in lines] == ["a", "b/ü.md"]
    path = tmp_path / "signatures.jsonl"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    read = read_signatures(path, documents, keys)
    assert read.notes == ()
    assert verify(documents, read.signatures, keys) == dict.fromkeys(documents, "valid")
    assert Trust(keys=keys).keys == keys


def test_documents_that_are_gone_are_noted_and_stop_nothing(key, tmp_path):
    private, keys = key
    path = tmp_path / "signatures.jsonl"
    path.write_text(
        "\n".join(sign_documents(private, {"a": b"1", "gone": b"2"}, "press")), encoding="utf-8"
    )
    read = read_signatures(path, ["a"], keys)
    assert list(read.signatures) == ["a"]
    assert [
        (note.code, note.severity, note.line, note.field, note.found) for note in read.notes
    ] == [("unknown_document", "warning", 2, "doc_id", "gone")]


GOOD = base64.b64encode(bytes(64)).decode("ascii")


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        ({"key": "press", "signature": GOOD}, "missing_field", "doc_id"),
        ({"doc_id": "a", "signature": GOOD}, "missing_field", "key"),
        ({"doc_id": "a", "key": "press"}, "missing_field", "signature"),
        ({"doc_id": 1, "key": "press", "signature": GOOD}, "bad_type", "doc_id"),
        ({"doc_id": "a", "key": ["press"], "signature": GOOD}, "bad_type", "key"),
        ({"doc_id": "a", "key": "press", "signature": None}, "bad_type", "signature"),
        ({"doc_id": "a", "key": "press", "signature": GOOD, "more": 1}, "unknown_field", "more"),
        ({"doc_id": "a", "key": "nobody", "signature": GOOD}, "unknown_key", "key"),
        ({"doc_id": "a", "key": "press", "signature": GOOD[:-4]}, "bad_signature", "signature"),
        (
            {"doc_id": "a", "key": "press", "signature": "*" + GOOD[1:]},
            "bad_signature",
            "signature",
        ),
        ({"doc_id": "a", "key": "press", "signature": "*" + GOOD}, "bad_signature", "signature"),
        ({"doc_id": "a", "key": "press", "signature": "ü"}, "bad_signature", "signature"),
        ({"doc_id": "first", "key": "press", "signature": GOOD}, "duplicate_id", "doc_id"),
        ({"doc_id": "gone", "key": "nobody", "signature": GOOD}, "unknown_key", "key"),
    ],
)
def test_a_line_that_is_no_signature_is_named(tmp_path, row, code, field):
    path = tmp_path / "signatures.jsonl"
    first = {"doc_id": "first", "key": "press", "signature": GOOD}
    path.write_text(f"{json.dumps(first)}\n\n{json.dumps(row)}\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_signatures(path, ["a", "first"], ["press"])
    assert [(one.code, one.line, one.field, one.file) for one in caught.value.problems] == [
        (code, 3, field, str(path))
    ]


def test_a_file_that_is_not_there_or_not_json_is_named(tmp_path):
    path = tmp_path / "signatures.jsonl"
    with pytest.raises(InputError, match="missing_file"):
        read_signatures(path, [], [])
    path.write_text('{"doc_id": "a"\n', encoding="utf-8")
    with pytest.raises(InputError, match="bad_json"):
        read_signatures(path, [], [])


def test_signatures_beside_files_are_read_in_both_forms(key, tmp_path):
    private, keys = key
    (tmp_path / "sub").mkdir()
    documents = {"a.md": b"one", "sub/b.md": b"two", "c.md": b"three", "d.md": b"four"}
    (tmp_path / "a.md.sig").write_text(f"press {sign_bytes(private, b'one')}\n", encoding="ascii")
    (tmp_path / "sub" / "b.md.sig").write_text(sign_bytes(private, b"two"), encoding="ascii")
    (tmp_path / "c.md.sig").write_text(f"nobody {sign_bytes(private, b'three')}", encoding="ascii")
    found = read_sidecars(tmp_path, documents)
    assert {doc_id: one.key for doc_id, one in found.items()} == {
        "a.md": "press",
        "sub/b.md": "",
        "c.md": "nobody",
    }
    assert verify(documents, found, keys) == {
        "a.md": "valid",
        "sub/b.md": "valid",
        "c.md": "unknown_key",
        "d.md": "missing",
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"press",
        b"press key " + GOOD.encode(),
        b"\xff\xfe",
        GOOD[:-4].encode(),
        b"x" * 5000,
        b"\x89\x01" * 40,
    ],
)
def test_a_file_beside_that_is_no_signature_is_named(tmp_path, content):
    (tmp_path / "a.md.sig").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_sidecars(tmp_path, ["a.md"])
    assert [(one.code, one.file) for one in caught.value.problems] == [
        ("bad_signature", "a.md.sig")
    ]
    assert "\n" not in str(caught.value)


def test_signatures_outside_the_folder_are_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out.sig").write_text(GOOD, encoding="ascii")
    (tmp_path / "in" / "a.sig").symlink_to(tmp_path / "out.sig")
    (tmp_path / "in" / "b.sig").mkdir()
    (tmp_path / "in" / "c.sig").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError) as caught:
        read_sidecars(tmp_path / "in", ["a", "b", "c", "../out", "x" * 300])
    assert [(one.code, one.file) for one in caught.value.problems] == [
        ("outside_folder", "a.sig"),
        ("not_a_file", "b.sig"),
        ("unreadable_file", "c.sig"),
        ("outside_folder", "../out.sig"),
    ]


def test_a_private_key_that_cannot_be_read_is_not_quoted(key):
    private, _ = key
    secret = private.splitlines()[1]
    for bad in (
        private.replace("BEGIN PRIVATE", "BEGIN PUBLIC"),
        private.replace(secret, secret[:-8]),
        secret,
        "",
        "ü",
    ):
        with pytest.raises(InputError) as caught:
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64",
        base64.b64encode(bytes(31)).decode("ascii"),
        base64.b64encode(bytes(33)).decode("ascii"),
    ],
)
def test_a_public_key_that_is_none_is_named(text):
    with pytest.raises(InputError) as caught:
        load_keys({"press": text})
    assert (caught.value.problems[0].code, caught.value.problems[0].field) == (
        "bad_key",
        "trust.keys.press",
    )
