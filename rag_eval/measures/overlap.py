"""How much questions depend on one another: by the gold documents that they share.

Two questions that need the same documents succeed and fail together, so n questions are worth
fewer than n. Every interval, paired test and smallest detectable difference is made from
`SharedGold`.

Model: question i and j have the covariance ``sigma^2 ((1 - rho) I + rho K)_ij`` with the kernel
``K_ij = |G_i and G_j in common| / sqrt(|G_i| |G_j|)``, the cosine of their gold; a question without
gold depends on no other. The share rho is not known: it is integrated over its restricted
likelihood, so the mean has a mixture of t distributions. The result has no seed.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, count_within, expand_ranges
from rag_eval.measures.ranking import as_codes, as_values

RHO: FloatArray = np.linspace(0.0, 0.95, 20)[:, None]
"""Grid of rho, the correlation of two questions with the same gold, [grid, 1]."""
PRIOR: FloatArray = 1.0 - RHO
"""Prior weight of rho, [grid, 1]: questions with the same gold seldom agree in everything."""
LEVEL = 0.95
_PSEUDO_QUESTIONS = 0.25
"""Weight, in effective questions, of the prior that all questions hit or all miss."""
_LEAST_SPREAD = 1e-12
"""Least residual sum of squares, so that values without any spread have a likelihood."""
_LEAST_LACKING = 1e-6
"""Least part of the variance that is estimated; it leaves the t distribution normal."""
_BISECTIONS = 30

# ---- Who shares gold with whom.


class SharedGold:
    """The gold of n questions, and the dependence that follows from it.

    `question` and `item` [n_pairs] are the codes of a question and a document relevant to it.
    """

    def __init__(self, question: IntArray, item: IntArray, n: int) -> None:
        pairs = np.unique(np.stack([question, item]), axis=1)
        self.n, self._question = n, pairs[0]
        self._item = np.unique(pairs[1], return_inverse=True)[1]
        self._start = np.searchsorted(self._question, np.arange(n + 1))
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
        """Return the gold of some questions: a mask [n], or positions, also repeated ones."""
        chosen = np.flatnonzero(rows) if rows.dtype == bool else rows
        if np.array_equal(chosen, np.arange(self.n)):
            return self
        key = chosen.tobytes()
        if key not in self._parts:
            start = self._start[chosen]
            question, pair = expand_ranges(start, self._start[chosen + 1] - start)
            self._parts[key] = SharedGold(question, self._item[pair], len(chosen))
        return self._parts[key]

    def crosses(self, groups: IntArray) -> bool:
        """Tell whether questions of different groups [n] share a document."""
        held = np.unique(np.stack([self._item, groups[self._question]]), axis=1)
        return bool(held.shape[1] > len(np.unique(self._item)))

    @functools.cached_property
    def _classes(self) -> IntArray:
        """Code of each question's gold, [n]: equal gold, equal code. No gold equals no other."""
        codes: dict[bytes | int, int] = {}
        ends = zip(self._start[:-1], self._start[1:], strict=True)
        keys = (self._item[a:b].tobytes() or at for at, (a, b) in enumerate(ends))
        return np.array([codes.setdefault(key, len(codes)) for key in keys], dtype=np.int64)

    @functools.cached_property
    def _spectrum(self) -> "_Spectrum":
        """Decompose the kernel of the classes by its connected components."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        n_questions = np.bincount(self._classes)
        first = self.take(np.unique(self._classes, return_index=True)[1])
        question, item, n = first._question, first._item, first.n  # noqa: SLF001 - of this class
        length = np.bincount(question, minlength=n)
        weight = np.sqrt(n_questions / np.maximum(length, 1))[question]
        gold = coo_array((weight, (question, item)), shape=(n, len(self._item) + 1)).tocsr()
        kernel = (gold @ gold.T).tocoo()
        _, component = connected_components(kernel, directed=False)
        sizes = np.bincount(component)
        order = np.argsort(component, kind="stable")
        place = np.empty(n, dtype=np.int64)
        place[order] = count_within(sizes)
        blocks, values = list[tuple[IntArray, FloatArray]](), list[FloatArray]()
        for size in np.unique(sizes):
            chosen = sizes == size
            number = np.cumsum(chosen) - 1
            rows = order[chosen[component[order]]].reshape(-1, size)
            dense = np.zeros((len(rows), size, size))
            entry = chosen[component[kernel.row]]
            row, column = kernel.row[entry], kernel.col[entry]
            dense[number[component[row]], place[row], place[column]] = kernel.data[entry]
            diagonal = np.arange(size)
            dense[:, diagonal, diagonal] = n_questions[rows]  # also of questions without gold
            eigenvalues, vectors = np.linalg.eigh(dense)
            blocks.append((rows, vectors))
            values.append(eigenvalues.ravel())
        return _Spectrum(
            np.clip(np.concatenate(values), 0.0, None), blocks, self._classes, n_questions
        )

    def fit(self, values: FloatArray) -> "MeanFit":
        """Fit the means of `values`, [n, m] without NaN, and how uncertain they are.

        The model needs two questions; with one, the variance is NaN.
        """
        n, value = self.n, values.mean(axis=0)
        if n < 2:  # noqa: PLR2004 - one question has no spread
            unknown = np.full((len(RHO), values.shape[1]), np.nan)
            ones = np.ones_like(RHO)
            return MeanFit(value, np.full_like(unknown, 1 / len(RHO)), unknown, ones, ones)
        spectrum, centred = self._spectrum, values - value
        of_mean = ((1 - RHO) * n + RHO * spectrum.total) / n**2
        trace, of_square = spectrum.traces
        variance = (centred**2).sum(axis=0) / trace * of_mean
        return MeanFit(value, spectrum.posterior(centred), variance, of_mean, trace**2 / of_square)


class NamedGold(NamedTuple):
    """The gold of questions with names."""

    names: Sequence[str]
    gold: SharedGold

    def of(self, names: Sequence[str]) -> SharedGold:
        """Return the gold of these questions, in this order. Raises KeyError for another name."""
        row = {name: at for at, name in enumerate(self.names)}
        return self.gold.take(np.array([row[name] for name in names], dtype=np.int64))


@dataclasses.dataclass(frozen=True)
class _Spectrum:
    """Spectrum of the kernel of n questions in k classes of equal gold.

    Contrasts inside a class have the eigenvalue 0. The others are contrasts of the class sums,
    scaled by the root of the class size: their eigenvalues are `values` [k], and each of the
    `blocks` of components of equal size has their rows [c, size] and eigenvectors [c, size, size].
    `classes` [n] are the codes of the classes, `n_questions` [k] their sizes.
    """

    values: FloatArray
    blocks: list[tuple[IntArray, FloatArray]]
    classes: IntArray
    n_questions: IntArray

    def rotate(self, vectors: FloatArray) -> FloatArray:
        """Return the coordinates of vectors [n, m] along the eigenvectors of `values`, [k, m]."""
        sums = np.zeros((len(self.n_questions), vectors.shape[1]))
        np.add.at(sums, self.classes, vectors)
        sums /= np.sqrt(self.n_questions)[:, None]
        parts = [np.swapaxes(basis, 1, 2) @ sums[rows] for rows, basis in self.blocks]
        return np.concatenate([part.reshape(-1, vectors.shape[1]) for part in parts])

    @functools.cached_property
    def ones(self) -> FloatArray:
        """Coordinates of the vector of ones, [k, 1]."""
        return self.rotate(np.ones((len(self.classes), 1)))

    @functools.cached_property
    def total(self) -> float:
        """Sum of the kernel."""
        return float(self.values @ self.ones[:, 0] ** 2)

    @functools.cached_property
    def precisions(self) -> FloatArray:
        """Inverse variances along the eigenvectors for sigma = 1, [grid, k]."""
        inverse: FloatArray = 1 / (1 - RHO + RHO * self.values)
        return inverse

    @functools.cached_property
    def traces(self) -> tuple[FloatArray, FloatArray]:
        """Traces of the covariance of centred values for sigma = 1, and of its square, [grid, 1].

        With M the matrix that centres, both follow from those of ``M K M`` and of its square.
        """
        n, eigenvalues, ones = len(self.classes), self.values, self.ones[:, 0]
        kernel = n - self.total / n
        square = float(eigenvalues @ eigenvalues) - 2 / n * float(eigenvalues**2 @ ones**2)
        square += (self.total / n) ** 2
        own, shared = 1 - RHO, RHO
        trace = own * (n - 1) + shared * kernel
        return trace, own**2 * (n - 1) + 2 * own * shared * kernel + shared**2 * square

    def posterior(self, centred: FloatArray) -> FloatArray:
        """Weigh rho for centred values [n, m] by their restricted likelihood, [grid, m].

        The likelihood projects on contrasts, whose quadratic form and determinant follow from
        those of all values: ``e'Pe = e'V^-1 e - (1'V^-1 e)^2 / 1'V^-1 1`` and ``log|V| + log(1'V^-1
        1 / n)``. Values without spread say nothing about rho. Harville (1977), JASA 72:320-338.
        """
        n, k, inverse = len(self.classes), len(self.values), self.precisions
        e, total = self.rotate(centred), (centred**2).sum(axis=0)
        common = inverse @ self.ones**2
        within = np.clip(total - (e**2).sum(axis=0), 0.0, None)
        squares = within / (1 - RHO) + inverse @ e**2 - (inverse @ (self.ones * e)) ** 2 / common
        log_determinant = np.log(common / n) - np.log(inverse).sum(axis=1, keepdims=True)
        log_determinant = log_determinant + (n - k) * np.log(1 - RHO)
        squares = np.where(total > _LEAST_SPREAD, np.maximum(squares, _LEAST_SPREAD), 1.0)
        likelihood = -0.5 * (log_determinant + (n - 1) * np.log(squares))
        likelihood = np.where(total > _LEAST_SPREAD, likelihood, 0.0)
        weight = PRIOR * np.exp(likelihood - likelihood.max(axis=0))
        posterior: FloatArray = weight / weight.sum(axis=0)
        return posterior


# ---- The mean under this dependence.


@dataclasses.dataclass(frozen=True)
class MeanFit:
    """Means over n questions, [m], as a mixture of t distributions over the grid of rho.

    `weight` and `variance` [grid, m] are the posterior of rho and the variance of the mean, which
    has `dof` [grid, 1] or [grid, m] degrees of freedom. `of_mean` [grid, 1] is the variance of the
    mean of questions of variance 1.

    The variance of the questions is their sum of squares over its expectation, and not the estimate
    of the likelihood: that one weighs the differences of questions with much the same gold most,
    and falls to nothing where such questions all agree. Its degrees of freedom are those of
    Satterthwaite (1946), Biometrics Bulletin 2:110-114: few where few clusters vary.
    """

    value: FloatArray
    weight: FloatArray
    variance: FloatArray
    of_mean: FloatArray
    dof: FloatArray

    @property
    def n_effective(self) -> FloatArray:
        """Number of independent questions that the n questions are worth, [m]."""
        number: FloatArray = 1 / (self.weight * self.of_mean).sum(axis=0)
        return np.round(number, 9)  # gates compare it, and n independent questions are worth n

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
        return self._tails(np.abs(self.value - null))

    def half_width(self, level: float = LEVEL) -> FloatArray:
        """Return the distance from the mean that holds a share `level` of the mixture, [m]."""
        from scipy.special import stdtrit

        # The half-width lies between those of the components.
        widths = stdtrit(self.dof, (1 + level) / 2) * np.sqrt(self.variance)
        low, high = widths.min(axis=0), widths.max(axis=0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            is_short = self._tails(middle) > 1 - level
            low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
        return np.where(np.isnan(self.variance[0]), np.nan, high)

    def _tails(self, distance: FloatArray) -> FloatArray:
        """Return the mass of the mixture beyond a distance from the mean, on both sides, [m]."""
        from scipy.special import stdtr

        with np.errstate(divide="ignore", invalid="ignore"):
            deviations = distance / np.sqrt(self.variance)
        # The lower tail keeps its digits where 1 - mass would round to 0 or less.
        tails: FloatArray = 2 * (self.weight * stdtr(self.dof, -deviations)).sum(axis=0)
        return np.minimum(tails, 1.0)  # the weights add up to 1 but for rounding


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
    the shared gold of its eligible questions. A measure with `unit_range` lies in [0, 1] by
    definition. It has the Wilson score interval with the quantile of the mixture on ``(v (1 - v) +
    w / N) / (variance + w / N ** 2)`` yes/no questions, where N is the effective number and ``w =
    0.25`` adds a quarter of a question in which everything fails: without it, a few partial misses
    make the number several times too large. Another measure has the mixture's own interval.

    Raises `ValueError` if shapes do not fit, or a value lies outside [0, 1] under `unit_range`.

    Wilson (1927), JASA 22:209. Dean & Pagano (2015), Statistics in Medicine 34:1-16.
    """
    scores = as_values(values)
    if len(scores) != len(gold):
        raise ValueError(f"values has {len(scores)} rows, the gold {len(gold)} questions")
    rate = np.broadcast_to(np.asarray(unit_range, dtype=bool), scores.shape[1:])
    if (((scores < 0) | (scores > 1)) & rate).any():
        raise ValueError("values lie outside [0, 1]; accepted with unit_range: 0 to 1")
    out = _empty(len(rate))
    for rows, columns in scored_together(scores):
        chosen = scores[np.ix_(rows, columns)]
        fit = gold.take(rows).fit(chosen)
        if rate.any():
            fit = dataclasses.replace(fit, dof=_dof_of_rates(fit, chosen, rate[columns]))
        out[:, columns] = _bounds(fit, rate[columns])
    return Interval(*out)


def _empty(m: int) -> FloatArray:
    """Return value, bounds and effective number of measures without a question, [4, m]."""
    return np.array([[np.nan]] * 3 + [[0.0]]) * np.ones(m)


def _dof_of_rates(fit: MeanFit, values: FloatArray, rate: BoolArray) -> FloatArray:
    """Return the degrees of freedom of values [n, m], [grid, m], more for rates.

    The mean of zeros and ones fixes their variance, so nothing is estimated and the distribution is
    normal. For other rates, the part of the largest possible variance that they lack is estimated.
    """
    most = fit.value * (1 - fit.value)
    with np.errstate(divide="ignore", invalid="ignore"):
        lacking = 1 - values.var(axis=0) / most
    lacking = np.where(rate & (most > 0), np.clip(lacking, _LEAST_LACKING, 1.0), 1.0)
    dof: FloatArray = fit.dof / lacking
    return dof


def ratio_interval(
    parts: ArrayLike, wholes: ArrayLike, gold: SharedGold, *, unit_range: ArrayLike = True
) -> Interval:
    """Divide sums over questions, sum(part) / sum(whole), with a 95 % interval.

    `parts` and `wholes` are [n] or [n, m], not below 0; a question with a whole of NaN is
    ineligible, and so is a part that is NaN. The spread is that of the linearised ratio, ``(part -
    ratio * whole) / mean(whole)``. A ratio of zeros has no value.
    """
    above, below = as_values(parts), as_values(wholes)
    with np.errstate(invalid="ignore", divide="ignore"):
        lacks = np.isnan(above) | np.isnan(below)
        below = np.where(lacks, np.nan, below)
        total = np.nansum(below, axis=0)
        ratio = np.where(total > 0, np.nansum(np.where(lacks, 0, above), axis=0) / total, np.nan)
        spread = (above - ratio * below) * (~np.isnan(below)).sum(axis=0) / total
    rate = np.broadcast_to(np.asarray(unit_range, dtype=bool), ratio.shape)
    out = _empty(len(ratio))
    for rows, columns in scored_together(spread):
        fit = gold.take(rows).fit(spread[np.ix_(rows, columns)])
        out[:, columns] = _bounds(dataclasses.replace(fit, value=ratio[columns]), rate[columns])
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
    from scipy.special import ndtri

    value, half, number = fit.value, fit.half_width(), fit.n_effective
    low, high = value - half, value + half
    if rate.any():
        variance = fit.mean_variance
        varies = variance > _LEAST_SPREAD
        with np.errstate(divide="ignore", invalid="ignore"):
            # Without spread the size follows from N alone, and no estimate needs a t distribution.
            quantile = np.where(varies, half / np.sqrt(variance), float(ndtri((1 + LEVEL) / 2)))
        lower, upper = wilson(value, effective_groups(value, variance, number), quantile)
        low, high = (
            np.where(rate, np.clip(lower, 0, 1), low),
            np.where(rate, np.clip(upper, 0, 1), high),
        )
    return np.stack([value, low, high, number])


def effective_groups(
    value: FloatArray, variance: FloatArray, n_effective: FloatArray | float
) -> FloatArray:
    """Return the number of independent yes/no questions whose rate `value` has this variance.

    `mean_interval` gives the formula.
    """
    binomial = np.clip(value * (1 - value), 0, None)
    number: FloatArray = (binomial + _PSEUDO_QUESTIONS / n_effective) / (
        variance + _PSEUDO_QUESTIONS / n_effective**2
    )
    return number


def wilson(
    value: FloatArray, n: FloatArray, z: FloatArray | float
) -> tuple[FloatArray, FloatArray]:
    """Return the Wilson score interval of a rate of `n` observations at normal quantile `z`."""
    scale = 1 + z**2 / n
    middle = (value + z**2 / (2 * n)) / scale
    half = z / scale * np.sqrt(np.clip(value * (1 - value), 0, None) / n + z**2 / (4 * n**2))
    # At a rate of 0 or 1 one bound equals the value, so rounding could leave the value outside.
    return np.minimum(middle - half, value), np.maximum(middle + half, value)
