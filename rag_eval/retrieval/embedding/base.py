"""Interface of all sources of vectors, and their shared arithmetic."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import Float32Array

Advance = Callable[[int], None]
"""Callback for progress; its argument is the number of texts just embedded."""


def no_advance(count: int) -> None:
    """Ignore the progress."""


class Embedder(Protocol):
    """Embeds texts. `embed_queries` is optional, for models that embed questions differently."""

    model: str
    """Name of the model with everything that changes its vectors, such as the hash of a fit."""
    dimensions: int

    def embed(self, texts: Sequence[str], advance: Advance = no_advance) -> Float32Array:
        """Return float32 [n, dimensions], rows of unit norm; zero without a known word."""
        ...


def lengths(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Compute the norms of rows, [n], in float64; squares in float32 could overflow or vanish."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)))


def unit(vectors: npt.NDArray[np.floating]) -> Float32Array:
    """Scale rows to unit norm; zero rows stay zero."""
    norms = lengths(vectors)[:, None]
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0), dtype=np.float32)
