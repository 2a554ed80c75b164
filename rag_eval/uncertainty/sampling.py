"""Samples of known probability: how many of each stratum, which, and how likely each of them was to be chosen.

Belongs here: the arithmetic of sampling. What is sampled is the business of `audits`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

STRATA: Final = 5
_LEAST_RISK: Final = 0.05
"""No stratum is taken to be more certain than this: predictions may be wrong."""


@dataclasses.dataclass(frozen=True)
class Strata:
    """How a population was cut and how many were drawn from each part, enough to know later how likely a member was to be drawn.

    Parameters
    ----------
    edges
        Upper ends of all strata of predicted risk but the last; empty where the sample is simple.
    sizes, drawn
        Members and drawn members of each stratum; where there are several, the last is of members without a prediction.
    """

    edges: tuple[float, ...]
    sizes: tuple[int, ...]
    drawn: tuple[int, ...]

    def of(self, risk: FloatArray) -> IntArray:
        """Stratum of each member, int64 [n]; NaN is no prediction."""
        if len(self.sizes) == 1:
            return np.zeros(len(risk), dtype=np.int64)
        return np.where(
            np.isnan(risk),
            len(self.sizes) - 1,
            np.searchsorted(np.asarray(self.edges), risk, side="left"),
        ).astype(np.int64)

    @property
    def probability(self) -> FloatArray:
        """Share of each stratum that was drawn; 0 where it is empty."""
        return np.asarray(self.drawn, dtype=np.float64) / np.maximum(
            np.asarray(self.sizes, dtype=np.float64), 1
        )

    def as_json(self) -> dict[str, Any]:
        """Write as a JSON object."""
        return {"edges": list(self.edges), "sizes": list(self.sizes), "drawn": list(self.drawn)}


def from_json(value: dict[str, Any]) -> Strata:
    """Read what `as_json` wrote."""
    return Strata(tuple(value["edges"]), tuple(value["sizes"]), tuple(value["drawn"]))


def allocation(n: int, sizes: Sequence[int], spread: Sequence[float]) -> list[int]:
    """Divide n among strata so that the estimate of the total varies least: at least one from each that has members, at most all of it.

    Each next place goes to the stratum with the largest size * spread / sqrt(m * (m + 1)), m being what it has: the exact integer form of
    Neyman's allocation (Wright, The American Statistician 66, 2012).

    Examples
    --------
    >>> allocation(10, [100, 100], [0.2, 0.4])
    [3, 7]
    """
    given = [min(1, size) for size in sizes]
    for _ in range(min(n, sum(sizes)) - sum(given)):
        gain = [
            size * sd / (had * (had + 1)) ** 0.5 if had < size else -1.0
            for size, sd, had in zip(sizes, spread, given, strict=True)
        ]
        given[gain.index(max(gain))] += 1
    return given


def sample(risk: FloatArray, n: int, seed: int, *, stratified: bool) -> tuple[IntArray, Strata]:
    """Draw without replacement.

    Parameters
    ----------
    risk
        float64 [N] predicted miss rate of each member, NaN where there is none.
    n
        How many; all where there are fewer.
    seed
        Equal seeds draw equal samples.
    stratified
        Whether to cut the population into quantiles of risk and draw more where outcomes vary more; else every set of n is equally likely.

    Returns
    -------
    tuple
        int64 [min(n, N)] indices in random order, and the strata.
    """
    rng = np.random.default_rng(seed)
    n = min(n, len(risk))
    if not stratified or n < 2:  # noqa: PLR2004 - one member cannot come from two strata
        return rng.permutation(len(risk))[:n].astype(np.int64), Strata((), (len(risk),), (n,))
    known = risk[~np.isnan(risk)]
    count = max(
        1, min(STRATA, n - 1)
    )  # each stratum, that of no prediction too, has a member drawn
    edges = (
        np.unique(np.quantile(known, np.arange(1, count) / count)) if len(known) else np.empty(0)
    )
    edges = edges[edges < known.max()] if len(known) else edges
    empty = Strata(tuple(edges.tolist()), (0,) * (len(edges) + 2), (0,) * (len(edges) + 2))
    stratum = empty.of(risk)
    sizes = np.bincount(stratum, minlength=len(empty.sizes))
    mean = np.array(
        [
            risk[stratum == at].mean() if at < len(sizes) - 1 and sizes[at] else 0.5
            for at in range(len(sizes))
        ]
    )
    mean = mean.clip(_LEAST_RISK, 1 - _LEAST_RISK)
    drawn = allocation(n, sizes.tolist(), np.sqrt(mean * (1 - mean)).tolist())
    chosen = [
        rng.permutation(np.flatnonzero(stratum == at))[:take] for at, take in enumerate(drawn)
    ]
    return rng.permutation(np.concatenate(chosen)).astype(np.int64), Strata(
        empty.edges, tuple(sizes.tolist()), tuple(drawn)
    )
