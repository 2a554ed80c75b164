"""Where the variation of a measure comes from: the question, its wording, or the seed.

Belongs here: everything computed from values `[n_queries, n_wordings, n_seeds]` with NaN where a query has no such run (queries may
have different numbers of paraphrases). Wording 0 is the original.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import FloatArray, IntArray

_AXES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class VarianceShares:
    """Shares of the variance of one run, summing to 1 over those that could be estimated.

    Parameters
    ----------
    query, paraphrase, seed
        Share between questions, between wordings of a question, between seeds of a wording (with the interaction of both).
        NaN where the design cannot tell: one wording a question leaves no `paraphrase`, one seed no `seed`, whose variance then is
        part of the level above. All NaN where nothing varies.
    n_queries, n_wordings, n_runs
        What they rest on: questions, (question, wording) pairs, runs.
    """

    query: float
    paraphrase: float
    seed: float
    n_queries: int
    n_wordings: int
    n_runs: int


def variance_shares(values: ArrayLike) -> VarianceShares:
    """Split the variance by the nested random model `question / wording in question / seed in wording`.

    Components are the analysis-of-variance (method of moments) estimates for unbalanced data; a negative estimate counts as 0.
    Plain sums of squares are not used: between few wordings they ascribe the noise of the seeds to the wording, and both to the question.

    Parameters
    ----------
    values
        `[n_queries, n_wordings, n_seeds]`, NaN where missing.

    References
    ----------
    Searle, Casella & McCulloch (1992), Variance Components, section 3.6 and chapter 5 (unbalanced nested classification).
    """
    cube = _cube(values)
    per_cell = np.count_nonzero(~np.isnan(cube), axis=2)
    per_query = per_cell.sum(axis=1)
    n, a, cells = (
        int(per_query.sum()),
        int(np.count_nonzero(per_query)),
        int(np.count_nonzero(per_cell)),
    )
    filled = np.nan_to_num(cube)
    cell_mean = filled.sum(axis=2) / np.maximum(per_cell, 1)
    query_mean = filled.sum(axis=(1, 2)) / np.maximum(per_query, 1)
    mean = filled.sum() / max(n, 1)
    ss_seed = float((np.where(np.isnan(cube), 0.0, filled - cell_mean[:, :, None]) ** 2).sum())
    ss_wording = float((per_cell * (cell_mean - query_mean[:, None]) ** 2).sum())
    ss_query = float((per_query * (query_mean - mean) ** 2).sum())

    within = float((per_cell**2 / np.maximum(per_query, 1)[:, None]).sum())
    seed = ss_seed / (n - cells) if n > cells else np.nan
    noise = 0.0 if np.isnan(seed) else seed
    wording = np.nan
    if cells > a:
        wording = max(0.0, (ss_wording / (cells - a) - noise) / ((n - within) / (cells - a)))
    query = np.nan
    if a > 1:
        between_wordings = (within - float((per_cell**2).sum()) / n) / (a - 1)
        between_queries = (n - float((per_query**2).sum()) / n) / (a - 1)
        query = max(
            0.0,
            (
                ss_query / (a - 1)
                - noise
                - between_wordings * (0.0 if np.isnan(wording) else wording)
            )
            / between_queries,
        )
    parts = np.array([query, wording, seed])
    total = float(np.nansum(parts))
    scale = float(np.nanmax(np.abs(cube))) if n else 0.0
    shares = (
        parts / total if total > (1e-12 * scale) ** 2 else np.full(3, np.nan)
    )  # rounding is not variation
    return VarianceShares(float(shares[0]), float(shares[1]), float(shares[2]), a, cells, n)


class FlipMatrix(NamedTuple):
    """Flips between wordings, `[n_wordings, n_wordings]` each.

    `share[i, j]`: share of questions whose hit differs between wordings i and j under the same seed (a question with several seeds
    counts by the share of its seeds); NaN without such questions. `n[i, j]`: the number of questions that have both.
    """

    share: FloatArray
    n: IntArray


def flip_matrix(hits: ArrayLike) -> FlipMatrix:
    """Share of questions found under one wording and missed under another; `hits` is 0/1, NaN where missing."""
    cube = _cube(hits)
    wordings = cube.shape[1]
    share, n = np.full((wordings, wordings), np.nan), np.zeros((wordings, wordings), dtype=np.int64)
    for i in range(wordings):
        both = ~np.isnan(cube[:, i, None, :]) & ~np.isnan(cube)
        differs = (both & (cube[:, i, None, :] != cube)).sum(axis=2)
        seeds = both.sum(axis=2)
        n[i] = np.count_nonzero(seeds, axis=0)
        total = (differs / np.maximum(seeds, 1)).sum(axis=0)
        np.divide(total, n[i], out=share[i], where=n[i] > 0)
    return FlipMatrix(share, n)


class WordingRange(NamedTuple):
    """Value of each question under its worst wording, on average over its wordings, and under its best, `[n_queries]` each.

    Seeds are averaged inside the wording first. NaN for a question without runs. `n_wordings`: how many wordings it has.
    """

    worst: FloatArray
    mean: FloatArray
    best: FloatArray
    n_wordings: IntArray


def wording_range(values: ArrayLike) -> WordingRange:
    """Worst, mean and best wording of each question, for a measure where more is better."""
    cube = _cube(values)
    per_cell = np.count_nonzero(~np.isnan(cube), axis=2)
    cell = np.nan_to_num(cube).sum(axis=2) / np.maximum(per_cell, 1)
    there = per_cell > 0
    n = np.count_nonzero(there, axis=1)
    none = n == 0
    worst = np.where(there, cell, np.inf).min(axis=1, initial=np.inf)
    best = np.where(there, cell, -np.inf).max(axis=1, initial=-np.inf)
    mean = np.where(there, cell, 0.0).sum(axis=1) / np.maximum(n, 1)
    return WordingRange(
        np.where(none, np.nan, worst), np.where(none, np.nan, mean), np.where(none, np.nan, best), n
    )


def seeds_change_nothing(values: ArrayLike) -> bool | None:
    """Whether no wording of any question changes with the seed; None where no wording ran under two seeds.

    Parameters
    ----------
    values
        `[n_queries, n_wordings, n_seeds]` values or `[n_queries, n_wordings, n_seeds, k]` rankings; a run that is NaN throughout
        (or -1 throughout) is missing.
    """
    array = np.asarray(values)
    if array.ndim == _AXES:
        array = array[..., None]
    missing = (
        np.isnan(array)
        if array.dtype.kind == "f"
        else (array == -1 if array.dtype.kind == "i" else np.zeros(array.shape, dtype=bool))
    )
    there = ~missing.all(axis=3)
    first = there.argmax(axis=2)
    reference = np.take_along_axis(array, first[:, :, None, None], axis=2)
    same = (array == reference) | (
        missing & np.take_along_axis(missing, first[:, :, None, None], axis=2)
    )
    if not (there.sum(axis=2) > 1).any():
        return None
    return bool((same.all(axis=3) | ~there).all())


def _cube(values: ArrayLike) -> FloatArray:
    cube = np.asarray(values, dtype=np.float64)
    if cube.ndim != _AXES:
        raise ValueError(
            f"values has shape {cube.shape}; accepted: [n_queries, n_wordings, n_seeds]"
        )
    return cube
