"""Hash values, texts and files, and identify the version of the code."""

import contextlib
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

# ---- Hashes, and the canonical JSON that they are computed from

SHORT = 32
"""Hex digits of an identifier: 128 bits make a collision improbable in any corpus."""


def canonical_json(value: Any) -> str:
    """Write JSON with sorted keys and without spaces, so that equal values give equal text.

    NaN and infinity are refused.

    Examples
    --------
    >>> canonical_json({"b": 1, "a": [1.5, "ü"]})
    '{"a":[1.5,"ü"],"b":1}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: Any, length: int = SHORT) -> str:
    """Return the first `length` hex digits of SHA-256 over a value's canonical JSON.

    Lone surrogates are hashed unchanged.
    """
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()[
        :length
    ]


def text_hash(text: str) -> str:
    """Return SHA-256 of a text's UTF-8 bytes, 64 hex digits. Lone surrogates stay unchanged."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def file_hash(path: Path) -> str:
    """Return SHA-256 of a file's bytes, 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def lines_hash(lines: Iterable[str], length: int = SHORT) -> str:
    """Hash a sequence of strings, with the length of each string in the hash."""
    state = hashlib.sha256()
    for line in lines:
        data = line.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "big"))
        state.update(data)
    return state.hexdigest()[:length]


# ---- The version of the code, which reports and Dagster name

LIBRARIES = tuple(
    """bm25s chromadb confusable_homoglyphs datasets google-re2 ir-measures markdown-it-py numpy
    onnx onnxruntime pandas pyarrow pypdf pystemmer pytrec-eval-terrier ragas rank-bm25 regex
    scikit-learn scipy selectolax sentence-transformers tokenizers""".split()
)
"""Libraries with versions that can change a figure."""


@functools.cache
def library_versions() -> dict[str, str]:
    """Return the versions of the installed libraries that figures depend on."""
    versions = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


@functools.cache
def code_version() -> str:
    """Hash this package's sources and the libraries' versions."""
    sources = _hash_sources(Path(__file__).resolve().parents[1])
    return digest({"sources": sources, "libraries": library_versions()})


def plugin_version(module: str) -> list[str]:
    """Return SHA-256 of each source of a module, or package, outside this package."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        return []
    origin = Path(spec.origin)
    paths = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return [file_hash(path) for path in paths]


def _hash_sources(root: Path) -> dict[str, str]:
    """Return path -> SHA-256 of each source and data file below a package, without caches."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.suffix in {".py", ".json", ".toml", ".yaml"} and path.parent.name != "__pycache__"
    }
