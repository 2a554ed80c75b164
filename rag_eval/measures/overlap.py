"""How much questions depend on one another: by the gold documents that they share.

Two questions that need the same documents succeed and fail together, so n questions are worth
fewer than n. `SharedGold` holds who shares gold with whom; every interval, paired test and smallest
detectable difference of a mean over questions is made from it::

    gold = SharedGold.of_pairs(question, document, n)   # codes of the relevant pairs
    gold = SharedGold.of_groups(codes)                  # groups only: one document for each group
    interval = mean_interval(values, gold)              # [n, m] in [0, 1], NaN = not scored
    interval.value, interval.low, interval.high, interval.n_effective           # [m] each
    mean_interval(influence, gold, unit_range=False)    # values of any range
    paired_comparison(a, b, gold)                       # rag_eval.measures.paired
    fit = gold.take(rows).fit(values)                   # no NaN: the parts of an interval
    fit.value, fit.standard_error, fit.n_effective, fit.half_width(0.95), fit.p(0.0)

Model: question i and j have the covariance ``sigma^2 ((1 - rho) I + rho K)_ij`` with the kernel
``K_ij = |G_i and G_j in common| / sqrt(|G_i| |G_j|)``, the cosine of their gold; a question without
gold depends on no other. The share rho is not known: it is integrated over its restricted
likelihood, so the mean has a mixture of t distributions. The result has no seed, and equal
arguments give equal bytes.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, count_within
from rag_eval.measures.ranking import as_codes, as_values

RHO: FloatArray = np.linspace(0.0, 0.95, 20)[:, None]
"""Grid of rho, the correlation of two questions with the same gold, [grid, 1]."""
LEVEL = 0.95
FEW_EFFECTIVE = 5
"""Effective number of questions under which the gold hardly supports an interval."""
_PSEUDO_QUESTIONS = 0.5
"""Weight, in effective questions, of the prior that all questions hit or all miss."""
_LEAST_SPREAD = 1e-12
"""Least residual sum of squares, so that values without any spread have a likelihood."""
_BISECTIONS = 50

# ---- Who shares gold with whom.


class SharedGold:
    """The gold of n questions, and the dependence that follows from it.

    `question` and `item` [n_pairs] are the codes of a question and a document relevant to it.
    """

    def __init__(self, question: IntArray, item: IntArray, n: int) -> None:
        self.n = n
        pairs = np.unique(np.stack([question, item]), axis=1)
        self._question, self._item = pairs[0], np.unique(pairs[1], return_inverse=True)[1]
        self._parts: dict[bytes, SharedGold] = {}

    @classmethod
    def of_pairs(cls, question: ArrayLike, item: ArrayLike, n: int) -> "SharedGold":
        """Take the relevant pairs of n questions, as codes. Raises ValueError for other codes."""
        rows, items = as_codes(question, "question"), as_codes(item, "item")
        if rows.shape != items.shape or (rows >= n).any() or (rows < 0).any():
            raise ValueError(f"question has codes outside 0 to {n - 1}, or not one for each item")
        return cls(rows, items, n)

    @classmethod
    def of_groups(cls, groups: ArrayLike) -> "SharedGold":
        """Take the group code of each question: the questions of a group have the same gold."""
        codes = as_codes(groups, "groups")
        return cls(np.arange(len(codes)), codes, len(codes))

    def __len__(self) -> int:
        return self.n

    def take(self, rows: BoolArray | IntArray) -> "SharedGold":
        """Return the gold of some questions: a mask [n], or sorted positions without repeats."""
        kept = np.zeros(self.n, dtype=bool)
        kept[rows] = True
        if kept.all():
            return self
        key = np.packbits(kept).tobytes()
        if key not in self._parts:
            has = kept[self._question]
            question = (np.cumsum(kept) - 1)[self._question[has]]
            self._parts[key] = SharedGold(question, self._item[has], int(kept.sum()))
        return self._parts[key]

    @functools.cached_property
    def _spectrum(self) -> "_Spectrum":
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        counts = np.bincount(self._question, minlength=self.n)
        share = 1 / np.sqrt(counts[self._question])
        gold = coo_array(
            (share, (self._question, self._item)),
            shape=(self.n, int(self._item.max(initial=0)) + 1),
        ).tocsr()
        kernel = (gold @ gold.T).tocoo()
        _, component = connected_components(kernel, directed=False)
        sizes = np.bincount(component)
        order = np.argsort(component, kind="stable")
        place = np.empty(self.n, dtype=np.int64)
        place[order] = count_within(sizes)
        blocks: list[tuple[IntArray, FloatArray]] = []
        values: list[FloatArray] = []
        for size in np.unique(sizes):
            chosen = sizes == size
            number = np.cumsum(chosen) - 1
            rows = order[chosen[component[order]]].reshape(-1, size)
            dense = np.zeros((len(rows), size, size))
            entry = chosen[component[kernel.row]]
            row, column = kernel.row[entry], kernel.col[entry]
            dense[number[component[row]], place[row], place[column]] = kernel.data[entry]
            dense[:, np.arange(size), np.arange(size)] = 1.0
            eigenvalues, vectors = np.linalg.eigh(dense)
            blocks.append((rows, vectors))
            values.append(eigenvalues.ravel())
        return _Spectrum(np.clip(np.concatenate(values), 0.0, None), blocks)

    def fit(self, values: FloatArray) -> "MeanFit":
        """Fit the means of `values`, [n, m] without NaN, and how uncertain they are.

        The model needs two questions; with one, the variance is NaN.
        """
        spectrum, n = self._spectrum, self.n
        value = values.mean(axis=0)
        if n < 2:  # noqa: PLR2004 - one question has no spread
            unknown = np.full((len(RHO), values.shape[1]), np.nan)
            return MeanFit(
                value, np.full_like(unknown, 1 / len(RHO)), unknown, np.ones(len(RHO)), n
            )
        weight, squares = spectrum.residuals(values - value)
        of_mean = ((1 - RHO[:, 0]) * n + RHO[:, 0] * spectrum.total) / n**2
        return MeanFit(value, weight, squares / (n - 1) * of_mean[:, None], of_mean, n)


@dataclasses.dataclass(frozen=True)
class _Spectrum:
    """Eigenvalues [n] of the kernel, and its eigenvectors by blocks of equal size.

    A block has the rows [c, size] of c components, and their eigenvectors [c, size, size].
    """

    values: FloatArray
    blocks: list[tuple[IntArray, FloatArray]]

    def rotate(self, vectors: FloatArray) -> FloatArray:
        """Return the coordinates of vectors [n, m] in the eigenbasis, [n, m]."""
        parts = [np.swapaxes(basis, 1, 2) @ vectors[rows] for rows, basis in self.blocks]
        return np.concatenate([part.reshape(-1, vectors.shape[1]) for part in parts])

    @functools.cached_property
    def ones(self) -> FloatArray:
        """Coordinates of the vector of ones, [n, 1]."""
        return self.rotate(np.ones((len(self.values), 1)))

    @functools.cached_property
    def total(self) -> float:
        """Sum of the kernel."""
        return float(self.values @ self.ones[:, 0] ** 2)

    @functools.cached_property
    def precisions(self) -> FloatArray:
        """Inverse variances along the eigenvectors for sigma = 1, [grid, n]."""
        inverse: FloatArray = 1 / (1 - RHO + RHO * self.values)
        return inverse

    def residuals(self, centred: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weigh the grid, and measure residuals [n, m] in units of their model; [grid, m] each.

        The restricted likelihood projects on contrasts. Their quadratic form and determinant
        follow from those of the whole model: ``e'Pe = e'V^-1 e - (1'V^-1 e)^2 / 1'V^-1 1`` and
        ``log|V| + log(1'V^-1 1 / n)``. Harville (1977), JASA 72:320-338.
        """
        n, inverse = len(self.values), self.precisions
        e = self.rotate(centred)
        common = inverse @ self.ones**2
        squares = inverse @ e**2 - (inverse @ (self.ones * e)) ** 2 / common
        squares = np.maximum(squares, _LEAST_SPREAD)
        log_determinant = np.log(common / n) - np.log(inverse).sum(axis=1, keepdims=True)
        likelihood = -0.5 * log_determinant - 0.5 * (n - 1) * np.log(squares)
        weight = np.exp(likelihood - likelihood.max(axis=0))
        return weight / weight.sum(axis=0), squares


