"""Vectors that a user made: an .npz file with `sha256` (of the UTF-8 text) and `vectors`."""

import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rag_eval.core.arrays import Float32Array
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.retrieval.embedding.base import Advance, lengths, no_advance, unit
from rag_eval.storage.hashing import file_hash, text_hash

UNIT_TOLERANCE = 1e-3
ACCEPTED = "an .npz with `sha256` (n texts of 64 hex digits) and `vectors` (n x d finite numbers)"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DAMAGED = (
    ValueError,
    KeyError,
    OSError,
    EOFError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions of zipfile and NumPy on damaged or hostile archives."""


def read_vectors(path: Path) -> tuple[list[str], Float32Array]:
    """Read and check a vectors file.

    Raises
    ------
    InputError
        `vectors_missing`, `vectors_unreadable` (no .npz, or without its parts),
        `vectors_bad_shape`, `vectors_not_finite`, `vectors_bad_keys` or `vectors_duplicate`.
    """

    def refuse(code: str, message: str, found: str | None = None) -> InputError:
        return InputError(Problem(code, message, file=str(path), found=found, accepted=ACCEPTED))

    if not path.is_file():
        raise refuse("vectors_missing", "no such file")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            keys, vectors = archive["sha256"], archive["vectors"]
    except (*_DAMAGED, TypeError, AttributeError, IndexError) as error:  # also a single .npy array
        found = f"{type(error).__name__}: {error}"
        raise refuse("vectors_unreadable", "no .npz with these parts", found) from error
    if keys.ndim != 1 or keys.dtype.kind not in "US":
        raise refuse("vectors_bad_keys", "sha256 is no list of texts", f"{keys.dtype} {keys.shape}")
    shape = (len(keys), *vectors.shape[1:])
    if vectors.dtype.kind != "f" or len(shape) != 2 or vectors.shape != shape or not shape[1]:  # noqa: PLR2004 - rows and columns
        raise refuse(
            "vectors_bad_shape",
            "vectors must be one row of numbers for each hash",
            f"{vectors.dtype} {vectors.shape}, {len(keys)} hashes",
        )
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, refused below
        vectors = vectors.astype(np.float32, copy=False)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise refuse(
            "vectors_not_finite",
            f"{len(bad)} of {len(vectors)} vectors hold NaN or infinity",
            f"first in row {int(bad[0])}",
        )
    names = [
        key.decode("ascii", "replace") if isinstance(key, bytes) else str(key)
        for key in keys.tolist()
    ]
    wrong = next((name for name in names if not _SHA256.fullmatch(name)), None)
    if wrong is not None:
        raise refuse("vectors_bad_keys", "not a lower-case SHA-256", quoted(wrong))
    if len(set(names)) != len(names):
        twice = len(names) - len(set(names))
        raise refuse("vectors_duplicate", "a hash stands twice", f"{twice} of {len(names)}")
    return names, vectors


class FileEmbedder:
    """Looks vectors up by text; a text without a vector is an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        names, vectors = read_vectors(path)
        self.model = f"vectors-file@{file_hash(path)[:16]}"
        self.dimensions = int(vectors.shape[1])
        is_unit = np.allclose(lengths(vectors), 1.0, atol=UNIT_TOLERANCE)
        self._vectors = vectors if is_unit else unit(vectors)
        self._row = {name: i for i, name in enumerate(names)}

    def knows(self, text: str) -> bool:
        """Return whether a text has a vector."""
        return text_hash(text) in self._row

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Return the stored vectors; raise `InputError` where texts have none."""
        rows = [self._row.get(text_hash(text), -1) for text in texts]
        missing = [text for text, row in zip(texts, rows, strict=True) if row < 0]
        if missing:
            examples = "; ".join(quoted(text, 60) for text in missing[:3])
            raise InputError(
                Problem(
                    "vectors_incomplete",
                    f"no vector for {len(missing)} of {len(texts)} texts",
                    file=str(self.path),
                    found=f"without a vector: {examples}",
                    accepted="a vector under the SHA-256 of each indexed text "
                    "`(title + ' ' + text).strip()` and of each question and paraphrase",
                )
            )
        advance(len(texts))
        return self._vectors[rows]
