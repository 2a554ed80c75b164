"""The recorded hashes of a corpus's documents: made once, signed where keys are given, and compared with what is there today.

Belongs here: the manifest file and the comparison. What follows from a changed document is `source_findings`.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rag_eval.corpus.json_lines import object_of
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.hashing import canonical_json
from rag_eval.trust.signature_files import ACCEPTED_SIDECAR, SIDECAR, read_detached
from rag_eval.trust.signatures import verify

SCHEMA_VERSION = 1
MAX_MANIFEST_BYTES = 512 * 1024 * 1024
_FIELDS = ("schema_version", "documents")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ACCEPTED = '{"schema_version": 1, "documents": {doc_id: sha256 in lower-case hex}}'

ManifestSignature = Literal["signed", "not_configured"]
"""Of the manifest itself: a signature holds; no key is configured that could check one."""
DocumentState = Literal["same", "changed", "not_in_manifest"]


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read: doc_id -> sha256 in hex, and what vouches for it."""

    documents: Mapping[str, str]
    signature: ManifestSignature


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestCheck:
    """The corpus against its manifest: a state for each document, in their order, and the documents that are gone, sorted."""

    states: tuple[DocumentState, ...]
    gone: tuple[str, ...]


def make_manifest(sources: pd.DataFrame) -> dict[str, Any]:
    """Record the hashes of a SOURCES frame's documents."""
    return {
        "schema_version": SCHEMA_VERSION,
        "documents": dict(
            zip(sources["doc_id"].tolist(), sources["source_hash"].tolist(), strict=True)
        ),
    }


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as it is written and signed: canonical JSON in UTF-8 and a line end. Equal corpora give equal bytes."""
    return f"{canonical_json(dict(manifest))}\n".encode()


def _problem(
    path: Path,
    code: str,
    message: str,
    *,
    field: str | None = None,
    found: str | None = None,
    accepted: str = _ACCEPTED,
) -> InputError:
    return InputError(
        Problem(code, message, file=str(path), field=field, found=found, accepted=accepted)
    )


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        code, sentence = (
            ("not_a_file", "the manifest is not a regular file")
            if os.path.lexists(path)
            else ("missing_file", "the manifest does not exist")
        )
        raise _problem(path, code, sentence, field="trust.manifest")
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise _problem(
            path,
            "unreadable_file",
            f"the manifest cannot be read: {quoted(error.strerror or str(error))}",
        ) from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise _problem(
            path,
            "file_too_large",
            "the manifest is too large",
            accepted=f"at most {MAX_MANIFEST_BYTES} bytes",
        )
    return data


def _documents(path: Path, data: bytes) -> dict[str, str]:
    value = object_of(data, strict=True)
    if isinstance(value, tuple):
        raise _problem(path, value[0], f"the manifest is no JSON object: {quoted(value[1], 300)}")
    problems, file = ProblemList(), str(path)
    for field in value:
        if field not in _FIELDS:
            problems.add(
                "unknown_field",
                "the manifest has a field without meaning",
                file=file,
                field=quoted(field),
                accepted=_ACCEPTED,
            )
    version, documents = value.get("schema_version"), value.get("documents")
    if version != SCHEMA_VERSION or not isinstance(version, int) or isinstance(version, bool):
        problems.add(
            "bad_schema_version",
            "the manifest is of another version",
            file=file,
            field="schema_version",
            found=quoted(version),
            accepted=str(SCHEMA_VERSION),
        )
    if not isinstance(documents, dict):
        problems.add(
            "bad_type",
            "the documents are not an object",
            file=file,
            field="documents",
            found=quoted(documents),
            accepted=_ACCEPTED,
        )
        documents = {}
    for doc_id, recorded in documents.items():
        if not isinstance(recorded, str) or not _SHA256.fullmatch(recorded):
            problems.add(
                "bad_hash",
                "not a hash",
                file=file,
                field=f"documents.{quoted(doc_id)}",
                found=quoted(recorded),
                accepted="sha256, 64 lower-case hex digits",
            )
    problems.raise_errors()
    return documents


def _signature(path: Path, data: bytes, keys: Mapping[str, str]) -> ManifestSignature:
    beside = path.with_name(f"{path.name}{SIDECAR}")
    if not keys:
        return "not_configured"
    if not os.path.lexists(beside):
        # as telling as one that does not hold: whoever can write the manifest can also delete what would give that away
        raise _problem(
            path,
            "unsigned_manifest",
            "keys are configured and the manifest is not signed",
            accepted=f"rag-eval trust manifest --key writes {path.name}{SIDECAR} beside it",
        )
    if not beside.is_file():
        raise _problem(
            beside,
            "not_a_file",
            "not a regular file, or a link to nothing",
            accepted=ACCEPTED_SIDECAR,
        )
    signature = read_detached(beside, str(beside))
    if isinstance(signature, Problem):
        raise InputError(signature)
    state = verify({"": data}, {"": signature}, keys)[""]
    if state == "unknown_key":
        accepted = f"a name of trust.keys: {', '.join(sorted(keys))}"
        raise _problem(
            beside,
            "unknown_key",
            "the configuration names no such key",
            found=quoted(signature.key),
            accepted=accepted,
        )
    if state != "valid":
        raise _problem(
            beside,
            "invalid_signature",
            "the manifest is not what was signed: sign it again once its changes are known to be right",
            accepted=ACCEPTED_SIDECAR,
        )
    return "signed"


def read_manifest(path: Path, keys: Mapping[str, str]) -> Manifest:
    """Read a manifest and, where keys are configured, the signature beside it, `<manifest>.sig`.

    Parameters
    ----------
    path
        The manifest.
    keys
        Name -> public key, 32 bytes in base64; `verify` says more.

    Raises
    ------
    InputError
        The file is missing or no manifest; or keys are configured and the manifest has no signature, or one that does not hold.
    """
    data = _bytes(path)
    signature = _signature(path, data, keys)
    return Manifest(_documents(path, data), signature)


def check_manifest(sources: pd.DataFrame, manifest: Manifest) -> ManifestCheck:
    """Compare the documents of a SOURCES frame with a manifest, by the bytes their source gave."""
    recorded = manifest.documents
    pairs = zip(sources["doc_id"].tolist(), sources["source_hash"].tolist(), strict=True)
    states: list[DocumentState] = [
        "not_in_manifest"
        if doc_id not in recorded
        else "same"
        if recorded[doc_id] == found
        else "changed"
        for doc_id, found in pairs
    ]
    return ManifestCheck(
        tuple(states), tuple(sorted(recorded.keys() - set(sources["doc_id"].tolist())))
    )