# ---- The mean under this dependence.


@dataclasses.dataclass(frozen=True)
class MeanFit:
    """Means over n questions, [m], as a mixture of t distributions over the grid of rho.

    `weight` and `variance` [grid, m] are the posterior of rho and the variance of the mean.
    `of_mean` [grid] is that variance for questions of variance 1.
    """

    value: FloatArray
    weight: FloatArray
    variance: FloatArray
    of_mean: FloatArray
    n: int

    @property
    def n_effective(self) -> FloatArray:
        """Number of independent questions that the n questions are worth, [m]."""
        number: FloatArray = 1 / (self.weight * self.of_mean[:, None]).sum(axis=0)
        return number

    @property
    def mean_variance(self) -> FloatArray:
        """Variance of the mean, averaged over rho, [m]."""
        average: FloatArray = (self.weight * self.variance).sum(axis=0)
        return average

    @property
    def standard_error(self) -> FloatArray:
        """Root of the variance of the mean, [m]."""
        return np.sqrt(self.mean_variance)

    def p(self, null: float = 0.0) -> FloatArray:
        """Return the two-sided p of the hypothesis that a mean equals `null`, [m]."""
        return 1 - self._mass(np.abs(self.value - null))

    def half_width(self, level: float = LEVEL) -> FloatArray:
        """Return the distance from the mean that holds a share `level` of the mixture, [m]."""
        low, high = np.zeros(len(self.value)), 40 * np.sqrt(self.variance.max(axis=0))
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            is_short = self._mass(middle) < level
            low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
        return np.where(np.isnan(self.variance[0]), np.nan, high)

    def _mass(self, distance: FloatArray) -> FloatArray:
        """Return the mass of the mixture within a distance of the mean, [m]."""
        from scipy.special import stdtr

        with np.errstate(divide="ignore", invalid="ignore"):
            deviations = distance / np.sqrt(self.variance)
        mass: FloatArray = (self.weight * (2 * stdtr(self.n - 1, deviations) - 1)).sum(axis=0)
        return mass


