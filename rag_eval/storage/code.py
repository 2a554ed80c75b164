"""The version of the code that computes: part of every memo key, so that a change of code never meets an old result."""

import functools
import hashlib
from importlib import metadata
from pathlib import Path

from rag_eval.storage.hashing import digest

LIBRARIES = (
    "bm25s",
    "chromadb",
    "ir-measures",
    "numpy",
    "onnxruntime",
    "pandas",
    "pystemmer",
    "rank-bm25",
    "scikit-learn",
    "scipy",
    "tokenizers",
)
"""Libraries whose version can change a figure."""


@functools.cache
def library_versions() -> dict[str, str]:
    """Installed versions of the libraries that figures depend on."""
    return {name: metadata.version(name) for name in LIBRARIES}


@functools.cache
def code_version() -> str:
    """Hash of this package's sources and of the libraries' versions."""
    root = Path(__file__).resolve().parents[1]
    sources = {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.suffix in {".py", ".json", ".yaml"}
    }
    return digest({"sources": sources, "libraries": library_versions()})
