"""Vectors that somebody computed before: an .npz file with `sha256` (hex digest of the UTF-8 text) and `vectors` (float, one row each)."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.retrieval.embedding.base import Advance, Vectors, lengths, no_advance, unit
from rag_eval.storage.hashing import file_hash, text_hash

HEX_DIGITS = 64
UNIT_TOLERANCE = 1e-3
ACCEPTED = "an .npz with `sha256` (n texts of 64 hex digits) and `vectors` (n x d finite numbers)"


def _refuse(
    path: Path, code: str, message: str, field: str | None = None, found: str | None = None
) -> InputError:
    return InputError(
        Problem(code, message, file=str(path), field=field, found=found, accepted=ACCEPTED)
    )


def read_vectors(path: Path) -> tuple[list[str], Vectors]:
    """Read and check a vectors file.

    Raises
    ------
    InputError
        Not an .npz, a part is missing or of the wrong shape, a value is NaN or infinite, a hash stands twice with different vectors.
    """
    if not path.is_file():
        raise _refuse(path, "vectors_missing", "no such file")
    try:
        with (
            path.open("rb") as stream,
            zipfile.ZipFile(stream),
        ):  # a single .npy array is no archive
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                parts = {
                    name: archive[name] for name in ("sha256", "vectors") if name in archive.files
                }
    except (
        ValueError,
        OSError,
        EOFError,
        MemoryError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:  # what zipfile and NumPy raise on hostile archives
        raise _refuse(
            path,
            "vectors_unreadable",
            "cannot be read as .npz",
            found=f"{type(error).__name__}: {error}",
        ) from error
    for name in ("sha256", "vectors"):
        if not isinstance(parts.get(name), np.ndarray):
            raise _refuse(
                path,
                "vectors_part_missing",
                "a part is missing or no array",
                name,
                f"parts {sorted(parts)}",
            )
    keys, vectors = parts["sha256"], parts["vectors"]
    if keys.ndim != 1 or keys.dtype.kind not in "US":
        raise _refuse(
            path,
            "vectors_bad_keys",
            "hashes must be a list of texts",
            "sha256",
            f"{keys.dtype} of shape {keys.shape}",
        )
    if (
        vectors.ndim != 2
        or vectors.shape[0] != len(keys)
        or vectors.shape[1] == 0
        or vectors.dtype.kind != "f"
    ):  # noqa: PLR2004 - rows and columns
        raise _refuse(
            path,
            "vectors_bad_shape",
            "vectors must be one row of numbers for each hash",
            "vectors",
            f"{vectors.dtype} of shape {vectors.shape}, {len(keys)} hashes",
        )
    with np.errstate(
        over="ignore"
    ):  # a float64 beyond float32 becomes infinite, and is refused as such
        vectors = vectors.astype(np.float32, copy=False)
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise _refuse(
            path,
            "vectors_not_finite",
            f"{len(bad)} of {len(vectors)} vectors hold NaN or infinity",
            "vectors",
            f"first in row {int(bad[0])}",
        )
    names = [
        key.decode("ascii", "replace") if isinstance(key, bytes) else str(key)
        for key in keys.tolist()
    ]
    wrong = next(
        (
            name
            for name in names
            if len(name) != HEX_DIGITS or not set(name) <= set("0123456789abcdef")
        ),
        None,
    )
    if wrong is not None:
        raise _refuse(path, "vectors_bad_keys", "not a lower-case SHA-256", "sha256", quoted(wrong))
    if len(set(names)) != len(names):
        raise _refuse(
            path,
            "vectors_duplicate",
            "a hash stands twice",
            "sha256",
            f"{len(names) - len(set(names))} of {len(names)}",
        )
    return names, vectors


class FileEmbedder:
    """Looks vectors up by text; a text without a vector is an error, never a guess."""

    def __init__(self, path: Path) -> None:
        self.path = path
        names, vectors = read_vectors(path)
        self.model = f"vectors-file@{file_hash(path)[:16]}"
        self.dimensions = int(vectors.shape[1])
        self._vectors = (
            vectors if np.allclose(lengths(vectors), 1.0, atol=UNIT_TOLERANCE) else unit(vectors)
        )
        self._row = {name: i for i, name in enumerate(names)}

    def knows(self, text: str) -> bool:
        """Whether a text has a vector."""
        return text_hash(text) in self._row

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Vectors:
        """Return the stored vectors.

        Raises
        ------
        InputError
            Some texts have none; the first few are quoted.
        """
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
                    accepted="a vector under the SHA-256 of each indexed text `(title + ' ' + text).strip()` and of each question and paraphrase",
                )
            )
        advance(len(texts))
        return self._vectors[rows]
