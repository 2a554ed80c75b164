"""Interface of all sources of vectors, and their shared arithmetic."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import Float32Array

Advance = Callable[[int], None]
"""Called with the number of texts just embedded, for progress."""


def no_advance(count: int) -> None:
    """Report progress to nobody."""


class Embedder(Protocol):
    """Embeds texts. One that embeds questions otherwise than documents has `embed_queries` too."""

    model: str
    """Names the model and everything that changes its vectors, such as the hash of a fit."""
    dimensions: int

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Return float32 [n, dimensions], rows of unit norm; zero where no word is known."""
        ...


def lengths(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Norms of rows, [n]; in float64, where squares of float32 neither overflow nor vanish."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)))


def unit(vectors: npt.NDArray[np.floating]) -> Float32Array:
    """Scale rows to unit norm; zero rows stay zero."""
    norms = lengths(vectors)[:, None]
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0), dtype=np.float32)
