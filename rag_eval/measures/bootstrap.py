"""Resampling whole groups of queries.

Belongs here: the weights of the resamples and the quantiles of the resampled means. Not here: which interval is shown (`intervals`).
"""

import functools
from collections.abc import Iterable, Iterator

import numpy as np

from rag_eval.measures.arrays import FloatArray

_CELLS = 4_000_000  # weights (and resampled means) held at a time: 32 MB


def resample_weights(n_groups: int, seed: int, resamples: int) -> Iterator[FloatArray]:
    """How often each group is drawn in each resample, in blocks `[block, n_groups]`; the same blocks for the same arguments.

    Parameters
    ----------
    n_groups
        Number of groups; as many are drawn, with replacement.
    seed
        Seed of the draws.
    resamples
        Number of resamples over all blocks.
    """
    rng = np.random.default_rng(seed)
    block = max(1, _CELLS // n_groups)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = rng.integers(n_groups, size=(rows, n_groups))
        drawn += np.arange(rows)[:, None] * n_groups
        yield (
            np.bincount(drawn.ravel(), minlength=rows * n_groups)
            .reshape(rows, n_groups)
            .astype(np.float64)
        )


@functools.lru_cache(maxsize=2)
def _kept_weights(n_groups: int, seed: int, resamples: int) -> tuple[FloatArray, ...]:
    blocks = tuple(resample_weights(n_groups, seed, resamples))
    for weights in blocks:
        weights.setflags(write=False)
    return blocks


def _weights(n_groups: int, seed: int, resamples: int) -> Iterable[FloatArray]:
    """Blocks of `resample_weights`; kept where one block holds all, because an evaluation asks dozens of times for the same ones."""
    return (
        _kept_weights(n_groups, seed, resamples)
        if n_groups * resamples <= _CELLS
        else resample_weights(n_groups, seed, resamples)
    )


def bootstrap_quantiles(
    sums: FloatArray, counts: FloatArray, seed: int, resamples: int, levels: tuple[float, float]
) -> FloatArray:
    """Quantiles of the resampled ratio `sum of values / number of values`.

    Parameters
    ----------
    sums
        `[n_groups, m]` sum of the values in each group, under each of m measures.
    counts
        `[n_groups]` number of values in each group, 1 or more.
    seed, resamples
        As for `resample_weights`; every measure sees the same resamples.
    levels
        Lower and upper level, in (0, 1).

    Returns
    -------
    array
        `[2, m]`.
    """
    n_groups, m = sums.shape
    out = np.empty((2, m))
    width = max(1, _CELLS // resamples)
    for left in range(0, m, width):
        part = sums[:, left : left + width]
        blocks = [
            part.T @ weights.T / (weights @ counts)
            for weights in _weights(n_groups, seed, resamples)
        ]
        out[:, left : left + width] = np.quantile(np.concatenate(blocks, axis=1), levels, axis=1)
    return out
