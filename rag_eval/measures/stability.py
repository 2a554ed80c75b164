"""Measure how much evidence changes with the wording and how far it lies from the question."""

import dataclasses
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray, count_within
from rag_eval.measures.ranking import as_codes, as_rankings, ranks

# ---- How alike two rankings are.

_BLOCK = 100_000
"""Number of pairs of rankings in memory at a time."""
_RBO_P = 0.9
"""Persistence of the reader: 0.9 puts 86 % of the weight on the top 10."""


def mean_pairwise_rbo(rankings: ArrayLike, query_of: ArrayLike, n_queries: int) -> FloatArray:
    """Average the rank-biased overlap of all pairs of runs (wordings x seeds) of each query.

    Parameters
    ----------
    rankings
        [n, k] top k of each run, -1 = padding.
    query_of
        [n] query code of each run.
    n_queries
        Number of queries.

    Returns
    -------
    float [n_queries]
        NaN where a query has fewer than two runs.
    """
    lists, query = as_rankings(rankings, "rankings"), as_codes(query_of, "query_of")
    first, second = _pairs(query, n_queries)
    total = np.zeros(n_queries)
    for start in range(0, len(first), _BLOCK):
        one, two = first[start : start + _BLOCK], second[start : start + _BLOCK]
        overlap = _rank_biased_overlap(lists[one], lists[two])
        total += np.bincount(query[one], weights=overlap, minlength=n_queries)
    count = np.bincount(query[first], minlength=n_queries).astype(np.float64)
    count[count == 0] = np.nan
    mean: FloatArray = total / count
    return mean


def _pairs(query: IntArray, n_queries: int) -> tuple[IntArray, IntArray]:
    """Return both members of every unordered pair of runs of the same query."""
    order = np.argsort(query, kind="stable")
    counts = np.bincount(query, minlength=n_queries)
    later = np.repeat(counts, counts) - count_within(counts) - 1  # later runs of the query
    first = np.repeat(np.arange(len(query)), later)
    return order[first], order[first + 1 + count_within(later)]


def _rank_biased_overlap(left: IntArray, right: IntArray) -> FloatArray:
    """Return the extrapolated rank-biased overlap of each row of `left` [n, k] with `right`.

    RBO_EXT for lists of unequal length: Webber, Moffat & Zobel (2010), TOIS 28(4), equation 32.
    Identical lists give 1, disjoint lists 0. Two empty lists are identical; an empty and a filled
    list are disjoint. A list and its own beginning give 1, because the unseen rest counts as equal.
    """
    p, (n, depth) = _RBO_P, left.shape
    if not n or not depth:
        return np.ones(n)
    row, column = np.nonzero(left >= 0)
    other = ranks(right, row, left[row, column])
    seen_at = np.maximum(column, other - 1)[other > 0]
    counts = np.bincount(row[other > 0] * depth + seen_at, minlength=n * depth)
    shared = counts.reshape(n, depth).cumsum(axis=1)

    lengths = np.stack([np.count_nonzero(left >= 0, axis=1), np.count_nonzero(right >= 0, axis=1)])
    short, long = lengths.min(axis=0), lengths.max(axis=0)
    s, longest = np.maximum(short, 1)[:, None], np.maximum(long, 1)[:, None]
    d = np.arange(1, depth + 1)
    shared_at_s = np.take_along_axis(shared, s - 1, axis=1)
    shared_at_l = np.take_along_axis(shared, longest - 1, axis=1)
    seen = np.where(d <= longest, shared / d, 0.0)
    assumed = np.where((d > s) & (d <= longest), shared_at_s * (d - s) / (s * d), 0.0)
    body = (1 - p) / p * ((seen + assumed) * p**d).sum(axis=1, keepdims=True)
    tail = ((shared_at_l - shared_at_s) / longest + shared_at_s / s) * p**longest
    overlap = np.clip(body + tail, 0.0, 1.0)[:, 0]
    return np.where(short > 0, overlap, np.where(long == 0, 1.0, 0.0))


