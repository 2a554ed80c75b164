"""Signatures as files: a list of lines for a corpus, or one file beside each document.

Belongs here: reading and refusing. Whether a signature holds is `signatures`.
"""

import base64
import binascii
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rag_eval.gold.lines import read_objects
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import Problem, quoted
from rag_eval.trust.signatures import Signature

SIGNATURE_BYTES = 64
SIDECAR = ".sig"
MAX_SIDECAR_BYTES = 1024
ACCEPTED_SIGNATURE = f"an Ed25519 signature, {SIGNATURE_BYTES} bytes in base64"
ACCEPTED_SIDECAR = f"<key name> <base64>, or the base64 alone; {ACCEPTED_SIGNATURE}"
_FIELDS = ("doc_id", "key", "signature")


class ReadSignatures(NamedTuple):
    """Signatures by doc_id, and notes (severity warning) on lines about documents that are not in the corpus."""

    signatures: dict[str, Signature]
    notes: tuple[Problem, ...]


def _decoded(text: object) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == SIGNATURE_BYTES else None


def _faults(
    row: Mapping[str, object], keys: Collection[str], known: Collection[str]
) -> Iterator[tuple[str, str, str, str]]:
    """Code, field, what was found and what is accepted, for every reason why a line is no signature."""
    for field in _FIELDS:
        if not isinstance(row.get(field), str):
            yield (
                ("missing_field" if field not in row else "bad_type"),
                field,
                repr(row.get(field)),
                "a string",
            )
    for field in row:
        if field not in _FIELDS:
            yield "unknown_field", field, field, ", ".join(_FIELDS)
    if isinstance(row.get("key"), str) and row["key"] not in keys:
        yield (
            "unknown_key",
            "key",
            str(row["key"]),
            f"a name of trust.keys: {', '.join(sorted(keys)) or 'there is none'}",
        )
    if isinstance(row.get("signature"), str) and _decoded(row["signature"]) is None:
        yield "bad_signature", "signature", str(row["signature"]), ACCEPTED_SIGNATURE
    if row.get("doc_id") in known:
        yield "duplicate_id", "doc_id", str(row["doc_id"]), "every document once"


_SENTENCES = {
    "missing_field": "the line lacks a field",
    "bad_type": "the field is not a string",
    "unknown_field": "the line has a field without meaning",
    "unknown_key": "the configuration names no such key",
    "bad_signature": "not a signature",
    "duplicate_id": "the document has a signature on an earlier line",
}


def read_signatures(path: Path, doc_ids: Collection[str], keys: Collection[str]) -> ReadSignatures:
    """Read a signatures file, one `{"doc_id", "key", "signature"}` a line.

    Parameters
    ----------
    path
        The file.
    doc_ids
        Documents of the corpus. Lines about others are only noted, since corpora shrink, but they too must be whole.
    keys
        Names of the configured keys.

    Raises
    ------
    InputError
        With every line that cannot be used: bad JSON, a missing or unknown field, a document twice, an unknown key, a bad signature.
    """
    problems, file = ProblemList(), str(path)
    present, seen = frozenset(doc_ids), set[str]()
    signatures: dict[str, Signature] = {}
    for line, row in read_objects(path, problems):
        faults = list(_faults(row, keys, seen))
        for code, field, found, accepted in faults:
            problems.add(
                code,
                _SENTENCES[code],
                file=file,
                line=line,
                field=field,
                found=quoted(found),
                accepted=accepted,
            )
        if isinstance(row.get("doc_id"), str):
            seen.add(row["doc_id"])
        data = _decoded(row.get("signature"))
        if faults or data is None:
            continue
        if row["doc_id"] in present:
            signatures[row["doc_id"]] = Signature(row["key"], data)
        else:
            problems.add(
                "unknown_document",
                "no document of the corpus has this id",
                file=file,
                line=line,
                field="doc_id",
                found=quoted(row["doc_id"]),
                severity="warning",
            )
    problems.raise_errors()
    return ReadSignatures(signatures, problems.listed())


def read_detached(path: Path, shown: str) -> Signature | Problem:
    """Read a file that holds one signature, `<key name> <base64>` or the base64 alone; a problem where it holds something else."""
    with path.open("rb") as stream:
        content = stream.read(MAX_SIDECAR_BYTES + 1)
    words = content.decode("ascii", "replace").split() if len(content) <= MAX_SIDECAR_BYTES else []
    data = _decoded(words[-1]) if words else None
    if data is None or len(words) > len(Signature._fields):
        return Problem(
            "bad_signature",
            "the file holds no signature",
            file=shown,
            found=quoted(content[:SIGNATURE_BYTES].decode("ascii", "backslashreplace")),
            accepted=ACCEPTED_SIDECAR,
        )
    return Signature(words[0] if len(words) > 1 else "", data)


def read_sidecars(root: Path, doc_ids: Iterable[str]) -> dict[str, Signature]:
    """Signatures that stand beside the files of a folder corpus, `<root>/<doc_id>.sig`; documents without one are left out.

    A key that the configuration does not name is no error here, it is the state unknown_key: whoever writes files does not configure us.

    Raises
    ------
    InputError
        With every `.sig` that is no signature, no regular file, or leads out of the folder.
    """
    problems, inside = ProblemList(), root.resolve()
    found: dict[str, Signature] = {}
    for doc_id in doc_ids:
        path, shown = root / f"{doc_id}{SIDECAR}", f"{doc_id}{SIDECAR}"
        if not os.path.lexists(path):
            continue
        try:
            mode = path.stat().st_mode
        except OSError as error:
            problems.add(
                "unreadable_file",
                f"the signature cannot be read: {quoted(error.strerror or '')}",
                file=shown,
                accepted=ACCEPTED_SIDECAR,
            )
            continue
        if not path.resolve().is_relative_to(inside):
            problems.add(
                "outside_folder",
                "the signature lies outside the folder",
                file=shown,
                accepted="files inside the folder",
            )
        elif not stat.S_ISREG(mode):
            problems.add("not_a_file", "not a regular file", file=shown, accepted=ACCEPTED_SIDECAR)
        elif isinstance(one := read_detached(path, shown), Problem):
            problems.extend([one])
        else:
            found[doc_id] = one
    problems.raise_errors()
    return found
