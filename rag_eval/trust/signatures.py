"""Manifests: numbered records of the documents' hashes, signed with Ed25519 where keys are given.

The home remembers the last accepted manifest of each gold set, so that an older one is refused.
No other file imports `cryptography`. Private keys are never logged or quoted in a message.
"""

import base64
import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import pandas as pd
from pydantic import Field

from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.parts import Part
from rag_eval.core.rows import Fault, check_row, parse_object, read_text
from rag_eval.storage.hashing import canonical_json, text_hash
from rag_eval.storage.home import Home

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAX_KEY_BYTES, _MAX_SIDECAR_BYTES, _MAX_MANIFEST_BYTES = 10_000, 1024, 512 * 1024 * 1024
_SIGNATURE_BYTES = 64
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"

DocumentState = Literal["same", "changed", "not_in_manifest"]


def _read_whole(path: Path, limit: int) -> str:
    """Read a small file; InputError for a missing, long or malformed one."""
    problems = ProblemList()
    text = read_text(path, problems, limit) or ""
    problems.raise_errors()
    return text


# ---- Keys and signatures


def _verify(data: bytes, signature: bytes, keys: Mapping[str, str]) -> bool:
    """Tell whether one of the public keys (name -> base64) signed the bytes (RFC 8032)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for text in keys.values():
        try:
            Ed25519PublicKey.from_public_bytes(base64.b64decode(text)).verify(signature, data)
        except InvalidSignature:
            continue
        return True
    return False


def read_private_key(path: Path, keys: Mapping[str, str]) -> "Ed25519PrivateKey":
    """Read a private key in PEM (PKCS 8), which must belong to one of `keys` (name -> base64).

    Raises InputError, which gives the public key of a foreign key and never quotes the key itself.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = _read_whole(path, _MAX_KEY_BYTES)
    try:
        key = serialization.load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None  # the message of the library may quote the key
    if not isinstance(key, Ed25519PrivateKey):
        message = f"the private key {'cannot be read' if key is None else 'is of another kind'}"
        accepted = "an Ed25519 private key in PEM (PKCS 8) without a passphrase"
        raise InputError.of("bad_private_key", message, path, accepted=accepted) from None
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    if public not in keys.values():
        message = "trust.keys of the gold set has not the public key of this private key"
        accepted = f"a private key of trust.keys; the public key of this one is {public}"
        raise InputError.of("unknown_key", message, field="--key", accepted=accepted)
    return key


def sign(private: "Ed25519PrivateKey", data: bytes) -> str:
    """Return the signature in base64."""
    return base64.b64encode(private.sign(data)).decode()


# ---- Manifests


class ManifestFile(Part):
    """The content of a manifest."""

    schema_version: Literal[2]
    gold_set: str
    version: int = Field(ge=1)
    """One higher than the version of the manifest that it replaces."""
    created_at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    documents: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]
    """doc_id -> SHA-256 of the bytes in hex."""


class VerifiedManifest(NamedTuple):
    """A manifest with the SHA-256 of its text; its signature holds where keys are given."""

    path: Path
    content: ManifestFile
    sha256: str


def make_manifest(sources: pd.DataFrame, gold_set: str, version: int, at: dt.datetime) -> bytes:
    """Record the hashes of a SOURCES frame's documents, as canonical JSON and a line end.

    `at` is the time in UTC.
    """
    content = ManifestFile(
        schema_version=2,
        gold_set=gold_set,
        version=version,
        created_at=f"{at:{_MOMENT}}",
        documents=dict(zip(sources["doc_id"], sources["source_hash"], strict=True)),
    )
    return f"{canonical_json(content.model_dump())}\n".encode()


def signature_beside(manifest: Path) -> Path:
    """Return the file that holds the signature of a manifest."""
    return manifest.with_name(f"{manifest.name}.sig")


def _check_signature(path: Path, data: bytes, keys: Mapping[str, str]) -> None:
    """Raise InputError unless the signature beside the manifest holds for the bytes."""
    beside = signature_beside(path)
    if not beside.exists():
        # Refuse a missing signature, because an attacker could change the manifest and delete it.
        message = "keys are configured and the manifest is not signed"
        accepted = f"rag-eval trust sign --key writes {beside.name} beside it"
        raise InputError.of("unsigned_manifest", message, path, accepted=accepted)
    text = _read_whole(beside, _MAX_SIDECAR_BYTES).strip()
    try:
        signature = base64.b64decode(text, validate=True)
    except ValueError:
        signature = b""
    if len(signature) != _SIGNATURE_BYTES or not _verify(data, signature, keys):
        message = "the signature does not hold: check the changes of the manifest and sign it again"
        accepted = f"an Ed25519 signature, {_SIGNATURE_BYTES} bytes in base64"
        raise InputError.of(
            "invalid_signature", message, beside, found=quoted(text), accepted=accepted
        )