class Interval(NamedTuple):
    """Mean over questions (NaN without one), its 95 % interval (NaN with one), [m] each.

    `n_effective` is the number of independent questions that the questions are worth, 0 without.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    n_effective: FloatArray


def mean_interval(values: ArrayLike, gold: SharedGold, *, unit_range: ArrayLike = True) -> Interval:
    """Take the mean over questions with a 95 % interval.

    `values`, [n, m] or [n], are the means of each question, NaN = ineligible. Each measure counts
    the shared gold of its eligible questions. `unit_range` tells whether a measure lies in [0, 1]
    by definition. Such a measure has the Wilson score interval with the quantile of the mixture
    on ``(v (1 - v) + w / N) / (variance + w / N ** 2)`` yes/no questions, where N is the effective
    number and ``w = 0.5`` adds half a question in which everything fails: without it, a few
    partial misses make the number several times too large. Another measure has the mixture's
    own interval.

    Raises `ValueError` if shapes do not fit, or a value lies outside [0, 1] under `unit_range`.

    Wilson (1927), JASA 22:209. Dean & Pagano (2015), Statistics in Medicine 34:1-16.
    """
    scores = as_values(values)
    if len(scores) != len(gold):
        raise ValueError(f"values has {len(scores)} rows, the gold {len(gold)} questions")
    m = scores.shape[1]
    rate = np.broadcast_to(np.asarray(unit_range, dtype=bool), (m,))
    outside = ((scores < 0) | (scores > 1)).any(axis=0) & rate
    if outside.any():
        raise ValueError(
            f"measure {int(np.argmax(outside))} has values outside [0, 1]; "
            "accepted with unit_range: 0 to 1"
        )
    out = np.full((4, m), np.nan)
    out[3] = 0.0
    for rows, columns in scored_together(scores):
        fit = gold.take(rows).fit(scores[np.ix_(rows, columns)])
        out[:, columns] = _bounds(fit, rate[columns])
    return Interval(*out)


def scored_together(values: FloatArray) -> list[tuple[BoolArray, IntArray]]:
    """List row masks [n], each with the columns of [n, m] that have values in exactly these rows.

    A column without any value is left out.
    """
    patterns, pattern_of = np.unique(~np.isnan(values), axis=1, return_inverse=True)
    return [
        (rows, np.flatnonzero(pattern_of.ravel() == at))
        for at, rows in enumerate(patterns.T)
        if rows.any()
    ]


def _bounds(fit: MeanFit, rate: BoolArray) -> FloatArray:
    """Return value, bounds and effective number of fitted means, [4, m]."""
    from scipy.special import stdtrit

    value, half, number = fit.value, fit.half_width(), fit.n_effective
    low, high = value - half, value + half
    if rate.any():
        variance = fit.mean_variance
        varies = variance > _LEAST_SPREAD
        with np.errstate(divide="ignore", invalid="ignore"):
            quantile = np.where(
                varies, half / np.sqrt(variance), stdtrit(fit.n - 1, (1 + LEVEL) / 2)
            )
        binomial = np.clip(value * (1 - value), 0, None)
        size = (binomial + _PSEUDO_QUESTIONS / number) / (variance + _PSEUDO_QUESTIONS / number**2)
        lower, upper = wilson(value, size, quantile)
        low, high = (
            np.where(rate, np.clip(lower, 0, 1), low),
            np.where(rate, np.clip(upper, 0, 1), high),
        )
    return np.stack([value, low, high, number])


def wilson(
    value: FloatArray, n: FloatArray, z: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Return the Wilson score interval of a rate of `n` observations at normal quantile `z`."""
    scale = 1 + z**2 / n
    middle = (value + z**2 / (2 * n)) / scale
    half = z / scale * np.sqrt(np.clip(value * (1 - value), 0, None) / n + z**2 / (4 * n**2))
    # At a rate of 0 or 1 one bound equals the value, so rounding could leave the value outside.
    return np.minimum(middle - half, value), np.maximum(middle + half, value)
