"""What every source of vectors offers, and the arithmetic they share."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Advance = Callable[[int], None]
"""Called with the number of texts just embedded, for progress."""


def no_advance(count: int) -> None:
    """Report progress to nobody."""


class Embedder(Protocol):
    """Embeds texts.

    `model` names the model and everything that changes its vectors (a fitted model carries the hash of its fit), so that vectors of another
    model or fit are never mixed up. `dimensions` is the length of a vector.
    """

    model: str
    dimensions: int

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Vectors:
        """Return float32 [n, dimensions], rows of unit norm; a zero row means that nothing in the text is known to the model."""
        ...


def lengths(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Norms of rows, float64 [n]: squares of very large or very small float32 values neither overflow nor vanish."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)))


@runtime_checkable
class TwoSided(Embedder, Protocol):
    """An embedder that may embed a question otherwise than a document."""

    def embed_queries(self, texts: Sequence[str], advance: Advance = no_advance) -> Vectors:
        """Embed questions, float32 [n, dimensions]."""
        ...


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    """Scale rows to unit norm; zero rows stay zero."""
    norms = lengths(vectors)[:, None]
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0), dtype=np.float32)