def ann_recall(approximate: ArrayLike, exact: ArrayLike, k: int) -> FloatArray:
    """Return the share of the exact top k that the approximate top k holds, [n].

    Both are [n, depth] item codes, best first, -1 = padding. NaN without an exact hit.
    """
    true = as_rankings(exact, "exact")[:, :k]
    shared = _count_shared(as_rankings(approximate, "approximate")[:, :k], true)
    return _divide(shared, np.count_nonzero(true >= 0, axis=1))


def shared_share(a: ArrayLike, b: ArrayLike) -> FloatArray:
    """Return the share of common items of two lists, whatever their order, [n].

    Both are [n, k] item codes, -1 = padding. The longer list is the base; NaN for two empty lists.

    Examples
    --------
    >>> shared_share([[3, 1, 2]], [[2, 9, -1]]).round(3).tolist()
    [0.333]
    """
    left, right = as_rankings(a, "a"), as_rankings(b, "b")
    lengths = [np.count_nonzero(part >= 0, axis=1) for part in (left, right)]
    return _divide(_count_shared(left, right), np.maximum(*lengths))


def _count_shared(left: IntArray, right: IntArray) -> IntArray:
    if len(left) != len(right):
        raise ValueError(f"{len(left)} rankings beside {len(right)}")
    row, column = np.nonzero(left >= 0)
    is_shared = ranks(right, row, left[row, column]) > 0
    return np.bincount(row[is_shared], minlength=len(left))


def _divide(part: IntArray, whole: IntArray) -> FloatArray:
    share: FloatArray = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return share


# ---- Measure how much evidence changes with the wording and how far it lies from the question.

STABLE_BELOW, TRANSITIONAL_BELOW, DELTA_S_TARGET = 0.40, 0.60, 0.45
RBO_CONVERGENT, RBO_CHAOTIC = 0.5, 0.2
SAME_DISTANCE = 0.02
"""Largest difference of two delta_s that cannot tell the anchor from the decoy."""

LambdaState = Literal["convergent", "recursive", "divergent", "chaotic", "undefined"]

LAMBDA_REASONS: dict[str, tuple[LambdaState, str]] = {
    "same_hits_same_order": (
        "convergent",
        (
            "Every wording and seed brings the same evidence. If the question is always missed, "
            "look at whether its evidence is indexed at all."
        ),
    ),
    "seeds_change_hit": (
        "recursive",
        (
            "The same wording hits or misses depending on the seed: approximate search, or ties "
            "broken by chance. Look at ann_recall_at_k against exact search, the index's search "
            "effort, and tie-breaking."
        ),
    ),
    "wordings_change_hit": (
        "divergent",
        (
            "Some wordings find the evidence and others do not: vocabulary mismatch. Look at "
            "the terms the missing wordings share with no gold document; try hybrid retrieval "
            "or query expansion."
        ),
    ),
    "order_drifts": (
        "divergent",
        (
            "The hit does not change but the lists agree only in part: many chunks of near-equal "
            "score. Look at duplicates, chunk size, and a rerank step."
        ),
    ),
    "seeds_and_wordings_change_hit": (
        "chaotic",
        (
            "Both the seed and the wording decide whether the evidence is found. Look at the "
            "recall of the index first (ann_recall_at_k), then at the wordings."
        ),
    ),
    "lists_disagree": (
        "chaotic",
        (
            "The lists of the wordings and seeds have almost nothing in common. Look at whether "
            "the question is too short or ambiguous, and whether the embedding fits this "
            "language and corpus."
        ),
    ),
    "one_run": (
        "undefined",
        "Only one run of this question: nothing to compare. Add paraphrases or seeds.",
    ),
}
"""State, likely cause and advice of each reason."""


