"""Vectors kept by (text hash, model): what was embedded once is never embedded again.

One folder a model holds immutable segments, each written atomically; concurrent writers add segments and lose nothing. Many small segments
are merged when the cache is opened for writing.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rag_eval.retrieval.embedding.base import Advance, Embedder, Vectors, no_advance
from rag_eval.storage.atomic import atomic_path, write_text
from rag_eval.storage.hashing import canonical_json, digest, lines_hash, text_hash

MAX_SEGMENTS = 32
BLOCK = 8192
"""Texts embedded between two writes."""


@dataclasses.dataclass
class CacheUse:
    """How many distinct texts were needed and how many had to be embedded."""

    needed: int = 0
    embedded: int = 0

    def add(self, other: "CacheUse") -> None:
        """Add another count."""
        self.needed += other.needed
        self.embedded += other.embedded


class EmbeddingCache:
    """The vectors of one model below `root`."""

    def __init__(self, root: Path, model: str) -> None:
        self.folder = root / digest(model)
        self._rows: dict[str, int] = {}
        self._vectors: list[Vectors] = []
        self._total = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "model.json").is_file():
            write_text(self.folder / "model.json", canonical_json({"model": model}))
        segments = self._load()
        if len(segments) > MAX_SEGMENTS:
            keys = list(self._rows)
            merged = self._write(keys, self.vectors(keys))
            for segment in segments:
                if (
                    segment != merged
                ):  # where one segment held every key already, the merged one has its name
                    segment.unlink(missing_ok=True)

    def _load(self) -> list[Path]:
        while True:
            self._rows, self._vectors, self._total = {}, [], 0
            segments = sorted(self.folder.glob("segment-*.npz"))
            try:
                for segment in segments:
                    with np.load(segment, allow_pickle=False) as archive:
                        self._remember(archive["keys"].astype(str).tolist(), archive["vectors"])
            except FileNotFoundError:  # another process has merged it since the folder was read: the merged segment stands there now
                continue
            return segments

    def _remember(self, keys: Sequence[str], vectors: Vectors) -> None:
        self._rows.update(zip(keys, range(self._total, self._total + len(keys)), strict=True))
        self._vectors.append(vectors)
        self._total += len(keys)

    def _write(self, keys: Sequence[str], vectors: Vectors) -> Path:
        path = self.folder / f"segment-{lines_hash(keys)}.npz"
        with atomic_path(path) as partial, partial.open("wb") as stream:
            np.savez(stream, keys=np.array(keys, dtype="S64"), vectors=vectors)
        return path

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def vectors(self, keys: Sequence[str]) -> Vectors:
        """Vectors of known text hashes, in their order."""
        if len(self._vectors) > 1:
            self._vectors = [np.concatenate(self._vectors)]
        rows = np.fromiter((self._rows[key] for key in keys), dtype=np.int64, count=len(keys))
        return self._vectors[0][rows]

    def add(self, keys: Sequence[str], vectors: Vectors) -> None:
        """Store vectors under new text hashes."""
        self._write(keys, vectors)
        self._remember(keys, vectors)


def embed_cached(
    embedder: Callable[[], Embedder],
    cache: EmbeddingCache,
    texts: Sequence[str],
    hashes: Sequence[str] | None = None,
    advance: Advance = no_advance,
) -> tuple[Vectors, CacheUse]:
    """Vectors of texts, embedding each distinct new text once.

    Parameters
    ----------
    embedder
        Gives the embedder; called only when a text is new.
    texts
        Any number, repeats allowed.
    hashes
        Their text hashes where the caller has them.

    Returns
    -------
    vectors : float32 [n, d]
    use : CacheUse
    """
    keys = list(hashes) if hashes is not None else [text_hash(text) for text in texts]
    distinct = dict(zip(keys, texts, strict=True))
    new = {key: text for key, text in distinct.items() if key not in cache}
    fresh = list(new)
    for start in range(0, len(fresh), BLOCK):  # a killed run loses at most one block of work
        block = fresh[start : start + BLOCK]
        cache.add(block, embedder().embed([new[key] for key in block], advance))
    advance(len(texts) - len(new))
    return cache.vectors(keys) if keys else np.zeros((0, 1), dtype=np.float32), CacheUse(
        len(distinct), len(new)
    )
