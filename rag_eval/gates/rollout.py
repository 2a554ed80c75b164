"""Promote, hold or roll back a candidate strategy, from paired values of a base and a candidate.

A candidate is rolled back when it is more than 5 % worse and the 95 % interval excludes zero.
It is promoted when the interval excludes a degradation of 5 % or more. Otherwise it is held.
"""

import dataclasses
import math
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rag_eval.core.arrays import number
from rag_eval.measures.intervals import FEW_DIFFERING, paired_comparison
from rag_eval.measures.overlap import SharedGold, ratio_interval
from rag_eval.storage.hashing import text_hash

Action = Literal["promote", "hold", "roll_back"]
MIN_QUESTIONS: Final = 30
"""Fewest independent questions for a decision."""
MAX_DEGRADATION: Final = 0.05

_HEX_DIGITS = 13  # 52 bits, because a float holds each such value exactly
_TIE = 1e-12  # smaller differences are rounding errors


def assign(question_id: str, share: float, salt: str) -> bool:
    """Tell whether the candidate answers a question while it answers `share` of all questions.

    A question that is assigned at a share of 0.1 is assigned at 0.5 too. `salt` is the name of the
    rollout; another salt gives an independent assignment. The first 52 bits of SHA-256 over salt, a
    zero byte and id, divided by 2 ** 52, are below `share`.

    Examples
    --------
    >>> assign("q17", 0.1, "hybrid"), assign("q17", 0.5, "hybrid")
    (False, True)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}; accepted: 0 to 1")
    return int(text_hash(f"{salt}\0{question_id}")[:_HEX_DIGITS], 16) / 16.0**_HEX_DIGITS < share


class Range(NamedTuple):
    """A value and its 95 % interval; None where it is undefined."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


UNDEFINED: Final = Range()


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """A decision about a candidate, with the first reason as code and sentence, and its figures.

    `base`, `candidate`: Means over the questions that both were scored on.
    `difference`: candidate - base. `degradation`: Relative to the base, positive is worse.
    """

    action: Action
    code: str
    reason: str
    n_questions: int = 0
    n_effective: float = 0.0
    base: float | None = None
    candidate: float | None = None
    difference: Range = UNDEFINED
    degradation: Range = UNDEFINED


def decide(
    base: ArrayLike, candidate: ArrayLike, gold: SharedGold, *, higher_is_better: bool = True
) -> Decision:
    """Decide about a candidate from values [n_questions] of the two strategies; NaN = not scored.

    The interval of the difference is that of `paired_comparison`. The interval of the relative
    degradation uses the linearised spread of the ratio of the two means.
    """
    left, right = np.asarray(base, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    paired = ~np.isnan(left) & ~np.isnan(right)
    n_before, n_paired = int((~np.isnan(left)).sum()), int(paired.sum())
    if not n_paired:
        return Decision("hold", "too_few_questions", "no question was scored with both strategies")
    left, right, gold = left[paired], right[paired], gold.take(paired)
    unit = not np.any(np.abs(right - left) > 1)
    pair = paired_comparison(right, left, gold, higher_is_better=higher_is_better, unit_range=unit)
    low, high, n_effective = (
        float(each[0]) for each in (pair.ci_low, pair.ci_high, pair.n_effective)
    )
    # How much worse the candidate is on each question, and the interval of its mean.
    loss = left - right if higher_is_better else right - left
    least, most = (-high, -low) if higher_is_better else (low, high)
    mean = float(left.mean())
    # A mean of 0 has no relative degradation.
    worse = [each / mean if mean > 0 else math.nan for each in (float(loss.mean()), least, most)]
    # Where few questions differ, the wider interval of the difference stays.
    if mean > 0 and np.count_nonzero(np.abs(loss) > _TIE) >= FEW_DIFFERING:
        spread = ratio_interval(loss, left, gold, unit_range=False)
        worse[1:] = float(spread.low[0]), float(spread.high[0])
    degradation = Range(*map(number, worse))
    value, _, highest = degradation
    on = f"on {n_paired} questions (worth {n_effective:.0f} independent ones)"
    action: Action = "hold"
    if n_effective < MIN_QUESTIONS:
        code, reason = "too_few_questions", f"fewer than {MIN_QUESTIONS} independent questions {on}"
    elif least > 0 and (value is None or value > MAX_DEGRADATION):
        action, code = "roll_back", "degraded"
        reason = f"the candidate is more than {MAX_DEGRADATION:.0%} worse {on}, and not by chance"
    elif value is None or highest is None:
        code, reason = "no_base", f"the base scores 0 {on}; a relative degradation is undefined"
    elif highest >= MAX_DEGRADATION:
        code, reason = "not_excluded", f"a degradation of {highest:.1%} is still possible {on}"
    elif (n_lost := n_before - n_paired) >= MAX_DEGRADATION * n_before:
        code = "not_paired"
        reason = f"{n_lost} of {n_before} questions were scored with the base only"
    else:
        action, code = "promote", "not_worse"
        reason = f"a degradation of {MAX_DEGRADATION:.0%} or more is excluded {on}"
    means = number(mean), number(right.mean())
    difference = Range(*map(number, (float(pair.delta[0]), low, high)))
    return Decision(action, code, reason, n_paired, n_effective, *means, difference, degradation)