def delta_s(query_vectors: ArrayLike, chunk_vectors: ArrayLike, top: ArrayLike) -> FloatArray:
    """Compute 1 - cosine of texts with the mean of the top retrieved chunks.

    Parameters
    ----------
    query_vectors
        [n, d] vector of each question. Pass vectors of anchors or decoys for the distance to them.
    chunk_vectors
        [n_chunks, d] of the same embedding.
    top
        [n, k] chunk codes retrieved, -1 = padding.

    Returns
    -------
    float [n] in [0, 1]
        NaN without a retrieved chunk. A zero vector (a text without any known term) has distance 1.
    """
    from scipy.sparse import csr_array

    query = np.asarray(query_vectors, dtype=np.float64)
    chunks, codes = np.asarray(chunk_vectors, dtype=np.float64), as_codes(top, "top", ndim=2)
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(codes >= 0, axis=1))])
    chosen = codes[codes >= 0]
    shape = len(codes), len(chunks)
    # The cosine needs no mean, because sum and mean of the vectors have one direction.
    total = csr_array((np.ones(len(chosen)), chosen, indptr), shape=shape) @ chunks
    scale = np.linalg.norm(query, axis=1) * np.linalg.norm(total, axis=1)
    cosine = np.divide(
        (query * total).sum(axis=1), scale, out=np.zeros(len(codes)), where=scale > 0
    )
    distance: FloatArray = np.clip(1.0 - cosine, 0.0, 1.0)
    distance[np.diff(indptr) == 0] = np.nan
    return distance


def zones(distance: ArrayLike) -> NDArray[np.str_]:
    """Name the zone of each `delta_s`: `stable`, `transitional`, `risk`, or `undefined` for NaN."""
    values = np.asarray(distance, dtype=np.float64)
    conditions = [np.isnan(values), values < STABLE_BELOW, values < TRANSITIONAL_BELOW]
    return np.select(conditions, ["undefined", "stable", "transitional"], default="risk")


def equally_close(to_anchor: FloatArray, to_decoy: FloatArray) -> BoolArray:
    """Tell whether retrieved chunks are as close to the decoy as to the anchor; False for NaN."""
    close: BoolArray = np.abs(to_anchor - to_decoy) <= SAME_DISTANCE
    return close


@dataclasses.dataclass(frozen=True, slots=True)
class LambdaStates:
    """State of each query, [n_queries] each."""

    state: NDArray[np.str_]
    reason: NDArray[np.str_]
    """Keys of `LAMBDA_REASONS`."""
    convergent_and_hit: BoolArray
    """Whether a query is convergent and every run found the evidence; gates count this."""


def lambda_states(hits: ArrayLike, mean_rbo: ArrayLike) -> LambdaStates:
    """Classify each query over its wordings and seeds.

    The first rule that holds gives the state:

    - `undefined`: the query has fewer than two runs.
    - `chaotic`: both seeds and wordings change the hit, or the overlap is under 0.2.
    - `recursive`: seeds change the hit under the same wording.
    - `divergent`: wordings change the hit under the same seed, or the overlap is under 0.5.
    - `convergent`: none of these rules holds.

    Parameters
    ----------
    hits
        [n_queries, n_wordings, n_seeds], bool or 0/1; NaN where a query has no such run.
    mean_rbo
        [n_queries] mean pairwise rank-biased overlap of the runs' top k.
    """
    pattern, overlap = _cube(hits), np.asarray(mean_rbo, dtype=np.float64)
    runs = np.count_nonzero(~np.isnan(pattern), axis=(1, 2))
    seeds = _varies(pattern, (2,)).any(axis=1)
    wordings = _varies(pattern, (1,)).any(axis=1)
    # Of two runs with different wordings and seeds, the wording is the likelier cause.
    wordings |= _varies(pattern, (1, 2)) & ~seeds
    rules = {
        "one_run": runs <= 1,
        "seeds_and_wordings_change_hit": seeds & wordings,
        "lists_disagree": overlap < RBO_CHAOTIC,
        "seeds_change_hit": seeds,
        "wordings_change_hit": wordings,
        "order_drifts": overlap < RBO_CONVERGENT,
    }
    reason = np.select(list(rules.values()), list(rules), default="same_hits_same_order")
    state = np.array([LAMBDA_REASONS[name][0] for name in reason.tolist()], dtype=np.str_)
    always = (np.where(np.isnan(pattern), 1.0, pattern) > 0).all(axis=(1, 2))
    return LambdaStates(state, reason, (state == "convergent") & always)


def _varies(values: FloatArray, axis: tuple[int, ...]) -> BoolArray:
    """Tell whether the values without NaN differ along the axes."""
    missing = np.isnan(values)
    highest = np.where(missing, -np.inf, values).max(axis=axis, initial=-np.inf)
    lowest = np.where(missing, np.inf, values).min(axis=axis, initial=np.inf)
    varies: BoolArray = highest > lowest
    return varies


