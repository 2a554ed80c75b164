"""Whether more users complain than the stated miss rates leave room for.

Belongs here: the bound and the count. Which claims were stated what, and which complained of, is decided by who calls.

Complaints are no sample: most misses nobody complains about, so few complaints prove nothing. Many do: a true complaint is a miss, so the groups
of questions with a true complaint are at most those with a miss, and of these the stated miss rates bound the number. It does not matter when one
looks, nor how often, while the claims and what is stated of them stay the same: misses do not become more.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

LEVEL: Final = 0.01
"""Probability of an alarm of either part while all complaints are true and the stated miss rates are right."""
PARTS: Final = ("every_claim", "least_risky_third")
"""Over all claims complaints would have to outnumber all misses; over those that are said to be safe they need not be many."""


@dataclasses.dataclass(frozen=True)
class Room:
    """Complaints against the misses that were stated.

    Parameters
    ----------
    n_claims, n_groups
        Claims with a stated miss rate, and groups of their questions.
    complaints
        Groups with a complaint about one of these claims.
    expected
        Mean number of groups with a miss: the most that the stated miss rates leave room for.
    upper
        Number of groups with a miss that is exceeded with a probability of LEVEL / 2 at most.
    """

    n_claims: int
    n_groups: int
    complaints: int
    expected: float
    upper: int

    @property
    def alarm(self) -> bool:
        """Whether there are more complaints than misses can be."""
        return self.complaints > self.upper

    def to_json(self) -> dict[str, Any]:
        """Write as a JSON object."""
        return {**dataclasses.asdict(self), "alarm": self.alarm}


def complaint_room(
    rate: FloatArray, groups: Sequence[str], claim_ids: Sequence[str], complained: Collection[str]
) -> dict[str, Room]:
    """Hold complaints against stated miss rates, over every claim and over the third with the lowest rates (PARTS).

    Parameters
    ----------
    rate
        float64 [n] stated miss rates, stated without regard to the complaints.
    groups, claim_ids
        Group and id of each claim.
    complained
        Ids of claims of which a user says that something is missing.

    Raises
    ------
    ValueError
        Parts of different lengths, or rates outside [0, 1].
    """
    if not len(rate) == len(groups) == len(claim_ids):
        raise ValueError(
            f"{len(rate)} rates, {len(groups)} groups, {len(claim_ids)} claims; accepted: as many of each"
        )
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ValueError("stated miss rates must lie in [0, 1]")
    code = (
        np.unique(np.asarray(groups, dtype=object), return_inverse=True)[1]
        if len(rate)
        else np.zeros(0, dtype=np.int64)
    )
    said = np.fromiter((claim in complained for claim in claim_ids), dtype=bool, count=len(rate))
    lowest = np.argsort(rate, kind="stable")[: len(rate) // 3]
    return {
        name: _room(rate[rows], code[rows], said[rows])
        for name, rows in zip(PARTS, (np.arange(len(rate)), lowest), strict=True)
    }


def _room(rate: FloatArray, code: npt.NDArray[np.int64], said: npt.NDArray[np.bool_]) -> Room:
    """Count by group: however its claims depend on each other, one of them is a miss with the sum of their probabilities at most."""
    there, place = np.unique(code, return_inverse=True)
    probability = np.minimum(np.bincount(place, weights=rate, minlength=len(there)), 1.0)
    return Room(
        len(rate),
        len(there),
        len(np.unique(code[said])),
        float(probability.sum()),
        upper_bound(probability, LEVEL / len(PARTS)),
    )


def upper_bound(probability: FloatArray, level: float) -> int:
    """Smallest number that a sum of independent 0/1 variables exceeds with a probability of `level` at most.

    Parameters
    ----------
    probability
        float64 [n] of each being 1.

    Notes
    -----
    The distribution (Poisson-binomial) is the product of the polynomials ``1 - p + p x``, multiplied in pairs by Fourier transforms: n log(n)^2.

    Examples
    --------
    >>> upper_bound(np.array([0.5, 0.5]), 0.3)
    1
    """
    n = len(probability)
    width = 1 << max(n - 1, 0).bit_length()
    factors = np.zeros((width, 2))
    factors[:, 0] = 1.0
    factors[:n] = np.stack([1 - probability, probability], axis=1)
    while len(factors) > 1:
        size = 2 * factors.shape[1]
        spectrum = np.fft.rfft(factors, size, axis=1)
        factors = np.fft.irfft(spectrum[::2] * spectrum[1::2], size, axis=1)[:, : size - 1]
    more = 1 - np.cumsum(factors[0][: n + 1])
    return int(np.argmax(more <= level + 1e-9))  # rounding of the transforms is far below that
