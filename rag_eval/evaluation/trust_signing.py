"""Manifests, signatures and keys as files: what `rag-eval trust manifest|sign|keygen` write."""

import os
from pathlib import Path

from rag_eval.corpus.loading import source_bytes
from rag_eval.corpus.raw_documents import resolve
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.atomic import write_bytes, write_text
from rag_eval.storage.locking import home_lock
from rag_eval.trust.manifest import make_manifest, manifest_bytes
from rag_eval.trust.signatures import generate_key, sign_bytes, sign_documents

MAX_KEY_BYTES = 10_000


def _private(path: Path) -> str:
    if not path.is_file():
        raise InputError(
            Problem(
                "missing_file",
                "the private key does not exist",
                file=str(path),
                field="--key",
                accepted="an Ed25519 private key in PEM; rag-eval trust keygen makes one",
            )
        )
    data = path.read_bytes()[: MAX_KEY_BYTES + 1]
    if len(data) > MAX_KEY_BYTES:
        raise InputError(
            Problem(
                "bad_private_key",
                "the file is too large for a key",
                file=str(path),
                field="--key",
                accepted=f"at most {MAX_KEY_BYTES} bytes",
            )
        )
    return data.decode("utf-8", "replace")


def write_manifest(
    evaluation: Evaluation, out: Path | None, key: Path | None
) -> tuple[Path, int, bool]:
    """Record every document's hash, and sign the record where a key is given; an old signature goes, as it would not hold.

    Returns
    -------
    Path, int, bool
        The file, how many documents it records, whether it is signed.
    """
    private = None if key is None else _private(key)
    with home_lock(evaluation.settings.home):
        sources = corpus_snapshot(evaluation).frame("sources")
    data = manifest_bytes(make_manifest(sources))
    path = out or resolve(evaluation.config.trust.manifest or "manifest.json", evaluation.base)
    signature = path.with_name(f"{path.name}.sig")
    signed = None if private is None else sign_bytes(private, data)
    signature.unlink(
        missing_ok=True
    )  # first, so that no moment has a manifest beside another one's signature
    write_bytes(path, data)
    if signed is not None:
        write_text(signature, f"{signed}\n")
    return path, len(sources), signed is not None


def write_signatures(
    evaluation: Evaluation, out: Path | None, key: Path, name: str
) -> tuple[Path, int, str | None]:
    """Sign every document's bytes; `name` is what `trust.keys` calls the public key.

    Returns
    -------
    Path, int, str | None
        The file, how many documents it signs, and what to put under `trust.signatures` for the file to be read; None where the gold set names it already.
    """
    private = _private(key)
    if name not in evaluation.config.trust.keys:
        accepted = (
            ", ".join(sorted(evaluation.config.trust.keys))
            or "none yet; rag-eval trust keygen prints a public key for it"
        )
        raise InputError(
            Problem(
                "unknown_key",
                "trust.keys of the gold set has no key of this name",
                field="--name",
                found=name,
                accepted=accepted,
            )
        )
    lines = sign_documents(private, source_bytes(evaluation.config.corpus, evaluation.base), name)
    path = out or resolve(evaluation.config.trust.signatures or "signatures.jsonl", evaluation.base)
    write_text(path, "".join(f"{line}\n" for line in lines))
    named = evaluation.config.trust.signatures
    if named is not None and resolve(named, evaluation.base).resolve() == path.resolve():
        return path, len(lines), None
    return path, len(lines), os.path.relpath(path.resolve(), evaluation.base.resolve())


def write_key(out: Path) -> str:
    """Write a new private key into a file that only its owner can read; return the public key in base64."""
    private, public = generate_key()
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise InputError(
            Problem(
                "file_exists",
                "a key is never written over",
                file=str(out),
                accepted="a file that does not exist yet",
            )
        ) from error
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(private)
        stream.flush()
        os.fsync(stream.fileno())
    return public