# ---- Where the variation of a measure comes from: the question, its wording, or the seed.


@dataclasses.dataclass(frozen=True, slots=True)
class VarianceShares:
    """Shares of the variance of one run; the estimated shares sum to 1.

    A share is NaN if the design cannot estimate the share. With one wording for each question
    `paraphrase` is NaN, with one seed `seed` is NaN. The level above then holds their variance. All
    shares are NaN if all values are equal.
    """

    query: float
    paraphrase: float
    """Share between wordings of a question."""
    seed: float
    """Share between seeds of a wording, with the interaction of wordings and seeds."""
    n_queries: int
    n_wordings: int
    """Number of (question, wording) pairs."""
    n_runs: int


def variance_shares(values: ArrayLike) -> VarianceShares:
    """Split the variance of [n_queries, n_wordings, n_seeds] values, NaN where missing.

    The model is nested and random: question / wording in question / seed in wording. Components are
    the analysis-of-variance (method of moments) estimates for unbalanced data; a negative estimate
    counts as 0. Plain sums of squares are not used. With few wordings they ascribe the noise of the
    seeds to the wording, and both to the question.

    References
    ----------
    Searle, Casella & McCulloch (1992), Variance Components, section 3.6 and chapter 5.
    """
    cube = _cube(values)
    per_cell = np.count_nonzero(~np.isnan(cube), axis=2)
    per_query = per_cell.sum(axis=1)
    n = int(per_query.sum())
    a, cells = int(np.count_nonzero(per_query)), int(np.count_nonzero(per_cell))
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
        explained = noise + between_wordings * (0.0 if np.isnan(wording) else wording)
        query = max(0.0, (ss_query / (a - 1) - explained) / between_queries)
    parts = np.array([query, wording, seed])
    total = float(np.nansum(parts))
    scale = float(np.nanmax(np.abs(cube))) if n else 0.0
    # A total this small is rounding, not variation.
    shares = parts / total if total > (1e-12 * scale) ** 2 else np.full(3, np.nan)
    return VarianceShares(float(shares[0]), float(shares[1]), float(shares[2]), a, cells, n)


class FlipMatrix(NamedTuple):
    """Flips between wordings i and j under the same seed, [n_wordings, n_wordings] each."""

    share: FloatArray
    """Share of questions whose hit differs; a question counts by the share of differing seeds."""
    n: IntArray
    """Number of questions that have both wordings."""


def flip_matrix(hits: ArrayLike) -> FlipMatrix:
    """Compare hits of wordings, [n_queries, n_wordings, n_seeds], 0 or 1, NaN where missing."""
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
    """Value of each question under its worst, average and best wording, [n_queries] each.

    Seeds are averaged inside the wording first. A question without runs has NaN.
    """

    worst: FloatArray
    mean: FloatArray
    best: FloatArray


def wording_range(values: ArrayLike) -> WordingRange:
    """Take worst, mean and best wording of [n_queries, n_wordings, n_seeds] values."""
    cube = _cube(values)
    per_cell = np.count_nonzero(~np.isnan(cube), axis=2)
    cell = np.nan_to_num(cube).sum(axis=2) / np.maximum(per_cell, 1)
    has_runs = per_cell > 0
    n = np.count_nonzero(has_runs, axis=1)
    worst = np.where(has_runs, cell, np.inf).min(axis=1, initial=np.inf)
    best = np.where(has_runs, cell, -np.inf).max(axis=1, initial=-np.inf)
    mean = np.where(has_runs, cell, 0.0).sum(axis=1) / np.maximum(n, 1)
    return WordingRange(*(np.where(n == 0, np.nan, part) for part in (worst, mean, best)))


def _cube(values: ArrayLike) -> FloatArray:
    cube = np.asarray(values, dtype=np.float64)
    if cube.ndim != 3:  # noqa: PLR2004 - the axes of the message
        raise ValueError(
            f"values has shape {cube.shape}; accepted: [n_queries, n_wordings, n_seeds]"
        )
    return cube
