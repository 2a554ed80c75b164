"""What trust reads besides the corpus: signatures and the manifest, and what identifies their contents for the memo key."""

import base64
import dataclasses
from typing import Any

from rag_eval.corpus.raw_documents import resolve
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.gold_set import Folder
from rag_eval.records.problems import quoted
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest
from rag_eval.trust.manifest import ManifestCheck, check_manifest, read_manifest
from rag_eval.trust.signature_files import read_sidecars, read_signatures
from rag_eval.trust.signatures import Signature

MAX_MISSING = 20


@dataclasses.dataclass(frozen=True)
class TrustInputs:
    """Signatures by doc_id, the corpus against its manifest where one is configured, what the report says of that, and the identity of all that was read."""

    signatures: dict[str, Signature]
    check: ManifestCheck | None
    manifest: dict[str, Any]
    notes: list[str]
    identity: str


def trust_inputs(evaluation: Evaluation, corpus: Artifact) -> TrustInputs:
    """Read the signatures and the manifest that the gold set names.

    Raises
    ------
    InputError
        One of them cannot be used, or the manifest's own signature does not hold.
    """
    config, base, sources = evaluation.config.trust, evaluation.base, corpus.frame("sources")
    doc_ids = sources["doc_id"].tolist()
    signatures: dict[str, Signature] = {}
    notes: list[str] = []
    if config.keys:
        spec = evaluation.config.corpus
        if isinstance(spec, Folder):
            signatures |= read_sidecars(resolve(spec.path, base), doc_ids)
        if config.signatures is not None:
            read = read_signatures(resolve(config.signatures, base), doc_ids, config.keys)
            signatures |= read.signatures
            notes += [quoted(note.message, 300) for note in read.notes]
    signed = sorted(
        (doc_id, one.key, base64.b64encode(one.data).decode()) for doc_id, one in signatures.items()
    )
    if config.manifest is None:
        return TrustInputs(
            signatures,
            None,
            {"value": None, "reason": "no trust.manifest is configured"},
            notes,
            digest([signed]),
        )
    manifest = read_manifest(resolve(config.manifest, base), config.keys)
    check = check_manifest(sources, manifest)
    summary = {
        "signature": manifest.signature,
        **{
            f"n_{state}": check.states.count(state)
            for state in ("same", "changed", "not_in_manifest")
        },
        "n_gone": len(check.gone),
        "gone": [quoted(doc_id, 200) for doc_id in check.gone[:MAX_MISSING]],
    }
    return TrustInputs(
        signatures,
        check,
        summary,
        notes,
        digest([signed, sorted(manifest.documents.items()), manifest.signature]),
    )
