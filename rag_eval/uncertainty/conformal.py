"""Split conformal K: how deep a list must be so that a stated share of questions has gold in it.

Belongs here: the one threshold that all forms of K rest on, the fixed K and the K of controlled recall. K by predicted risk is
`conformal_risk`, what is shown beside a K `conformal_report`.

Notes
-----
The unit of exchangeability is the group of questions that share gold, so questions of one group are never counted as independent. Take G
calibration groups and one more, all in random order, and a question drawn at random from all questions of the G + 1: its score is at most
the level's quantile of the scores of all of them with probability `level` or more. The scores of its own group are not known, so the whole
group is put at infinity, which only raises the quantile. The new group's size is not known either; coverage falls linearly with it to
first order, so the mean size of the group of a random question stands for it (exact where groups are equally large). This keeps every
question and draws none, so the same data give the same K; one drawn question a group would be valid too, and noisier.

The mean over questions of 1 - recall@K is such a share as well: of gold items, each weighing 1 / the number of gold items of its
question, so that controlling it (a loss in [0, 1] that falls with K) is the same threshold on the ranks of all gold items.

References
----------
Papadopoulos et al. (2002), ECML: 345-356 (split conformal). Dunn, Wasserman, Ramdas (2023), JASA 118:2491-2502 (groups). Angelopoulos et
al. (2024), ICLR, Conformal risk control.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_ROUNDING = 1e-9
"""Share of the total weight that is rounding: 90 % of 10 equal weights is reached by 9."""


def new_group_mass(group: IntArray) -> float:
    """Give the mean number of questions in the group of a random question: what a new group weighs.

    Parameters
    ----------
    group
        int64 [n] group codes, not negative; without any, 1.
    """
    if not len(group):
        return 1.0
    sizes = np.unique(group, return_counts=True)[1].astype(np.float64)
    return float((sizes**2).sum() / sizes.sum())


def threshold(scores: FloatArray, weight: FloatArray, mass: float, level: float) -> float:
    """Give the smallest score that holds `level` of all weight, `mass` of which lies at infinity.

    Parameters
    ----------
    scores
        float64 [m]; inf = beyond what was looked at.
    weight
        float64 [m], not negative.
    mass
        Weight of what is to come, over 0.
    level
        Share in (0, 1).

    Returns
    -------
    float
        One of the scores, or inf where too little weight is finite.

    Examples
    --------
    >>> threshold(np.arange(1.0, 10.0), np.ones(9), 1.0, 0.9)
    9.0
    >>> threshold(np.arange(1.0, 9.0), np.ones(8), 1.0, 0.9)
    inf
    """
    order = np.argsort(scores, kind="stable")
    held = np.cumsum(weight[order])
    total = float(weight.sum()) + mass
    at = int(np.searchsorted(held, level * total - _ROUNDING * total))
    return float(scores[order[at]]) if at < len(scores) else float("inf")


def check(rank: FloatArray, group: IntArray, depth: int, level: float = 0.5) -> None:
    """Refuse ranks, groups, depths and levels that are none.

    Raises
    ------
    ValueError
        Parts of different lengths; a rank that is NaN, under 1, or finite and over the depth; negative group codes; a depth under 1; a level
        outside (0, 1).
    """
    if rank.shape != group.shape or rank.ndim != 1:
        raise ValueError(
            f"ranks have shape {rank.shape}, groups {group.shape}; accepted: one of each a question"
        )
    if not 0 < level < 1 or depth < 1:
        raise ValueError(
            f"level {level}, depth {depth}; accepted: a level between 0 and 1, a depth of 1 or more"
        )
    wrong = ~((rank >= 1) & ((rank <= depth) | np.isinf(rank)))
    if wrong.any():
        raise ValueError(
            f"question {int(np.argmax(wrong))} has rank {rank[wrong][0]}; accepted: 1 to the depth {depth}, or inf where no gold is that high"
        )
    if len(group) and group.min() < 0:
        raise ValueError("group codes must not be negative")


def fixed_k(rank: FloatArray, group: IntArray, depth: int, level: float) -> int | None:
    """Give the smallest K such that at least `level` of new questions have gold in the top K.

    Parameters
    ----------
    rank
        float64 [n] rank of the first gold, from 1; inf where the list of `depth` has none.
    group
        int64 [n] unit of inference.
    depth
        Length of the lists.
    level
        Share of questions, 1 - alpha.

    Returns
    -------
    int or None
        None: not attainable, K would lie beyond the depth.
    """
    check(rank, group, depth, level)
    found = threshold(rank, np.ones(len(rank)), new_group_mass(group), level)
    return int(found) if np.isfinite(found) else None


def recall_k(
    gold_rank: FloatArray, gold_question: IntArray, group: IntArray, depth: int, level: float
) -> int | None:
    """Give the smallest K such that the expected recall@K of a new question is at least `level`.

    Parameters
    ----------
    gold_rank
        float64 [m] rank of each gold item of each question, from 1; inf where the list of `depth` lacks it.
    gold_question
        int64 [m] index of its question, 0 to n - 1; a question without gold items is left out.
    group
        int64 [n] unit of inference of the questions.
    depth, level
        As for `fixed_k`.

    Returns
    -------
    int or None
        None: not attainable within the depth.
    """
    check(gold_rank, group[gold_question], depth, level)
    items = np.bincount(gold_question, minlength=len(group))
    found = threshold(
        gold_rank, 1.0 / items[gold_question], new_group_mass(group[items > 0]), level
    )
    return int(found) if np.isfinite(found) else None
