"""Detached Ed25519 signatures (RFC 8032) over the bytes of documents, and manifests of hashes.

No other file imports `cryptography`. Private keys are never logged or quoted in a message.
"""

import base64
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import pandas as pd
from pydantic import BeforeValidator, Field

from rag_eval.core.config import SignatureState
from rag_eval.core.errors import InputError, Part, ProblemList, quoted
from rag_eval.core.rows import Fault, check_row, parse_object, read_rows, read_text, refuse
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
            field, accepted = f"trust.keys.{quoted(name)}", "32 bytes in base64"
            message = "not an Ed25519 public key"
            raise InputError.of("bad_key", message, field=field, accepted=accepted) from error
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


# ---- Private keys

_MAX_KEY_BYTES = 10_000


def write_key(out: Path) -> str:
    """Write a new private key, readable only by its owner, and return the public key in base64."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        message, accepted = "a key is never written over", "a file that does not exist yet"
        raise InputError.of("file_exists", message, out, accepted=accepted) from error
    with os.fdopen(handle, "wb") as stream:
        stream.write(pem)
        stream.flush()
        os.fsync(stream.fileno())
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


def read_private_key(path: Path) -> "Ed25519PrivateKey":
    """Read a private key in PEM (PKCS 8). Raises InputError, which does not quote the key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    problems = ProblemList()
    text = read_text(path, problems, _MAX_KEY_BYTES) or ""
    problems.raise_errors()
    try:
        key = serialization.load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None  # the message of the library may quote the key
    if isinstance(key, Ed25519PrivateKey):
        return key
    message = f"the private key {'cannot be read' if key is None else 'is of another kind'}"
    accepted = "an Ed25519 private key in PEM (PKCS 8) without a passphrase"
    raise InputError.of("bad_private_key", message, path, accepted=accepted) from None


def sign(private: "Ed25519PrivateKey", data: bytes) -> str:
    """Return the signature in base64."""
    return base64.b64encode(private.sign(data)).decode()


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


def format_signature(doc_id: str, key: str, signature: str) -> str:
    """Return the line of a signatures file; `key` names the public key."""
    return canonical_json({"doc_id": doc_id, "key": key, "signature": signature}) + "\n"


def read_signatures(path: Path, keys: Collection[str]) -> dict[str, Signature]:
    """Read the signatures file by doc_id. Raises InputError with every unusable line."""
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
    return signatures


# ---- Manifests: recorded hashes of the documents, signed where keys are given

_MAX_MANIFEST_BYTES, _MAX_SIDECAR_BYTES = 512 * 1024 * 1024, 1024

DocumentState = Literal["same", "changed", "not_in_manifest"]


class _ManifestFile(Part):
    schema_version: Literal[1]
    documents: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]


def make_manifest(sources: pd.DataFrame) -> bytes:
    """Record the hashes of a SOURCES frame's documents, as canonical JSON and a line end."""
    hashes = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    return f"{canonical_json({'schema_version': 1, 'documents': hashes})}\n".encode()


def signature_beside(manifest: Path) -> Path:
    """Return the file that holds the signature of a manifest."""
    return manifest.with_name(f"{manifest.name}.sig")


def _check_signature(path: Path, data: bytes, keys: Mapping[str, str]) -> None:
    """Raise InputError unless the signature beside the manifest holds for the bytes."""
    beside, problems = signature_beside(path), ProblemList()
    if not beside.exists():
        # Refuse a missing signature, because an attacker could change the manifest and delete it.
        message = "keys are configured and the manifest is not signed"
        accepted = f"rag-eval trust manifest --key writes {beside.name} beside it"
        raise InputError.of("unsigned_manifest", message, path, accepted=accepted)
    text = (read_text(beside, problems, _MAX_SIDECAR_BYTES) or "").strip()
    problems.raise_errors()
    try:
        state = verify({"": data}, {"": Signature("", _decode(text))}, keys)[""]
    except ValueError:
        state = "invalid"
    if state != "valid":
        message = "the signature does not hold: check the changes of the manifest and sign it again"
        accepted = _ACCEPTED_SIGNATURE
        raise InputError.of(
            "invalid_signature", message, beside, found=quoted(text), accepted=accepted
        )


def read_manifest(path: Path, keys: Mapping[str, str]) -> dict[str, str]:
    """Read the SHA-256 in hex by doc_id; configured `keys` must verify the signature beside it.

    Raises InputError for a missing or malformed file, and for a signature that is missing or does
    not hold.
    """
    problems = ProblemList()
    text = read_text(path, problems, _MAX_MANIFEST_BYTES) or ""
    problems.raise_errors()
    if keys:
        _check_signature(path, text.encode(), keys)
    values, file = parse_object(text), None
    if isinstance(values, Fault):
        values.report(problems, path, 1, '{"schema_version": 1, "documents": {doc_id: sha256}}')
    else:
        file = check_row(values, _ManifestFile, problems, str(path), 1, strict=True)
    problems.raise_errors()
    return {} if file is None else file.documents


def compare_manifest(
    sources: pd.DataFrame, recorded: Mapping[str, str]
) -> tuple[Sequence[DocumentState], list[str]]:
    """Compare a SOURCES frame with recorded hashes.

    Returns the state of each document, and the recorded doc_ids that the corpus lacks.
    """
    doc_ids = sources["doc_id"].tolist()

    def judge(doc_id: str, found: str) -> DocumentState:
        if doc_id not in recorded:
            return "not_in_manifest"
        return "same" if recorded[doc_id] == found else "changed"

    states = [judge(*row) for row in zip(doc_ids, sources["source_hash"], strict=True)]
    return states, sorted(recorded.keys() - set(doc_ids))
