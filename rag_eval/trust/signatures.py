"""Detached Ed25519 signatures (RFC 8032) over the bytes of documents: checking and making.

Belongs here: everything that touches keys; the only file that imports `cryptography`. Private keys pass through and are never kept,
logged or quoted in a message. Files of signatures are read by `signature_files`.
"""

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.records.trust import SignatureState
from rag_eval.storage.hashing import canonical_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )


class Signature(NamedTuple):
    """A signature and the name of the key that is said to have made it; an empty name stands for any of the keys."""

    key: str
    data: bytes


def load_keys(keys: Mapping[str, str]) -> "dict[str, Ed25519PublicKey]":
    """Public keys by name, from 32 bytes in base64 each.

    Raises
    ------
    InputError
        A key is not one.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    loaded = {}
    for name, text in keys.items():
        try:
            loaded[name] = Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
        except ValueError as error:  # binascii.Error is one
            raise InputError(
                Problem(
                    "bad_key",
                    "not a public key",
                    field=f"trust.keys.{quoted(name)}",
                    accepted="an Ed25519 public key, 32 bytes in base64",
                )
            ) from error
    return loaded


def _holds(key: "Ed25519PublicKey", signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _state(
    data: bytes, signature: Signature, keys: "Mapping[str, Ed25519PublicKey]"
) -> SignatureState:
    if signature.key and signature.key not in keys:
        return "unknown_key"
    tried = [keys[signature.key]] if signature.key else keys.values()
    return "valid" if any(_holds(key, signature.data, data) for key in tried) else "invalid"


def verify(
    documents: Mapping[str, bytes], signatures: Mapping[str, Signature], keys: Mapping[str, str]
) -> dict[str, SignatureState]:
    """State of the signature of every document.

    Parameters
    ----------
    documents
        doc_id -> the bytes as the source gives them. Only the bytes of signed documents are asked for.
    signatures
        doc_id -> its signature.
    keys
        Name -> public key, 32 bytes in base64.

    Returns
    -------
    dict
        valid, invalid, unknown_key (signed by a key that the configuration does not name), missing, or not_configured for all without keys.
        A signature that names no key is invalid when it holds under none.

    Raises
    ------
    InputError
        A key is not one.
    """
    if not keys:
        return dict.fromkeys(documents, "not_configured")
    loaded = load_keys(keys)
    return {
        doc_id: _state(documents[doc_id], signatures[doc_id], loaded)
        if doc_id in signatures
        else "missing"
        for doc_id in documents
    }


def generate_key() -> tuple[str, str]:
    """Make a key: the private one as unencrypted PEM (PKCS 8), the public one as 32 bytes in base64 for the configuration."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.decode("ascii"), base64.b64encode(key.public_key().public_bytes_raw()).decode(
        "ascii"
    )


def _private(pem: str) -> "Ed25519PrivateKey":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    accepted = "an Ed25519 private key in PEM (PKCS 8) without a passphrase"
    try:
        key = serialization.load_pem_private_key(pem.encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # neither the key nor the library's message, which may quote it
        raise InputError(
            Problem("bad_private_key", "the private key cannot be read", accepted=accepted)
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            Problem("bad_private_key", "the private key is of another kind", accepted=accepted)
        )
    return key


def sign_bytes(private_pem: str, data: bytes) -> str:
    """Sign bytes; the signature in base64.

    Raises
    ------
    InputError
        The private key cannot be read. The message does not quote it.
    """
    return base64.b64encode(_private(private_pem).sign(data)).decode("ascii")


def sign_documents(private_pem: str, documents: Mapping[str, bytes], key: str) -> list[str]:
    """Lines of a signatures file, without their line ends, in the order of doc_id; `key` is the name that the configuration gives the public key.

    Raises
    ------
    InputError
        The private key cannot be read. The message does not quote it.
    """
    private = _private(private_pem)
    return [
        canonical_json(
            {
                "doc_id": doc_id,
                "key": key,
                "signature": base64.b64encode(private.sign(documents[doc_id])).decode("ascii"),
            }
        )
        for doc_id in sorted(documents)
    ]
