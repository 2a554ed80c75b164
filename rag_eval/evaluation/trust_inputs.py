"""What trust reads besides the corpus: signatures and the manifest, and the hash of their contents for the memo key."""

import dataclasses
from pathlib import Path
from typing import Any

from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.gold_set import Folder
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.hashing import digest, file_hash
from rag_eval.trust.manifest import Manifest, check_manifest, read_manifest
from rag_eval.trust.signatures import Signature, read_sidecars, read_signatures


@dataclasses.dataclass(frozen=True)
class TrustInputs:
    """Signatures by doc_id, the manifest where one is configured, what to say about both, and the identity of all that was read."""

    signatures: dict[str, Signature]
    manifest: Manifest | None
    manifest_summary: dict[str, Any]
    notes: list[str]
    identity: str
