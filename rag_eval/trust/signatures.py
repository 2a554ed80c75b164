"""Detached Ed25519 signatures (RFC 8032) over the bytes of documents, and manifests of hashes.

No other file imports `cryptography`. Private keys are never stored, logged or quoted in a message.
"""

import base64
import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import pandas as pd
from pydantic import BeforeValidator, Field, ValidationError

from rag_eval.core.config import SignatureState
from rag_eval.core.errors import InputError, Part, Problem, ProblemList, quoted
from rag_eval.core.rows import Fault, parse_object, read_rows, read_text, refuse, report_faults
from rag_eval.storage.hashing import canonical_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

# ---- Checking


class Signature(NamedTuple):
    """A signature and the name of its key; an empty name stands for any key."""

    key: str
    data: bytes


def _load_keys(keys: Mapping[str, str]) -> "dict[str, Ed25519PublicKey]":
    """Load public keys by name, each 32 bytes in base64; InputError names a bad key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    loaded = {}
    for name, text in keys.items():
        try:
            loaded[name] = Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
        except ValueError as error:
            field = f"trust.keys.{quoted(name)}"
            accepted = "an Ed25519 public key, 32 bytes in base64"
            problem = Problem("bad_key", "not a public key", field=field, accepted=accepted)
            raise InputError(problem) from error
    return loaded


def verify(
    documents: Mapping[str, bytes], signatures: Mapping[str, Signature], keys: Mapping[str, str]
) -> dict[str, SignatureState]:
    """Return the state of the signature of every document, by doc_id.

    Without configured keys all states are not_configured. The state is unknown_key if the
    configuration lacks the key of the signature. A signature without a key name is valid if any key
    verifies it. Raises InputError for a bad key.
    """
    from cryptography.exceptions import InvalidSignature

    loaded = _load_keys(keys)

    def holds(key: "Ed25519PublicKey", signature: bytes, data: bytes) -> bool:
        try:
            key.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def judge(doc_id: str, data: bytes) -> SignatureState:
        if not loaded:
            return "not_configured"
        if (signature := signatures.get(doc_id)) is None:
            return "missing"
        if signature.key and signature.key not in loaded:
            return "unknown_key"
        tried = [loaded[signature.key]] if signature.key else loaded.values()
        return "valid" if any(holds(key, signature.data, data) for key in tried) else "invalid"

    return {doc_id: judge(doc_id, data) for doc_id, data in documents.items()}


# ---- Making


def generate_key() -> tuple[str, str]:
    """Make a private key in PEM (PKCS 8) and the public key, 32 bytes in base64."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.decode(), base64.b64encode(key.public_key().public_bytes_raw()).decode()