def read_manifest(path: Path, keys: Mapping[str, str]) -> VerifiedManifest:
    """Read a manifest; configured `keys` must verify the signature beside it.

    Raises InputError for a missing or malformed file, and for a signature that is missing or does
    not hold.
    """
    text, problems = _read_whole(path, _MAX_MANIFEST_BYTES), ProblemList()
    if keys:
        _check_signature(path, text.encode(), keys)
    values = parse_object(text)
    if isinstance(values, Fault):
        values.report(problems, path, 1, "what rag-eval trust sign writes")
        raise InputError(problems.listed())
    content = check_row(values, ManifestFile, problems, str(path), 1, strict=True)
    if content is None:
        raise InputError(problems.listed())
    return VerifiedManifest(path, content, text_hash(text))


def compare_manifest(
    sources: pd.DataFrame, recorded: Mapping[str, str]
) -> tuple[Sequence[DocumentState], list[str]]:
    """Compare a SOURCES frame with recorded hashes.

    Returns the state of each document, and the recorded doc_ids that the corpus lacks.
    """
    present = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    state_of: dict[bool, DocumentState] = {True: "same", False: "changed"}
    states: list[DocumentState] = [
        state_of[recorded[doc_id] == source_hash] if doc_id in recorded else "not_in_manifest"
        for doc_id, source_hash in present.items()
    ]
    return states, sorted(recorded.keys() - present.keys())


# ---- Accepted manifests: a log in the home, where no attacker of the corpus can write

MANIFESTS = "manifests"
"""Folder of the home with a log for each gold set; a file is one acceptance."""


class AcceptedManifest(Part, extra="ignore"):
    """The acceptance of a manifest by a run, because it was newer."""

    version: int
    created_at: str
    sha256: str
    highest: int
    """Highest version that was ever accepted; above `version` where a person accepted an older
    manifest, as earlier versions of this program allowed."""


def last_accepted(home: Home, gold_set: str) -> tuple[int, AcceptedManifest | None]:
    """Return the number of the last acceptance of a gold set and the acceptance, or (0, None).

    Raises InputError if another program changed it.
    """
    names = home.names(f"{MANIFESTS}/{gold_set}")
    if not names:
        return 0, None
    try:
        return int(Path(names[-1]).stem), AcceptedManifest.model_validate_json(home.read(names[-1]))
    except ValueError as error:  # pydantic's errors are subclasses of ValueError
        message = "changed after it was written; restore it from a backup"
        raise InputError.of("acceptance_damaged", message, home.address_of(names[-1])) from error


def check_acceptable(
    home: Home, gold_set: str, manifest: VerifiedManifest
) -> tuple[int, AcceptedManifest | None]:
    """Return the last acceptance with its number, if a run accepts the manifest after it.

    An old manifest keeps its valid signature, so only the version tells that somebody put it back.
    Raises InputError if the manifest is neither the last accepted one nor newer than all accepted
    ones, or is of another gold set with the same key.
    """
    content = manifest.content
    if content.gold_set != gold_set:
        message = "this is the manifest of another gold set"
        accepted = f"{gold_set}: rag-eval trust sign writes it"
        raise InputError.of(
            "other_gold_set", message, manifest.path, found=content.gold_set, accepted=accepted
        )
    number, last = last_accepted(home, gold_set)
    if last is not None and last.sha256 != manifest.sha256 and content.version <= last.highest:
        raise InputError.of(
            "manifest_not_newer",
            "this manifest is not newer than the accepted ones, so it may have been put back",
            manifest.path,
            found=f"version {content.version} of {content.created_at}",
            accepted=f"version {last.version} of {last.created_at}, which was accepted last, or a "
            f"version after {last.highest}; if the documents are right, rag-eval trust sign "
            "records them anew",
        )
    return number, last


def accept_manifest(home: Home, gold_set: str, manifest: VerifiedManifest) -> AcceptedManifest:
    """Log a manifest that is newer than all accepted ones; errors as in `check_acceptable`.

    Needs no lock: of two runs that write the same number, one succeeds, and the other judges its
    manifest anew.
    """
    content = manifest.content
    while True:
        number, last = check_acceptable(home, gold_set, manifest)
        if last is not None and last.sha256 == manifest.sha256:
            return last
        acceptance = AcceptedManifest(
            version=content.version,
            created_at=content.created_at,
            sha256=manifest.sha256,
            highest=content.version,
        )
        data = f"{canonical_json(acceptance.model_dump())}\n".encode()
        if home.create(f"{MANIFESTS}/{gold_set}/{number + 1:08d}.json", data):
            return acceptance
