"""What trust depends on besides the corpus: the signed manifest, and what people allowed.

A manifest is a numbered record of the documents' hashes, signed with Ed25519 where keys are given.
The home remembers the manifests that runs accepted, so that an older one is refused. Decisions of
people are lines of an append-only file in the gold set's folder, under review like the gold.
No other file imports `cryptography`. Private keys are never logged or quoted in a message.
"""

import base64
import datetime as dt
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import pandas as pd
from pydantic import Field

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError, ProblemList, quoted
from rag_eval.core.parts import Part
from rag_eval.core.records import Absent
from rag_eval.core.rows import Fault, check_row, parse_object, read_rows, read_text
from rag_eval.corpus.loading import resolve
from rag_eval.storage.hashing import canonical_json, text_hash
from rag_eval.storage.home import Home
from rag_eval.trust.trust_report import Manifest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAX_KEY_BYTES, _MAX_SIDECAR_BYTES, _MAX_MANIFEST_BYTES = 10_000, 1024, 512 * 1024 * 1024
_SIGNATURE_BYTES = 64

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
        message = "the private key cannot be read"
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
    """Record the hashes of a SOURCES frame's documents at a time in UTC, as canonical JSON."""
    content = ManifestFile(
        schema_version=2,
        gold_set=gold_set,
        version=version,
        created_at=f"{at:%Y-%m-%dT%H:%M:%SZ}",
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
        raise InputError.of("invalid_signature", message, beside, found=quoted(text))


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
    """Return the state of each document of a SOURCES frame, and recorded doc_ids it lacks."""
    present = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    state_of: dict[bool, DocumentState] = {True: "same", False: "changed"}
    states: list[DocumentState] = [
        state_of[recorded[doc_id] == source_hash] if doc_id in recorded else "not_in_manifest"
        for doc_id, source_hash in present.items()
    ]
    return states, sorted(recorded.keys() - present.keys())


# ---- Accepted manifests: a log in the home, where no attacker of the corpus can write

_MANIFESTS = "manifests"
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
    names = home.names(f"{_MANIFESTS}/{gold_set}")
    if not names:
        return 0, None
    try:
        return int(Path(names[-1]).stem), AcceptedManifest.model_validate_json(home.read(names[-1]))
    except ValueError as error:  # pydantic's errors are subclasses of ValueError
        message = "changed after it was written; restore it from a backup"
        raise InputError.of("acceptance_damaged", message, home.address_of(names[-1])) from error


def accept_manifest(
    home: Home, gold_set: str, manifest: VerifiedManifest, *, log: bool = True
) -> AcceptedManifest:
    """Accept a manifest that is the last accepted one or newer than all; `log` records it.

    An old manifest keeps its valid signature, so only the version tells that somebody put it back.
    Needs no lock: of two runs that write the same number, one succeeds, and the other judges its
    manifest anew. Raises InputError for an older manifest, or one of another gold set.
    """
    version, at, sha256 = manifest.content.version, manifest.content.created_at, manifest.sha256
    if manifest.content.gold_set != gold_set:
        message = f"this is the manifest of another gold set; rag-eval trust sign {gold_set}"
        stated = manifest.content.gold_set
        raise InputError.of(
            "other_gold_set", message, manifest.path, found=stated, accepted=gold_set
        )
    while True:
        number, last = last_accepted(home, gold_set)
        if last is not None and last.sha256 == sha256:
            return last
        if last is not None and version <= last.highest:
            raise InputError.of(
                "manifest_not_newer",
                "this manifest is not newer than the accepted ones, so it may have been put back",
                manifest.path,
                found=f"version {version} of {at}",
                accepted=f"version {last.version} of {last.created_at}, which was accepted last, "
                f"or a version after {last.highest}; rag-eval trust sign records documents anew",
            )
        acceptance = AcceptedManifest(
            version=version, created_at=at, sha256=sha256, highest=version
        )
        data = f"{canonical_json(acceptance.model_dump())}\n".encode()
        if not log or home.create(f"{_MANIFESTS}/{gold_set}/{number + 1:08d}.json", data):
            return acceptance


# ---- Decisions of people

ALLOWED_FILE = "trust-allowed.jsonl"
MAX_REASONS = 100


class Decision(Part):
    """One line: a person allowed a document, with the time and the reason."""

    schema_version: Literal[1] = 1
    chunk_id: Literal[""] = ""
    """Always empty: all chunks of the document are allowed."""
    doc_id: str = Field(max_length=1000)
    source_hash: str = Field(default="", pattern=r"^(?:[0-9a-f]{64})?$")
    """SHA-256 of the document's bytes that the person saw; a decision without this hash is void."""
    action: Literal["allow"] = "allow"
    who: str = Field(min_length=1, max_length=200)
    why: str = Field(min_length=1, max_length=2000)
    reasons: tuple[str, ...] = Field(default=(), max_length=MAX_REASONS)
    """Findings of the guard."""
    at: dt.datetime


def read_decisions(folder: Path) -> list[Decision]:
    """Read every decision of a gold set, in order. Raises InputError for an unreadable line."""
    path, problems = folder / ALLOWED_FILE, ProblemList()
    rows = read_rows(path, Decision, problems) if path.exists() else ()
    decisions = [decision for _, decision in rows]
    problems.raise_errors()
    return decisions


def _read_allowed(folder: Path, source_hashes: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """Return who allows each document, by doc_id, and the number of void decisions."""
    # A decision is void after any change, because the person who allowed it did not see the change.
    last = {decision.doc_id: decision for decision in read_decisions(folder)}
    allowed = {
        doc_id: decision.who
        for doc_id, decision in last.items()
        if decision.source_hash and source_hashes.get(doc_id) == decision.source_hash
    }
    return allowed, len(last) - len(allowed)


def record_decisions(folder: Path, decisions: Sequence[Decision]) -> Path:
    """Append decisions in one write, flushed to disk: all of them or none.

    Raises InputError if the file cannot be read.
    """
    read_decisions(folder)
    path = folder / ALLOWED_FILE
    ended = not path.exists() or path.read_bytes().endswith(b"\n")
    lines = [json.dumps(line.model_dump(mode="json"), sort_keys=True) + "\n" for line in decisions]
    data = (b"" if ended else b"\n") + "".join(lines).encode()
    with path.open("ab", buffering=0) as stream:
        size = stream.tell()
        if stream.write(data) != len(data):
            stream.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(stream.fileno())
    return path


# ---- Both together

_MAX_GONE: Final = 20
"""Most documents of the manifest that the report names as gone."""


class TrustInputs(NamedTuple):
    """Manifest and decisions of a gold set.

    `states` compares each document with the manifest; None without a manifest. `allowed` is
    doc_id -> person.
    """

    states: Sequence[DocumentState] | None
    manifest: Manifest | Absent
    notes: list[str]
    allowed: dict[str, str]


def read_trust_inputs(
    gold_set: GoldSetConfig, base: Path, home: Home, sources: pd.DataFrame
) -> TrustInputs:
    """Read the files of the gold set that trust depends on.

    Raises InputError if a file cannot be used, or if the signature of the manifest is wrong.
    """
    config, notes = gold_set.trust, list[str]()
    hashes = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    allowed, n_void = _read_allowed(base, hashes)
    if n_void:
        why = "their documents have other bytes now, or they do not say which they are about"
        notes.append(f"{n_void} of the decisions in {ALLOWED_FILE} do not count: {why}")
    if config.manifest is None:
        absent = Absent(reason="no trust.manifest is configured")
        return TrustInputs(None, absent, notes, allowed)
    stored = read_manifest(resolve(config.manifest, base), config.keys)
    accepted = accept_manifest(home, gold_set.name, stored)
    states, gone = compare_manifest(sources, stored.content.documents)
    manifest = Manifest(
        signature="signed" if config.keys else "not_configured",
        version=accepted.version,
        created_at=accepted.created_at,
        n_same=states.count("same"),
        n_changed=states.count("changed"),
        n_not_in_manifest=states.count("not_in_manifest"),
        n_gone=len(gone),
        gone=[quoted(doc_id, 200) for doc_id in gone[:_MAX_GONE]],
    )
    return TrustInputs(states, manifest, notes, allowed)