def _load_private(pem: str) -> "Ed25519PrivateKey":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    accepted = "an Ed25519 private key in PEM (PKCS 8) without a passphrase"
    try:
        key = serialization.load_pem_private_key(pem.encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None  # the message of the library may quote the key
    if isinstance(key, Ed25519PrivateKey):
        return key
    message = f"the private key {'cannot be read' if key is None else 'is of another kind'}"
    raise InputError(Problem("bad_private_key", message, accepted=accepted)) from None


def sign_bytes(private_pem: str, data: bytes) -> str:
    """Return the signature in base64; the InputError for an unreadable key does not quote it."""
    return base64.b64encode(_load_private(private_pem).sign(data)).decode()


def sign_documents(private_pem: str, documents: Mapping[str, bytes], key: str) -> list[str]:
    """Return the lines of a signatures file by doc_id; `key` names the public key."""
    private = _load_private(private_pem)
    lines = []
    for doc_id in sorted(documents):
        signature = base64.b64encode(private.sign(documents[doc_id])).decode()
        lines.append(canonical_json({"doc_id": doc_id, "key": key, "signature": signature}))
    return lines


# ---- Signatures of documents, one in each line

_SIGNATURE_BYTES = 64
_ACCEPTED_SIGNATURE = f"an Ed25519 signature, {_SIGNATURE_BYTES} bytes in base64"


def _decode(text: object) -> bytes:
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except ValueError:
        data = b""
    if len(data) != _SIGNATURE_BYTES:
        raise refuse("bad_signature", "not a signature", _ACCEPTED_SIGNATURE)
    return data


class _Line(Part):
    doc_id: str
    key: str
    signature: Annotated[bytes, BeforeValidator(_decode)]


def read_signatures(
    path: Path, doc_ids: Collection[str], keys: Collection[str]
) -> tuple[dict[str, Signature], int]:
    """Read a signatures file with one `{"doc_id", "key", "signature"}` in each line.

    Returns the signatures by doc_id, and the number of lines about documents that are not in
    `doc_ids`, because a corpus can shrink. Raises InputError with every unusable line.
    """
    problems, file = ProblemList(), str(path)
    signatures: dict[str, Signature] = {}
    for line, row in read_rows(path, _Line, problems):
        if row.key not in keys:
            accepted = f"a name of trust.keys: {', '.join(sorted(keys)) or 'there is none'}"
            message, found = "the configuration names no such key", quoted(row.key)
            problems.add(
                "unknown_key", message, file=file, line=line, found=found, accepted=accepted
            )
        if row.doc_id in signatures:
            message, found = "the document has a signature on an earlier line", quoted(row.doc_id)
            problems.add("duplicate_id", message, file=file, line=line, found=found)
        signatures[row.doc_id] = Signature(row.key, row.signature)
    problems.raise_errors()
    present = frozenset(doc_ids)
    known = {doc_id: one for doc_id, one in signatures.items() if doc_id in present}
    return known, len(signatures) - len(known)


# ---- Manifests: recorded hashes of the documents, signed where keys are given

_MAX_MANIFEST_BYTES, _MAX_SIDECAR_BYTES = 512 * 1024 * 1024, 1024
_ACCEPTED_SIDECAR = f"<key name> <base64>, or the base64 alone; {_ACCEPTED_SIGNATURE}"

DocumentState = Literal["same", "changed", "not_in_manifest"]


class _ManifestFile(Part):
    schema_version: Literal[1]
    documents: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """SHA-256 in hex by doc_id, and the status of the manifest's signature."""

    documents: Mapping[str, str]
    signature: Literal["signed", "not_configured"]
    """`signed` if a configured key verifies the manifest, `not_configured` without keys."""


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestCheck:
    """State of each document of the corpus, and recorded doc_ids that the corpus lacks."""

    states: tuple[DocumentState, ...]
    gone: tuple[str, ...]


def manifest_bytes(sources: pd.DataFrame) -> bytes:
    """Record the hashes of a SOURCES frame's documents, as canonical JSON and a line end."""
    hashes = dict(zip(sources["doc_id"].tolist(), sources["source_hash"].tolist(), strict=True))
    return f"{canonical_json({'schema_version': 1, 'documents': hashes})}\n".encode()


def _read_file(path: Path, limit: int) -> str:
    problems = ProblemList()
    text = read_text(path, problems, limit)
    problems.raise_errors()
    return text or ""


def _check_signature(path: Path, data: bytes, keys: Mapping[str, str]) -> None:
    """Raise InputError unless the signature beside the manifest holds for the bytes."""
    beside = path.with_name(f"{path.name}.sig")

    def refuse_signature(code: str, message: str, found: str, accepted: str) -> InputError:
        return InputError(Problem(code, message, str(beside), None, None, found, accepted))

    if not beside.exists():
        # Refuse a missing signature, because an attacker could change the manifest and delete it.
        message = "keys are configured and the manifest is not signed"
        accepted = f"rag-eval trust manifest --key writes {beside.name} beside it"
        raise InputError(Problem("unsigned_manifest", message, str(path), accepted=accepted))
    words = _read_file(beside, _MAX_SIDECAR_BYTES).split() or [""]
    name, found = words[0] if len(words) > 1 else "", quoted(" ".join(words))
    try:
        signature = Signature(name, _decode(words[-1]))
    except ValueError as error:
        message = "the file holds no signature"
        raise refuse_signature("bad_signature", message, found, _ACCEPTED_SIDECAR) from error
    state = verify({"": data}, {"": signature}, keys)[""]
    if state == "unknown_key":
        message, accepted = "the configuration names no such key", ", ".join(sorted(keys))
        raise refuse_signature("unknown_key", message, quoted(name), accepted)
    if state != "valid":
        message = "the manifest changed after it was signed: check its changes and sign it again"
        raise refuse_signature("invalid_signature", message, found, _ACCEPTED_SIDECAR)


def read_manifest(path: Path, keys: Mapping[str, str]) -> Manifest:
    """Read a manifest and, with configured `keys`, check the signature beside it.

    Raises InputError for a missing or malformed file, and for a signature that is missing or does
    not hold.
    """
    text, problems = _read_file(path, _MAX_MANIFEST_BYTES), ProblemList()
    if keys:
        _check_signature(path, text.encode(), keys)
    values = parse_object(text)
    if isinstance(values, Fault):
        values.report(problems, path, 1, '{"schema_version": 1, "documents": {doc_id: sha256}}')
        raise InputError(problems.listed())
    try:
        file = _ManifestFile.model_validate(values, strict=True)
    except ValidationError as error:
        report_faults(error, _ManifestFile, problems, str(path), 1)
        raise InputError(problems.listed()) from error
    return Manifest(file.documents, "signed" if keys else "not_configured")


def check_manifest(sources: pd.DataFrame, manifest: Manifest) -> ManifestCheck:
    """Compare the source bytes of the documents of a SOURCES frame with a manifest."""
    recorded = manifest.documents
    doc_ids, hashes = sources["doc_id"].tolist(), sources["source_hash"].tolist()

    def judge(doc_id: str, found: str) -> DocumentState:
        if doc_id not in recorded:
            return "not_in_manifest"
        return "same" if recorded[doc_id] == found else "changed"

    states = tuple(map(judge, doc_ids, hashes))
    return ManifestCheck(states, tuple(sorted(recorded.keys() - set(doc_ids))))
