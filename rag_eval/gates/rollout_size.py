"""How many questions a stage of a rollout needs, and what a number of questions can tell.

Belongs here: sample sizes of paired comparisons and the spread that they rest on. What is decided with them is `rollout_decision`.

Differences are relative to the mean of the current strategy, and a spread is the standard deviation of such a difference between independent
questions (groups).
"""

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.measures.arrays import as_codes
from rag_eval.measures.paired import paired_comparison

SEED = 20_240_229
UNKNOWN_BASE = 0.5
"""Mean that is taken where nothing is known of the current strategy; a better one needs fewer questions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """What sample sizes rest on.

    Parameters
    ----------
    base
        Mean of the current strategy.
    relative
        Standard deviation of the difference between the strategies, one independent question, divided by `base`.
    n_groups
        Independent questions that it was estimated from; 0 where the differences are taken to be as large as they can be.
    """

    base: float
    relative: float
    n_groups: int


def largest_spread(base: float = UNKNOWN_BASE) -> Spread:
    """The most that two strategies with this mean can differ, for a measure in [0, 1].

    Two values in [0, 1] with the same mean p differ by ``E d ** 2 <= E |d| <= 2 min(p, 1 - p)``; 1 where p is 0.5.
    """
    return Spread(base, math.sqrt(2 * min(base, 1 - base)) / base, 0)


def estimated_spread(current: ArrayLike, candidate: ArrayLike, groups: ArrayLike) -> Spread | None:
    """Spread of the differences that were seen, None where it cannot be said: under two groups, or a current strategy that scores 0.

    Parameters
    ----------
    current, candidate
        `[n_questions]` values of the two strategies; NaN = not scored.
    groups
        `[n_questions]` group code of each question.

    Notes
    -----
    From the width of the interval of the mean difference, so that few or no differing questions are taken to be as uncertain as the
    decision will take them to be, and never as no spread at all.
    """
    from scipy.stats import t

    left, right = np.asarray(current, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    paired = ~np.isnan(left) & ~np.isnan(right)
    codes = as_codes(groups, "groups")
    if not paired.any():
        return None
    base = float(left[paired].mean())
    found = paired_comparison(
        right, left, codes, SEED, flips=1, unit_range=not np.any(np.abs((right - left)[paired]) > 1)
    )
    n_groups = int(found.n_groups[0])
    if n_groups < 2 or base <= 0:  # noqa: PLR2004 - one group has no spread
        return None
    error = float(found.ci_high[0] - found.ci_low[0]) / 2 / float(t.ppf(0.975, n_groups - 1))
    return Spread(base, error * math.sqrt(n_groups) / base, n_groups)


def questions_needed(spread: float, difference: float, power: float) -> int:
    """Independent questions after which a true difference is told from zero with this power, at two-sided 5 %.

    ``n = ((z[0.975] + z[power]) * spread / difference) ** 2 + z[0.975] ** 2 / 2``, the last part for the t distribution.

    References
    ----------
    Guenther (1981), Sample size formulas for normal theory t tests, The American Statistician 35:243-244; for pairs of yes and no it is
    Connor (1987), Sample size for testing differences in proportions for the paired-sample design, Biometrics 43:207-211, with the
    variance of the alternative in both places.

    Examples
    --------
    >>> questions_needed(0.4, 0.1, 0.8)
    128
    """
    from scipy.stats import norm

    z = float(norm.ppf(0.975))
    return math.ceil(((z + float(norm.ppf(power))) * spread / difference) ** 2 + z**2 / 2)


def detectable(spread: float, n: int, power: float) -> float | None:
    """Smallest true difference that `n` independent questions tell from zero with this power; None for fewer than two."""
    from scipy.stats import t

    if n < 2:  # noqa: PLR2004 - one group has no spread
        return None
    return float(t.ppf(0.975, n - 1) + t.ppf(power, n - 1)) * spread / math.sqrt(n)


def rolled_back(spread: float, n: int, power: float, max_degradation: float) -> float | None:
    """Smallest true degradation that rolls back with this power at `n` independent questions; None for fewer than two.

    It must be told from zero, and more than `max_degradation` must be seen: a true degradation of just that much is seen as less half the time.
    """
    from scipy.stats import t

    told = detectable(spread, n, power)
    if told is None:
        return None
    return max(told, max_degradation + float(t.ppf(power, n - 1)) * spread / math.sqrt(n))
